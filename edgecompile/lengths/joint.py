"""The sizes that traffic has on two axes at once: lengths with batches, or two lengths."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from edgecompile.errors import LengthsError
from edgecompile.lengths.distribution import (
    CountedSamples,
    IntArray,
    LengthDistribution,
    add_up,
    read_only,
)
from edgecompile.lengths.documents import CountedSizes
from edgecompile.lengths.rows import LENGTH, Sizes


@dataclass(frozen=True)
class JointDistribution(CountedSamples):
    """The count of each pair of sizes.

    Attributes:
        axes: names of the two axes, the length axis first.
        sizes: the distinct pairs, ascending, each size from 1 to 2^31-1.
        counts: the number of samples of each pair, each from 1 up, 2^53 at most in all.
        source: the origin of the sizes, for people to read.

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

    def marginal(self, axis: str) -> LengthDistribution:
        """The sizes on one axis, whatever the other has."""
        sizes, counts = add_up(self.size_array[:, self.index(axis)], self.count_array)
        return LengthDistribution(tuple(sizes.tolist()), tuple(counts.tolist()), self.source)

    def turned(self) -> JointDistribution:
        """The same with the axes in the other order."""
        counts: dict[Sizes, int] = {
            (b, a): n for (a, b), n in zip(self.sizes, self.counts, strict=True)
        }
        return JointDistribution.from_counts(self.axes[::-1], counts, self.source)

    def clip(self, axis: str, max_size: int) -> tuple[JointDistribution, float]:
        """Counts larger sizes on one axis as ``max_size``, and gives their share of the samples."""
        column = self.index(axis)
        over = self.size_array[:, column] > max_size
        if not over.any():
            return self, 0.0
        cut = self.size_array.copy()
        cut[over, column] = max_size
        sizes, counts = add_up(cut, self.count_array)
        cells = tuple((a, b) for a, b in sizes.tolist())
        clipped = JointDistribution(self.axes, cells, tuple(counts.tolist()), self.source)
        return clipped, int(self.count_array[over].sum()) / self.n

    def to_json(self) -> dict[str, Any]:
        """``{"axes", "sizes": [[…], …], "counts", "source"}``; read_sizes reads it, too."""
        return {
            "axes": list(self.axes),
            "sizes": [list(cell) for cell in self.sizes],
            "counts": list(self.counts),
            "source": self.source,
        }


def both_axes_hint(axes: Iterable[str], length_axis: str = LENGTH) -> str:
    """A hint for giving sizes on the length axis and an axis of ``axes`` other than the batch; empty if there is
    none."""
    other = next((axis for axis in axes if axis not in (length_axis, "batch")), None)
    if other is None:
        return ""
    example = f'{{"axes": ["{LENGTH}", "{other}"], "sizes": [[9, 2], [7, 5]]}}'
    return f"; pairs are (batch, length): for {length_axis} and {other} give {example}"


def distribution_of(counted: CountedSizes) -> LengthDistribution | JointDistribution:
    """The distribution of a source's counts, over one axis or two."""
    if len(counted.axes) == 1:
        lengths = LengthDistribution.from_sizes(counted.counts, counted.source)
        return replace(lengths, ignored=counted.ignored)
    return JointDistribution.from_counts(counted.axes, counted.counts, counted.source)
