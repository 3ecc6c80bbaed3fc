"""Binds the native runtime library (native/base/edgecompile_abi.h) and runs compiled programs.

A runtime library is loaded once per process and SONAME; its thread pool is shared by every program
that was opened with it.
"""

import ctypes
import threading
from typing import Any, Dict, List, Tuple

from ..errors import NativeError
from ..format.weights import Weights
from ..limits import explain_loading, no_memory
from .libraries import PinnedLibrary, find_loaded, load_library
from .program import Program
from .tensors import NativeTensor, fill_tensor

ABI_VERSION = 1


class ProfileRow(ctypes.Structure):
    """ec_profile_row: what the kernels of one kind did."""

    _fields_ = (
        ("kernel", ctypes.c_char_p),
        ("dtype", ctypes.c_int32),
        ("unused", ctypes.c_int32),
        ("n", ctypes.c_int64),
        ("k", ctypes.c_int64),
        ("calls", ctypes.c_int64),
        ("ns", ctypes.c_int64),
        ("flops", ctypes.c_int64),
        ("bytes", ctypes.c_int64),
    )


_POINTER = ctypes.POINTER(NativeTensor)
_HANDLE = ctypes.c_void_p
# name, result, arguments
_FUNCTIONS: Tuple[Tuple[str, Any, Tuple[Any, ...]], ...] = (
    ("ec_abi_version", ctypes.c_int32, ()),
    ("ec_last_error", ctypes.c_char_p, ()),
    ("ec_set_num_threads", ctypes.c_int32, (ctypes.c_int32,)),
    ("ec_get_num_threads", ctypes.c_int32, ()),
    (
        "ec_program_open",
        ctypes.c_int32,
        (ctypes.c_char_p, _POINTER, ctypes.c_int64, ctypes.c_int32, ctypes.POINTER(_HANDLE)),
    ),
    (
        "ec_program_run",
        ctypes.c_int32,
        (_HANDLE, ctypes.c_void_p, ctypes.c_int64, ctypes.POINTER(_HANDLE)),
    ),
    ("ec_program_input_count", ctypes.c_int64, (_HANDLE,)),
    ("ec_program_output_count", ctypes.c_int64, (_HANDLE,)),
    ("ec_program_close", None, (_HANDLE,)),
    ("ec_outputs_count", ctypes.c_int64, (_HANDLE,)),
    ("ec_outputs_get", ctypes.c_int32, (_HANDLE, ctypes.c_int64, _POINTER)),
    ("ec_outputs_free", None, (_HANDLE,)),
    ("ec_trim", None, ()),
    ("ec_live_tensors", ctypes.c_int64, ()),
    ("ec_live_bytes", ctypes.c_int64, ()),
    ("ec_cached_bytes", ctypes.c_int64, ()),
)

# Of later additions: a bundle that was built before them carries a library without.
_OPTIONAL: Tuple[Tuple[str, Any, Tuple[Any, ...]], ...] = (
    ("ec_profile_start", None, ()),
    ("ec_profile_stop", ctypes.c_int64, (ctypes.POINTER(ProfileRow), ctypes.c_int64)),
    (
        "ec_program_run_into",
        ctypes.c_int32,
        (_HANDLE, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64),
    ),
    (
        "ec_measure_ceilings",
        ctypes.c_int32,
        (ctypes.POINTER(ctypes.c_double), ctypes.POINTER(ctypes.c_double)),
    ),
)

# By the dynamic loader's handle, which tells two copies apart and one from itself.
_loaded: Dict[int, "RuntimeLibrary"] = {}
_loaded_lock = threading.Lock()


def begin_anew() -> None:
    """In a process after a fork: no thread is loading."""
    global _loaded_lock
    _loaded_lock = threading.Lock()


def load_runtime(pinned: PinnedLibrary, soname: str) -> "RuntimeLibrary":
    """Loads a runtime library, or returns the one of its SONAME that is loaded already.

    The dynamic loader binds programs to the first of their runtime's SONAME, whichever bundle
    brought it, in Python or in C. Another linker makes another file of the same objects; a second
    copy would have threads and counters that no program uses.

    Raises:
        DamagedBundleError: its content changed since it was pinned.
        NativeError: it can't be loaded, lacks a function, or has another ABI version.
    """
    with _loaded_lock:
        library = find_loaded(soname)
        if library is None:
            library = load_library(pinned)
        if library._handle not in _loaded:
            _loaded[library._handle] = RuntimeLibrary(library, pinned.label)
        return _loaded[library._handle]


class RuntimeLibrary:
    """A loaded runtime library; it stays loaded until the process ends."""

    def __init__(self, library: ctypes.CDLL, label: str) -> None:
        self.label = label
        absent = []
        for name, result, arguments in _FUNCTIONS + _OPTIONAL:
            function = getattr(library, name, None)
            if function is None:
                absent.append(name)
                continue
            function.restype = result
            function.argtypes = list(arguments)
        self._lacks = {name for name, _, _ in _OPTIONAL}.intersection(absent)
        absent = [name for name in absent if name not in self._lacks]
        if absent:
            raise NativeError(
                "{}: has no {} [native-functions]".format(self.label, ", ".join(absent))
            )
        version = library.ec_abi_version()
        if version != ABI_VERSION:
            text = "{}: has ABI version {}, this loader knows version {} [native-abi]"
            raise NativeError(
                text.format(self.label, version, ABI_VERSION),
                "use the runtime that lies in the bundle's own runtime/ folder",
            )
        self._library = library

    @property
    def threads(self) -> int:
        """Number of threads that one run may use."""
        return int(self._library.ec_get_num_threads())

    @threads.setter
    def threads(self, count: int) -> None:
        self.check(self._library.ec_set_num_threads(count), "setting {} threads".format(count))

    @property
    def live_tensors(self) -> int:
        """Number of tensor handles that native code holds; for leak tests."""
        return int(self._library.ec_live_tensors())

    @property
    def buffer_bytes(self) -> Tuple[int, int]:
        """Bytes of native buffers in use, and kept for reuse."""
        return int(self._library.ec_live_bytes()), int(self._library.ec_cached_bytes())

    def trim(self) -> None:
        """Gives buffers that are kept for reuse back to the system."""
        self._library.ec_trim()

    @property
    def can_profile(self) -> bool:
        """Whether the library counts what its kernels do."""
        return "ec_profile_start" not in self._lacks

    @property
    def runs_into(self) -> bool:
        """Whether a program can write its results into the caller's memory."""
        return "ec_program_run_into" not in self._lacks

    def start_profile(self) -> None:
        """Counts, from zero, what kernels do on every thread of the process."""
        self._library.ec_profile_start()

    def stop_profile(self) -> List[ProfileRow]:
        """Ends that and returns the counts."""
        capacity = 256
        rows = (ProfileRow * capacity)()
        return list(rows[: min(capacity, int(self._library.ec_profile_stop(rows, capacity)))])

    def measure_ceilings(self) -> Tuple[float, float]:
        """What the machine can do at most: float32 operations, and bytes read, per second."""
        flops, bytes_read = ctypes.c_double(), ctypes.c_double()
        status = self._library.ec_measure_ceilings(ctypes.byref(flops), ctypes.byref(bytes_read))
        self.check(status, "measuring the machine")
        return flops.value, bytes_read.value

    def check(self, status: int, doing: str) -> None:
        """Raises NativeError with the library's own message if ``status`` isn't 0.

        A MemoryLimitError where that is about memory.
        """
        if status != 0:
            text = self._last_error()
            if text.endswith("out of memory"):
                raise no_memory("{}: {}".format(self.label, doing))
            raise NativeError("{}: {} failed: {}".format(self.label, doing, text or "no reason"))

    def _last_error(self) -> str:
        return (self._library.ec_last_error() or b"").decode("utf-8", "replace")

    def open_program(self, pinned: PinnedLibrary, weights: Weights, concurrency: int) -> "Program":
        """Loads a program and gives it the constants of ``weights``.

        Args:
            pinned: the program's library.
            weights: kept mapped until the program is closed.
            concurrency: how many runs may be in flight at once; more wait their turn.

        Raises:
            DamagedBundleError: its content changed since it was pinned.
            HostLimitError: the system doesn't let it be loaded.
            NativeError: it can't be loaded, or constants are missing (all are listed).
        """
        table = (NativeTensor * max(len(weights.constants), 1))()
        for slot, constant in zip(table, weights.constants):
            fill_tensor(
                slot,
                weights.address + constant.offset,
                constant.nbytes,
                constant.type.code,
                constant.shape,
            )
            slot.name = constant.name.encode("utf-8")
        handle = _HANDLE()
        pinned.check_again()
        status = self._library.ec_program_open(
            pinned.path.encode(),
            table,
            len(weights.constants),
            concurrency,
            ctypes.byref(handle),
        )
        if status != 0:
            limit = explain_loading(self._last_error(), pinned.label, pinned.path)
            if limit is not None:
                raise limit
        self.check(status, "opening " + pinned.label)
        return Program(self, handle, pinned.label, weights)
