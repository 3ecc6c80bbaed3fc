"""torch behind the runtime's ``Engine``: its kernels on our stream, its results in our buffers.

With a real GPU, ``CudaMemory`` wraps addresses as tensors and makes our stream torch's current one.
``FakeMemory`` does the same on the fake of libcudart, so that all of this can be tried without one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch

from edgecompile.runtime.errors import GpuError
from edgecompile.runtime.format.schema import Manifest
from edgecompile.runtime.gpu.engines import Sizes

#: Takes the inputs and gives the outputs, both in the order of the manifest.
Program = Callable[..., Sequence[torch.Tensor]]
_TYPES = {"int64": "<i8", "float32": "<f4", "float16": "<f2"}
#: Before anything is captured: what is compiled, chosen or allocated at first is so afterwards.
WARMUPS = 3


class _Memory:
    """A tensor of another library, in the form that torch takes."""

    def __init__(self, address: int, shape: Sizes, dtype: str) -> None:
        self.__cuda_array_interface__ = {
            "data": (address, False),
            "shape": shape,
            "typestr": _TYPES[dtype],
            "strides": None,
            "version": 2,
        }


class CudaMemory:
    """A real GPU."""

    def view(self, address: int, shape: Sizes, dtype: str) -> torch.Tensor:
        """A tensor at an address, which stays ours."""
        tensor = torch.as_tensor(_Memory(address, shape, dtype), device="cuda")
        if tensor.data_ptr() != address:
            raise GpuError(f"torch copied {shape} instead of wrapping it")
        return tensor

    def queue(self, stream: int, work: Callable[[], None]) -> None:
        """Calls ``work``, whose kernels go to the stream."""
        with self._current(stream), torch.no_grad():
            work()

    @staticmethod
    def _current(stream: int) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = torch.cuda.stream(torch.cuda.ExternalStream(stream))
        return context


class FakeMemory:
    """The fake of libcudart: the work is done when somebody waits for the stream."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._type = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        self._callbacks: list[Any] = []
        self.failures: list[BaseException] = []

    def view(self, address: int, shape: Sizes, dtype: str) -> torch.Tensor:
        """A tensor at an address of the fake."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        memory = (ctypes.c_uint8 * size).from_address(address)
        return torch.from_numpy(np.ctypeslib.as_array(memory).view(dtype).reshape(shape))

    def queue(self, stream: int, work: Callable[[], None]) -> None:
        """Puts ``work`` into the stream."""

        def call(_: Any) -> None:
            try:
                with torch.no_grad():
                    work()
            except BaseException as error:
                self.failures.append(error)
                self._library.fake_cudart_fault(719)

        self._callbacks.append(self._type(call))
        self._library.fake_cudart_host_call(ctypes.c_void_p(stream), self._callbacks[-1], None)


class TorchEngine:
    """One program per bucket; each takes every shape of its bucket, or only the largest."""

    records = True
    keeps_graphs = False

    def __init__(
        self,
        programs: Sequence[Program],
        manifest: Manifest,
        memory: CudaMemory | FakeMemory,
        label: str,
    ) -> None:
        self.programs = list(programs)
        self.manifest = manifest
        self.memory = memory
        self.label = label
        self.profiles = len(self.programs)

    def scratch_bytes(self, profile: int) -> int:
        """None of ours: torch has an allocator of its own."""
        return 0

    def open(self, profile: int, scratch: int, size: int, stream: int) -> TorchContext:
        """See ``edgecompile.runtime.gpu.engines``."""
        return TorchContext(self, self.programs[profile])

    def close(self) -> None:
        """See ``edgecompile.runtime.gpu.engines``."""
        self.programs = []

    def abandon(self) -> None:
        """See ``edgecompile.runtime.gpu.engines``: torch itself says that it doesn't outlive a fork."""


class TorchContext:
    """A bucket's program with the buffers that it uses."""

    dtypes: Mapping[str, str] = {}

    def __init__(self, engine: TorchEngine, program: Program) -> None:
        self.engine = engine
        self.program: Program | None = program
        self.shapes: dict[str, Sizes] = {}
        self.addresses: dict[str, int] = {}
        self._views: dict[tuple[Sizes, ...], tuple[list[Any], list[Any]]] = {}
        self._warm: set[tuple[Sizes, ...]] = set()

    def reshape(self, shapes: Mapping[str, Sizes]) -> dict[str, Sizes]:
        """Outputs' shapes by the manifest's axes."""
        sizes: dict[str, int] = {}
        for spec in self.engine.manifest.inputs:
            for dim, size in zip(spec.shape, shapes[spec.name], strict=True):
                if isinstance(dim, str):
                    sizes[dim] = size
        outputs = {
            spec.name: tuple(
                sizes[dim] if isinstance(dim, str) else int(dim or 0) for dim in spec.shape
            )
            for spec in self.engine.manifest.outputs
        }
        self.shapes = {**shapes, **outputs}
        return outputs

    def bind(self, addresses: Mapping[str, int]) -> None:
        """See ``edgecompile.runtime.gpu.engines``."""
        self.addresses = dict(addresses)
        self._views = {}

    def results(self) -> None:
        """None: the shapes are known before."""

    def simplify(self) -> bool:
        """There is one way."""
        return False

    def enqueue(self, stream: int) -> None:
        """The program's kernels, and copies of its results into the outputs' buffers."""
        program = self.program
        assert program is not None
        key = tuple(self.shapes[spec.name] for spec in self.engine.manifest.inputs)
        inputs, outputs = self._views.get(key) or self._wrap(key)
        rounds = 1 if key in self._warm else WARMUPS

        def work() -> None:
            for _ in range(rounds):
                for target, result in zip(outputs, program(*inputs), strict=True):
                    target.copy_(result)

        try:
            self.engine.memory.queue(stream, work)
        except RuntimeError as error:
            text = str(error).strip().split("\n")[0]
            raise GpuError(f"{self.engine.label}: {type(error).__name__}: {text}") from error
        self._warm.add(key)

    def _wrap(self, key: tuple[Sizes, ...]) -> tuple[list[Any], list[Any]]:
        manifest, view = self.engine.manifest, self.engine.memory.view

        def wrap(specs: Any) -> list[Any]:
            return [view(self.addresses[x.name], self.shapes[x.name], x.dtype) for x in specs]

        self._views[key] = (wrap(manifest.inputs), wrap(manifest.outputs))
        return self._views[key]

    def close(self) -> None:
        """Twice is once."""
        self.program = None
        self._views = {}
