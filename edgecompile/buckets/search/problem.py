"""The planner's problem: the sizes with their counts and costs, and the limits of a plan.

Everything is reckoned on two axes: traffic over one axis has the size 1 on a second one, which no
bucket and no message knows of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from edgecompile.buckets.costs.grid import CostGrid, FloatArray, Mode
from edgecompile.buckets.traffic import IntArray, Traffic


@dataclass(frozen=True)
class Problem:
    """Traffic, costs and bounds of a plan.

    Attributes:
        served: the traffic; its sizes don't pass the largest ones served.
        costs: milliseconds by the sizes of the same axes.
        modes: the modes allowed; they have costs.
        lows, highs: the smallest and largest size to serve on each axis.
        most: the most buckets allowed; None leaves it to the price, which is over 0 then.
        count: the exact number of buckets, if it is given.
        price: milliseconds of the mean run that each bucket costs.
        samples: number of samples that the mean run is over; None: those of ``served``.
    """

    served: Traffic
    costs: CostGrid
    modes: tuple[Mode, ...]
    lows: tuple[int, ...]
    highs: tuple[int, ...]
    most: int | None = None
    count: int | None = None
    price: float = 0.0
    samples: int | None = None

    @property
    def n(self) -> int:
        """Number of samples that the mean run is over."""
        return self.served.n if self.samples is None else self.samples

    def divided(self, cuts: Sequence[int]) -> tuple[Problem, ...]:
        """The problems between sizes of the length axis at which a bucket has to begin, ascending.

        What their buckets cost adds up: it is of the mean run over all samples.
        """
        starts = (self.lows[0], *cuts)
        ends = (*(cut - 1 for cut in cuts), self.highs[0])
        most = None if self.most is None else self.most - len(cuts)
        return tuple(
            replace(
                self,
                served=self.served.between(low, high),
                lows=(low, *self.lows[1:]),
                highs=(high, *self.highs[1:]),
                most=most,
                samples=self.n,
            )
            for low, high in zip(starts, ends, strict=True)
        )

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes that are divided, the length axis first."""
        return self.served.axes

    @property
    def pads(self) -> bool:
        """Whether padded buckets are allowed."""
        return "pad" in self.modes

    @cached_property
    def sizes(self) -> IntArray:
        """The distinct sizes on both axes, shape [cells, 2]."""
        sizes = self.served.sizes
        return sizes if sizes.shape[1] == 2 else np.insert(sizes, 1, 1, axis=1)

    @cached_property
    def weights(self) -> FloatArray:
        """Share of all samples at each pair of sizes, shape [cells]."""
        return self.served.counts / self.n

    @cached_property
    def exact(self) -> FloatArray | None:
        """Exact cost of each pair in ms, shape [cells]; None if exact buckets aren't allowed."""
        return self.costs.at(self.sizes, "exact") if "exact" in self.modes else None

    @cached_property
    def least(self) -> FloatArray:
        """The cost of each pair if it had a program of its own, shape [cells]."""
        if not self.pads:
            assert self.exact is not None
            return self.exact
        own = self.costs.at(self.sizes, "pad")
        return own if self.exact is None else np.minimum(own, self.exact)

    def low(self, axis: int) -> int:
        """The smallest size to serve on an axis, 0 or 1."""
        return self.lows[axis] if axis < len(self.lows) else 1

    def high(self, axis: int) -> int:
        """The largest size to serve on an axis, 0 or 1."""
        return self.highs[axis] if axis < len(self.highs) else 1

    def pad_costs(self, axis: int, sizes: IntArray, others: IntArray) -> FloatArray:
        """Costs of static programs, shape [sizes, others].

        Args:
            axis: the axis, 0 or 1, of ``sizes``.
            sizes: sizes on that axis.
            others: sizes on the other one.
        """
        rows, columns = np.asarray(sizes)[:, None], np.asarray(others)[None, :]
        if axis == 0:
            return self.costs.cost(rows, "pad", columns)
        return self.costs.cost(columns, "pad", rows)

    def observed(self, axis: int) -> IntArray:
        """The distinct sizes of the traffic on an axis, ascending."""
        return np.unique(self.sizes[:, axis])

    def reached(self, axis: int) -> IntArray:
        """These, and the largest size served if no sample has it: the last bucket must reach it."""
        sizes = self.observed(axis)
        last = self.high(axis)
        return sizes if sizes[-1] == last else np.append(sizes, last)

    def turns(self, axis: int, low: int, high: int) -> IntArray:
        """The sizes on an axis, between two others, at which the costs may turn."""
        sizes = np.array(self.costs.sizes(axis), dtype=np.int64)
        return sizes[(sizes > low) & (sizes < high)]

    def ends(self, axis: int) -> IntArray:
        """Every size on an axis at which it may be best to end a static program.

        Costs are linear between the points, so that of all sizes between one observed size and
        the next the best is an end of that range or a point.
        """
        sizes = self.reached(axis)
        between = self.turns(axis, int(sizes[0]), int(sizes[-1]))
        return np.unique(np.concatenate([sizes, np.maximum(sizes[1:] - 1, sizes[:-1]), between]))
