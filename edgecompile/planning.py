"""Planning for a model: measures what lengths cost and asks for the best buckets.

Costs come from the model itself: one program for the whole range is compiled for the best variant
that this host can run, packed into a throw-away bundle and timed by the bundle's own runtime. If
the plan turns out to be that one program, nothing of it is built twice.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edgecompile.backends.native import build_probe
from edgecompile.buckets import AxisRange, Bucket, BucketPlan, plan_buckets
from edgecompile.compilation import ExportStore, compile_plan, export_plan
from edgecompile.costs import CostCurve, CostPoint, Mode
from edgecompile.errors import LengthsError, PlanError
from edgecompile.host import host_variants
from edgecompile.lengths import LengthDistribution
from edgecompile.measure import choose_lengths, measure_exact
from edgecompile.models import LoadedModel
from edgecompile.packing import stage_for_measurement
from edgecompile.padding import check_padding
from edgecompile.progress import StepHandle
from edgecompile.targets import TargetProfile

#: Buckets that a padded plan may have when nothing else bounds it: each costs a compilation.
DEFAULT_PADDED_BUCKETS = 8


@dataclass(frozen=True)
class PlanRequest:
    """What decides a plan beside the model and the target.

    Attributes:
        lengths: the traffic.
        buckets: exactly so many programs.
        max_buckets: at most so many programs.
        max_length: longest length to serve; None: the model's own limit, or the longest seen.
        mode: ``exact``, ``pad``, or ``auto``: exact where the model can be exported so.
        price_per_bucket: milliseconds of the mean run that a bucket has to save.
        threads: threads to measure with; None: all that the process may use.
    """

    lengths: LengthDistribution
    buckets: int | None = None
    max_buckets: int | None = None
    max_length: int | None = None
    mode: str = "auto"
    price_per_bucket: float = 0.0
    threads: int | None = None


@dataclass(frozen=True)
class Planned:
    """A plan and what a person should know about it."""

    plan: BucketPlan
    notes: tuple[str, ...]


def served_length(model: LoadedModel, request: PlanRequest) -> int:
    """The longest length that will be served.

    Raises:
        LengthsError: lengths of the sample, or ``max_length``, are over the model's limit.
    """
    assert model.length_axis is not None
    limit = model.axes[model.length_axis].hi
    longest = int(request.lengths.max)
    wanted = request.max_length
    if wanted is not None:
        if limit is not None and wanted > limit:
            raise LengthsError(
                f"--max-length is {wanted}, but {model.name} takes at most {limit}",
                hint=f"use --max-length {limit} or less",
            )
        return wanted
    if limit is None:
        return longest
    if longest > limit:
        _, share = request.lengths.clip(limit)
        raise LengthsError(
            f"{share:.2%} of the lengths are over {limit}, the most that {model.name} takes "
            f"(the longest is {longest})",
            hint=f"--max-length {limit} serves what fits; the caller has to cut the rest",
        )
    return limit


def plan_model(
    exports: ExportStore,
    profile: TargetProfile,
    request: PlanRequest,
    work: Path,
    *,
    step: StepHandle | None = None,
) -> Planned:
    """Measures the model's cost curve and plans its buckets.

    Raises:
        LengthsError: the lengths don't fit the model.
        PlanError: the constraints can't be met.
        ExportError, CompileError: the program to measure can't be built.
    """
    model = exports.model
    if model.length_axis is None:
        raise PlanError(f"{model.name} has no length axis, so there is nothing to plan")
    longest = served_length(model, request)
    shortest = model.axes[model.length_axis].lo
    others = tuple(
        (name, AxisRange(a.lo, a.hi if a.hi is not None else a.lo, a.lo))
        for name, a in model.axes.items()
        if name != model.length_axis
    )
    served, over = request.lengths.clip(longest)
    if request.mode == "pad" and shortest < longest:
        require_paddable(model, shortest, longest)
    notes = []
    if over:
        notes.append(f"{over:.2%} of the traffic is longer than {longest} and will be refused")
    curve, whole = _measure(
        exports, profile, request, served, shortest, longest, others, work, step
    )
    modes: tuple[Mode, ...] = ("pad",) if request.mode == "pad" else ("exact",)
    if request.mode == "pad":
        curve = _as_padded(curve)
        notes.append("padded programs are assumed to cost what the dynamic one costs")
    limit = request.max_buckets
    if limit is None and request.buckets is None:
        limit = DEFAULT_PADDED_BUCKETS
    plan = plan_buckets(
        served,
        curve,
        max_buckets=limit,
        buckets=request.buckets,
        price_per_bucket=request.price_per_bucket,
        min_length=shortest,
        max_length=longest,
        modes=modes,
        length_axis=model.length_axis,
        other_axes=others,
    )
    if _same_ranges(plan, whole):
        # The program that was measured is the plan: keep its hint, so that it is built once.
        plan = replace(plan, buckets=whole.buckets)
    return Planned(plan, (*notes, *plan.notes))


def require_paddable(model: LoadedModel, shortest: int, longest: int) -> None:
    """Runs the model padded and unpadded, before anything is built for nothing.

    Raises:
        PlanError: padding changes its outputs, or it can't be padded at all.
    """
    middle = (shortest + longest) // 2
    pairs = dict.fromkeys([(shortest, longest), (shortest, shortest + 1), (middle, longest)])
    verdict = check_padding(model, [(length, to) for length, to in pairs if length < to])
    if not verdict.safe:
        raise PlanError(
            f"{model.name} can't run in padded buckets: {verdict.reason}",
            hint="--mode exact, or a model that takes a mask and heeds it",
        )


def _same_ranges(plan: BucketPlan, other: BucketPlan) -> bool:
    """Whether two plans differ in nothing but hints."""

    def key(bucket: Bucket) -> tuple[object, ...]:
        return (bucket.mode, *((name, r.lo, r.hi) for name, r in bucket.axes))

    return [key(b) for b in plan.buckets] == [key(b) for b in other.buckets]


def _as_padded(curve: CostCurve) -> CostCurve:
    points = tuple(
        CostPoint(p.length, None, p.exact_ms, pad_spread_ms=p.exact_spread_ms) for p in curve.points
    )
    provenance = {**curve.provenance, "pad": "taken from the dynamic program at the same length"}
    return replace(curve, points=points, provenance=provenance)


def _measure(
    exports: ExportStore,
    profile: TargetProfile,
    request: PlanRequest,
    served: LengthDistribution,
    shortest: int,
    longest: int,
    others: Sequence[tuple[str, AxisRange]],
    work: Path,
    step: StepHandle | None,
) -> tuple[CostCurve, BucketPlan]:
    """The cost curve, and the plan of one bucket whose program was measured."""
    model = exports.model
    assert model.length_axis is not None
    probe = build_probe("x86-64", work / "probe")
    runnable = host_variants(profile, probe)
    if not runnable:
        raise PlanError(
            f"this host can run no variant of {profile.name}, so nothing can be measured",
            hint="plan from a file of costs: --cost-points FILE (length,exact_ms,pad_ms)",
        )
    flat = CostCurve((CostPoint(longest, 1.0, None),), "modelled")
    whole = plan_buckets(
        served,
        flat,
        buckets=1,
        min_length=shortest,
        max_length=longest,
        modes=("exact",),
        length_axis=model.length_axis,
        other_axes=tuple(others),
    )

    def tell(text: str) -> None:
        if step is not None:
            step.update(text=text)

    tell(f"exporting {shortest}..{longest}")
    exported = export_plan(exports, whole)
    tell(f"compiling {shortest}..{longest} for {runnable[-1].name}")
    compiled = compile_plan(
        exported,
        whole,
        profile,
        work / "artifacts",
        keys=[exports.key(b) for b in whole.buckets],
        variants=runnable[-1:],
    )
    scratch = work / "measured.ecb"
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        bundle = stage_for_measurement(model, whole, compiled, scratch)
        lengths = choose_lengths(served, shortest, longest)
        tell(f"measuring {len(lengths)} lengths")
        return measure_exact(bundle, lengths, threads=request.threads), whole
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
