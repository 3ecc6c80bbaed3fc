"""The sizes that traffic has on two axes at once: lengths with batches, or two lengths.

The first axis is the length axis. Randomness takes an explicit seed and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from edgecompile.errors import LengthsError
from edgecompile.lengths.distribution import (
    CountedSamples,
    IntArray,
    LengthDistribution,
    read_only,
)
from edgecompile.lengths.documents import count_document
from edgecompile.lengths.rows import FORMS_HINT, AxisRule, Sizes


@dataclass(frozen=True)
class JointDistribution(CountedSamples):
    """How often each pair of sizes occurs.

    Attributes:
        axes: names of the two axes, the length axis first.
        sizes: the distinct pairs, ascending, each size from 1 to 2^31-1.
        counts: how many samples have each pair, each from 1 up, 2^53 at most in all.
        source: where the sizes come from, for people to read.

    Raises:
        LengthsError: the fields break one of these rules.
    """

    axes: tuple[str, ...]
    sizes: tuple[Sizes, ...]
    counts: tuple[int, ...]
    source: str = "samples"

    def __post_init__(self) -> None:
        if len(self.axes) != 2 or len(set(self.axes)) != 2:
            raise LengthsError(f"{self.source}: needs two axes, not {', '.join(self.axes) or 0}")
        self._check(self.axes, self.sizes, "size")

    @classmethod
    def from_counts(
        cls, axes: tuple[str, ...], counts: Mapping[Sizes, int], source: str = "samples"
    ) -> JointDistribution:
        """A distribution from a histogram in any order."""
        items = sorted(counts.items())
        return cls(tuple(axes), tuple(k for k, _ in items), tuple(n for _, n in items), source)

    @cached_property
    def size_array(self) -> IntArray:
        """``sizes`` as a read-only int64 array, shape [cells, 2]."""
        return read_only(self.sizes)

    def index(self, axis: str) -> int:
        """Position of an axis, 0 or 1.

        Raises:
            KeyError: there is no such axis.
        """
        if axis not in self.axes:
            raise KeyError(axis)
        return self.axes.index(axis)

    def min(self, axis: str) -> int:
        """Smallest size on an axis."""
        return int(self.size_array[:, self.index(axis)].min())

    def max(self, axis: str) -> int:
        """Largest size on an axis."""
        return int(self.size_array[:, self.index(axis)].max())

    @property
    def max_sizes(self) -> dict[str, int]:
        """Largest size on each axis; no sample needs to have them all."""
        return {axis: self.max(axis) for axis in self.axes}

    def marginal(self, axis: str) -> LengthDistribution:
        """The sizes on one axis, whatever the other has."""
        found, where = np.unique(self.size_array[:, self.index(axis)], return_inverse=True)
        counts = np.zeros(len(found), dtype=np.int64)
        np.add.at(counts, where, self.count_array)
        return LengthDistribution(tuple(found.tolist()), tuple(counts.tolist()), self.source)

    def share_over(self, axis: str, max_size: int) -> float:
        """Share of the samples that are larger than ``max_size`` on an axis."""
        over = self.size_array[:, self.index(axis)] > max_size
        return int(self.count_array[over].sum()) / self.n

    def clip(
        self, axis: str, max_size: int, over: Literal["truncate", "drop"] = "truncate"
    ) -> tuple[JointDistribution, float]:
        """Limits the sizes on one axis, and gives the share of samples that were over the limit.

        Args:
            axis: the axis.
            max_size: the largest size that stays.
            over: ``truncate`` counts larger samples as ``max_size``; ``drop`` leaves them out.

        Raises:
            LengthsError: with ``drop``, no sample is left.
        """
        share = self.share_over(axis, max_size)
        if share == 0:
            return self, 0.0
        column = self.index(axis)
        kept: dict[Sizes, int] = {}
        for cell, count in zip(self.sizes, self.counts, strict=True):
            if cell[column] > max_size:
                if over == "drop":
                    continue
                cell = (max_size, cell[1]) if column == 0 else (cell[0], max_size)
            kept[cell] = kept.get(cell, 0) + count
        if not kept:
            raise LengthsError(
                f"{self.source}: all {self.n} samples are larger than {max_size} on the axis "
                f"{axis}; the smallest has {self.min(axis)}",
                hint="raise the limit, or truncate the inputs",
            )
        return JointDistribution.from_counts(self.axes, kept, self.source), share

    def to_json(self) -> dict[str, Any]:
        """``{"axes", "sizes": [[…], …], "counts", "source"}``; read_sizes reads it, too."""
        return {
            "axes": list(self.axes),
            "sizes": [list(cell) for cell in self.sizes],
            "counts": list(self.counts),
            "source": self.source,
        }

    @classmethod
    def from_json(cls, value: object, name: str = "sizes") -> JointDistribution:
        """The inverse of :meth:`to_json`; pairs may repeat and stand in any order.

        Raises:
            LengthsError: the value has another form, or holds bad sizes or counts.
        """
        counted = count_document(value, name, AxisRule())
        if len(counted.axes) != 2:
            raise LengthsError(f'{name}: not an object with two "axes"', hint=FORMS_HINT)
        return cls.from_counts(counted.axes, counted.counts, counted.recorded_source or name)

    def _with_counts(self, counts: IntArray) -> JointDistribution:
        left = counts > 0
        sizes = tuple((a, b) for a, b in self.size_array[left].tolist())
        return JointDistribution(self.axes, sizes, tuple(counts[left].tolist()), self.source)
