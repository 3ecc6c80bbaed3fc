"""Planning for a model: measures what lengths cost and asks for the best buckets.

Costs come from the model itself: one program for the whole range, or a few static ones for padded
buckets, are compiled for the best variant that this host can run, packed into a throw-away bundle
and timed by the bundle's own runtime. If the plan turns out to be what was timed, nothing of it is
built twice.
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from edgecompile.backends.native import build_probe
from edgecompile.buckets import AxisRange, Bucket, BucketPlan, plan_buckets
from edgecompile.compilation import ExportStore, compile_plan, export_plan
from edgecompile.costs import CostCurve, CostPoint, Mode
from edgecompile.errors import ExportError, LengthsError, PlanError
from edgecompile.host import host_variants
from edgecompile.lengths import LengthDistribution
from edgecompile.measure import choose_lengths, measure_curve
from edgecompile.models import LoadedModel
from edgecompile.packing import stage_for_measurement
from edgecompile.padding import check_padding
from edgecompile.progress import StepHandle
from edgecompile.runtime.cpu import architecture
from edgecompile.targets import TargetProfile

#: Buckets that a plan may have when nothing else bounds it: each costs a compilation.
DEFAULT_MAX_BUCKETS = 8


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
        jobs: programs to compile side by side; None: one for each CPU.
    """

    lengths: LengthDistribution
    buckets: int | None = None
    max_buckets: int | None = None
    max_length: int | None = None
    mode: str = "auto"
    price_per_bucket: float = 0.0
    threads: int | None = None
    jobs: int | None = None


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
    scope = _Scope(exports, profile, request, served, shortest, longest, others, work, step)
    curve, measured, note = _measure(scope)
    if note:
        notes.append(note)
    limit = request.max_buckets
    if limit is None and request.buckets is None:
        limit = DEFAULT_MAX_BUCKETS
    plan = plan_buckets(
        served,
        curve,
        max_buckets=limit,
        buckets=request.buckets,
        price_per_bucket=request.price_per_bucket,
        min_length=shortest,
        max_length=longest,
        modes=curve.modes,
        length_axis=model.length_axis,
        other_axes=others,
    )
    if _same_ranges(plan, measured):
        # What was measured is the plan: keep its hints, so that nothing is built twice.
        plan = replace(plan, buckets=measured.buckets)
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


@dataclass(frozen=True)
class _Scope:
    """What is measured, for whom and where."""

    exports: ExportStore
    profile: TargetProfile
    request: PlanRequest
    served: LengthDistribution
    shortest: int
    longest: int
    others: tuple[tuple[str, AxisRange], ...]
    work: Path
    step: StepHandle | None

    @property
    def axis(self) -> str:
        axis = self.exports.model.length_axis
        assert axis is not None
        return axis

    def tell(self, text: str) -> None:
        if self.step is not None:
            self.step.update(text=text)


def _measure(scope: _Scope) -> tuple[CostCurve, BucketPlan, str]:
    """The cost curve in the mode that serves, the plan whose programs were timed, and a note.

    ``auto`` is ``exact`` where the model can be exported with a dynamic length, else ``pad``.
    """
    mode, model = scope.request.mode, scope.exports.model
    if mode == "pad":
        return (*_time_padded(scope), "")
    try:
        return (*_time_exact(scope), "")
    except ExportError as error:
        if mode == "exact" or not model.paddable:
            raise
        reason = error.message.splitlines()[0]
        if scope.shortest < scope.longest:
            try:
                require_paddable(model, scope.shortest, scope.longest)
            except PlanError as unsafe:
                raise PlanError(
                    f"{reason}; and {unsafe.message}",
                    hint="the model needs a mask that it heeds, or a graph without the condition",
                ) from error
    return (*_time_padded(scope), f"padded programs, since {reason}")


def _time_exact(scope: _Scope) -> tuple[CostCurve, BucketPlan]:
    """Times one program for the whole range at several lengths."""
    flat = CostCurve((CostPoint(scope.longest, 1.0, None),), "modelled")
    whole = plan_buckets(
        scope.served,
        flat,
        buckets=1,
        min_length=scope.shortest,
        max_length=scope.longest,
        modes=("exact",),
        length_axis=scope.axis,
        other_axes=scope.others,
    )
    lengths = choose_lengths(scope.served, scope.shortest, scope.longest)
    return _time(scope, whole, lengths, "exact"), whole


def _time_padded(scope: _Scope) -> tuple[CostCurve, BucketPlan]:
    """Times a few static programs: one for each of the lengths that tell most."""
    ends = {scope.longest, round((scope.shortest * scope.longest) ** 0.5)}
    ends |= {int(scope.served.quantile(q)) for q in (0.5, 0.9)}
    lengths = sorted(min(max(end, scope.shortest), scope.longest) for end in ends)
    buckets = tuple(
        Bucket("pad", ((scope.axis, AxisRange(before + 1, end, end)), *scope.others))
        for before, end in pairwise([scope.shortest - 1, *lengths])
    )
    ladder = BucketPlan(scope.axis, buckets)
    return _time(scope, ladder, lengths, "pad"), ladder


def _time(scope: _Scope, plan: BucketPlan, lengths: Sequence[int], mode: Mode) -> CostCurve:
    """Builds ``plan`` for the best variant that this host can run and times it at ``lengths``."""
    arch = architecture(platform.machine())
    if arch not in scope.profile.archs:
        runnable = []
    else:
        probe = build_probe(arch, scope.work / "probe")
        runnable = host_variants(scope.profile, probe)
    if not runnable:
        raise PlanError(
            f"this host can run no variant of {scope.profile.name}, so nothing can be measured",
            hint="plan from a file of costs: --cost-points FILE (length,exact_ms,pad_ms)",
        )
    span = f"{scope.shortest}..{scope.longest}"
    scope.tell(f"exporting {span}")
    exported = export_plan(scope.exports, plan)
    scope.tell(f"compiling {span} for {runnable[-1].name}")
    compiled = compile_plan(
        exported,
        plan,
        scope.profile,
        scope.work / "artifacts",
        keys=[scope.exports.key(b) for b in plan.buckets],
        variants=runnable[-1:],
        jobs=scope.request.jobs,
    )
    scratch = scope.work / "measured.ecb"
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        bundle = stage_for_measurement(scope.exports.model, plan, compiled, scratch)
        scope.tell(f"measuring {len(lengths)} lengths")
        return measure_curve(bundle, lengths, mode, threads=scope.request.threads)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
