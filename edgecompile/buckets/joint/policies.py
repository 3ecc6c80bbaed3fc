"""The rules that others make buckets by, on two axes, judged by the same costs and sample.

A rule of :mod:`edgecompile.buckets.policies` gives sizes for one axis; on two its boxes are the products of
the sizes on each, padded on both. The number of programs allowed has to be shared out: with n of
them every split into floor(n / j) sizes on the length axis and j on the other one is tried, and
the one that costs least on the sample is taken. So each rule is shown at its best.
"""

from __future__ import annotations

from itertools import product

from edgecompile.buckets.costs.surfaces import CostSurface
from edgecompile.buckets.joint.evaluation import evaluate_joint, joint_cost
from edgecompile.buckets.plan import BucketPlan
from edgecompile.buckets.policies import (
    ONE_RANGE,
    OPTIMUM,
    RIVALS,
    PolicyResult,
    SizeRule,
    exponential,
)
from edgecompile.buckets.positions import TIE
from edgecompile.buckets.ranges import AxisRange, Bucket, OtherAxes
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.lengths.joint import JointDistribution

_Extent = tuple[int, int]


def _exponential_from_one(sample: LengthDistribution, largest: int, programs: int) -> list[int]:
    """The exponential rule for a batch or another small axis: its steps are of 1, not of 8."""
    return exponential(sample, largest, programs, step=1)


# What a rule does on the second axis, where that differs from the length axis.
_SECOND: dict[str, SizeRule] = {"exponential": _exponential_from_one}


def rival_joint_plans(
    sample: JointDistribution,
    surface: CostSurface,
    *,
    programs: int,
    extents: dict[str, _Extent],
    other_axes: OtherAxes = (),
) -> tuple[BucketPlan, ...]:
    """The plans of all rival rules: the padded ones, then one dynamic range.

    Rules whose mode the surface has no costs for are left out.

    Args:
        sample: the sizes; larger ones than served count as the largest.
        surface: the costs by which the budget is shared out.
        programs: the most programs that a rule may use, from 1 up.
        extents: smallest and largest size to serve on each of the sample's axes.
        other_axes: further axes, the same in every bucket.
    """
    if programs < 1:
        raise ValueError(f"programs is {programs}, not 1 or more")
    served = sample.clip_all({axis: high for axis, (_, high) in extents.items()})
    marginals = [served.marginal(axis) for axis in served.axes]
    plans = []
    for name in RIVALS if "pad" in surface.modes else ():
        rules = (RIVALS[name], _SECOND.get(name, RIVALS[name]))
        tried = {
            _products(served.axes, marginals, rules, split, extents, other_axes)
            for split in ((programs // j, j) for j in range(1, programs + 1))
        }
        # In a fixed order, so that of splits that cost the same it's always the same one.
        ordered = sorted(tried, key=lambda boxes: (len(boxes), [b.to_json()["hi"] for b in boxes]))
        costs = [joint_cost(boxes, served, surface) for boxes in ordered]
        best = next(i for i, cost in enumerate(costs) if cost <= min(costs) * (1 + TIE))
        plans.append(BucketPlan(served.axes[0], ordered[best], policy=name, source=sample.source))
    if "exact" in surface.modes:
        whole = []
        for axis, marginal in zip(served.axes, marginals, strict=True):
            low, high = extents[axis]
            whole.append((axis, AxisRange(low, high, max(low, marginal.quantile(0.5)))))
        one = Bucket("exact", (*whole, *other_axes))
        plans.append(BucketPlan(served.axes[0], (one,), policy=ONE_RANGE, source=sample.source))
    return tuple(plans)


def compare_joint_policies(
    optimum: BucketPlan, sample: JointDistribution, surface: CostSurface, *, programs: int
) -> dict[str, PolicyResult]:
    """Judges a plan and its rivals by one surface on one sample, the plan first.

    Regret is over the plan, which is the best of the slabs, not always of all covers: where it is
    a heuristic, a rival may come out with a regret under 0.

    Args:
        optimum: a plan of :func:`edgecompile.buckets.joint.plan.plan_joint`.
        sample: the sizes that it was planned from; larger ones than it serves are clipped.
        surface: the costs that it was planned with.
        programs: the most programs that a rival may use: the bound that the optimum had.

    Raises:
        PlanError: the sample has sizes that are smaller than the plan serves.
    """
    extents = plan_extents(optimum, sample.axes)
    served = sample.clip_all({axis: high for axis, (_, high) in extents.items()})
    others = tuple(item for item in optimum.buckets[0].axes if item[0] not in sample.axes)
    rivals = rival_joint_plans(
        served, surface, programs=programs, extents=extents, other_axes=others
    )
    price = optimum.price_per_bucket
    results: dict[str, PolicyResult] = {}
    least = 0.0
    for plan in (optimum, *rivals):
        evaluation = evaluate_joint(plan.buckets, served, surface)
        total = evaluation.expected_ms + price * evaluation.programs
        name = OPTIMUM if plan is optimum else plan.policy
        least = least or total
        judged = BucketPlan(
            plan.length_axis,
            plan.buckets,
            expected_ms=evaluation.expected_ms,
            policy=name,
            cost_model=surface,
            price_per_bucket=price,
            source=sample.source,
        )
        kept = optimum if plan is optimum else judged
        results[name] = PolicyResult(name, kept, evaluation, total / least - 1.0)
    return results


def plan_extents(plan: BucketPlan, axes: tuple[str, ...]) -> dict[str, _Extent]:
    """Smallest and largest size that a plan serves on each of some axes."""
    return {
        axis: (
            min(bucket.range(axis).lo for bucket in plan.buckets),
            max(bucket.range(axis).hi for bucket in plan.buckets),
        )
        for axis in axes
    }


def _products(
    axes: tuple[str, ...],
    marginals: list[LengthDistribution],
    rules: tuple[SizeRule, SizeRule],
    split: tuple[int, int],
    extents: dict[str, _Extent],
    other_axes: OtherAxes,
) -> tuple[Bucket, ...]:
    """The padded boxes of a rule that may use ``split`` sizes on the axes."""
    parts = []
    for axis, marginal, rule, budget in zip(axes, marginals, rules, split, strict=True):
        low, high = extents[axis]
        ranges = []
        for size in rule(marginal, high, budget):
            if size >= low:
                ranges.append((axis, AxisRange(low, size, size)))
                low = size + 1
        parts.append(ranges)
    return tuple(Bucket("pad", (*pair, *other_axes), axes) for pair in product(*parts))
