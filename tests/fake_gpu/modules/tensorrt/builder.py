"""The fake's builder, parser and serialisation: from an ONNX file to the bytes of a "plan"."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import TYPE_CHECKING, Any

from .hooks import called, device, note, require, version
from .types import (
    BuilderFlag,
    DataType,
    IHostMemory,
    ILogger,
    IProgressMonitor,
    MemoryPoolType,
    NetworkDefinitionCreationFlag,
    is_made,
)

if TYPE_CHECKING:
    import onnx

MAGIC = b"FAKE TENSORRT PLAN\n"
#: By ONNX's numbers of element types.
_TYPES = {
    1: DataType.FLOAT,
    2: DataType.UINT8,
    3: DataType.INT8,
    6: DataType.INT32,
    7: DataType.INT64,
    9: DataType.BOOL,
    10: DataType.HALF,
    16: DataType.BF16,
}


def pack_plan(header: dict[str, Any], model: bytes) -> bytes:
    """A fake plan: a line of magic, a line of JSON, the ONNX with its weights in it."""
    return MAGIC + json.dumps(header).encode() + b"\n" + model


def unpack_plan(data: bytes) -> tuple[dict[str, Any], bytes] | None:
    """(header, ONNX) of a fake plan, None where it isn't one that this "GPU" accepts."""
    if not data.startswith(MAGIC):
        return None
    head, _, model = data[len(MAGIC) :].partition(b"\n")
    header: dict[str, Any] = json.loads(head)
    return (header, model) if header["device"] == device() else None


class ITensor:
    def __init__(self, name: str, dtype: DataType, shape: tuple[int, ...]) -> None:
        self.name = name
        self.dtype = dtype
        self.shape = shape


class INetworkDefinition:
    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self._inputs: list[ITensor] = []
        self._outputs: list[ITensor] = []
        self._model: onnx.ModelProto | None = None

    @property
    def num_inputs(self) -> int:
        return len(self._inputs)

    @property
    def num_outputs(self) -> int:
        return len(self._outputs)

    def get_input(self, index: int) -> ITensor:
        return self._inputs[index]

    def get_output(self, index: int) -> ITensor:
        return self._outputs[index]


class ITimingCache:
    def __init__(self, data: bytes) -> None:
        self._owner = device()
        self._entries: set[str] = set()
        if data:
            document = json.loads(data)
            self._owner = document["device"]
            self._entries = set(document["entries"])

    def serialize(self) -> IHostMemory:
        document = {"device": self._owner, "entries": sorted(self._entries)}
        return IHostMemory(json.dumps(document).encode())


class IOptimizationProfile:
    def __init__(self) -> None:
        self._shapes: dict[str, tuple[tuple[int, ...], ...]] = {}

    def set_shape(self, input: str, min: Any, opt: Any, max: Any) -> None:
        # Says nothing of min > opt, as the real one: adding the profile does.
        called("set_shape", f"{input} {tuple(min)} {tuple(opt)} {tuple(max)}")
        self._shapes[input] = (tuple(min), tuple(opt), tuple(max))

    def _valid(self) -> bool:
        for least, best, most in self._shapes.values():
            if not len(least) == len(best) == len(most):
                return False
            if not all(0 <= a <= b <= c for a, b, c in zip(least, best, most, strict=True)):
                return False
        return True


class IBuilderConfig:
    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self._workspace: int | None = None
        self._profiles: list[IOptimizationProfile] = []
        self._cache: ITimingCache | None = None
        self._flags = {BuilderFlag.TF32}  # as the real one begins
        self.builder_optimization_level = 3
        self.progress_monitor: IProgressMonitor | None = None

    def set_memory_pool_limit(self, pool: MemoryPoolType, pool_size: int) -> None:
        called("set_memory_pool_limit", f"{pool.name} {pool_size}")
        require(isinstance(pool, MemoryPoolType), "pool must be a MemoryPoolType")
        require(pool_size > 0, "a pool of no size")
        self._workspace = pool_size

    def clear_flag(self, flag: BuilderFlag) -> None:
        called("clear_flag", flag.name)
        require(isinstance(flag, BuilderFlag), "flag must be a BuilderFlag")
        self._flags.discard(flag)

    def add_optimization_profile(self, profile: IOptimizationProfile) -> int:
        if called("add_optimization_profile") or not profile._valid():
            self._builder._say(ILogger.ERROR, "optimization profile is invalid")
            return -1
        self._profiles.append(profile)
        return len(self._profiles) - 1

    def create_timing_cache(self, serialized_timing_cache: bytes) -> ITimingCache | None:
        if called("create_timing_cache", str(len(serialized_timing_cache))):
            return None
        try:
            return ITimingCache(bytes(serialized_timing_cache))
        except ValueError:
            self._builder._say(ILogger.WARNING, "the timing cache can't be read")
            return None

    def set_timing_cache(self, cache: ITimingCache, ignore_mismatch: bool) -> bool:
        if called("set_timing_cache") or (cache._owner != device() and not ignore_mismatch):
            return False
        self._cache = cache
        return True

    def get_timing_cache(self) -> ITimingCache | None:
        return None if called("get_timing_cache") else self._cache


class Builder:
    def __init__(self, logger: ILogger) -> None:
        if called("Builder"):
            # As pybind11 puts it where the factory gives nothing.
            raise TypeError("pybind11::init(): factory function returned nullptr")
        require(isinstance(logger, ILogger) and is_made(logger), "the logger wasn't initialised")
        self._logger = logger

    def _say(self, severity: ILogger.Severity, text: str) -> None:
        self._logger.log(severity, text)

    def create_network(self, flags: int = 0) -> INetworkDefinition:
        called("create_network")
        strongly_typed = 1 << int(NetworkDefinitionCreationFlag.STRONGLY_TYPED)
        require(flags == strongly_typed, "a network that isn't strongly typed")
        return INetworkDefinition(self)

    def create_builder_config(self) -> IBuilderConfig:
        called("create_builder_config")
        return IBuilderConfig(self)

    def create_optimization_profile(self) -> IOptimizationProfile:
        called("create_optimization_profile")
        return IOptimizationProfile()

    def build_serialized_network(
        self, network: INetworkDefinition, config: IBuilderConfig
    ) -> IHostMemory | None:
        require(network._builder is self and config._builder is self, "of another builder")
        require(network._model is not None, "nothing was parsed")
        assert network._model is not None
        require(config._workspace is not None, "WORKSPACE wasn't limited")
        assert config._workspace is not None
        require(BuilderFlag.TF32 not in config._flags, "float32 would be computed in TF32")
        level, profiles = config.builder_optimization_level, config._profiles
        details = f"workspace={config._workspace} level={level} profiles={len(profiles)}"
        if called("build_serialized_network", details):
            self._say(ILogger.ERROR, "Error Code 10: Internal Error (a fake failure)")
            return None
        if not self._check_profiles(network, profiles):
            return None
        if not self._have_memory(config._workspace, level, len(profiles)):
            return None
        if not self._work(config, len(network._model.graph.node)):
            self._say(ILogger.ERROR, "the build was cancelled")
            return None
        header = {
            "version": version(),
            "device": device(),
            "level": level,
            "inputs": [[i.name, i.dtype.value, list(i.shape)] for i in network._inputs],
            "outputs": [[o.name, o.dtype.value, list(o.shape)] for o in network._outputs],
            "profiles": [
                {name: [list(shape) for shape in shapes] for name, shapes in item._shapes.items()}
                for item in profiles
            ],
        }
        header.update(self._more(config))
        return IHostMemory(pack_plan(header, network._model.SerializeToString()))

    def _more(self, config: IBuilderConfig) -> dict[str, Any]:
        """What else an engine of this release has in its header."""
        return {}

    def _check_profiles(
        self, network: INetworkDefinition, profiles: list[IOptimizationProfile]
    ) -> bool:
        for tensor in network._inputs:
            if -1 not in tensor.shape:
                continue
            if not profiles or any(tensor.name not in item._shapes for item in profiles):
                self._say(ILogger.ERROR, f"{tensor.name} is dynamic, but has no profile")
                return False
            for item in profiles:
                for shape in item._shapes[tensor.name]:
                    fits = len(shape) == len(tensor.shape) and all(
                        want in (-1, size) for want, size in zip(tensor.shape, shape, strict=True)
                    )
                    if not fits:
                        self._say(ILogger.ERROR, f"{tensor.name}: {shape} isn't its shape")
                        return False
        return True

    def _have_memory(self, workspace: int, level: int, profiles: int) -> bool:
        limit = os.environ.get("FAKE_TRT_MEMORY")
        needed = workspace + (level << 25) + (profiles << 26)
        if limit is None or needed <= int(limit):
            return True
        note(f"out of memory: {needed} of {limit}")
        if os.environ.get("FAKE_TRT_OOM") == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)
        self._tell_lack(needed)
        return False

    def _tell_lack(self, needed: int) -> None:
        text = "Error Code 2: OutOfMemory (Requested size was {} bytes.)"
        self._say(ILogger.ERROR, text.format(needed))

    def _work(self, config: IBuilderConfig, nodes: int) -> bool:
        """Goes through the phases, and "measures" what the timing cache doesn't hold."""
        monitor = config.progress_monitor
        if monitor is None:
            return True
        require(is_made(monitor), "the progress monitor wasn't initialised")
        root, inner = "Building engine from subgraph", "Tactic selection"
        entries = set() if config._cache is None else config._cache._entries
        measured = 0
        monitor.phase_start(root, None, 2)
        go_on = monitor.step_complete(root, 0)
        steps = max(len(config._profiles), 1) * nodes
        monitor.phase_start(inner, root, steps)
        for step in range(steps):
            called("tactic")
            entry = f"{step} of {config._profiles[step // nodes]._shapes}" if nodes else ""
            if entry not in entries:
                measured += 1
                entries.add(entry)
            go_on = go_on and monitor.step_complete(inner, step)
            if not go_on:
                return False
        monitor.phase_finish(inner)
        monitor.step_complete(root, 1)
        monitor.phase_finish(root)
        note(f"measured {measured} of {steps}")
        return True


class ParserError:
    def __init__(self, number: int, node: onnx.NodeProto | None, text: str) -> None:
        self._number, self._node, self._text = number, node, text

    def code(self) -> object:
        return "UNSUPPORTED_NODE"

    def desc(self) -> str:
        return self._text

    def node(self) -> int:
        return self._number

    def node_name(self) -> str:
        return "" if self._node is None else self._node.name

    def node_operator(self) -> str:
        return "" if self._node is None else self._node.op_type


class OnnxParser:
    _last_opset = 20

    def __init__(self, network: INetworkDefinition, logger: ILogger) -> None:
        called("OnnxParser")
        require(is_made(logger), "the logger wasn't initialised")
        self._network = network
        self._logger = logger
        self._errors: list[ParserError] = []

    @property
    def num_errors(self) -> int:
        return len(self._errors)

    def get_error(self, index: int) -> ParserError:
        return self._errors[index]

    def parse_from_file(self, model: str) -> bool:
        if called("parse_from_file", os.path.basename(model)):
            self._logger.log(ILogger.ERROR, "a fake failure of the parser")
            return False
        import onnx  # it takes a second, which not every process needs

        try:
            loaded = onnx.load(model)  # with the weights beside it
        except Exception as error:
            self._logger.log(ILogger.ERROR, f"{model} can't be parsed: {error}")
            return False
        lacks = set(filter(None, os.environ.get("FAKE_TRT_LACKS", "").split(",")))
        for number, node in enumerate(loaded.graph.node):
            if node.op_type in lacks:
                text = f"no importer registered for op: {node.op_type}"
                self._errors.append(ParserError(number, node, text))
        for item in loaded.opset_import:
            if item.domain == "" and item.version > self._last_opset:
                text = f"opset {item.version} is newer than {self._last_opset}"
                self._errors.append(ParserError(-1, None, text))
        initializers = {item.name for item in loaded.graph.initializer}
        graph = loaded.graph
        self._network._inputs = [_tensor(i) for i in graph.input if i.name not in initializers]
        self._network._outputs = [_tensor(item) for item in graph.output]
        self._network._model = loaded
        return not self._errors


def _tensor(item: onnx.ValueInfoProto) -> ITensor:
    kind = item.type.tensor_type
    sizes = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in kind.shape.dim]
    return ITensor(item.name, _TYPES[kind.elem_type], tuple(sizes))
