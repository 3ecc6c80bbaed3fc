"""Binds the native runtime library for GPUs (native/cuda/edgecompile_cuda_abi.h)."""

import ctypes
import os
import threading
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..cpu.libraries import Function, PinnedLibrary, bind_functions, find_loaded, load_library
from ..cpu.tensors import NativeTensor, fill_tensor
from ..errors import GpuError
from ..format.dtypes import BY_CODE, BY_NAME
from ..format.schema import TensorSpec
from ..format.weights import Constant
from ..gpu.engines import Sizes
from ..limits import explain_loading, no_memory
from .driver import Driver

ABI_VERSION = 1

_TENSORS = ctypes.POINTER(NativeTensor)
_HANDLE = ctypes.c_void_p
_OUT_INT64 = ctypes.POINTER(ctypes.c_int64)
_ADDRESSES = ctypes.POINTER(ctypes.c_uint64)
_INT32, _INT64 = ctypes.c_int32, ctypes.c_int64
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
    ("ec_cuda_program_load", _INT32, (_HANDLE, _INT32)),
    (
        "ec_cuda_program_enqueue",
        _INT32,
        (_HANDLE, _ADDRESSES, _INT64, _ADDRESSES, _INT64, ctypes.c_uint64, _INT64, _HANDLE),
    ),
    ("ec_cuda_program_close", None, (_HANDLE,)),
    ("ec_live_tensors", _INT64, ()),
)
# Of newer bundles.
_OPTIONAL: Tuple[Function, ...] = (
    ("ec_cuda_program_allow_numbers", _INT32, (_HANDLE,)),
    ("ec_cuda_program_results", _INT32, (_HANDLE, _TENSORS, _INT64)),
    ("ec_cuda_cublaslt_version", _INT32, (_OUT_INT64,)),
    ("ec_cuda_program_products", _INT64, (_HANDLE, _OUT_INT64, _INT64)),
    ("ec_cuda_program_use_cublaslt", _INT32, (_HANDLE, _INT64, _OUT_INT64, _INT64)),
    ("ec_cuda_program_cublaslt_failure", ctypes.c_char_p, (_HANDLE,)),
)

# By the dynamic loader's handle, as in ``cpu.library``.
_loaded: "Dict[int, GpuLibrary]" = {}
_loaded_lock = threading.Lock()


def _after_fork() -> None:
    global _loaded_lock
    _loaded_lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def load_gpu_library(pinned: PinnedLibrary, soname: str, driver: Optional[Driver]) -> "GpuLibrary":
    """Loads a runtime library for GPUs, or returns the one of its SONAME that is loaded already.

    Without a driver its programs can be rehearsed, not run.

    Raises:
        DamagedBundleError: its content changed since it was pinned.
        NativeError: it can't be loaded, lacks a function, or has another ABI version.
    """
    with _loaded_lock:
        library = find_loaded(soname)
        if library is None:
            library = load_library(pinned)
        if library._handle not in _loaded:
            _loaded[library._handle] = GpuLibrary(library, pinned.label, driver)
        return _loaded[library._handle]


class Rehearsal(NamedTuple):
    """A forecast of a run with certain inputs: its outputs' shapes, memory in bytes, kernel launches."""

    outputs: List[Sizes]
    dtypes: List[str]
    scratch_bytes: int
    launches: int


class GpuLibrary:
    """A loaded runtime library for GPUs; it stays loaded until the process ends."""

    def __init__(self, library: ctypes.CDLL, label: str, driver: Optional[Driver]) -> None:
        self.label = label
        self.driver = driver
        self.lacks = bind_functions(
            library, label, _FUNCTIONS, ("ec_cuda_abi_version", ABI_VERSION), _OPTIONAL
        )
        self.native = library
        if driver is not None:
            self.check(library.ec_cuda_load_driver(driver.path.encode()), "loading the driver")

    def make_current(self) -> None:
        """Lets the calling thread use the GPU, if there is a driver."""
        if self.driver is not None:
            self.driver.make_current()

    def last_error(self) -> str:
        """The native message of what failed last on this thread."""
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

    def cublaslt_version(self) -> int:
        """The version of cuBLASLt, which is loaded if there is one: 130002 for 13.0.2.

        Raises:
            GpuError: there is none.
        """
        if "ec_cuda_cublaslt_version" in self.lacks:
            raise GpuError("{}: knows no cuBLASLt".format(self.label))
        self.make_current()
        version = ctypes.c_int64()
        status = self.native.ec_cuda_cublaslt_version(ctypes.byref(version))
        self.check(status, "loading cuBLASLt")
        return version.value

    def open_program(
        self, pinned: PinnedLibrary, constants: Mapping[str, Tuple[Constant, int]]
    ) -> "GpuProgramLibrary":
        """Loads a program and gives it its constants; the GPU isn't used.

        Args:
            pinned: the program's library.
            constants: each with its address on the GPU, where it stays as long as the program.

        Raises:
            DamagedBundleError: its content changed since it was pinned.
            HostLimitError: the system doesn't let it be loaded.
            GpuError: it can't be loaded, or constants are missing (all are listed).
        """
        table = (NativeTensor * max(len(constants), 1))()
        for slot, (constant, address) in zip(table, constants.values()):
            fill_tensor(slot, address, constant.nbytes, constant.type.code, constant.shape)
            slot.name = constant.name.encode("utf-8")
        handle = _HANDLE()
        pinned.check_again()
        status = self.native.ec_cuda_program_open(
            pinned.path.encode(), table, len(constants), ctypes.byref(handle)
        )
        if status != 0:
            limit = explain_loading(self.last_error(), pinned.label, pinned.path)
            if limit is not None:
                raise limit
        self.check(status, "opening " + pinned.label)
        return GpuProgramLibrary(self, handle, pinned.label)


class GpuProgramLibrary:
    """One compiled bucket; not from two threads at once."""

    def __init__(self, library: GpuLibrary, handle: ctypes.c_void_p, label: str) -> None:
        self._library = library
        self._native = library.native
        self._handle: Optional[ctypes.c_void_p] = handle
        self._closing = threading.Lock()
        self.label = label
        self.n_inputs = int(self._native.ec_cuda_program_input_count(handle))
        self.n_outputs = int(self._native.ec_cuda_program_output_count(handle))
        #: For whom it was rehearsed last; whoever runs it sees to it that this is himself.
        self.user: Any = None
        self._uses_cublaslt = False

    def allow_numbers(self) -> None:
        """Says that no graph is captured, and that ``results`` tells the outputs' shapes."""
        if "ec_cuda_program_allow_numbers" in self._library.lacks:
            raise GpuError("{}: its runtime reads no numbers from the GPU".format(self.label))
        status = self._native.ec_cuda_program_allow_numbers(self._open())
        self._library.check(status, "opening " + self.label)

    def rehearse(self, specs: Sequence[TensorSpec], shapes: Mapping[str, Sizes]) -> Rehearsal:
        """Makes these the shapes of the next runs, and tells what those will do.

        Raises:
            GpuError: the program refuses them.
        """
        self.user = None
        table = (NativeTensor * max(self.n_inputs, 1))()
        for slot, spec in zip(table, specs):
            element, shape = BY_NAME[spec.dtype], shapes[spec.name]
            nbytes = element.size
            for size in shape:
                nbytes *= size
            fill_tensor(slot, 0, nbytes, element.code, shape)
        outputs = (NativeTensor * max(self.n_outputs, 1))()
        scratch, launches = ctypes.c_int64(), ctypes.c_int64()
        status = self._native.ec_cuda_program_plan(
            self._open(),
            table,
            self.n_inputs,
            outputs,
            self.n_outputs,
            ctypes.byref(scratch),
            ctypes.byref(launches),
        )
        self._library.check(status, "rehearsing " + self.label)
        views = outputs[: self.n_outputs]
        names = [BY_CODE[x.dtype].name if x.dtype in BY_CODE else str(x.dtype) for x in views]
        return Rehearsal(
            [tuple(x.sizes[: x.ndim]) for x in views], names, scratch.value, launches.value
        )

    def products(self) -> List[int]:
        """The rows that each product had in the last rehearsal which cuBLASLt may compute."""
        count = int(self._native.ec_cuda_program_products(self._open(), None, 0))
        rows = (ctypes.c_int64 * max(count, 1))()
        self._native.ec_cuda_program_products(self._open(), rows, count)
        return list(rows[:count])

    def use_cublaslt(self, version: int, rows: Sequence[int]) -> None:
        """Lets cuBLASLt of a version compute the product i of ``rows[i]`` rows and more, none where that is negative.

        Comes before rehearsals.

        Raises:
            GpuError: the bundle is older than that.
        """
        if "ec_cuda_program_use_cublaslt" in self._library.lacks:
            raise GpuError("{}: its runtime knows no cuBLASLt".format(self.label))
        table = (ctypes.c_int64 * max(len(rows), 1))(*rows)
        status = self._native.ec_cuda_program_use_cublaslt(self._open(), version, table, len(rows))
        self._library.check(status, "opening " + self.label)
        self._uses_cublaslt = bool(rows)

    def drop_cublaslt(self) -> bool:
        """Leaves all products to Triton's kernels if cuBLASLt has failed; whether some were its own till now."""
        if not self._uses_cublaslt or not self.cublaslt_failure():
            return False
        self.use_cublaslt(0, ())
        return True

    def cublaslt_failure(self) -> str:
        """Why Triton's kernels compute what cuBLASLt was to, "" if nothing failed so far."""
        if "ec_cuda_program_cublaslt_failure" in self._library.lacks:
            return ""
        with self._closing:  # whoever asks may be another thread than the one that closes it
            if self._handle is None:
                return ""
            text: bytes = self._native.ec_cuda_program_cublaslt_failure(self._handle)
            return text.decode("utf-8", "replace")

    def load(self, capability: int) -> None:
        """Loads the kernels that rehearsals met; for a GPU of compute capability 8.7 it is 87.

        Raises:
            GpuError: none of their images is for it, or the driver refuses one.
        """
        self._library.make_current()
        status = self._native.ec_cuda_program_load(self._open(), capability)
        self._library.check(status, "loading the kernels of " + self.label)

    def enqueue(
        self, inputs: Any, outputs: Any, scratch: int, scratch_bytes: int, stream: int
    ) -> None:
        """Queues a run; ``inputs`` and ``outputs`` are arrays of addresses (ctypes.c_uint64).

        Raises:
            GpuError: it can't be queued.
        """
        self._library.make_current()
        status = self._native.ec_cuda_program_enqueue(
            self._open(),
            inputs,
            self.n_inputs,
            outputs,
            self.n_outputs,
            scratch,
            scratch_bytes,
            stream,
        )
        if status != 0:
            self._library.check(status, "running " + self.label)

    def results(self) -> List[Sizes]:
        """The shapes of the last run's outputs, where the values of its inputs decide about them.

        Raises:
            GpuError: there was none.
        """
        outputs = (NativeTensor * max(self.n_outputs, 1))()
        status = self._native.ec_cuda_program_results(self._open(), outputs, self.n_outputs)
        self._library.check(status, "asking " + self.label + " for its results")
        return [tuple(x.sizes[: x.ndim]) for x in outputs[: self.n_outputs]]

    def _open(self) -> ctypes.c_void_p:
        if self._handle is None:
            raise GpuError("{}: the program is closed".format(self.label))
        return self._handle

    def close(self) -> None:
        """Gives the program back; runs must be over. A second call does nothing."""
        with self._closing:
            handle, self._handle = self._handle, None
        if handle is not None:
            self._library.make_current()
            self._native.ec_cuda_program_close(handle)

    def abandon(self) -> None:
        """In a process after a fork: leaves it as it is."""
        self._handle, self._closing = None, threading.Lock()
