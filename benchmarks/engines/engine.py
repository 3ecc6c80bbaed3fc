"""Builds, opens and times engines on a device with TensorRT, for zoo.py and shapes.py."""

import contextlib
import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgecompile.runtime.finish.engine_build import BuildJob, EngineJob, build_engines
from edgecompile.runtime.format.recipe.schema import ShapeRange
from edgecompile.runtime.gpu.buffers import Buffers
from edgecompile.runtime.gpu.cuda import Cuda
from edgecompile.runtime.gpu.log import BuildLog, make_logger
from edgecompile.runtime.gpu.tensorrt import TrtContext, TrtEngine

Shapes = Mapping[str, tuple[int, ...]]
Arrays = Mapping[str, Any]

_SM = 1  # CU_DEV_RESOURCE_TYPE_SM
_RESOURCE_BYTES, _SM_COUNT_AT = 144, 96  # of a CUdevResource
_MIN_RUNS, _MAX_RUNS, _SECONDS = 20, 300, 0.12


def build(
    onnx: Path,
    profiles: Sequence[Mapping[str, Sequence[Sequence[int]]]],
    output: Path,
    level: int,
    float32: Sequence[str] | None = None,
) -> dict[str, Any]:
    """As ``finish`` builds; profiles are (smallest, tuned for, largest) by input, ``float32`` the recipe's."""
    engine = EngineJob(
        onnx=str(onnx),
        profiles=tuple(
            {name: ShapeRange(*(tuple(shape) for shape in item)) for name, item in profile.items()}
            for profile in profiles
        ),
        float32=None if float32 is None else tuple(float32),
    )
    job = BuildJob(
        engines=(engine,),
        workspace_bytes=1 << 30,
        optimization_level=level,
        timing_cache=str(output.with_suffix(".cache")),
        output=str(output),
    )
    return build_engines(job, lambda message: None)


class Opened:
    """An engine with scratch memory for one context at a time to run in."""

    def __init__(self, path: Path) -> None:
        import tensorrt

        self.cuda = Cuda.load()
        before = self.cuda.memory()[0]
        log = BuildLog()
        runtime = tensorrt.Runtime(make_logger(log))
        native = runtime.deserialize_cuda_engine(path.read_bytes())
        if native is None:
            raise RuntimeError("; ".join(log.errors))
        self.engine = TrtEngine(self.cuda, runtime, native, log, str(path), {})
        self.memory_bytes = before - self.cuda.memory()[0]
        sizes = [self.engine.scratch_bytes(index) for index in range(self.engine.profiles)]
        self.scratch_bytes = max(sizes)
        self._scratch = self.cuda.malloc(max(self.scratch_bytes, 256))

    def context(self, profile: int, stream: int) -> TrtContext:
        """A context of one profile."""
        return self.engine.open(profile, self._scratch, self.scratch_bytes, stream)


class Program:
    """A context at one shape after the other, with a CUDA graph of each if ``graph``."""

    def __init__(self, opened: Opened, profile: int, stream: int, largest: Shapes) -> None:
        self._cuda, self._stream = opened.cuda, stream
        self._context = opened.context(profile, stream)
        self._engine = opened.engine
        outputs = self._context.reshape(self._taken(largest))
        dtypes = {name: np.dtype(dtype) for name, dtype in self._context.dtypes.items()}
        taken = self._taken(largest)
        self._buffers = Buffers(
            self._cuda,
            {name: (dtypes[name], tuple(shape)) for name, shape in taken.items()},
            {name: (dtypes[name], shape) for name, shape in outputs.items()},
            False,
        )
        self._context.bind(self._buffers.addresses)
        self._shapes: Shapes | None = None
        self._outputs: Shapes = {}
        self._graph = 0

    def _taken(self, shapes: Mapping[str, Any]) -> dict[str, Any]:
        return {name: shapes[name] for name in self._engine.inputs}

    def run(self, inputs: Arrays, graph: bool = False) -> dict[str, Any]:
        """Copies inputs there, runs, and copies outputs back."""
        inputs = self._taken(inputs)
        shapes = {name: array.shape for name, array in inputs.items()}
        if shapes != self._shapes:
            self._outputs = self._context.reshape(shapes)
            self._shapes = shapes
            self._drop_graph()
        for name, array in inputs.items():
            self._buffers.view(name, array.shape)[...] = array
        if graph and not self._graph:
            self._queue()
            self._cuda.synchronize(self._stream)
            self._cuda.begin_capture(self._stream)
            self._queue()
            captured = self._cuda.end_capture(self._stream)
            self._graph = self._cuda.instantiate(captured)
            self._cuda.destroy_graph(captured)
        if graph:
            self._cuda.launch(self._graph, self._stream)
        else:
            self._queue()
        self._cuda.synchronize(self._stream)
        outputs = self._outputs.items()
        return {name: self._buffers.view(name, shape).copy() for name, shape in outputs}

    def _queue(self) -> None:
        assert self._shapes is not None
        sent, fetched = self._buffers.spans({**self._shapes, **self._outputs})
        self._buffers.send(sent, self._stream)
        self._context.enqueue(self._stream)
        self._buffers.fetch(fetched, self._stream)

    def _drop_graph(self) -> None:
        if self._graph:
            self._cuda.destroy_executable(self._graph)
        self._graph = 0

    def close(self) -> None:
        """Gives memory back."""
        self._drop_graph()
        self._context.close()
        self._buffers.close()


def time_call(call: Callable[[], Any]) -> dict[str, float]:
    """Milliseconds of a call: median, least, and how many calls."""
    for _ in range(5):
        call()
    times = []
    started = time.perf_counter()
    while len(times) < _MAX_RUNS:
        begun = time.perf_counter()
        call()
        ended = time.perf_counter()
        times.append((ended - begun) * 1e3)
        if len(times) >= _MIN_RUNS and ended - started > _SECONDS:
            break
    return {"ms": float(np.median(times)), "least_ms": min(times), "calls": len(times)}


def make_stream(multiprocessors: int) -> int:
    """A stream on a number of the GPU's multiprocessors, by a green context; 0: on all of them."""
    cuda = Cuda.load()
    if not multiprocessors:
        return cuda.stream()
    driver = ctypes.CDLL("libcuda.so.1")
    everything = ctypes.create_string_buffer(_RESOURCE_BYTES)
    part, rest = (ctypes.create_string_buffer(_RESOURCE_BYTES) for _ in range(2))
    groups, device = ctypes.c_uint(1), ctypes.c_int()
    descriptor, context, stream = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()

    def check(name: str, *arguments: Any) -> None:
        result = getattr(driver, name)(*arguments)
        if result:
            raise RuntimeError(f"{name} failed: {result}")

    check("cuDeviceGet", ctypes.byref(device), 0)
    check("cuDeviceGetDevResource", device, everything, _SM)
    count = ctypes.c_uint(multiprocessors)
    split = (part, ctypes.byref(groups), everything, rest, ctypes.c_uint(0), count)
    check("cuDevSmResourceSplitByCount", *split)
    got = ctypes.c_uint.from_buffer(part, _SM_COUNT_AT).value
    if got != multiprocessors:
        raise RuntimeError(f"the driver gives {got} multiprocessors")
    check("cuDevResourceGenerateDesc", ctypes.byref(descriptor), part, ctypes.c_uint(1))
    check("cuGreenCtxCreate", ctypes.byref(context), descriptor, device, ctypes.c_uint(1))
    check("cuGreenCtxStreamCreate", ctypes.byref(stream), context, ctypes.c_uint(1), 0)
    return stream.value or 0


@contextlib.contextmanager
def named(line: dict[str, Any]) -> Any:
    """Puts whatever is raised into ``line``."""
    try:
        yield
    except Exception as error:  # every failure is a line of the table
        line["error"] = f"{type(error).__name__}: {error}"[:600]
