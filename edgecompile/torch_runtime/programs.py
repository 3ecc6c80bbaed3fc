"""torch as the runtime library of a variant, and the programs that it runs."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from edgecompile.runtime.base.errors import NativeError
from edgecompile.runtime.cpu.libraries import load_library
from edgecompile.runtime.cpu.programs import Programs
from edgecompile.runtime.format.dtypes import BY_NAME

from .calls import SYMBOL, OperatorCalls, read_operators
from .container import Container
from .handles import take_tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edgecompile.runtime.cpu.libraries import PinnedLibrary
    from edgecompile.runtime.cpu.tensors import Shape
    from edgecompile.runtime.format.files.weights import Weights

_ALIGNMENT = 64  # to which generated code rounds the sizes of constants up


class TorchProgram:
    """One compiled bucket. ``run`` may be called from several threads; ``close`` may not overlap.

    As ``runtime.program.Program``: nothing is checked here that the caller has checked.

    Args:
        library: the program, loaded.
        label: its name in errors.
        weights: the bundle's, mapped; its memory is borrowed until ``close``.
        concurrency: the number of runs that may be in flight at once; more wait their turn.

    Raises:
        NativeError: it isn't such a program, or constants or operators are missing.
    """

    runs_into = True

    def __init__(
        self, library: ctypes.CDLL, label: str, weights: Weights, concurrency: int
    ) -> None:
        self.label = label
        self._weights: Weights | None = weights
        self._constants: list[int] = []
        # The container has a queue of its own, but a run that fails wakes no waiter in it.
        self._turns = threading.BoundedSemaphore(concurrency)
        container = Container(library, label, concurrency)
        self._container: Container | None = container
        self.n_inputs, self.n_outputs = container.n_inputs, container.n_outputs
        try:
            operators = read_operators(_read_list(library, label), label)
            self._calls = OperatorCalls(container, operators)
            self._bind(container, weights)
        except BaseException:
            self.close()
            raise

    def run(
        self, arrays: Sequence[NDArray[Any]], shapes: Sequence[Shape] | None = None
    ) -> list[NDArray[Any]]:
        """Runs once.

        Args:
            arrays: C-contiguous inputs in the order of the manifest; borrowed for this call.
            shapes: the leading part of each output that is wanted; None for all of it.

        Returns:
            New arrays that own their memory.

        Raises:
            NativeError: torch or native code reported a failure.
        """
        views = self._outputs(arrays)
        if shapes is not None:
            views = [self._cut(i, *pair) for i, pair in enumerate(zip(views, shapes, strict=True))]
        return [np.array(view, order="C", copy=True) for view in views]

    def run_into(self, arrays: Sequence[NDArray[Any]], results: Sequence[NDArray[Any]]) -> None:
        """Runs once and writes the outputs, or the leading part that fits, to ``results``.

        Args:
            arrays: the arguments of ``run``.
            results: an array for each output, of its dtype and no larger.

        Raises:
            NativeError: torch or native code reported a failure, or an output is of another dtype
                or smaller.
        """
        for i, (view, result) in enumerate(zip(self._outputs(arrays), results, strict=True)):
            if view.dtype != result.dtype:
                text = f"has dtype {view.dtype}, memory for {result.dtype} was given"
                raise NativeError(f"{self.label}: output {i} {text}")
            result[...] = self._cut(i, view, result.shape)

    def close(self) -> None:
        """Gives the program's memory back; runs must be over. A second call does nothing."""
        container, self._container = self._container, None
        if container is not None:
            container.close()
            container.free(self._constants)
            self._constants = []
            self._weights = None

    def _bind(self, container: Container, weights: Weights) -> None:
        constants = {item.name: item for item in weights.constants}
        missing, wrong, pairs = [], [], []
        for constant in container.constants():
            stored = constants.get(constant.key)
            if stored is None:
                missing.append(constant.key)
                continue
            rounded = (stored.nbytes + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
            if stored.type.code != constant.dtype or rounded != constant.nbytes:
                wrong.append(f"{constant.key} ({stored.type.name}, {stored.nbytes} bytes)")
                continue
            address = weights.address + stored.offset
            handle = container.borrow(address, stored.type.code, stored.shape)
            self._constants.append(handle)
            pairs.append((constant.name, handle))
        problems = [f"missing constants: {', '.join(missing)}"] if missing else []
        problems += [f"misfitting constants: {', '.join(wrong)}"] if wrong else []
        if problems:
            raise NativeError(f"{self.label}: opening it failed: {'; '.join(problems)}")
        container.bind(pairs)

    def _outputs(self, arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """Runs once; an output's memory may be that of an input, of a constant or of another one."""
        container = self._container
        if container is None:
            raise NativeError(f"{self.label}: the program is closed")
        if len(arrays) != self.n_inputs:
            text = f"has {self.n_inputs} inputs, {len(arrays)} were given"
            raise NativeError(f"{self.label}: {text}")
        # Lets torch tell OpenMP, which keeps it by thread, how many threads it was given.
        torch.get_num_threads()
        inputs = (ctypes.c_void_p * max(self.n_inputs, 1))()
        outputs = (ctypes.c_void_p * max(self.n_outputs, 1))()
        try:
            for i, array in enumerate(arrays):
                code = BY_NAME[array.dtype.name].code
                inputs[i] = container.borrow(array.ctypes.data, code, array.shape)
            self._calls.forget_failure()
            with self._turns:
                container.run(inputs, outputs, self._calls.entry)
        except NativeError as error:
            container.free(list(outputs))
            failure = self._calls.failure
            if failure is not None:
                raise NativeError(f"{self.label}: running it failed: {failure}") from None
            raise error
        finally:
            container.free(list(inputs))
        # A model that returns one tensor twice writes the same handle twice.
        tensors = {handle: take_tensor(handle) for handle in outputs if handle}
        views = []
        for i, handle in enumerate(outputs[: self.n_outputs]):
            if not handle:
                raise NativeError(f"{self.label}: the model left output {i} undefined")
            try:
                views.append(tensors[handle].numpy())
            except TypeError as error:  # numpy has no such dtype
                raise NativeError(f"{self.label}: output {i}: {error}") from None
        return views

    def _cut(self, index: int, view: NDArray[Any], shape: Shape) -> NDArray[Any]:
        """The leading part of an output."""
        if len(shape) != view.ndim or any(
            n is not None and n > size for n, size in zip(shape, view.shape, strict=True)
        ):
            text = f"output {index} is {list(view.shape)}, {list(shape)} is wanted"
            raise NativeError(f"{self.label}: {text}")
        return view[tuple([slice(n) for n in shape])]


def _read_list(library: ctypes.CDLL, label: str) -> bytes:
    try:
        return ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(library, SYMBOL)))
    except ValueError:
        raise NativeError(f"{label}: has no {SYMBOL} [native-functions]") from None


class TorchLibrary:
    """Stands where a bundle's own runtime library stands otherwise (``runtime.aoti``).

    Its threads are torch's: the number holds for all of torch in this process.
    """

    label = f"torch {torch.__version__}"
    can_profile = False
    runs_into = True
    sets_run_threads = False

    @property
    def threads(self) -> int:
        """Number of threads that one run may use."""
        return torch.get_num_threads()

    @threads.setter
    def threads(self, count: int) -> None:
        torch.set_num_threads(count)

    def trim(self) -> None:
        """torch gives freed memory of a CPU back by itself."""

    def open_program(
        self, pinned: PinnedLibrary, weights: Weights, concurrency: int
    ) -> TorchProgram:
        """Loads a program and gives it the constants of ``weights``.

        Args:
            pinned: the program's library.
            weights: kept mapped until the program is closed.
            concurrency: the number of runs that may be in flight at once; more wait their turn.

        Raises:
            DamagedBundleError: its content changed since it was pinned.
            NativeError: it can't be loaded, or constants or operators are missing (all are listed).
        """
        return TorchProgram(load_library(pinned), pinned.label, weights, concurrency)


class TorchPrograms(Programs):
    """One program per bucket; see there."""

    def describe(self) -> dict[str, Any]:
        """For ``Model.info``, plain JSON values; "torch" is the version that runs."""
        return {**super().describe(), "torch": str(torch.__version__)}
