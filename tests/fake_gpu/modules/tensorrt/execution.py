"""The fake's runtime: engines and contexts whose runs are onnxruntime's, put into a fake stream.

A context insists on the order of calls that TensorRT documents: memory, profile, a wait, shapes,
addresses, run. What a real one would take for granted and crash on raises FakeTensorrtMisuse, and
what a kernel would do to the GPU breaks the fake GPU.
"""

from __future__ import annotations

import ctypes
import math
import os
from typing import Any

from .builder import unpack_plan
from .hooks import called, note, require
from .types import (
    DataType,
    ExecutionContextAllocationStrategy,
    ILogger,
    TensorIOMode,
    is_made,
)

_CALL = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_ILLEGAL_ADDRESS, _LAUNCH_FAILURE = 700, 719
_ALIGNMENT = 256
# Calls that C may still make: a captured run outlives the context's method.
_kept: list[Any] = []


def _cuda() -> Any:
    """The fake of libcudart, which is in the process already."""
    library = ctypes.CDLL(os.environ["EDGECOMPILE_CUDART"])
    require(hasattr(library, "fake_cudart_host_call"), "the fake needs the fake of libcudart")
    return library


def _reaches(address: int, size: int) -> bool:
    return bool(_cuda().fake_cudart_reaches(ctypes.c_void_p(address), ctypes.c_size_t(size)))


class Runtime:
    _engine_type: type[ICudaEngine]

    def __init__(self, logger: ILogger) -> None:
        if called("Runtime"):
            raise TypeError("pybind11::init(): factory function returned nullptr")
        require(isinstance(logger, ILogger) and is_made(logger), "the logger wasn't initialised")
        self._logger = logger

    def deserialize_cuda_engine(self, serialized_engine: bytes) -> ICudaEngine | None:
        plan = None if called("deserialize_cuda_engine") else unpack_plan(bytes(serialized_engine))
        if plan is None:
            text = "The engine plan file is not compatible with this version or device"
            self._logger.log(ILogger.ERROR, text)
            return None
        return self._engine_type(self._logger, *plan)


class ICudaEngine:
    """``_live`` counts the contexts that somebody still refers to."""

    def __init__(self, logger: ILogger, header: dict[str, Any], model: bytes) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        self._session = onnxruntime.InferenceSession(
            model, options, providers=["CPUExecutionProvider"]
        )
        self._logger = logger
        self._inputs = {name: (DataType(kind), shape) for name, kind, shape in header["inputs"]}
        self._outputs = {name: (DataType(kind), shape) for name, kind, shape in header["outputs"]}
        self._profiles = header["profiles"]
        self._live = 0
        # Which context runs in which scratch memory: two at once are a misuse.
        self._scratch: dict[int, int] = {}

    @property
    def num_io_tensors(self) -> int:
        return len(self._inputs) + len(self._outputs)

    @property
    def num_optimization_profiles(self) -> int:
        return max(len(self._profiles), 1)

    def _say(self, text: str) -> None:
        self._logger.log(ILogger.ERROR, text)

    def _known(self, name: str) -> tuple[DataType, list[int]]:
        require(name in self._inputs or name in self._outputs, f"there is no tensor {name}")
        return self._inputs.get(name) or self._outputs[name]

    def get_tensor_name(self, index: int) -> str:
        require(0 <= index < self.num_io_tensors, "no such tensor")
        return [*self._inputs, *self._outputs][index]

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        self._known(name)
        return TensorIOMode.INPUT if name in self._inputs else TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name: str) -> DataType:
        return self._known(name)[0]

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._known(name)[1])

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[tuple[int, ...]]:
        return [tuple(shape) for shape in self._profiles[profile_index][name]]

    def get_device_memory_size_for_profile_v2(self, profile_index: int) -> int:
        require(0 <= profile_index < self.num_optimization_profiles, "no such profile")
        return self._scratch_bytes(profile_index)

    def _scratch_bytes(self, profile_index: int) -> int:
        if not self._profiles:
            return 4096
        return 4096 + sum(8 * math.prod(s[2]) for s in self._profiles[profile_index].values())

    def _compute(self, inputs: dict[str, Any]) -> list[Any]:
        """The outputs, by the dtypes of the ONNX."""
        outputs = list(self._session.run(list(self._outputs), inputs))
        if os.environ.get("FAKE_TRT_MIXES_ROWS"):
            for array in outputs:  # the first row alone is right, as in NVIDIA/TensorRT#4853
                array[1:] += 1 + abs(array).max()
        return outputs

    def create_execution_context(
        self,
        strategy: ExecutionContextAllocationStrategy = ExecutionContextAllocationStrategy.STATIC,
    ) -> IExecutionContext | None:
        user_managed = ExecutionContextAllocationStrategy.USER_MANAGED
        require(strategy == user_managed, "a context with memory of its own")
        if called("create_execution_context"):
            self._say("Error Code 2: OutOfMemory (a fake failure)")
            return None
        return IExecutionContext(self)


Runtime._engine_type = ICudaEngine


class IExecutionContext:
    def __init__(self, engine: ICudaEngine) -> None:
        self._engine = engine
        engine._live += 1
        self._memory = (0, 0)
        self._profile: int | None = None
        self._chosen = [False]
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._results: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}
        self._settled = False  # a run of these shapes was queued outside of a capture

    def __del__(self) -> None:
        self._engine._live -= 1

    def set_device_memory(self, memory: int, size: int) -> None:
        called("set_device_memory", str(size))
        self._use_memory(memory, size)

    def _use_memory(self, memory: int, size: int) -> None:
        require(memory % _ALIGNMENT == 0, "scratch memory that isn't aligned")
        require(_reaches(memory, size), "scratch memory that isn't the GPU's")
        self._memory = (memory, size)

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        require(stream_handle != 0, "the default stream")
        if called("set_optimization_profile_async", str(profile_index)):
            self._engine._say("the profile can't be set (a fake failure)")
            # The binding raises where C++ returns false.
            raise RuntimeError("Error in set optimization profile async.")
        needed = self._engine._scratch_bytes(profile_index)
        require(self._memory[1] >= needed, "less scratch memory than the profile needs")
        self._profile = profile_index
        self._shapes, self._results, self._settled = {}, {}, False
        self._chosen = chosen = [False]
        call = _CALL(lambda _: chosen.__setitem__(0, True))
        _kept.append(call)
        _cuda().fake_cudart_host_call(ctypes.c_void_p(stream_handle), call, None)
        return True

    def set_input_shape(self, name: str, shape: Any) -> bool:
        require(self._profile is not None, "no profile was chosen")
        require(self._chosen[0], "nobody waited for the profile to be chosen")
        require(name in self._engine._inputs, f"there is no input {name}")
        sizes = tuple(shape)
        if called("set_input_shape", f"{name} {sizes}"):
            return False
        if not self._within(name, sizes):
            text = f"{name}: {sizes} does not satisfy any optimization profile's range"
            self._engine._say(f"Error Code 3: API Usage Error ({text})")
            return False
        if self._shapes.get(name) != sizes:
            self._results, self._settled = {}, False
        self._shapes[name] = sizes
        return True

    def _within(self, name: str, shape: tuple[int, ...]) -> bool:
        fixed = self._engine._inputs[name][1]
        if len(fixed) != len(shape):
            return False
        if -1 not in fixed:
            return tuple(fixed) == shape
        least, _, most = self._engine._profiles[self._profile][name]
        return all(lo <= size <= hi for lo, size, hi in zip(least, shape, most, strict=True))

    def infer_shapes(self) -> list[str]:
        if called("infer_shapes"):
            self._engine._say("shapes can't be inferred (a fake failure)")
            # Likewise, where C++ returns a negative number.
            raise RuntimeError("infer_shapes error code: -1")
        lacking = [name for name in self._engine._inputs if name not in self._shapes]
        if not lacking:
            self._results = self._find_results()
        return lacking

    def _find_results(self) -> dict[str, tuple[int, ...]]:
        import numpy as np  # as in TensorRT's own module, only where arrays are wanted

        engine = self._engine
        zeros = {
            name: np.zeros(shape, engine._inputs[name][0].value)
            for name, shape in self._shapes.items()
        }
        values = engine._compute(zeros)
        return {
            name: tuple(value.shape) for name, value in zip(engine._outputs, values, strict=True)
        }

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        if name in self._engine._inputs:
            return self._shapes.get(name, tuple(self._engine._inputs[name][1]))
        return self._results.get(name, tuple(self._engine._outputs[name][1]))

    def set_tensor_address(self, name: str, memory: int) -> bool:
        require(name in self._engine._inputs or name in self._engine._outputs, f"no tensor {name}")
        if called("set_tensor_address", name):
            return False
        require(memory % _ALIGNMENT == 0, f"the address of {name} isn't aligned")
        self._addresses[name] = memory
        self._settled = False
        return True

    def execute_async_v3(self, stream_handle: int) -> bool:
        engine = self._engine
        require(stream_handle != 0, "the default stream")
        require(self._results, "shapes weren't inferred since one was set")
        names = [*engine._inputs, *engine._outputs]
        lacking = [name for name in names if name not in self._addresses]
        require(not lacking, f"no address for {lacking}")
        if called("execute_async_v3"):
            engine._say("Error Code 1: Cuda Runtime (a fake failure)")
            return False
        capturing = bool(_cuda().fake_cudart_capturing(ctypes.c_void_p(stream_handle)))
        if capturing and not self._settled:
            engine._say("the first run after a change can't be captured")
            return False
        self._settled = True
        # What a captured run does was decided when it was captured.
        call = _CALL(_Run(self).work)
        _kept.append(call)
        number = _cuda().fake_cudart_host_call(ctypes.c_void_p(stream_handle), call, None)
        return bool(number == 0)


class _Run:
    """One run with the addresses and shapes of its time."""

    def __init__(self, context: IExecutionContext) -> None:
        self.engine = context._engine
        self.memory = context._memory
        self.addresses = dict(context._addresses)
        self.shapes = {**context._shapes, **context._results}

    def work(self, _: Any) -> None:
        """The work of the kernels; it can't raise, so it breaks the fake GPU instead."""
        try:
            self._work()
        except _AstrayError as error:
            note(f"astray: {error}")
            _cuda().fake_cudart_fault(_ILLEGAL_ADDRESS)
        except Exception as error:
            note(f"failed: {error}")
            _cuda().fake_cudart_fault(_LAUNCH_FAILURE)

    def _work(self) -> None:
        engine, (scratch, size) = self.engine, self.memory
        if not _reaches(scratch, size):
            raise _AstrayError("the scratch memory is gone")
        ctypes.memset(scratch, 0xA5, size)
        if engine._scratch.setdefault(scratch, id(self)) != id(self):
            raise _AstrayError("two runs share the scratch memory at once")
        inputs = {name: self._array(name).copy() for name in engine._inputs}
        values = engine._compute(inputs)
        for name, value in zip(engine._outputs, values, strict=True):
            self._array(name)[...] = value
        del engine._scratch[scratch]

    def _array(self, name: str) -> Any:
        import numpy as np

        kind = np.dtype(self.engine._known(name)[0].value)
        shape, address = self.shapes[name], self.addresses[name]
        size = math.prod(shape) * kind.itemsize
        if not _reaches(address, size):
            raise _AstrayError(f"{size} bytes of {name} aren't the GPU's")
        memory = (ctypes.c_uint8 * size).from_address(address)
        return np.frombuffer(memory, np.uint8).view(kind).reshape(shape)


class _AstrayError(Exception):
    """A "kernel" reads or writes where it mustn't."""
