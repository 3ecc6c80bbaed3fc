"""One compiled program: its runs."""

import ctypes
from typing import TYPE_CHECKING, Any, List, Optional, Sequence, Tuple

import numpy as np

from ..errors import NativeError
from .tensors import NativeTensor, pack_arrays, wrap_tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..format.weights import Weights
    from .aoti import RuntimeLibrary

#: What is wanted of an output: its size along each dimension, None for all that there is.
Shape = Tuple[Optional[int], ...]


class Program:
    """One compiled bucket. ``run`` may be called from several threads; ``close`` may not overlap.

    Nothing is checked here that the caller (dispatch.py) has checked: a wrong number of inputs or
    a wrong dtype can end the process.
    """

    def __init__(
        self, library: "RuntimeLibrary", handle: ctypes.c_void_p, label: str, weights: "Weights"
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
            arrays: as for ``run``.
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
