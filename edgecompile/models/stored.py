"""Weights as a checkpoint stores them: looked up for the matrices of a program by the values of their rows.

A loader turns weights into float32 and reorders rows, and a program merges matrices. Rows stay whole in all of
this. So each is found again by its values, whatever its name has become.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_CHUNK = 1 << 22


@dataclass(frozen=True)
class GridValues:
    """Rows on a grid: ``scale * (value - zero)`` or ``scale * value + minimum``.

    Attributes:
        values: uint8 ``[N, K]`` of 0 to 15, or int8.
        scales: float32 ``[N, K / block]``.
        block: inputs that share a scale.
        zeros: uint8 like the scales, not with ``minimums``; None: 8 for uint8 values, 0 for int8.
        minimums: float32 like the scales.
    """

    values: Tensor
    scales: Tensor
    block: int
    zeros: Tensor | None = None
    minimums: Tensor | None = None

    def __getitem__(self, rows: Tensor) -> GridValues:
        zeros = None if self.zeros is None else self.zeros[rows]
        least = None if self.minimums is None else self.minimums[rows]
        return GridValues(self.values[rows], self.scales[rows], self.block, zeros, least)

    def numbers(self) -> Tensor:
        """The float32 numbers ``[N, K]``, each rounded as the checkpoint's own library does."""
        n = len(self.values)
        wide = self.values.reshape(n, -1, self.block).to(torch.float32)
        if self.minimums is not None:
            return (wide * self.scales[..., None] + self.minimums[..., None]).view(n, -1)
        if self.zeros is not None:
            wide -= self.zeros[..., None].to(torch.float32)
        elif self.values.dtype == torch.uint8:
            wide -= 8
        return (wide * self.scales[..., None]).view(n, -1)


@dataclass(frozen=True)
class StoredMatrix:
    """A matrix of a checkpoint.

    Attributes:
        name: name of its tensor.
        form: name of its form, such as ``Q4_0``.
        read: a function that reads its rows: on their grid, or as float32 numbers where there is none.
    """

    name: str
    form: str
    read: Callable[[], GridValues | Tensor]

    def numbers(self) -> Tensor:
        """Its float32 numbers."""
        rows = self.read()
        return rows if isinstance(rows, Tensor) else rows.numbers()


@dataclass(frozen=True)
class Found:
    """A program's matrix as a checkpoint stores it.

    Attributes:
        form: name of its form.
        rows: its rows on their grid; None: they have none.
    """

    form: str
    rows: GridValues | None


class StoredWeights:
    """The matrices of a checkpoint.

    Args:
        kind: name of the checkpoint's format, for people.
        matrices: its matrices.
    """

    def __init__(self, kind: str, matrices: Sequence[StoredMatrix]) -> None:
        self.kind, self.matrices = kind, tuple(matrices)

    def describe(self) -> str:
        """The forms of its matrices, with their numbers."""
        forms = Counter(matrix.form for matrix in self.matrices).most_common()
        return ", ".join(f"{count} in {form}" for form, count in forms)

    def find(self, matrix: Tensor) -> Found | None:
        """A float32 matrix ``[N, K]`` as it is stored; None where no matrix has all of its rows."""
        rows = _rows_of(matrix)
        hashes, owners, places = self._index
        if not len(hashes) or not len(rows):
            return None
        at = np.minimum(np.searchsorted(hashes, rows), len(hashes) - 1)
        if not np.array_equal(hashes[at], rows):
            return None
        for owner in np.unique(owners[at]):
            # Rows that several matrices share, such as those of zeros, are looked up in each.
            mine, own = np.nonzero(owners == owner)[0], self.matrices[owner]
            inner = mine[np.minimum(np.searchsorted(hashes[mine], rows), len(mine) - 1)]
            if not np.array_equal(hashes[inner], rows):
                continue
            order = torch.from_numpy(places[inner])
            stored = own.read()
            numbers = stored if isinstance(stored, Tensor) else stored.numbers()
            if torch.equal(numbers[order], matrix):
                return Found(own.form, None if isinstance(stored, Tensor) else stored[order])
        return None

    @cached_property
    def _index(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Hashes of all rows, ascending; the number of the matrix of each, and its place there."""
        found = [_rows_of(matrix.numbers()) for matrix in self.matrices]
        hashes = np.concatenate([np.zeros(0, np.uint64), *found])
        owners = np.repeat(np.arange(len(found)), [len(rows) for rows in found])
        places = np.concatenate([np.zeros(0, np.int64), *(np.arange(len(rows)) for rows in found)])
        order = np.argsort(hashes, kind="stable")
        return hashes[order], owners[order], places[order]


def _rows_of(matrix: Tensor) -> npt.NDArray[np.uint64]:
    """A hash of the bits of each row; minus zero counts as zero."""
    n, k = matrix.shape
    factors = np.random.default_rng(k).integers(1, 1 << 63, k, dtype=np.uint64) | np.uint64(1)
    hashes = np.empty(n, np.uint64)
    step = max(1, _CHUNK // max(k, 1))
    for begin in range(0, n, step):
        numbers = matrix[begin : begin + step].contiguous().numpy() + np.float32(0)
        hashes[begin : begin + step] = (numbers.view(np.uint32) * factors).sum(1, dtype=np.uint64)
    return hashes
