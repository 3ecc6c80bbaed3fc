"""One compiled program whose kernels are torch's: its constants and its runs.

The only file of this package that uses what torch doesn't document: its runner of AOTInductor's
libraries. A variant is for one version of torch, which the loader compares, so what was tried with
it is what runs.
"""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch._C import _aoti

from edgecompile.runtime.cpu.libraries import load_library
from edgecompile.runtime.errors import NativeError
from edgecompile.runtime.format.document import shorten

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edgecompile.runtime.cpu.libraries import PinnedLibrary
    from edgecompile.runtime.cpu.tensors import Shape
    from edgecompile.runtime.format.weights import Weights

#: The program's symbol with the calls of operators that torch has no C function for.
SYMBOL = "ec_torch_calls"


class TorchProgram:
    """One compiled bucket. Runs wait for each other: torch's runner keeps Python's lock.

    As ``runtime.cpu.library.Program``: nothing is checked here that the caller has checked.

    Args:
        pinned: the program's library.
        weights: the bundle's, mapped; its memory is borrowed until ``close``.
        counts: how many inputs and outputs the manifest says that it has.

    Raises:
        DamagedBundleError: its content changed since it was pinned.
        NativeError: it can't be loaded, or constants or operators are missing.
    """

    runs_into = True

    def __init__(self, pinned: PinnedLibrary, weights: Weights, counts: tuple[int, int]) -> None:
        self.label = pinned.label
        self.n_inputs, self.n_outputs = counts
        library = load_library(pinned)
        try:
            calls = ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(library, SYMBOL)))
        except ValueError:
            raise NativeError(f"{self.label}: has no {SYMBOL} [native-functions]") from None
        if calls[:1] == b"[" and calls != b"[]":
            raise NativeError(
                f"{self.label}: its calls of operators are in an older form",
                "build the bundle again, or open it with the runtime that it carries",
            )
        hint = "import the package that registers an operator before open_bundle"
        with self._explained("opening it", hint):
            runner = _open(pinned.path, calls)
            self._bind(runner, weights)
        self._runner: Any = runner

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
        views = self._run(arrays)
        wanted = [view.shape for view in views] if shapes is None else shapes
        return [
            np.array(self._cut(index, view, shape), order="C", copy=True)
            for index, (view, shape) in enumerate(zip(views, wanted, strict=True))
        ]

    def run_into(self, arrays: Sequence[NDArray[Any]], results: Sequence[NDArray[Any]]) -> None:
        """Runs once and writes the outputs, or the leading part that fits, to ``results``.

        Args:
            arrays: as for ``run``.
            results: an array for each output, of its dtype and no larger.

        Raises:
            NativeError: torch or native code reported a failure, or an output is of another dtype
                or smaller.
        """
        for index, (view, result) in enumerate(zip(self._run(arrays), results, strict=True)):
            if view.dtype != result.dtype:
                text = f"has dtype {view.dtype}, memory for {result.dtype} was given"
                raise NativeError(f"{self.label}: output {index} {text}")
            result[...] = self._cut(index, view, result.shape)

    def close(self) -> None:
        """Gives the program's memory back; runs must be over. A second call does nothing."""
        self._runner = None

    def _bind(self, runner: Any, weights: Weights) -> None:
        stored = {item.name: item for item in weights.constants}
        dtypes = runner.get_constant_names_to_dtypes()
        tensors, problems = {}, []
        for name, key in runner.get_constant_names_to_original_fqns().items():
            item = stored.get(key or name)
            if item is None:
                problems.append(f"the constant {key or name} is missing")
            elif item.type.code != dtypes[name]:
                problems.append(f"the constant {key or name} is {item.type.name}")
            else:
                dtype = getattr(torch, item.type.name)
                tensors[name] = _borrow(weights.address + item.offset, dtype, item.shape)
        if problems:
            raise RuntimeError("; ".join(sorted(problems)))
        runner.update_constant_buffer(tensors, False, True, True)

    def _run(self, arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """The outputs, without a copy."""
        if self._runner is None:
            raise NativeError(f"{self.label}: the program is closed")
        inputs = [
            _borrow(array.ctypes.data, getattr(torch, array.dtype.name), array.shape)
            for array in arrays
        ]
        # Lets torch tell OpenMP, which keeps it by thread, how many threads it was given.
        torch.get_num_threads()
        with self._explained("running it"):
            return [tensor.numpy() for tensor in self._runner.run(inputs)]

    def _cut(self, index: int, view: NDArray[Any], shape: Shape) -> NDArray[Any]:
        """The leading part of an output."""
        if len(shape) != view.ndim or any(
            n is not None and n > size for n, size in zip(shape, view.shape, strict=True)
        ):
            text = f"output {index} is {list(view.shape)}, {list(shape)} is wanted"
            raise NativeError(f"{self.label}: {text}")
        return view[tuple([slice(n) for n in shape])]

    @contextmanager
    def _explained(self, doing: str, hint: str | None = None) -> Iterator[None]:
        """Raises what torch says as a NativeError."""
        try:
            yield
        except (RuntimeError, TypeError) as error:
            cause = str(error).partition("\nException raised from")[0]  # a trace of C++
            text = f"{self.label}: {doing} failed: {shorten(cause, 1000)}"
            raise NativeError(text, hint) from None


def _open(path: str, calls: bytes) -> _aoti.AOTIModelContainerRunnerCpu:
    """The runner, which finds the list of calls by a library's name, and only in a file beside it."""
    if calls in (b"", b"[]"):
        return _aoti.AOTIModelContainerRunnerCpu(path, 1)
    with tempfile.TemporaryDirectory(prefix="edgecompile-") as folder:
        library = Path(folder, "program.so")
        library.symlink_to(path)
        library.with_suffix(".json").write_bytes(calls)
        return _aoti.AOTIModelContainerRunnerCpu(str(library), 1)


def _borrow(address: int, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    """A tensor over memory of somebody else's, in the order of rows."""
    size = dtype.itemsize
    for extent in shape:
        size *= extent
    if size == 0:
        return torch.empty(tuple(shape), dtype=dtype)
    memory = (ctypes.c_ubyte * size).from_address(address)
    return torch.frombuffer(memory, dtype=dtype).view(tuple(shape))
