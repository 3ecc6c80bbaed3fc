"""TensorRT's engines and contexts, as ``engines`` describes them.

Only names that TensorRT 8.6, 10.3, 10.16 and 11.4 all have; releases.py has the others. TensorRT reports failures by None or False,
its bindings some of them by a RuntimeError without a reason. Why is in the log alone, so the log's last
words are part of every message here.
"""

import ctypes
import hashlib
import itertools
import os
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional

from ..base.errors import GpuError, UnfinishedBundleError
from ..format.document import shorten
from ..format.manifest.schema import Manifest
from .cache import FinishedEngine
from .cuda import Cuda
from .device import tensorrt_version
from .engines import Engine, JoinedEngine, Sizes
from .log import BuildLog, make_logger
from .releases import find_release

if TYPE_CHECKING:
    import tensorrt

_DTYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "INT64": "int64",
    "INT32": "int32",
    "INT8": "int8",
    "UINT8": "uint8",
    "BOOL": "bool",
}
_AGAIN = "finish the bundle again: python -m edgecompile.runtime finish BUNDLE --force"


def load_engine(cuda: Cuda, finished: FinishedEngine, manifest: Manifest) -> Engine:
    """Reads a file of engines, compares its hash and gives the very bytes to TensorRT.

    Raises:
        UnfinishedBundleError: the file is missing or isn't what was finished.
        GpuUnavailableError: there is no ``tensorrt``.
        GpuError: TensorRT refuses the engine, or it isn't of this manifest's inputs and outputs.
    """
    tensorrt_version()
    import tensorrt

    log = BuildLog()
    logger = make_logger(log)
    find_release().prepare(logger)
    runtime = tensorrt.Runtime(logger)
    engines: List[TrtEngine] = []
    try:
        for plan in _plans(finished):
            engine = runtime.deserialize_cuda_engine(plan)
            if engine is None:
                text = "{}: TensorRT {} doesn't accept this engine{}"
                text = text.format(finished.path, tensorrt.__version__, _last_words(log))
                raise GpuError(text, _AGAIN)
            engines.append(TrtEngine(cuda, runtime, engine, log, finished.path, finished.tensors))
            engines[-1].check(manifest)
        result: Engine = engines[0] if len(engines) == 1 else JoinedEngine(engines)
        if max(finished.profile_of) >= result.profiles:
            text = "{}: has {} profiles, must have {}"
            text = text.format(finished.path, result.profiles, max(finished.profile_of) + 1)
            raise GpuError(text, _AGAIN)
    except BaseException:
        for item in engines:
            item.close()
        raise
    return result


def find_refusal(finished: FinishedEngine) -> str:
    """Why TensorRT doesn't take an engine whose key fits; "" if it does, or if memory ran out.

    Plans are bound to more than the versions that can be asked for, such as the build of TensorRT.

    Raises:
        UnfinishedBundleError, GpuUnavailableError: see ``load_engine``.
    """
    tensorrt_version()
    import tensorrt

    log = BuildLog()
    logger = make_logger(log)
    find_release().prepare(logger)
    runtime = tensorrt.Runtime(logger)
    if all(runtime.deserialize_cuda_engine(plan) is not None for plan in _plans(finished)):
        return ""
    if log.about_memory():
        return ""
    text = "TensorRT {} doesn't accept it{}"
    return text.format(tensorrt.__version__, _last_words(log))


def _plans(finished: FinishedEngine) -> List[bytes]:
    """The bytes of each engine in the file."""
    data = _read(finished)
    if not finished.plans:
        return [data]
    ends = list(itertools.accumulate(finished.plans))
    return [data[end - size : end] for size, end in zip(finished.plans, ends)]


def _read(finished: FinishedEngine) -> bytes:
    try:
        fd = os.open(finished.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        with os.fdopen(fd, "rb") as stream:
            data = stream.read(finished.size + 1)
    except OSError as error:
        text = "{}: can't be read: {}".format(finished.path, error.strerror)
        raise UnfinishedBundleError(text, _AGAIN) from None
    sha256 = hashlib.sha256(data).hexdigest()
    if len(data) != finished.size or sha256 != finished.sha256:
        text = "{}: has {} bytes or more with SHA-256 {}, must have {} with {}"
        text = text.format(finished.path, len(data), sha256, finished.size, finished.sha256)
        raise UnfinishedBundleError(text, _AGAIN)
    return data


def _last_words(log: BuildLog) -> str:
    words = log.errors or log.warnings
    return ": " + "; ".join(words[-3:]) if words else ", and its log doesn't say why"


class TrtEngine:
    """A deserialised engine; made by ``load_engine``."""

    def __init__(
        self,
        cuda: Cuda,
        runtime: "tensorrt.Runtime",
        engine: "tensorrt.ICudaEngine",
        log: BuildLog,
        label: str,
        tensors: Mapping[str, str],
    ) -> None:
        """``tensors``: what the engine calls an input or output, by the name that it has here."""
        import tensorrt

        self.label = label
        self.profiles = int(engine.num_optimization_profiles)
        self._cuda = cuda
        self._runtime: Optional[tensorrt.Runtime] = runtime
        self._engine: Optional[tensorrt.ICudaEngine] = engine
        self._log = log
        self._release = find_release()
        self._contexts: List[TrtContext] = []
        self._tensors = dict(tensors)
        names = {native: name for name, native in tensors.items()}
        self.inputs: Dict[str, str] = {}
        self.outputs: Dict[str, str] = {}
        for index in range(engine.num_io_tensors):
            name = engine.get_tensor_name(index)
            dtype = engine.get_tensor_dtype(name)
            is_input = engine.get_tensor_mode(name) == tensorrt.TensorIOMode.INPUT
            table = self.inputs if is_input else self.outputs
            table[names.get(name, name)] = _DTYPES.get(dtype.name, str(dtype))

    def native(self, name: str) -> str:
        """TensorRT's name of an input or output."""
        return self._tensors.get(name, name)

    def check(self, manifest: Manifest) -> None:
        """Raises GpuError unless inputs and outputs have the manifest's names and dtypes, or those that
        this TensorRT has in their place."""
        problems = []
        for kind, tensors, specs in (
            ("inputs", self.inputs, manifest.inputs),
            ("outputs", self.outputs, manifest.outputs),
        ):
            narrowed = self._release.narrowed
            expected = {spec.name: narrowed.get(spec.dtype, spec.dtype) for spec in specs}
            if tensors != expected:
                text = "has the {} {}, must have {}"
                problems.append(text.format(kind, _pairs(tensors), _pairs(expected)))
        if problems:
            raise GpuError("{}: {}".format(self.label, "; ".join(problems)), _AGAIN)

    def scratch_bytes(self, profile: int) -> int:
        """TensorRT's ranges of the profile."""
        assert self._engine is not None
        return self._release.scratch_bytes(self._engine, profile)

    def open(self, profile: int, scratch: int, size: int, stream: int) -> "TrtContext":
        """See ``engines.Engine.open``."""
        assert self._engine is not None
        context = self._release.create_context(self._engine, scratch, size)
        if context is None:
            raise self.failure("creating a context of profile {}".format(profile))
        doing = "choosing profile {}".format(profile)
        try:
            done = context.set_optimization_profile_async(profile, stream)
        except RuntimeError as error:
            raise self.failure(doing, error) from None
        if not done:
            raise self.failure(doing)
        # The profile isn't chosen before that is done, and shapes are checked against it.
        self._cuda.synchronize(stream)
        result = TrtContext(self, context)
        self._contexts.append(result)
        return result

    def failure(self, doing: str, error: Optional[RuntimeError] = None) -> GpuError:
        """The error where TensorRT said no, or its bindings raised ``error``."""
        if error is not None:
            doing += " ({})".format(shorten(error, 200))
        text = "{}: TensorRT failed at {}{}".format(self.label, doing, _last_words(self._log))
        self._log.errors.clear()
        return GpuError(text)

    def forget(self, context: "TrtContext") -> None:
        """A context was closed."""
        if context in self._contexts:
            self._contexts.remove(context)

    def close(self) -> None:
        """See ``engines.Engine.close``: TensorRT gives back what nobody refers to."""
        for context in list(self._contexts):
            context.close()
        self._engine = None
        self._runtime = None

    def abandon(self) -> None:
        """See ``engines.Engine.abandon``: one reference more than can ever be given up."""
        items: List[Any] = [self._runtime, self._engine]
        items += [context.native for context in self._contexts]
        for item in items:
            if item is not None:
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(item))


class TrtContext:
    """An execution context that uses memory which isn't its own."""

    def __init__(self, engine: TrtEngine, native: "tensorrt.IExecutionContext") -> None:
        self._engine = engine
        self.dtypes = {**engine.inputs, **engine.outputs}
        self.native: Optional[tensorrt.IExecutionContext] = native

    def _open(self) -> "tensorrt.IExecutionContext":
        if self.native is None:
            raise GpuError("{}: the context is closed".format(self._engine.label))
        return self.native

    def reshape(self, shapes: Mapping[str, Sizes]) -> Dict[str, Sizes]:
        """See ``engines.Context.reshape``; -1 in a shape is a size that TensorRT can't tell."""
        context = self._open()
        for name, shape in shapes.items():
            if not context.set_input_shape(self._engine.native(name), shape):
                raise self._engine.failure("setting {} to shape {}".format(name, list(shape)))
        try:
            lacking = context.infer_shapes()
        except RuntimeError as error:
            raise self._engine.failure("inferring shapes", error) from None
        if lacking:
            text = "inferring shapes, for which it needs {}"
            raise self._engine.failure(text.format(", ".join(lacking)))
        return {
            name: tuple([int(size) for size in context.get_tensor_shape(self._engine.native(name))])
            for name in self._engine.outputs
        }

    def bind(self, addresses: Mapping[str, int]) -> None:
        """See ``engines.Context.bind``."""
        context = self._open()
        for name, address in addresses.items():
            if not context.set_tensor_address(self._engine.native(name), address):
                raise self._engine.failure("setting the address of {}".format(name))

    def enqueue(self, stream: int) -> None:
        """See ``engines.Context.enqueue``."""
        if not self._open().execute_async_v3(stream):
            raise self._engine.failure("queueing a run")

    def close(self) -> None:
        """See ``engines.Context.close``."""
        self.native = None
        self._engine.forget(self)


def _pairs(items: Mapping[str, str]) -> str:
    return ", ".join("{} {}".format(name, dtype) for name, dtype in items.items()) or "none"
