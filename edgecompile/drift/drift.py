"""Tells whether a bundle's traffic has moved away from its plan, and whether that costs.

Two separate questions. *Has it moved?* By the Kolmogorov-Smirnov distance between the lengths that the
bundle was planned for and those that devices were asked for: it has to be over a threshold, and over
the distance that chance gives two samples of these sizes. With millions of calls chance gives next to
nothing, and a difference that nobody would notice isn't a move; with few calls it gives much. Calls
that follow each other aren't independent; the threshold guards against that, too.

*Does acting pay?* That is what a cron job wants to know. The current buckets are costed on the new
traffic by the costs that they were planned with, and compared with the best buckets for it under
the same constraints. Traffic may move without cost, and a small move may cost much.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from edgecompile.buckets.costs.grid import MODES, CostGrid, Mode
from edgecompile.buckets.evaluation import expected_cost
from edgecompile.buckets.figures import BucketFigures, bucket_figures
from edgecompile.buckets.plan import BucketPlan
from edgecompile.buckets.planner import plan_buckets
from edgecompile.buckets.shipped import ShippedPlan
from edgecompile.buckets.traffic import Traffic
from edgecompile.drift.report import (
    BucketDrift,
    CostDrift,
    DriftReport,
    LengthShift,
    ReleaseDrift,
    Thresholds,
)
from edgecompile.errors import DriftError, LengthsError
from edgecompile.lengths.distribution import IntArray, LengthDistribution
from edgecompile.lengths.served_traffic import ServedTraffic

# A plan that costs this share more than the optimum found wasn't made under those constraints.
_NOT_OPTIMAL = 1e-6
# Kolmogorov's distribution has 1 % beyond this (N. Smirnov, "Table for estimating the goodness of fit
# of empirical distributions", Annals of Mathematical Statistics 19(2), 1948).
_CRITICAL = 1.6276


def judge_drift(
    shipped: ShippedPlan,
    traffic: ServedTraffic,
    *,
    thresholds: Thresholds | None = None,
    any_bundle: bool = False,
    modes: tuple[Mode, ...] | None = None,
    max_buckets: int | None = None,
) -> DriftReport:
    """Compares the served traffic with the planned traffic.

    The optimum for the new traffic has the plan's range of lengths and price per bucket. A plan
    doesn't record all of its constraints, so they are inferred where they aren't given: as many
    buckets as it considered (one less than it has costs by count for), or as it has; and every mode
    that its cost model knows, unless the plan would have been better with all of them on its own
    lengths: then it was bound to the modes that it has.

    Args:
        shipped: the bundle's plan, of :func:`edgecompile.buckets.shipped.read_shipped_plan`.
        traffic: the result of :func:`edgecompile.lengths.stats_files.read_stats`.
        thresholds: None for the defaults.
        any_bundle: accept the stats of another bundle, such as an earlier build of the model. What
            that one served or refused is then judged by this bundle's range.
        modes: the modes that a new plan may use.
        max_buckets: the most buckets that a new plan may have.

    Raises:
        LengthsError: the stats are of another bundle, or count another axis.
    """
    same = traffic.manifests == (shipped.manifest_sha256,)
    if not same and not any_bundle:
        raise LengthsError(
            f"the stats are of another bundle: they were counted with the manifest "
            f"{', '.join(traffic.manifests)} ({traffic.bundle}), that of {shipped.name} is "
            f"{shipped.manifest_sha256}",
            hint="give the bundle that served them, or --any-bundle to judge this one by them",
        )
    plan = shipped.plan
    if traffic.length_axis != plan.length_axis:
        raise LengthsError(
            f"the stats count the axis {traffic.length_axis}, the plan divides {plan.length_axis}"
        )
    if same and len(traffic.buckets) != len(plan.buckets):
        raise LengthsError(
            f"the stats have {len(traffic.buckets)} buckets, the bundle {len(plan.buckets)}"
        )
    # Another bundle may have refused what this one serves.
    told = traffic.runs if same else traffic.calls
    served = _within(traffic.demand(outside=not same), plan) if told else None
    in_range = _within(shipped.lengths, plan)
    # The planner counts longer inputs as the longest served.
    planned = _within(shipped.lengths.clip(plan.max_length)[0], plan)
    return DriftReport(
        name=shipped.name,
        manifest_sha256=shipped.manifest_sha256,
        traffic=traffic,
        thresholds=thresholds or Thresholds(),
        refused=traffic.calls - (0 if served is None else served.n),
        planned_refused_share=1.0 - (0 if in_range is None else in_range.n) / shipped.lengths.n,
        shift=_shift(shipped, traffic) if traffic.calls else None,
        cost=_cost(plan, planned, served, modes, max_buckets),
        buckets=_buckets(plan, planned, served, traffic if same else None),
        releases=tuple(_release(shipped, part) for part in traffic.by_release),
    )


def _release(shipped: ShippedPlan, traffic: ServedTraffic) -> ReleaseDrift:
    shift = _shift(shipped, traffic) if traffic.calls else None
    return ReleaseDrift(
        manifest_sha256=traffic.manifests[0],
        release=traffic.release,
        files=len(traffic.sources),
        since=traffic.since,
        until=traffic.until,
        calls=traffic.calls,
        refused_share=1.0 - traffic.runs / traffic.calls if traffic.calls else 0.0,
        mean_length=traffic.demand().summary().mean if traffic.calls else None,
        distance=None if shift is None else shift.distance,
        mean_ms=traffic.mean_ms,
    )


def check_drift(report: DriftReport) -> None:
    """Raises DriftError if a new plan pays."""
    if report.act:
        raise DriftError(
            f"{report.name}: {'; '.join(report.reasons)}",
            hint="plan from the stats and build again: edgecompile plan --from-stats FILE",
        )


def _within(lengths: LengthDistribution, plan: BucketPlan) -> LengthDistribution | None:
    """The part of a sample that the plan's range holds; None if that is nothing."""
    counts = zip(lengths.lengths, lengths.counts, strict=True)
    inside = {n: count for n, count in counts if plan.min_length <= n <= plan.max_length}
    return LengthDistribution.from_counts(inside, lengths.source) if inside else None


def _shift(shipped: ShippedPlan, traffic: ServedTraffic) -> LengthShift:
    """The distance; lengths over the longest served count as that.

    Whoever truncates sends exactly it, and what was refused is judged by itself.
    """
    planned, asked = (
        sample.clip(shipped.plan.max_length)[0] for sample in (shipped.lengths, traffic.demand())
    )
    ends = planned.length_array
    if traffic.length_bin > 1:  # what was asked for is known at the ends of bins only
        width, first = traffic.length_bin, shipped.lo
        last = np.minimum((ends - first) // width * width + first + width - 1, shipped.hi)
        ends = np.where(ends < first, ends, last)
    distance = length_distance(planned, asked, np.union1d(ends, asked.length_array))
    return LengthShift(distance, chance_distance(planned.n, asked.n), planned, asked)


def length_distance(first: LengthDistribution, second: LengthDistribution, at: IntArray) -> float:
    """The largest difference, at the lengths ``at``, between the shares of inputs up to a length."""
    gap = first.shares_up_to(at) - second.shares_up_to(at)
    return float(np.max(np.abs(gap)))


def chance_distance(first_n: int, second_n: int) -> float:
    """The distance that two samples of one distribution exceed in 1 % of all cases.

    That is asymptotic, and of a continuous distribution. Lengths are whole numbers with many ties,
    where distances are smaller (G. E. Noether, "Note on the Kolmogorov statistic in the discrete
    case", Metrika 7, 1963), so this errs on the side of not seeing a move.
    """
    return _CRITICAL * math.sqrt(1 / first_n + 1 / second_n)


def _cost(
    plan: BucketPlan,
    planned: LengthDistribution | None,
    served: LengthDistribution | None,
    modes: tuple[Mode, ...] | None,
    max_buckets: int | None,
) -> CostDrift | None:
    costs = _costs(plan)
    if costs is None or served is None:
        return None
    most = _considered(plan) if max_buckets is None else max_buckets

    def compare(
        lengths: LengthDistribution, modes: tuple[Mode, ...]
    ) -> tuple[BucketPlan, float, float]:
        """The best plan, the mean run in the current buckets, the share by which these cost more."""
        best = plan_buckets(
            Traffic.of(lengths, plan.length_axis),
            costs,
            max_buckets=most,
            price_per_bucket=plan.price_per_bucket,
            min_sizes={plan.length_axis: plan.min_length},
            max_sizes={plan.length_axis: plan.max_length},
            modes=modes,
            other_axes=plan.buckets[0].other_axes,
            cuts=plan.cuts,
        )
        price = plan.price_per_bucket
        own_ms, best_ms = (expected_cost(p.buckets, lengths, costs) for p in (plan, best))
        total, least = own_ms + price * len(plan.buckets), best_ms + price * len(best.buckets)
        return best, own_ms, total / least - 1.0

    planned_excess = 0.0
    used = tuple(mode for mode in MODES if any(bucket.mode == mode for bucket in plan.buckets))
    allowed = modes or used
    if planned is not None:
        for allowed in dict.fromkeys([modes] if modes else [costs.modes, used]):
            planned_excess = compare(planned, allowed)[2]
            if planned_excess < _NOT_OPTIMAL:
                break
    optimum, current_ms, excess = compare(served, allowed)
    return CostDrift(current_ms, optimum, excess, planned_excess, allowed, most)


def _costs(plan: BucketPlan) -> CostGrid | None:
    """The plan's cost model, where it has costs for all buckets and the length alone decides."""
    costs = plan.cost_model
    if costs is None or len(costs.axes) > 1 or not _one_axis(plan):
        return None
    return costs if {bucket.mode for bucket in plan.buckets} <= set(costs.modes) else None


def _considered(plan: BucketPlan) -> int | None:
    """The number of buckets that the plan could have had; None if only their price decided."""
    if plan.expected_by_count:
        return max(len(plan.buckets), len(plan.expected_by_count) - 1)
    return None if plan.price_per_bucket > 0 else len(plan.buckets)


def _one_axis(plan: BucketPlan) -> bool:
    """Whether the lengths alone tell the bucket."""
    return all(after.lo == before.hi + 1 for before, after in pairwise(plan.buckets))


def _buckets(
    plan: BucketPlan,
    planned: LengthDistribution | None,
    served: LengthDistribution | None,
    counted: ServedTraffic | None,
) -> tuple[BucketDrift, ...]:
    priced = replace(plan, cost_model=_costs(plan))
    unknown: Sequence[BucketFigures | None] = (None,) * len(plan.buckets)
    before, now = (
        bucket_figures(priced, lengths) if lengths and _one_axis(plan) else unknown
        for lengths in (planned, served)
    )
    return tuple(
        BucketDrift(
            bucket=bucket,
            planned_share=None if old is None else old.share,
            served_share=None if new is None else new.share,
            expected_ms=None if new is None else new.expected_ms,
            observed_ms=None if counted is None else counted.buckets[i].mean_ms,
        )
        for i, (bucket, old, new) in enumerate(zip(plan.buckets, before, now, strict=True))
    )
