"""One compiled program whose kernels are torch's: its constants and its runs."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from edgecompile.runtime.cpu.tensors import wrap_tensor
from edgecompile.runtime.errors import NativeError
from edgecompile.runtime.format.dtypes import BY_NAME

from .calls import SYMBOL, OperatorCalls, read_operators
from .container import Container

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edgecompile.runtime.cpu.tensors import Shape
    from edgecompile.runtime.format.weights import Weights

_ALIGNMENT = 64  # to which generated code rounds the sizes of constants up


class TorchProgram:
    """One compiled bucket. ``run`` may be called from several threads; ``close`` may not overlap.

    As ``runtime.program.Program``: nothing is checked here that the caller has checked.

    Args:
        library: the program, loaded.
        label: what to call it in errors.
        weights: the bundle's, mapped; its memory is borrowed until ``close``.
        concurrency: how many runs may be in flight at once; more wait their turn.

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
        with self._outputs(arrays) as views:
            if shapes is not None:
                views = [
                    self._cut(i, *pair) for i, pair in enumerate(zip(views, shapes, strict=True))
                ]
            return [np.array(view, order="C", copy=True) for view in views]

    def run_into(self, arrays: Sequence[NDArray[Any]], results: Sequence[NDArray[Any]]) -> None:
        """Runs once and writes the outputs, or the leading part that fits, to ``results``.

        Args:
            arrays: as for ``run``.
            results: an array for each output, of its dtype and no larger.

        Raises:
            NativeError: torch or native code reported a failure, or an output is of another dtype
                or smaller.
        """
        with self._outputs(arrays) as views:
            for i, (view, result) in enumerate(zip(views, results, strict=True)):
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
        known = {item.name: item for item in weights.constants}
        missing, wrong, pairs = [], [], []
        for wanted in container.constants():
            stored = known.get(wanted.key)
            if stored is None:
                missing.append(wanted.key)
                continue
            rounded = (stored.nbytes + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
            if stored.type.code != wanted.dtype or rounded != wanted.nbytes:
                wrong.append(f"{wanted.key} ({stored.type.name}, {stored.nbytes} bytes)")
                continue
            handle = container.borrow(
                weights.address + stored.offset,
                stored.type.code,
                stored.shape,
                _row_major(stored.shape),
            )
            self._constants.append(handle)
            pairs.append((wanted.name, handle))
        problems = [f"missing constants: {', '.join(missing)}"] if missing else []
        problems += [f"misfitting constants: {', '.join(wrong)}"] if wrong else []
        if problems:
            raise NativeError(f"{self.label}: opening it failed: {'; '.join(problems)}")
        container.bind(pairs)

    @contextmanager
    def _outputs(self, arrays: Sequence[NDArray[Any]]) -> Iterator[list[NDArray[Any]]]:
        """Runs once; the outputs are views of memory that is freed at the end."""
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
                shape = array.shape
                inputs[i] = container.borrow(array.ctypes.data, code, shape, _row_major(shape))
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
        handles = _separate(container, list(outputs))
        try:
            yield [
                self._wrap(container, i, handle)
                for i, handle in enumerate(handles[: self.n_outputs])
            ]
        finally:
            container.free(handles)

    def _wrap(self, container: Container, index: int, handle: int | None) -> NDArray[Any]:
        """The memory of an output as an array, without a copy."""
        if not handle:
            raise NativeError(f"{self.label}: the model left output {index} undefined")
        try:
            return wrap_tensor(container.view(handle))
        except ValueError as error:
            raise NativeError(f"{self.label}: output {index} has {error}") from None

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


def _separate(container: Container, handles: list[int | None]) -> list[int | None]:
    """A model that returns one tensor twice writes the same handle twice; each is to be freed."""
    for i, handle in enumerate(handles):
        if handle and handle in handles[:i]:
            handles[i] = None  # should making another one fail
            copy = ctypes.c_void_p()
            container.call("aoti_torch_new_tensor_handle", handle, ctypes.byref(copy))
            handles[i] = copy.value
    return handles


def _row_major(shape: Sequence[int]) -> list[int]:
    steps = [1] * len(shape)
    for i in range(len(shape) - 1, 0, -1):
        steps[i - 1] = steps[i] * max(shape[i], 1)
    return steps
