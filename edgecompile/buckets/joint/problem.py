"""The planner's problem on two axes: which pairs of sizes come how often, and what they cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from edgecompile.buckets.costs.curves import FloatArray, Mode
from edgecompile.buckets.costs.surfaces import CostSurface
from edgecompile.lengths.joint import JointDistribution

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class JointProblem:
    """A sample whose sizes don't pass the largest ones served, and its costs.

    Attributes:
        served: the sample.
        surface: milliseconds by the sizes of the same two axes.
        modes: the modes allowed; they have costs.
        min_sizes, max_sizes: the sizes to serve on both axes.
    """

    served: JointDistribution
    surface: CostSurface
    modes: tuple[Mode, ...]
    min_sizes: tuple[int, int]
    max_sizes: tuple[int, int]

    @classmethod
    def of(
        cls,
        served: JointDistribution,
        surface: CostSurface,
        modes: tuple[Mode, ...],
        min_sizes: Mapping[str, int],
        max_sizes: Mapping[str, int],
    ) -> JointProblem:
        """A problem with its bounds by names of axes."""
        first, second = served.axes
        return cls(
            served,
            surface,
            modes,
            (min_sizes[first], min_sizes[second]),
            (max_sizes[first], max_sizes[second]),
        )

    @property
    def axes(self) -> tuple[str, ...]:
        """The two axes, the length axis first."""
        return self.served.axes

    @property
    def pads(self) -> bool:
        """Whether padded boxes are allowed."""
        return "pad" in self.modes

    @cached_property
    def weights(self) -> FloatArray:
        """Share of the samples at each pair of sizes, shape [cells]."""
        return self.served.count_array / self.served.n

    @cached_property
    def exact(self) -> FloatArray | None:
        """Exact cost of each pair in ms, shape [cells]; None if exact boxes aren't allowed."""
        if "exact" not in self.modes:
            return None
        sizes = self.served.size_array
        return self.surface.cost(sizes[:, 0], sizes[:, 1], "exact")

    @cached_property
    def least(self) -> FloatArray:
        """The cost of each pair if it had a program of its own, shape [cells]."""
        if not self.pads:
            assert self.exact is not None
            return self.exact
        sizes = self.served.size_array
        own = self.surface.cost(sizes[:, 0], sizes[:, 1], "pad")
        return own if self.exact is None else np.minimum(own, self.exact)

    def pad_costs(self, axis: int, sizes: IntArray, others: IntArray) -> FloatArray:
        """Costs of static programs, shape [sizes, others].

        Args:
            axis: the axis, 0 or 1, on which ``sizes`` lie.
            sizes: sizes on that axis.
            others: sizes on the other one.
        """
        rows, columns = np.asarray(sizes)[:, None], np.asarray(others)[None, :]
        if axis == 0:
            return self.surface.cost(rows, columns, "pad")
        return self.surface.cost(columns, rows, "pad")

    def observed(self, axis: int) -> IntArray:
        """The distinct sizes of the sample on an axis, ascending."""
        return np.unique(self.served.size_array[:, axis])

    def reached(self, axis: int) -> IntArray:
        """These, and the largest size served if no sample has it: the last box must reach it."""
        sizes = self.observed(axis)
        last = self.max_sizes[axis]
        return sizes if sizes[-1] == last else np.append(sizes, last)

    def turns(self, axis: int, low: int, high: int) -> IntArray:
        """The sizes on an axis, between two others, at which the costs may turn."""
        grid = np.array(self.surface.grid(self.axes[axis]), dtype=np.int64)
        return grid[(grid > low) & (grid < high)]

    def ends(self, axis: int) -> IntArray:
        """Every size on an axis at which it may be best to end a static program.

        Costs are linear between the points of the surface, so that of all sizes between one
        observed size and the next the best is an end of that range or a point.
        """
        sizes = self.reached(axis)
        between = self.turns(axis, int(sizes[0]), int(sizes[-1]))
        return np.unique(np.concatenate([sizes, np.maximum(sizes[1:] - 1, sizes[:-1]), between]))
