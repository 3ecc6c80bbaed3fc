"""A bundle whose programs Python queues one by one, on a stream that can be timed.

At run time native code does that. Here a compiled bucket is a context (``edgecompile.runtime.gpu.engines``) over the
driver's functions for memory, streams and graphs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

from edgecompile.runtime import open_bundle
from edgecompile.runtime.format.files.folder import BundleFolder
from edgecompile.runtime.format.files.weights import map_weights
from edgecompile.runtime.format.manifest.schema import Manifest, Variant
from edgecompile.runtime.gpu.engines import DEFAULT, Sizes
from edgecompile.runtime.gpu.programs import GpuPrograms
from edgecompile.runtime.model.model import Model
from edgecompile.runtime.triton import variant as triton_variant
from edgecompile.runtime.triton.driver import Driver
from edgecompile.runtime.triton.library import GpuLibrary
from edgecompile.runtime.triton.rehearsals import Rehearsals, SingleProgram

_POINTER, _ADDRESS, _SIZE = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t
_OUT_POINTER = ctypes.POINTER(ctypes.c_void_p)
#: The driver's function in the place of each of libcudart's, with the same arguments.
_SAME: dict[str, tuple[str, tuple[Any, ...]]] = {
    "cudaMalloc": ("cuMemAlloc_v2", (_OUT_POINTER, _SIZE)),
    "cudaFree": ("cuMemFree_v2", (_ADDRESS,)),
    "cudaHostAlloc": ("cuMemHostAlloc", (_OUT_POINTER, _SIZE, ctypes.c_uint)),
    "cudaHostGetDevicePointer": (
        "cuMemHostGetDevicePointer_v2",
        (_OUT_POINTER, _POINTER, ctypes.c_uint),
    ),
    "cudaFreeHost": ("cuMemFreeHost", (_POINTER,)),
    "cudaStreamCreateWithFlags": ("cuStreamCreate", (_OUT_POINTER, ctypes.c_uint)),
    "cudaStreamDestroy": ("cuStreamDestroy_v2", (_POINTER,)),
    "cudaStreamSynchronize": ("cuStreamSynchronize", (_POINTER,)),
    "cudaStreamBeginCapture": ("cuStreamBeginCapture_v2", (_POINTER, ctypes.c_int)),
    "cudaStreamEndCapture": ("cuStreamEndCapture", (_POINTER, _OUT_POINTER)),
    "cudaGraphInstantiateWithFlags": (
        "cuGraphInstantiateWithFlags",
        (_OUT_POINTER, _POINTER, ctypes.c_ulonglong),
    ),
    "cudaGraphLaunch": ("cuGraphLaunch", (_POINTER, _POINTER)),
    "cudaGraphExecDestroy": ("cuGraphExecDestroy", (_POINTER,)),
    "cudaGraphDestroy": ("cuGraphDestroy", (_POINTER,)),
}
_COPIES = (
    ("cuMemcpyHtoD_v2", (_ADDRESS, _POINTER, _SIZE)),
    ("cuMemcpyHtoDAsync_v2", (_ADDRESS, _POINTER, _SIZE, _POINTER)),
    ("cuMemcpyDtoHAsync_v2", (_POINTER, _ADDRESS, _SIZE, _POINTER)),
)


def open_single(path: str) -> Model:
    """The bundle in the mode ``default``, whose programs Python queues one by one."""
    with patch.object(triton_variant, "TritonPrograms", _open_programs):
        return open_bundle(path, mode=DEFAULT)


def _open_programs(
    library: GpuLibrary,
    folder: BundleFolder,
    variant: Variant,
    manifest: Manifest,
    mode: str,
    check_weights: bool,
    record: None,
) -> GpuPrograms:
    spec = variant.gpu
    assert spec is not None and record is None
    driver = _QueueingDriver(Driver.load().path)
    driver.check_device()
    library.use(driver)
    engine = _Engine(library, folder, variant, driver, check_weights)
    programs = GpuPrograms(driver, engine, manifest, range(len(manifest.buckets)), mode)
    programs.precision = spec.precision
    programs.tolerance, programs.min_cosine = spec.tolerance, spec.min_cosine
    return programs


class _QueueingDriver(Driver):
    """libcuda with the functions for memory, streams and graphs as well."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        for name, arguments in (*_SAME.values(), *_COPIES):
            function = getattr(self._library, name)
            function.restype, function.argtypes = ctypes.c_int, list(arguments)

    def _call(self, name: str, *arguments: Any) -> None:
        super()._call(_SAME[name][0] if name in _SAME else name, *arguments)

    def upload(self, target: int, source: int, size: int) -> None:
        """Copies from any memory of this process to ``malloc``'s, and waits until it is done."""
        self._call("cuMemcpyHtoD_v2", target, source, size)

    def copy_to_device(self, target: int, source: int, size: int, stream: int) -> None:
        """See ``Cuda.copy_to_device``."""
        self._call("cuMemcpyHtoDAsync_v2", target, source, size, stream)

    def copy_to_host(self, target: int, source: int, size: int, stream: int) -> None:
        """See ``Cuda.copy_to_host``."""
        self._call("cuMemcpyDtoHAsync_v2", target, source, size, stream)


class _Engine(Rehearsals):
    """The programs of a variant as an engine, whose weights are on the GPU."""

    def __init__(
        self,
        library: GpuLibrary,
        folder: BundleFolder,
        variant: Variant,
        driver: _QueueingDriver,
        check_weights: bool,
    ) -> None:
        assert variant.gpu is not None
        weights = map_weights(folder, folder.manifest.weights[variant.gpu.precision], check_weights)
        super().__init__(library, folder, variant, weights)
        self.label, self.profiles = f"{folder.path}: {variant.name}", len(variant.programs)
        self._driver, self._memory = driver, 0
        start = min((item.offset for item in weights.constants), default=0)
        size = max((item.offset + item.nbytes for item in weights.constants), default=start) - start
        if size:
            self._memory = driver.malloc(size)
            driver.upload(self._memory, weights.address + start, size)
            self.base = self._memory - start

    def open(self, profile: int, scratch: int, size: int, stream: int) -> _Context:
        """See ``gpu.engines``."""
        program = self.program(profile)
        capability = self._driver.device().compute_capability
        program.call("load", "loading the kernels of ", int(capability.replace(".", "")))
        return _Context(program, _list_names(self.folder.manifest), scratch, size)

    def close(self) -> None:
        """See ``gpu.engines``."""
        memory, self._memory = self._memory, 0
        if memory:
            self._driver.free(memory)

    def abandon(self) -> None:
        """See ``gpu.engines``."""
        self._memory = 0


def _list_names(manifest: Manifest) -> tuple[list[str], list[str]]:
    """The names of inputs and outputs."""
    return [x.name for x in manifest.inputs], [x.name for x in manifest.outputs]


class _Context:
    """One program as a context; its dtypes are the manifest's."""

    dtypes: Mapping[str, str] = {}

    def __init__(
        self, program: SingleProgram, names: tuple[list[str], list[str]], scratch: int, size: int
    ) -> None:
        self._program, self._names = program, names
        self._scratch = scratch, size
        self._addresses: tuple[Any, ...] = ()

    def reshape(self, shapes: Mapping[str, Sizes]) -> dict[str, Sizes]:
        """See ``gpu.engines``."""
        outputs, needed = self._program.rehearse(shapes)
        assert needed <= self._scratch[1], (self._program.label, shapes, needed)
        return outputs

    def bind(self, addresses: Mapping[str, int]) -> None:
        """See ``gpu.engines``."""
        self._addresses = ()
        for names in self._names:
            array = (ctypes.c_uint64 * max(len(names), 1))(*[addresses[name] for name in names])
            self._addresses += (array, len(names))

    def enqueue(self, stream: int) -> None:
        """See ``gpu.engines``."""
        scratch, size = self._scratch
        self._program.call(
            "enqueue", "running ", *self._addresses,
            ctypes.c_uint64(scratch), ctypes.c_int64(size), ctypes.c_void_p(stream),
        )  # fmt: skip

    def close(self) -> None:
        """See ``gpu.engines``."""
        self._program.close()
