"""How far the promise of a plan over two axes can be trusted: held-out cost, bootstrap interval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgecompile.buckets.costs.surfaces import CostSurface
from edgecompile.buckets.evidence import HeldOutCost, Interval, interval_of_mean
from edgecompile.buckets.joint.evaluation import joint_cost, joint_run_costs
from edgecompile.buckets.joint.plan import plan_joint
from edgecompile.buckets.ranges import Bucket
from edgecompile.lengths.joint import JointDistribution


def held_out_joint(
    distribution: JointDistribution,
    surface: CostSurface,
    *,
    fraction: float = 0.2,
    seed: int = 0,
    **plan_options: Any,
) -> HeldOutCost:
    """Plans from a random part of the sample and costs the buckets on the rest.

    Args:
        distribution: the sample.
        surface: the costs.
        fraction: share of the samples to hold out.
        seed: seed of the split.
        plan_options: passed to :func:`edgecompile.buckets.joint.plan.plan_joint`. Sizes that ``max_sizes``
            doesn't give are served up to the largest of the whole sample.

    Raises:
        LengthsError: the sample is too small to be split.
        PlanError: see plan_joint.
    """
    max_sizes = distribution.max_sizes | dict(plan_options.get("max_sizes") or {})
    options = {**plan_options, "max_sizes": max_sizes}
    rest, held = distribution.split(fraction, seed)
    plan = plan_joint(rest, surface, **options)
    best = plan_joint(held, surface, **options)
    planned_ms, best_ms = plan.expected_ms, best.expected_ms
    assert planned_ms is not None and best_ms is not None  # plan_joint always gives them
    return HeldOutCost(
        planned_ms=planned_ms,
        held_out_ms=joint_cost(plan.buckets, held.clip_all(max_sizes), surface),
        best_ms=best_ms,
        samples=held.n,
    )


def joint_interval(
    buckets: Sequence[Bucket],
    distribution: JointDistribution,
    surface: CostSurface,
    *,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> Interval:
    """The percentile interval of the mean run of given buckets over resampled traffic.

    Args:
        buckets: they must serve the whole sample.
        distribution: the sample.
        surface: the costs.
        level: share of the resampled means inside the interval.
        resamples: how often to resample.
        seed: seed of the draws.

    Raises:
        PlanError: some sizes lie outside every bucket.
    """
    costs = joint_run_costs(buckets, distribution, surface)
    return interval_of_mean(
        costs, distribution.count_array, level=level, resamples=resamples, seed=seed
    )
