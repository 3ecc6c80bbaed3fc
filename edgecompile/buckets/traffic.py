"""The sizes that traffic has, as the planner counts them: weighted points over one axis or two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from edgecompile.lengths.distribution import LengthDistribution, add_up, draw_held_out
from edgecompile.lengths.joint import JointDistribution

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Traffic:
    """The count of each combination of sizes.

    Attributes:
        axes: names of one or two axes, the length axis first.
        sizes: the distinct combinations, ascending, shape [cells, axes].
        counts: the number of samples of each, shape [cells].
        source: the origin of the sizes, for people to read.
    """

    axes: tuple[str, ...]
    sizes: IntArray
    counts: IntArray
    source: str = "samples"

    @classmethod
    def of(cls, sizes: Sizes, length_axis: str = "length") -> Traffic:
        """Traffic of any kind; ``length_axis`` names the axis of lengths that have none."""
        if isinstance(sizes, Traffic):
            return sizes
        if isinstance(sizes, JointDistribution):
            return cls(sizes.axes, sizes.size_array, sizes.count_array, sizes.source)
        return cls((length_axis,), sizes.length_array[:, None], sizes.count_array, sizes.source)

    @cached_property
    def n(self) -> int:
        """Number of samples."""
        return int(self.counts.sum())

    @cached_property
    def least(self) -> tuple[int, ...]:
        """Smallest size on each axis."""
        return tuple(self.sizes.min(axis=0).tolist())

    @cached_property
    def most(self) -> tuple[int, ...]:
        """Largest size on each axis; no sample needs to have them all."""
        return tuple(self.sizes.max(axis=0).tolist())

    @cached_property
    def lengths(self) -> LengthDistribution:
        """The sizes on the length axis, whatever the other has."""
        return self.marginal(0)

    def marginal(self, axis: int) -> LengthDistribution:
        """The sizes on one axis, by its position, whatever the other has."""
        sizes, counts = add_up(self.sizes[:, [axis]], self.counts)
        return LengthDistribution(tuple(sizes[:, 0].tolist()), tuple(counts.tolist()), self.source)

    def share_over(self, axis: int, size: int) -> float:
        """Share of the samples that are larger than ``size`` on an axis."""
        return int(self.counts[self.sizes[:, axis] > size].sum()) / self.n

    def clip(self, most: Sequence[int]) -> Traffic:
        """The traffic with larger sizes cut to ``most``, one for each axis."""
        if all(size <= limit for size, limit in zip(self.most, most, strict=True)):
            return self
        sizes, counts = add_up(np.minimum(self.sizes, np.array(most)), self.counts)
        return Traffic(self.axes, sizes, counts, self.source)

    def between(self, low: int, high: int) -> Traffic:
        """The samples of lengths ``low`` to ``high``; there may be none."""
        inside = (self.sizes[:, 0] >= low) & (self.sizes[:, 0] <= high)
        return Traffic(self.axes, self.sizes[inside], self.counts[inside], self.source)

    def split(self, fraction: float, seed: int) -> tuple[Traffic, Traffic]:
        """Splits the samples at random: (rest, held out); each has one sample at least.

        Args:
            fraction: share of the samples to hold out, over 0 and under 1.
            seed: seed of the draw.

        Raises:
            LengthsError: there are fewer than two samples.
        """
        drawn = draw_held_out(self.counts, fraction, seed, self.source)
        parts = [(self.sizes[n > 0], n[n > 0]) for n in (self.counts - drawn, drawn)]
        rest, held = (Traffic(self.axes, *part, self.source) for part in parts)
        return rest, held


Sizes = Traffic | LengthDistribution | JointDistribution
