"""Confidence in a plan's promise: held-out cost, bootstrap interval, thin tails, spread.

A plan is chosen to be cheap on the sample that it is judged on, so its expected cost there is a
little too good. Everything random takes a seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgecompile.buckets.costs.grid import MODES, CostGrid
from edgecompile.buckets.evaluation import expected_cost, run_costs
from edgecompile.buckets.planner import plan_buckets
from edgecompile.buckets.ranges import Bucket
from edgecompile.buckets.traffic import Sizes, Traffic
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.units import format_ms, format_share

# A quantile is called thin where fewer samples than this lie beyond it: the relative standard
# error of a count of 10 is 32 %.
_THIN = 10
_RESAMPLES_AT_ONCE = 64
_LEVEL = 0.95
# Of a median: quartiles that are farther apart are worth a warning.
_SPREAD_LIMIT = 0.25


@dataclass(frozen=True)
class HeldOutCost:
    """The cost of a plan made from a part of the sample on the rest.

    Attributes:
        planned_ms: mean run on the part that was planned from.
        held_out_ms: mean run of the same buckets on the part held out.
        best_ms: mean run on that part of buckets that were planned from it.
        samples: number of samples held out.
    """

    planned_ms: float
    held_out_ms: float
    best_ms: float
    samples: int

    @property
    def excess(self) -> float:
        """Share by which the buckets cost more on new samples than the best for these would."""
        return self.held_out_ms / self.best_ms - 1.0

    def to_json(self) -> dict[str, Any]:
        """A dict of plain numbers."""
        return {**vars(self), "excess": self.excess}


@dataclass(frozen=True)
class Interval:
    """A bootstrap interval: ``level`` of the resampled means lie from ``low`` to ``high``, in ms."""

    low: float
    high: float
    level: float = _LEVEL


def held_out_cost(
    sizes: Sizes, costs: CostGrid, *, fraction: float = 0.2, seed: int = 0, **plan_options: Any
) -> HeldOutCost:
    """Plans from a random part of the traffic and costs the buckets on the rest.

    Args:
        sizes: the traffic.
        costs: the costs.
        fraction: share of the samples to hold out.
        seed: seed of the split.
        plan_options: passed to :func:`edgecompile.buckets.planner.plan_buckets`. Sizes that
            ``max_sizes`` doesn't give are served up to the largest of the whole traffic.

    Raises:
        LengthsError: the traffic is too small to be split.
        PlanError: see plan_buckets.
    """
    traffic = Traffic.of(sizes)
    most = dict(zip(traffic.axes, traffic.most, strict=True))
    most |= plan_options.pop("max_sizes", {})
    rest, held = traffic.split(fraction, seed)
    plan, best = (plan_buckets(x, costs, max_sizes=most, **plan_options) for x in (rest, held))
    assert plan.expected_ms is not None and best.expected_ms is not None  # never without costs
    served = held.clip([most[axis] for axis in held.axes])
    return HeldOutCost(
        planned_ms=plan.expected_ms,
        held_out_ms=expected_cost(plan.buckets, served, costs),
        best_ms=best.expected_ms,
        samples=held.n,
    )


def bootstrap_interval(
    buckets: Sequence[Bucket],
    sizes: Sizes,
    costs: CostGrid,
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> Interval:
    """The 95 % percentile interval of the mean run of given buckets over resampled traffic.

    It covers the chance in the sample, not errors of the costs or traffic that changes.

    Args:
        buckets: they must serve all of the traffic.
        sizes: the traffic.
        costs: the costs.
        resamples: the number of resamples.
        seed: seed of the draws.

    Raises:
        PlanError: some sizes are outside every bucket.
    """
    traffic = Traffic.of(sizes, buckets[0].length_axis)
    ms, n = run_costs(buckets, traffic, costs), traffic.n
    rng = np.random.default_rng(seed)
    means = np.empty(resamples)
    for start in range(0, resamples, _RESAMPLES_AT_ONCE):  # bounds the memory
        size = min(_RESAMPLES_AT_ONCE, resamples - start)
        means[start : start + size] = rng.multinomial(n, traffic.counts / n, size=size) @ ms / n
    low, high = np.quantile(means, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return Interval(float(low), float(high))


def spread_warnings(costs: CostGrid) -> tuple[str, ...]:
    """A sentence if what was measured varies so much that the plan may rest on chance.

    It names the point whose quartiles are farthest apart, from a quarter of its median on; other
    points are counted.
    """
    spreads = sorted(
        (
            (point.spread(mode) / ms, ms, point.length, mode)
            for point in costs.points
            for mode in MODES
            if (ms := point.value(mode)) is not None and point.spread(mode) > _SPREAD_LIMIT * ms
        ),
        reverse=True,
    )
    if costs.kind == "modelled" or not spreads:
        return ()
    share, ms, length, mode = spreads[0]
    others = f", and {len(spreads) - 1} more points spread by over {100 * _SPREAD_LIMIT:.0f} %"
    # What this machine measured is kept, and would be taken from there.
    again = "Measure again" if costs.kind == "measured" else "Repeat it"
    return (
        f"Measurements spread: at length {length} ({mode}) the distance of the quartiles is {format_share(share)} "
        f"of the median, {format_ms(ms)} ms{others if len(spreads) > 1 else ''}. {again} on an idle machine.",
    )


def tail_warnings(distribution: LengthDistribution) -> tuple[str, ...]:
    """Sentences on the limits of a small sample; empty if nothing is amiss.

    A quantile is doubtful where fewer than 10 samples lie beyond it. How much traffic may be
    longer than anything in the sample is bounded by 1 − 0.05^(1/n), at 95 % confidence (the "rule
    of three", about 3/n).
    """
    warnings = []
    n, longest = distribution.n, distribution.max
    if distribution.min == longest:
        warnings.append(
            f"All {n} samples have the length {longest}: is this the length after padding?"
        )
    thin = next((q for q in (0.9, 0.99, 0.999) if n * (1 - q) < _THIN * (1 - 1e-9)), None)
    if thin is not None:
        warnings.append(
            f"{n} samples are few: only about {n * (1 - thin):.2g} lie beyond the {100 * thin:g} % "
            f"quantile, so the tail is doubtful from there on. Lengths over {longest} may make up "
            f"as much as {100 * (1 - 0.05 ** (1 / n)):.2g} % of the traffic (95 % confidence)."
        )
    return tuple(warnings)
