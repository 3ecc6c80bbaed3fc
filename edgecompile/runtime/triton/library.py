"""Binds the native runtime library for GPUs (native/cuda/edgecompile_cuda_abi.h)."""

import ctypes
import json
import os
import threading
from typing import Any, Dict, Optional, Tuple, Type

from ..base.errors import (
    BundleError,
    DamagedBundleError,
    EdgecompileError,
    FilePermissionError,
    FormatVersionError,
    GpuError,
    GpuUnavailableError,
    InputError,
    MemoryLimitError,
    ModeError,
    NativeError,
    NoExecError,
    OpenFilesError,
    UnsupportedHostError,
)
from ..base.limits import no_memory
from ..cpu.libraries import (
    Function,
    PinnedLibrary,
    bind_functions,
    find_loaded,
    load_library,
    pin_library,
)
from ..cpu.tensors import NativeTensor
from ..format.files.folder import BundleFolder
from ..format.manifest.schema import Variant
from .driver import Driver

ABI_VERSION = 1

_TENSORS = ctypes.POINTER(NativeTensor)
_HANDLE = ctypes.c_void_p
_OUT_INT64 = ctypes.POINTER(ctypes.c_int64)
_INT32, _INT64 = ctypes.c_int32, ctypes.c_int64
_TEXT, _OUT_TEXT = ctypes.c_char_p, ctypes.POINTER(ctypes.c_char_p)
_OUT_INT32 = ctypes.POINTER(ctypes.c_int32)
_FUNCTIONS: Tuple[Function, ...] = (
    ("ec_cuda_abi_version", _INT32, ()),
    ("ec_last_error", ctypes.c_char_p, ()),
    ("ec_cuda_last_error", _INT32, ()),
    ("ec_cuda_load_driver", _INT32, (ctypes.c_char_p,)),
    (
        "ec_cuda_program_open",
        _INT32,
        (ctypes.c_char_p, _TENSORS, _INT64, ctypes.POINTER(_HANDLE)),
    ),
    ("ec_cuda_program_input_count", _INT64, (_HANDLE,)),
    ("ec_cuda_program_output_count", _INT64, (_HANDLE,)),
    (
        "ec_cuda_program_plan",
        _INT32,
        (_HANDLE, _TENSORS, _INT64, _TENSORS, _INT64, _OUT_INT64, _OUT_INT64),
    ),
    ("ec_cuda_program_close", None, (_HANDLE,)),
    ("ec_live_tensors", _INT64, ()),
    ("ec_cuda_program_allow_numbers", _INT32, (_HANDLE,)),
    ("ec_cuda_cublaslt_version", _INT32, (_OUT_INT64,)),
    ("ec_cuda_program_products", _INT64, (_HANDLE, _OUT_INT64, _INT64)),
    ("ec_gpu_last_error", _TEXT, (_OUT_TEXT, _OUT_TEXT, _OUT_INT32, _OUT_INT32)),
    (
        "ec_gpu_open",
        _INT32,
        (_TEXT, _INT32, _TEXT, _TEXT, _TEXT, _INT32, _TEXT, ctypes.POINTER(_HANDLE)),
    ),
    (
        "ec_gpu_read_tuning",
        _INT32,
        (_TEXT, _INT32, _TEXT, _TEXT, _OUT_TEXT),
    ),
    ("ec_gpu_take_text", _INT32, (_HANDLE, ctypes.POINTER(_HANDLE))),
    ("ec_gpu_give_back", None, (_HANDLE, _HANDLE)),
    ("ec_gpu_load", _INT32, (_HANDLE, _HANDLE, _INT64)),
    (
        "ec_gpu_run",
        _INT32,
        (_HANDLE, _HANDLE, _INT64, _HANDLE, _INT64, _HANDLE, _INT64, ctypes.POINTER(_HANDLE)),
    ),
    ("ec_gpu_results_free", None, (_HANDLE,)),
    ("ec_gpu_describe", _TEXT, (_HANDLE,)),
    ("ec_gpu_close", None, (_HANDLE,)),
)
_ERRORS: Dict[int, Type[EdgecompileError]] = {
    error.exit_code: error
    for error in (
        *(BundleError, DamagedBundleError, FilePermissionError, FormatVersionError, InputError),
        *(MemoryLimitError, ModeError, NativeError, NoExecError, OpenFilesError),
        UnsupportedHostError,
    )
}

# By the dynamic loader's handle, as in ``cpu.library``.
_loaded: "Dict[int, GpuLibrary]" = {}
_loaded_lock = threading.Lock()


def _after_fork() -> None:
    global _loaded_lock
    _loaded_lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def load_gpu_library(pinned: PinnedLibrary, soname: str) -> "GpuLibrary":
    """Loads a runtime library for GPUs, or returns the one of its SONAME that is loaded already.

    Raises:
        DamagedBundleError: its content changed since it was pinned.
        NativeError: it can't be loaded, lacks a function, or has another ABI version.
    """
    with _loaded_lock:
        library = find_loaded(soname)
        if library is None:
            library = load_library(pinned)
        if library._handle not in _loaded:
            _loaded[library._handle] = GpuLibrary(library, pinned.label)
        return _loaded[library._handle]


def load_variant_library(folder: BundleFolder, variant: Variant) -> "GpuLibrary":
    """The runtime library of a variant; see ``load_gpu_library``."""
    return load_gpu_library(pin_library(folder, variant.runtime), os.path.basename(variant.runtime))


class GpuLibrary:
    """A loaded runtime library for GPUs; it stays loaded until the process ends."""

    def __init__(self, library: ctypes.CDLL, label: str) -> None:
        self.label = label
        self.driver: Optional[Driver] = None
        bind_functions(library, label, _FUNCTIONS, ("ec_cuda_abi_version", ABI_VERSION))
        self.native = library

    def use(self, driver: Driver) -> None:
        """Lets it ask the GPU of a driver.

        Raises:
            GpuError: another one is in use.
        """
        self.driver = driver
        self.check(self.native.ec_cuda_load_driver(driver.path.encode()), "loading the driver")

    def make_current(self) -> None:
        """Lets the calling thread use the GPU, if there is a driver."""
        if self.driver is not None:
            self.driver.make_current()

    def last_error(self) -> str:
        """The native message of the last failure on this thread."""
        return (self.native.ec_last_error() or b"").decode("utf-8", "replace")

    def check(self, status: int, doing: str) -> None:
        """Raises GpuError with the library's own message if ``status`` isn't 0.

        With CUDA's number where it has one; a MemoryLimitError where the CPU's memory is lacking.
        """
        if status == 0:
            return
        text = self.last_error()
        message = "{} failed: {}".format(doing, text or "no reason")
        number = int(self.native.ec_cuda_last_error())
        if number and self.driver is not None:
            raise self.driver.error(number, message)
        if text.endswith("out of memory"):
            raise no_memory("{}: {}".format(self.label, doing))
        raise GpuError(message)

    def variant_error(self, status: int) -> EdgecompileError:
        """The error behind a status of the functions that run a whole variant."""
        hint, name = ctypes.c_char_p(), ctypes.c_char_p()
        number, sticky = ctypes.c_int32(), ctypes.c_int32()
        text = self.native.ec_gpu_last_error(
            *map(ctypes.byref, (hint, name, number, sticky))
        ).decode("utf-8", "replace")
        cure = (hint.value or b"").decode("utf-8", "replace") or None
        for gpu_error in (GpuError, GpuUnavailableError):
            if status == gpu_error.exit_code:
                word = (name.value or b"").decode("ascii", "replace")
                return gpu_error(text, cure, word, number.value, bool(sticky.value))
        text, _, cure = text.partition("\nhint: ")
        return _ERRORS.get(status, NativeError)(text, cure or None)

    def read_tuning(self, folder: BundleFolder, variant: Variant) -> Dict[str, Any]:
        """The record of ``tune`` on this GPU, which needn't exist; see native/cuda/edgecompile_cuda_abi.h.

        Raises:
            GpuError: CUDA fails.
        """
        text = ctypes.c_char_p()
        names = (folder.path, folder.fd, folder.manifest_sha256, variant.name)
        given = [item.encode() if isinstance(item, str) else item for item in names]
        status = self.native.ec_gpu_read_tuning(*given, ctypes.byref(text))
        if status != 0:
            raise self.variant_error(status)
        state: Dict[str, Any] = json.loads(text.value or b"")
        return state

    def cublaslt_version(self) -> int:
        """The version of cuBLASLt, which is loaded if there is one: 130002 for 13.0.2.

        Raises:
            GpuError: there is none.
        """
        self.make_current()
        version = ctypes.c_int64()
        status = self.native.ec_cuda_cublaslt_version(ctypes.byref(version))
        self.check(status, "loading cuBLASLt")
        return version.value
