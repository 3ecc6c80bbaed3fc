"""Planning for a model: finds what sizes cost and asks for the best buckets."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

from edgecompile.buckets.confidence import spread_warnings
from edgecompile.buckets.costs.grid import CostGrid
from edgecompile.buckets.limits import DEFAULT_MAX_BUCKETS, BucketCost, BucketLimits
from edgecompile.buckets.plan import BucketPlan
from edgecompile.buckets.planner import plan_buckets
from edgecompile.buckets.ranges import Bucket
from edgecompile.buckets.traffic import Traffic
from edgecompile.errors import PlanError
from edgecompile.models.loaded import LoadedModel
from edgecompile.planning.costs.sources import Costs, calibrated_costs, find_costs
from edgecompile.planning.generation_plan import with_decode
from edgecompile.planning.given_plan import without_foreign_costs
from edgecompile.planning.length_support import LengthSupport
from edgecompile.planning.padding import require_paddable, with_padding
from edgecompile.planning.request import PlanRequest
from edgecompile.planning.scope import PlanScope
from edgecompile.planning.subject import Subject
from edgecompile.precision import FP32, Precision
from edgecompile.progress import NULL_STEP, StepHandle
from edgecompile.targets.gpu import FREE_SHARE
from edgecompile.units import format_ms, format_share

#: Shares of the mean run that a bucket has to save, at least and at most, where no price is given.
#: Two builds of one program differ by about the least, so that less would be noise.
NOISE_PRICES = (0.01, 0.05)


@dataclass(frozen=True)
class Planned:
    """A plan.

    Attributes:
        plan: its buckets.
        cost: the cost of a bucket.
        scope: the sizes that are served: all that were requested, or the part that the model
            allows.
        notes: the notes of the subject.
    """

    plan: BucketPlan
    cost: BucketCost
    scope: PlanScope
    notes: Sequence[str]


def plan_model(
    subject: Subject,
    precision: Precision = FP32,
    *,
    compare: bool = False,
    step: StepHandle = NULL_STEP,
) -> Planned:
    """Finds what the model's sizes cost and plans its buckets; notes go to those of the subject.

    Nothing is measured where the request brings the plan, is for a quick one, or leaves one program
    to choose from: such a plan has no costs.

    Args:
        subject: the model, its target and its traffic.
        precision: the data type of the linear layers' weights on a CPU; costs are those of this
            precision.
        compare: find the costs also where one program alone is to choose from.
        step: told what is being done.

    Raises:
        LengthsError: the lengths don't fit the model.
        CostError: the calibration is another model's, machine's or version's, or the target's
            profile lacks what a modelled curve needs.
        PlanError: the constraints can't be met.
        ExportError, CompileError: a program to measure can't be built.
    """
    if subject.request.plan is not None:
        return _given(subject, subject.request.plan, precision)
    model, request, notes = subject.model, subject.request, subject.notes
    started = time.perf_counter()
    extent, gpu = subject.scope.axes[0][1], subject.profile.gpu
    memory = None if gpu is None else int(FREE_SHARE * gpu.memory_bytes)
    if request.mode == "pad":
        require_paddable(model, subject.scope.pad_axes, assume=request.assume_paddable)
    _note_refused_lengths(subject, extent.hi)
    if request.calibration is not None:
        costs = calibrated_costs(subject, precision, request.calibration)
    else:
        serving = subject.serving
        why = _why_not_measured(model, serving, request)
        strided = bool(serving.scope.strided)
        if strided:
            _refuse_costs(request, len(serving.buckets))
        if why and (strided or request.quick or (not compare and _measures_here(subject))):
            plan = BucketPlan(
                serving.scope.axis,
                serving.buckets,
                source=request.traffic.source,
                cuts=serving.scope.cuts,
            )
            notes.add(serving.note, why)
            return _planned(subject, plan, precision, BucketCost(), serving.scope)
        # Who compares plans wants to know what padding costs.
        clear = None if compare else partial(_needs_no_padding, request, memory)
        costs = find_costs(subject, precision, step, clear=clear)
    scope, cost = costs.scope, costs.cost
    notes.add(*spread_warnings(costs.model))
    if costs.measured is not None:
        # Only what was measured here may differ from run to run: with a calibration, or for a
        # target that can't run here, equal inputs make equal bundles.
        cost = replace(cost, base_build_s=time.perf_counter() - started)
    _require_known(request, costs.cost)
    plan, note = _choose(scope, request, costs.model, cost, memory)
    if extent.lo == extent.hi and scope.second is None:
        plan = replace(plan, notes=())  # they compare plans
        note = _one_size(model, scope)
    notes.add(note)
    dynamic = () if costs.measured is None else costs.measured.buckets[: len(scope.sides)]
    if _same_programs(plan.buckets, dynamic):
        # What was measured is the plan: keep its hints, so that nothing is built twice.
        plan = replace(plan, buckets=dynamic)
    return _planned(subject, plan, precision, cost, scope)


def _given(subject: Subject, requested: BucketPlan, precision: Precision) -> Planned:
    """The plan of the request, which has to fit."""
    scope, model = subject.scope, subject.model
    plan, note = without_foreign_costs(requested, subject.made_for(precision))
    plan = with_padding(plan, model, assume=subject.request.assume_paddable)
    if model.generation is None:
        _note_refused_lengths(subject, plan.max_length)
    subject.notes.add(*plan.notes, note)
    return Planned(plan, BucketCost(), scope, subject.notes)


def _note_refused_lengths(subject: Subject, longest: int) -> None:
    """The note on longer traffic, if there is any."""
    over = subject.request.traffic.share_over(longest)
    if not over:
        return
    subject.notes.add(
        f"{format_share(over)} of the texts have more than {longest} tokens; the device's "
        f"encode_texts cuts them, so they count as {longest}."
        if subject.request.cut
        else f"{format_share(over)} of the traffic is longer than {longest} and will be refused."
    )


def _planned(
    subject: Subject, plan: BucketPlan, precision: Precision, cost: BucketCost, scope: PlanScope
) -> Planned:
    """The plan with the fields that every plan for a model has."""
    plan = with_padding(plan, subject.model, assume=subject.request.assume_paddable)
    if subject.model.generation is not None:
        plan = with_decode(plan, subject.model)
    plan = replace(plan, made_for=subject.made_for(precision))
    subject.notes.add(*plan.notes)
    return Planned(plan, cost, scope, subject.notes)


def _measures_here(subject: Subject) -> bool:
    """Whether costs would be measured: else they are modelled, which takes no time."""
    return subject.profile.gpu is None and bool(subject.runnable)


def _one_size(model: LoadedModel, scope: PlanScope) -> str:
    return f"There is nothing to plan: {model.name} has one size of {scope.axis}, {scope.axes[0][1].lo}."


def _why_not_measured(model: LoadedModel, serving: LengthSupport, request: PlanRequest) -> str:
    """Why no costs are needed; empty where they decide, or tell whether bounds are met."""
    extent = serving.scope.axes[0][1]
    if extent.lo == extent.hi and serving.scope.second is None:
        return _one_size(model, serving.scope)
    one = "exact" if "exact" in serving.modes else "padded"
    fewest = len(serving.buckets)
    all_lengths = "all lengths" if fewest == 1 else "each of these ranges of lengths"
    if serving.scope.strided:
        return (
            "one exact program for each remainder of the length is all that there is to choose from"
        )
    if request.quick:
        return f"one {one} program for {all_lengths}, as a quick build has; nothing was measured for it"
    bounded = request.max_size is not None or request.max_build_time is not None
    if bounded or len(serving.modes) > 1:
        return ""
    if one == "exact":
        # Without padding every length costs what it costs, in one program or in several.
        alone = request.buckets in (None, fewest)
    else:
        alone = 1 in (request.buckets, request.max_buckets) and serving.scope.second is None
    if alone:
        return f"one {one} program for {all_lengths} is all that there is to choose from, so nothing was measured for it"
    return ""


def _refuse_costs(request: PlanRequest, count: int) -> None:
    """Refuses what only costs can decide, where the model's code alone decides about the buckets."""
    asked = {
        "`max_size`": request.max_size is not None,
        "`max_build_time`": request.max_build_time is not None,
        "`runs`": request.runs is not None,
        "`price_per_bucket`": request.price_per_bucket is not None,
        f"`buckets` {request.buckets}": request.buckets not in (None, count),
    }
    refused = [option for option, is_asked in asked.items() if is_asked]
    if refused:
        raise PlanError(
            f"{', '.join(refused)}: the model's code looks at remainders of the length, so it needs "
            f"{count} buckets, whatever they cost",
            hint="leave it out",
        )


def _require_known(request: PlanRequest, cost: BucketCost) -> None:
    """Refuses bounds on what isn't known: without programs built or run there are no figures."""
    needed = {
        "`max_size`": request.max_size is not None and not cost.bucket_size,
        "`max_build_time`": request.max_build_time is not None and not cost.bucket_build_s,
        "`runs`": request.runs is not None and not cost.bucket_build_s,
    }
    unknown = [option for option, missing in needed.items() if missing]
    if unknown:
        raise PlanError(
            f"{', '.join(unknown)}: what a bucket takes isn't known, as no program was built here "
            "and the costs come from elsewhere",
            hint="measure on the device (plan --calibration-bundle), or give `max_buckets` or "
            "`price_per_bucket`",
        )


def _choose(
    scope: PlanScope, request: PlanRequest, costs: CostGrid, cost: BucketCost, memory: int | None
) -> tuple[BucketPlan, str]:
    """The best plan by these costs, and how its price came about if nobody gave one."""
    most = request.max_buckets
    if most is None and request.buckets is None:
        most = max(DEFAULT_MAX_BUCKETS, len(scope.sides))
    # Sizes and times with units were read when the request was made.
    most_bytes = cast("int | None", request.max_size)
    limits = BucketLimits(most_bytes, cast("float | None", request.max_build_time), cost, memory)

    def plan(price: float, buckets: int | None, max_buckets: int | None) -> BucketPlan:
        return plan_buckets(
            Traffic.of(scope.joint or scope.traffic, scope.axis),
            costs,
            max_buckets=max_buckets,
            buckets=buckets,
            price_per_bucket=price,
            min_sizes={name: extent.lo for name, extent in scope.pad_axes},
            max_sizes={name: extent.hi for name, extent in scope.pad_axes},
            modes=costs.modes,
            limits=limits,
            other_axes=tuple(item for item in scope.axes if item not in scope.pad_axes),
            cuts=scope.cuts,
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
    fewest = plan(0.0, len(scope.sides), None).expected_ms
    assert fewest is not None
    share = noise_price(costs)
    why = (
        "the costs are modelled, and less is within their error"
        if costs.kind == "modelled"
        else "smaller savings are within measurement noise"
    )
    return plan(share * fewest, request.buckets, most), (
        f"Each extra bucket must save at least {format_share(share)} of the mean run time: {why}. "
        "Give a price per bucket or a number of runs to decide otherwise."
    )


def _needs_no_padding(request: PlanRequest, memory: int | None, lowest: Costs) -> bool:
    """Whether dynamic programs alone are best even at the lowest costs of padding."""
    try:
        plan, _ = _choose(lowest.scope, request, lowest.model, lowest.cost, memory)
    except PlanError:
        return False  # all that can be measured may tell more
    return _same_programs(plan.buckets, lowest.scope.exact_buckets)


def noise_price(costs: CostGrid) -> float:
    """The share of the mean run that differs from nothing as far as the measurement can tell.

    The standard error of a median of n normal samples is 1.25·σ/√n, which is about an eighth of
    the distance of the quartiles (1.35·σ) for the some fifty samples of a point.
    """
    spreads = [
        point.spread(mode) / ms
        for point in costs.points
        for mode in costs.modes
        if (ms := point.value(mode)) is not None and point.spread(mode) > 0
    ]
    least, most = NOISE_PRICES
    return min(most, max(least, statistics.median(spreads) / 8 if spreads else 0.0))


def _same_programs(buckets: tuple[Bucket, ...], others: tuple[Bucket, ...]) -> bool:
    """Whether two plans differ in nothing but hints."""

    def key(bucket: Bucket) -> tuple[object, ...]:
        return (bucket.mode, *((name, r.lo, r.hi) for name, r in bucket.axes))

    return [key(b) for b in buckets] == [key(b) for b in others]
