"""Binds the native runtime library (native/base/edgecompile_abi.h) and runs compiled programs.

A runtime library is loaded once per process and SONAME; its thread pool is shared by every program
that was opened with it.
"""

import ctypes
import threading
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from ..base.errors import NativeError
from ..base.limits import explain_loading, no_memory
from ..format.files.weights import Weights
from .functions import ABI_VERSION, FUNCTIONS, HANDLE, OPTIONAL, ProfileRow
from .libraries import PinnedLibrary, bind_functions, find_loaded, load_library
from .tensors import NativeTensor, Shape, fill_tensor, pack_arrays, wrap_tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

# By the dynamic loader's handle, which tells two copies apart and one from itself.
_loaded: Dict[int, "RuntimeLibrary"] = {}
_loaded_lock = threading.Lock()


def after_fork() -> None:
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
        self._lacks = bind_functions(
            library, label, FUNCTIONS, ("ec_abi_version", ABI_VERSION), OPTIONAL
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
        return "ec_profile_begin" not in self._lacks

    @property
    def runs_into(self) -> bool:
        """Whether a program can write its results into the caller's memory."""
        return "ec_program_run_into" not in self._lacks

    @property
    def masks_logits(self) -> bool:
        """Whether a run can leave out logits that nobody reads."""
        return "ec_program_run_masked" not in self._lacks

    @property
    def sets_run_threads(self) -> bool:
        """Whether a run can have its own number of threads."""
        return "ec_set_run_threads" not in self._lacks

    def set_run_threads(self, count: int) -> None:
        """Threads of the runs that this thread starts from now on; 0: ``threads``, as for others.

        Only where ``sets_run_threads``.
        """
        self.check(self._library.ec_set_run_threads(count), "setting a run's threads")

    def start_profile(self) -> None:
        """Counts, from zero, the work of kernels on every thread of the process."""
        self._library.ec_profile_begin()

    def stop_profile(self) -> List[ProfileRow]:
        """Ends that and returns the counts."""
        capacity = 256
        rows = (ProfileRow * capacity)()
        return list(rows[: min(capacity, int(self._library.ec_profile_end(rows, capacity)))])

    def measure_ceilings(self) -> Tuple[float, float]:
        """The machine's peaks: float32 operations, and bytes read, per second."""
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
            concurrency: the number of runs that may be in flight at once; more wait their turn.

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
        handle = HANDLE()
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
        self.runs_into = library.runs_into
        self.n_inputs = int(self._native.ec_program_input_count(handle))
        self.n_outputs = int(self._native.ec_program_output_count(handle))

    def run(
        self, arrays: Sequence["NDArray[Any]"], shapes: Optional[Sequence[Shape]] = None
    ) -> List["NDArray[Any]"]:
        """Runs once.

        Args:
            arrays: C-contiguous inputs in the order of the manifest; borrowed for this call.
            shapes: the leading part of each output that is wanted; None for all of it.

        Returns:
            New arrays that own their memory.

        Raises:
            NativeError: native code reported a failure.
        """
        table = pack_arrays(arrays)
        outputs = ctypes.c_void_p()
        status = self._native.ec_program_run(
            self._open(), table, len(arrays), ctypes.byref(outputs)
        )
        self._runtime.check(status, "running " + self.label)
        try:
            return self._copy_outputs(outputs, shapes)
        finally:
            self._native.ec_outputs_free(outputs)

    def run_into(self, arrays: Sequence["NDArray[Any]"], results: Sequence["NDArray[Any]"]) -> None:
        """Runs once and writes the outputs, or the leading part that fits, to ``results``.

        Args:
            arrays: the arguments of ``run``.
            results: an array for each output, of its dtype and no larger, with strides that aren't
                negative; they may not overlap each other or the inputs.

        Raises:
            NativeError: native code reported a failure, a wrong dtype or too large a result among
                others.
        """
        inputs, outputs = pack_arrays(arrays), pack_arrays(results)
        status = self._native.ec_program_run_into(
            self._open(), inputs, len(arrays), outputs, len(results)
        )
        self._runtime.check(status, "running " + self.label)

    def bind(
        self, arrays: Sequence["NDArray[Any]"], results: Sequence["NDArray[Any]"]
    ) -> "BoundRun":
        """A run over arrays that stay, as for ``run_into``; their values may change meanwhile.

        Raises:
            NativeError: the bundle's runtime library can't write into given memory.
        """
        if not self.runs_into:
            raise NativeError(
                "{}: is too old to write into given memory".format(self._runtime.label)
            )
        return BoundRun(self, arrays, results)

    def _open(self) -> ctypes.c_void_p:
        if self._handle is None:
            raise NativeError("{}: the program is closed".format(self.label))
        return self._handle

    def _copy_outputs(
        self, outputs: ctypes.c_void_p, shapes: Optional[Sequence[Shape]]
    ) -> List["NDArray[Any]"]:
        count = self._native.ec_outputs_count(outputs)
        if shapes is not None and count != len(shapes):
            text = "{}: gave {} outputs, the manifest has {}"
            raise NativeError(text.format(self.label, count, len(shapes)))
        result = []
        view = NativeTensor()
        for i in range(count):
            status = self._native.ec_outputs_get(outputs, i, ctypes.byref(view))
            self._runtime.check(status, "reading output {} of {}".format(i, self.label))
            try:
                array = wrap_tensor(view)
            except ValueError as error:
                text = "{}: an output has {}"
                raise NativeError(text.format(self.label, error)) from None
            if shapes is not None:
                if len(shapes[i]) != array.ndim:
                    text = "{}: output {} has {} dimensions, the manifest has {}"
                    raise NativeError(text.format(self.label, i, array.ndim, len(shapes[i])))
                array = array[tuple([slice(n) for n in shapes[i]])]
            # The view's memory goes back to native code with the outputs (and may belong to an
            # input or a constant), so what is returned is always a copy.
            result.append(np.array(array, order="C", copy=True))
        return result

    def close(self) -> None:
        """Gives the program's memory back; runs must be over. A second call does nothing."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._native.ec_program_close(handle)


class BoundRun:
    """A run of a program whose arrays are always the same; calling it runs it once.

    The arrays are described to native code once, so a call costs little beside the program. It may
    be called from several threads, but not at once.
    """

    def __init__(
        self,
        program: Program,
        arrays: Sequence["NDArray[Any]"],
        results: Sequence["NDArray[Any]"],
    ) -> None:
        self._program = program
        # The tables hold addresses: the arrays have to live as long.
        self._arrays = (tuple(arrays), tuple(results))
        self._inputs, self._outputs = pack_arrays(arrays), pack_arrays(results)
        self._run_into = program._native.ec_program_run_into

    def __call__(self) -> None:
        """Runs once; raises NativeError."""
        program, (arrays, results) = self._program, self._arrays
        status = self._run_into(
            program._open(), self._inputs, len(arrays), self._outputs, len(results)
        )
        if status != 0:
            program._runtime.check(status, "running " + program.label)

    def run_masked(self, wanted: "NDArray[np.bool_]") -> None:
        """Runs once, where nothing but the logits of ``wanted`` [vocabulary], C-contiguous, is read.

        The others mean nothing. Only where the runtime library ``masks_logits``.

        Raises:
            NativeError: native code reported a failure, a mask of another size among others.
        """
        program, (arrays, results) = self._program, self._arrays
        outputs = (self._outputs, len(results), wanted.ctypes.data, wanted.size)
        status = program._native.ec_program_run_masked(
            program._open(), self._inputs, len(arrays), *outputs
        )
        program._runtime.check(status, "running " + program.label)
