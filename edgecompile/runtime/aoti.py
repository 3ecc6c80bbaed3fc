"""Binds the native runtime library (native/edgecompile_abi.h) and runs compiled programs.

A runtime library is loaded once per process and content; its thread pool is shared by every
program that was opened with it.
"""

import ctypes
import threading
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from .dtypes import BY_CODE, BY_NAME
from .errors import NativeError
from .libraries import PinnedLibrary, load_library
from .weights import Weights

if TYPE_CHECKING:
    from numpy.typing import NDArray

ABI_VERSION = 1
MAX_DIMS = 8


class NativeTensor(ctypes.Structure):
    """ec_tensor: a borrowed view; sizes and strides count elements."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("nbytes", ctypes.c_int64),
        ("dtype", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("sizes", ctypes.c_int64 * MAX_DIMS),
        ("strides", ctypes.c_int64 * MAX_DIMS),
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
        (_HANDLE, _POINTER, ctypes.c_int64, ctypes.POINTER(_HANDLE)),
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

_loaded: Dict[str, "RuntimeLibrary"] = {}
_loaded_lock = threading.Lock()


def load_runtime(pinned: PinnedLibrary) -> "RuntimeLibrary":
    """Loads a runtime library, or returns the one of the same content that is loaded already.

    Raises:
        NativeError: it can't be loaded, lacks a function, or has another ABI version.
    """
    with _loaded_lock:
        if pinned.sha256 not in _loaded:
            _loaded[pinned.sha256] = RuntimeLibrary(pinned)
        return _loaded[pinned.sha256]


class RuntimeLibrary:
    """A loaded runtime library; it stays loaded until the process ends."""

    def __init__(self, pinned: PinnedLibrary) -> None:
        self.label = pinned.label
        library = load_library(pinned)
        absent = []
        for name, result, arguments in _FUNCTIONS:
            try:
                function = getattr(library, name)
            except AttributeError:
                absent.append(name)
                continue
            function.restype = result
            function.argtypes = list(arguments)
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

    def check(self, status: int, doing: str) -> None:
        """Raises NativeError with the library's own message if ``status`` isn't 0."""
        if status != 0:
            text = (self._library.ec_last_error() or b"").decode("utf-8", "replace")
            raise NativeError("{}: {} failed: {}".format(self.label, doing, text or "no reason"))

    def open_program(self, pinned: PinnedLibrary, weights: Weights, concurrency: int) -> "Program":
        """Loads a program and gives it the constants of ``weights``.

        Args:
            pinned: the program's library.
            weights: kept mapped until the program is closed.
            concurrency: how many runs may be in flight at once; more wait their turn.

        Raises:
            DamagedBundleError: its content changed since it was pinned.
            NativeError: it can't be loaded, or constants are missing (all are listed).
        """
        table = (NativeTensor * max(len(weights.constants), 1))()
        for slot, constant in zip(table, weights.constants):
            _fill(
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
        self.check(status, "opening " + pinned.label)
        return Program(self, handle, pinned.label, weights)


def _fill(slot: Any, data: int, nbytes: int, code: int, shape: Sequence[int]) -> None:
    slot.data = data
    slot.nbytes = nbytes
    slot.dtype = code
    slot.ndim = len(shape)
    stride = 1
    for i in range(len(shape) - 1, -1, -1):
        slot.sizes[i] = shape[i]
        slot.strides[i] = stride
        stride *= max(shape[i], 1)


class Program:
    """One compiled bucket. ``run`` may be called from several threads; ``close`` may not overlap.

    Nothing is checked here that the caller (dispatch.py) has checked: a wrong number of inputs or
    a wrong dtype can end the process.
    """

    def __init__(
        self, library: RuntimeLibrary, handle: ctypes.c_void_p, label: str, weights: Weights
    ) -> None:
        self._runtime = library
        self._native = library._library
        self._handle: Optional[ctypes.c_void_p] = handle
        self._weights = weights
        self.label = label
        self.n_inputs = int(self._native.ec_program_input_count(handle))
        self.n_outputs = int(self._native.ec_program_output_count(handle))

    def run(
        self,
        arrays: Sequence["NDArray[Any]"],
        crops: Optional[Sequence[Tuple[slice, ...]]] = None,
    ) -> List["NDArray[Any]"]:
        """Runs once.

        Args:
            arrays: C-contiguous inputs in the order of the manifest; borrowed for this call.
            crops: for each output the part to return, as an index; None for all of it.

        Returns:
            New arrays that own their memory.

        Raises:
            NativeError: native code reported a failure.
        """
        if self._handle is None:
            raise NativeError("{}: the program is closed".format(self.label))
        table = (NativeTensor * max(len(arrays), 1))()
        for slot, array in zip(table, arrays):
            data = array.__array_interface__["data"][0]
            _fill(slot, data, array.nbytes, BY_NAME[array.dtype.name].code, array.shape)
        outputs = _HANDLE()
        status = self._native.ec_program_run(
            self._handle, table, len(arrays), ctypes.byref(outputs)
        )
        self._runtime.check(status, "running " + self.label)
        try:
            return self._copy_outputs(outputs, crops)
        finally:
            self._native.ec_outputs_free(outputs)

    def _copy_outputs(
        self, outputs: ctypes.c_void_p, crops: Optional[Sequence[Tuple[slice, ...]]]
    ) -> List["NDArray[Any]"]:
        count = self._native.ec_outputs_count(outputs)
        if crops is not None and count != len(crops):
            text = "{}: gave {} outputs, the manifest has {}"
            raise NativeError(text.format(self.label, count, len(crops)))
        result = []
        view = NativeTensor()
        for i in range(count):
            status = self._native.ec_outputs_get(outputs, i, ctypes.byref(view))
            self._runtime.check(status, "reading output {} of {}".format(i, self.label))
            array = self._wrap(view)
            if crops is not None:
                if len(crops[i]) != array.ndim:
                    text = "{}: output {} has {} dimensions, the manifest has {}"
                    raise NativeError(text.format(self.label, i, array.ndim, len(crops[i])))
                array = array[crops[i]]
            # The view's memory goes back to native code with the outputs (and may belong to an
            # input or a constant), so what is returned is always a copy.
            result.append(np.array(array, order="C", copy=True))
        return result

    def _wrap(self, view: NativeTensor) -> "NDArray[Any]":
        element = BY_CODE.get(view.dtype)
        if element is None or element.numpy is None or not 0 <= view.ndim <= MAX_DIMS:
            text = "{}: an output has dtype code {} and {} dimensions"
            raise NativeError(text.format(self.label, view.dtype, view.ndim))
        sizes = tuple(view.sizes[: view.ndim])
        strides = tuple(view.strides[: view.ndim])
        if 0 in sizes:
            return np.empty(sizes, dtype=element.numpy)
        span = 1 + sum((n - 1) * step for n, step in zip(sizes, strides))
        buffer = (ctypes.c_ubyte * (span * element.size)).from_address(view.data)
        return np.ndarray(
            sizes,
            dtype=element.numpy,
            buffer=buffer,
            strides=tuple(step * element.size for step in strides),
        )

    def close(self) -> None:
        """Gives the program's memory back; runs must be over. A second call does nothing."""
        if self._handle is not None:
            self._native.ec_program_close(self._handle)
            self._handle = None
