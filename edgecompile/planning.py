"""Planning for a model: finds what sizes cost and asks for the best buckets."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path

from edgecompile.buckets import Bucket, BucketPlan, plan_buckets
from edgecompile.compilation import ExportStore
from edgecompile.cost_sources import find_costs
from edgecompile.curves import CostCurve
from edgecompile.errors import PlanError
from edgecompile.evidence import spread_warnings
from edgecompile.generation_plan import (
    prompts_only,
    refuse_sources,
    refused_prompts,
    require_native,
    with_decode,
)
from edgecompile.kits import KitScope
from edgecompile.limits import DEFAULT_MAX_BUCKETS, BucketCost, BucketLimits
from edgecompile.plan_request import PlanRequest, plan_scope, require_paddable
from edgecompile.progress import StepHandle
from edgecompile.slabs import plan_joint
from edgecompile.surfaces import CostSurface
from edgecompile.targets import TargetProfile
from edgecompile.units import format_ms, format_share

__all__ = [
    "NOISE_PRICES",
    "PlanRequest",
    "Planned",
    "noise_price",
    "plan_model",
]

#: Shares of the mean run that a bucket has to save, at least and at most, where no price is given.
#: Two builds of one program differ by about the least, so that less would be noise.
NOISE_PRICES = (0.01, 0.05)


@dataclass(frozen=True)
class Planned:
    """A plan and what a person should know about it.

    ``cost`` is what its buckets take, ``scope`` what is served: the whole of what was asked about,
    or the part that the model allows.
    """

    plan: BucketPlan
    notes: tuple[str, ...]
    cost: BucketCost
    scope: KitScope


def plan_model(
    exports: ExportStore,
    profile: TargetProfile,
    request: PlanRequest,
    work: Path,
    *,
    step: StepHandle | None = None,
) -> Planned:
    """Finds what the model's sizes cost and plans its buckets.

    Raises:
        LengthsError: the lengths don't fit the model.
        CostError: the calibration is another model's, machine's or version's, or the target's
            profile lacks what a modelled curve needs.
        PlanError: the constraints can't be met.
        ModelError: it generates, and not on the target or the runtime that was asked for.
        ExportError, CompileError: a program to measure can't be built.
    """
    started = time.perf_counter()
    whole = exports.model
    notes: list[str] = []
    if whole.generation is not None:
        refuse_sources(whole)
        require_native(whole, runtime=request.runtime, gpu=profile.gpu is not None)
        notes += refused_prompts(whole, request)
        exports, request = prompts_only(exports, request)
    scope = plan_scope(exports.model, request)
    model, extent = exports.model, scope.axes[0][1]
    if request.mode == "pad" and extent.lo < extent.hi:
        require_paddable(model, extent.lo, extent.hi)
    over = request.lengths.share_over(extent.hi)
    if over:
        notes.append(
            f"{format_share(over)} of the traffic is longer than {extent.hi} and will be refused."
        )
    costs = find_costs(exports, profile, request, scope, work, step)
    scope = costs.scope
    if costs.note:
        notes.append(costs.note)
    notes += spread_warnings(costs.model)
    cost = costs.cost
    if costs.kit is not None:
        # Only what was measured here may differ from run to run: with a calibration, or for a
        # target that can't run here, equal inputs make equal bundles.
        cost = replace(cost, base_build_s=time.perf_counter() - started)
    _require_known(request, costs.cost)
    plan, note = _choose(scope, request, costs.model, cost)
    if note:
        notes.append(note)
    if costs.kit is not None and _same_programs(plan.buckets, costs.kit.buckets[:1]):
        # What was measured is the plan: keep its hint, so that nothing is built twice.
        plan = replace(plan, buckets=costs.kit.buckets[:1])
    if whole.generation is not None:
        plan = with_decode(plan, whole)
    return Planned(plan, (*notes, *plan.notes), cost, scope)


def _require_known(request: PlanRequest, cost: BucketCost) -> None:
    """Refuses bounds on what isn't known: without programs built or run there are no figures."""
    needed = {
        "--max-size": request.max_size is not None and not cost.bucket_size,
        "--max-build-time": request.max_build_s is not None and not cost.bucket_build_s,
        "--runs": request.runs is not None and not cost.bucket_build_s,
    }
    unknown = [option for option, missing in needed.items() if missing]
    if unknown:
        raise PlanError(
            f"{', '.join(unknown)}: what a bucket takes isn't known, as no program was built here "
            "and the costs come from elsewhere",
            hint="calibrate with a kit (plan --kit), or give --max-buckets or --price-per-bucket",
        )


def _choose(
    scope: KitScope, request: PlanRequest, costs: CostCurve | CostSurface, cost: BucketCost
) -> tuple[BucketPlan, str]:
    """The best plan by these costs, and how its price came about if nobody gave one."""
    most = request.max_buckets
    if most is None and request.buckets is None:
        most = DEFAULT_MAX_BUCKETS
    limits = BucketLimits(request.max_size, request.max_build_s, cost)

    def plan(price: float, buckets: int | None, max_buckets: int | None) -> BucketPlan:
        if isinstance(costs, CostSurface):
            assert scope.joint is not None
            return plan_joint(
                scope.joint,
                costs,
                max_buckets=max_buckets,
                buckets=buckets,
                price_per_bucket=price,
                min_sizes={name: r.lo for name, r in scope.axes if name in scope.joint.axes},
                max_sizes={name: r.hi for name, r in scope.axes if name in scope.joint.axes},
                modes=costs.modes,
                limits=limits,
                other_axes=tuple(a for a in scope.axes[1:] if a[0] != scope.second),
            )
        return plan_buckets(
            scope.traffic,
            costs,
            max_buckets=max_buckets,
            buckets=buckets,
            price_per_bucket=price,
            min_length=scope.axes[0][1].lo,
            max_length=scope.axes[0][1].hi,
            modes=costs.modes,
            limits=limits,
            length_axis=scope.axis,
            other_axes=scope.axes[1:],
        )

    if request.price_per_bucket is not None:
        return plan(request.price_per_bucket, request.buckets, most), ""
    if request.runs is not None:
        price = cost.price(request.runs)
        note = (
            f"A bucket takes {cost.bucket_build_s:.1f} s to build and {cost.load_ms:.1f} ms to "
            f"load: over {request.runs:,.0f} runs it must save {format_ms(price)} ms of each."
        )
        return plan(price, request.buckets, most), note
    single = plan(0.0, 1, None).expected_ms
    assert single is not None
    share = noise_price(costs)
    why = (
        "the costs are modelled, and less is within their error"
        if costs.kind == "modelled"
        else "smaller savings are within measurement noise"
    )
    return plan(share * single, request.buckets, most), (
        f"Each extra bucket must save at least {format_share(share)} of the mean run time: {why}. "
        "Override with --price-per-bucket or --runs."
    )


def noise_price(costs: CostCurve | CostSurface) -> float:
    """The share of the mean run that differs from nothing as far as the measurement can tell.

    The standard error of a median of n normal samples is 1.25·σ/√n, which is about an eighth of
    the distance of the quartiles (1.35·σ) for the some fifty samples of a point.
    """
    curves = [curve for _, curve in costs.slices] if isinstance(costs, CostSurface) else [costs]
    spreads = [
        spread / ms
        for curve in curves
        for point in curve.points
        for ms, spread in (
            (point.exact_ms, point.exact_spread_ms),
            (point.pad_ms, point.pad_spread_ms),
        )
        if ms is not None and spread > 0
    ]
    least, most = NOISE_PRICES
    return min(most, max(least, statistics.median(spreads) / 8 if spreads else 0.0))


def _same_programs(buckets: tuple[Bucket, ...], others: tuple[Bucket, ...]) -> bool:
    """Whether two plans differ in nothing but hints."""

    def key(bucket: Bucket) -> tuple[object, ...]:
        return (bucket.mode, *((name, r.lo, r.hi) for name, r in bucket.axes))

    return [key(b) for b in buckets] == [key(b) for b in others]
