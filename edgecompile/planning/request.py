"""What a plan is asked for, and what that means for a model: its scope."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from edgecompile.backends.compilation import NATIVE
from edgecompile.buckets.limits import BucketLimits
from edgecompile.buckets.plan import BucketPlan
from edgecompile.buckets.ranges import AxisRange
from edgecompile.errors import LengthsError, PlanError
from edgecompile.export.padding.check import ASSUMED, PROVEN, check_padding
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.lengths.joint import JointDistribution
from edgecompile.models.loaded import LoadedModel, model_structure
from edgecompile.planning.kits import KitScope
from edgecompile.precision import FP32, Precision
from edgecompile.targets.gpu import GPU_PRECISION
from edgecompile.targets.profile import TargetProfile
from edgecompile.units import format_share

__all__ = [
    "PlanRequest",
    "check_plan",
    "longest_served",
    "plan_scope",
    "plan_subject",
    "require_paddable",
    "served_length",
    "with_padding",
]


@dataclass(frozen=True)
class PlanRequest:
    """What decides a plan beside the model and the target.

    Attributes:
        lengths: the traffic.
        joint: its sizes on the length axis and another one, for a plan over both.
        buckets: exactly so many programs.
        max_buckets: at most so many programs.
        max_length: longest length to serve; None: the model's own limit, or the longest seen.
        cut: whether longer inputs are texts, which the device's ``encode_texts`` cuts: then they
            count as the longest length served. Other inputs over the model's limit are refused.
        mode: ``exact``, ``pad``, or ``auto``: whatever costs less, bucket by bucket.
        price_per_bucket: milliseconds of the mean run that a bucket has to save; None: what
            ``runs`` makes it, or what the measurement can tell from noise, 1 to 5 % of the mean run.
        runs: how many runs the bundle will serve, for a price from what a bucket takes.
        max_size: bytes that the bundle may have.
        max_build_s: seconds that the build may take.
        calibration: file of the costs that a device measured; None: measure here.
        threads: threads to measure with; None: all that the process may use.
        jobs: programs to compile side by side; None: one for each CPU.
        precision: of the linears' weights on a CPU; costs are those of this precision.
        runtime: what runs the programs on a CPU: native or torch.
        gpu_precision: what a target's GPU computes in: fp32, fp16 or int8.
        measure_again: measure here also what was measured before.
        quick: one program for all lengths, dynamic if the model can be; nothing is measured.
        plan: take these buckets, if they fit; nothing is measured.
        assume_paddable: take padding for harmless where it changes nothing in trials, but nothing
            proves it.

    Raises:
        PlanError: more ``buckets`` are asked for than ``max_buckets`` allows.
    """

    lengths: LengthDistribution
    joint: JointDistribution | None = None
    buckets: int | None = None
    max_buckets: int | None = None
    max_length: int | None = None
    cut: bool = False
    mode: str = "auto"
    price_per_bucket: float | None = None
    runs: float | None = None
    max_size: int | None = None
    max_build_s: float | None = None
    calibration: Path | None = None
    threads: int | None = None
    jobs: int | None = None
    precision: Precision = FP32
    runtime: str = NATIVE
    gpu_precision: str = GPU_PRECISION
    measure_again: bool = False
    quick: bool = False
    plan: BucketPlan | None = None
    assume_paddable: bool = False

    def __post_init__(self) -> None:
        BucketLimits().most(self.max_buckets, self.buckets)


def served_length(model: LoadedModel, request: PlanRequest) -> int:
    """The longest length that will be served.

    Raises:
        LengthsError: lengths of the sample, or ``max_length``, are over the model's limit.
    """
    assert model.length_axis is not None
    limits = model.axes[model.length_axis]
    return longest_served(model.name, limits.hi, request, fixed=limits.lo == limits.hi)


def longest_served(
    name: str, limit: int | None, request: PlanRequest, *, fixed: bool = False
) -> int:
    """The longest length that a model serves.

    Args:
        name: the model's.
        limit: the most that it takes; None: it has no limit.
        request: the lengths.
        fixed: whether it takes inputs of this length only.

    Raises:
        LengthsError: lengths of the sample, or ``max_length``, are over the limit.
    """
    longest = int(request.lengths.max)
    wanted = request.max_length
    if wanted is None and fixed:
        shortest = request.lengths.min
        if (shortest, longest) != (limit, limit):
            raise LengthsError(
                f"{name} takes inputs of one size only, {limit}, but the "
                f"lengths given are {shortest} to {longest}",
                hint="leave them out: there is nothing to plan; or name the dimension that varies "
                'in the model\'s axes: "axes": {"x": {1: "length"}}',
            )
    if wanted is not None:
        if limit is not None and wanted > limit:
            raise LengthsError(
                f"--max-length is {wanted}, but {name} takes "
                + ("inputs of one size only" if fixed else f"at most {limit}"),
                hint="leave --max-length out" if fixed else f"use --max-length {limit} or less",
            )
        return wanted
    if limit is None:
        return longest
    if longest > limit and not request.cut:
        _, share = request.lengths.clip(limit)
        raise LengthsError(
            f"{format_share(share)} of the lengths are over {limit}, the most that {name} takes "
            f"(the longest is {longest})",
            hint=f"--max-length {limit} serves what fits; the caller has to cut the rest",
        )
    return limit


def plan_scope(model: LoadedModel, request: PlanRequest) -> KitScope:
    """What is planned: the traffic and the range of every axis, the length axis first.

    Raises:
        PlanError: the model has no length axis, or lacks the second axis of the sample.
        LengthsError: the sizes don't fit the model.
    """
    axis = model.length_axis
    if axis is None:
        raise PlanError(
            f"{model.name} takes numbers without dimensions only, which no plan can be about",
            hint="give an input a dimension of 1",
        )
    longest = served_length(model, request)
    shortest = model.axes[axis].lo
    served, _ = request.lengths.clip(longest)
    middle = min(max(served.quantile(0.5), shortest), longest)
    axes = {axis: AxisRange(shortest, longest, middle)}
    for name, limits in model.axes.items():
        if name != axis:
            axes[name] = AxisRange(limits.lo, limits.hi or limits.lo, limits.lo)
    joint = request.joint
    if joint is not None:
        second = joint.axes[1]
        if second not in axes or second == axis:
            raise PlanError(
                f"the sample has the axis {second}, but the axes of {model.name} are "
                f"{', '.join(axes)}",
                hint="name the column after the axis, or leave it out",
            )
        known = model.axes[second]
        top = joint.max(second)
        if joint.min(second) < known.lo or top > (known.hi or top):
            raise LengthsError(
                f"{second} in the sample is {joint.min(second)} to {top}, but {model.name} takes "
                f"{known}",
                hint="give a range that holds the sample, such as --batch LO:HI",
            )
        axes[second] = AxisRange(known.lo, known.hi or top, joint.marginal(second).quantile(0.5))
        joint, _ = joint.clip(axis, longest)
    return KitScope(served, tuple(axes.items()), joint)


def require_paddable(
    model: LoadedModel, axes: Iterable[tuple[str, AxisRange]], *, assume: bool = False
) -> str:
    """Proves that padding leaves the model's outputs as they are, before anything is built.

    Args:
        model: the model.
        axes: those that are padded, with the sizes to be served; one of a single size isn't.
        assume: be content with trials where nothing proves it.

    Returns:
        ``PROVEN``, or ``ASSUMED`` where only trials speak for padding along one of them.

    Raises:
        PlanError: padding changes its outputs, isn't proven harmless, or can't be done at all.
        ModelError: the eager model fails.
    """
    found = PROVEN
    for name, extent in axes:
        lo, hi = extent.lo, extent.hi
        if lo == hi:
            continue
        pairs = dict.fromkeys([(lo, hi), (lo, lo + 1), ((lo + hi) // 2, hi)])
        along = replace(model, length_axis=name)
        verdict = check_padding(along, [(a, b) for a, b in pairs if a < b])
        if verdict.safe:
            continue
        if not assume or verdict.harmful:
            hint = "--mode exact, or a model that takes a mask and heeds it"
            if not verdict.harmful:
                hint += (
                    "; plan or build --assume-paddable pads all the same, and the bundle says so"
                )
            raise PlanError(
                f"{model.name} can't run in padded buckets: {verdict.reason}", hint=hint
            )
        found = ASSUMED
    return found


def with_padding(
    plan: BucketPlan, model: LoadedModel, *, assume: bool = False, also: Collection[str] = ()
) -> BucketPlan:
    """The plan, which says whether its padding is proven; what it said itself is no proof.

    Args:
        plan: one that says that padding is assumed is content with trials.
        model: whose proof is kept with its module, so that nothing is run twice.
        assume: be content with trials where nothing proves it.
        also: axes that the device pads, whatever the buckets do.

    Raises:
        PlanError: as :func:`require_paddable` does; or the model hasn't the sizes that are padded.
        ModelError: the eager model fails.
    """
    names = {name for bucket in plan.buckets for name in bucket.pad_axes}.union(also)
    axes = []
    for name, _ in plan.buckets[0].axes:
        lo, hi = _extent(plan, name)
        if name in names and lo < hi:
            axes.append((name, AxisRange(lo, hi, hi)))
    if not axes:
        return replace(plan, padding="")
    for name, extent in axes:
        limits = model.axes.get(name)
        if limits is None or extent.lo < limits.lo or extent.hi > (limits.hi or extent.hi):
            raise PlanError(
                f"the plan pads {name} {extent.lo} to {extent.hi}, but {model.name} takes "
                + ", ".join(f"{axis} {known}" for axis, known in model.axes.items()),
                hint="make the plan with --model",
            )
    padding = require_paddable(model, axes, assume=assume or plan.padding == ASSUMED)
    note = "nothing proves that padding leaves the outputs as they are: it was to be assumed"
    others = tuple(item for item in plan.notes if item != note)
    told = (note,) if padding == ASSUMED else ()
    return replace(plan, padding=padding, notes=(*others, *told))


def plan_subject(
    model: LoadedModel, request: PlanRequest, profile: TargetProfile
) -> dict[str, str]:
    """What a plan is made for, as plans say it of themselves."""
    subject = {"structure": model_structure(model), "target": profile.name}
    if profile.gpu is not None:
        return {**subject, "precision": request.gpu_precision}
    return {
        **subject,
        "precision": request.precision.label,
        "runtime": request.runtime,
        "threads": "all" if request.threads is None else str(request.threads),
    }


def check_plan(
    plan: BucketPlan, model: LoadedModel, request: PlanRequest, profile: TargetProfile
) -> KitScope:
    """What a plan that was given serves, if it fits the model, the target and the traffic.

    Args:
        plan: for the model's own axes; of one that generates with the program of single tokens.
        model: the whole model.
        request: the traffic and the longest length.
        profile: the target.

    Raises:
        PlanError: it doesn't fit; names every difference.
    """
    axis = model.length_axis
    if axis is None:
        raise PlanError(f"{model.name} has no length axis, so there is nothing to plan")
    own = plan_subject(model, request, profile)
    problems = [
        f"it was made for the {name} {told}, not for {own[name]}"
        for name, told in plan.made_for.items()
        if name in ("structure", "target") and told != own[name]
    ]
    names = [name for name, _ in plan.buckets[0].axes]
    if plan.length_axis != axis or set(names) != set(model.axes):
        problems.append(f"it has the axes {', '.join(names)}, the model {', '.join(model.axes)}")
    else:
        problems += _size_problems(plan, model, request)
    if problems:
        raise PlanError(
            "the plan doesn't fit: " + "; ".join(problems),
            hint="make one with the same model, options and lengths: edgecompile plan --output FILE",
        )
    served, _ = request.lengths.clip(plan.max_length)
    axes = []
    for name in names:
        lo, hi = _extent(plan, name)
        hint = min(max(served.quantile(0.5), lo), hi) if name == axis else lo
        axes.append((name, AxisRange(lo, hi, hint)))
    joint = request.joint
    return KitScope(served, tuple(axes), joint and joint.clip(axis, plan.max_length)[0])


def _extent(plan: BucketPlan, name: str) -> tuple[int, int]:
    ranges = [bucket.range(name) for bucket in plan.buckets]
    return min(extent.lo for extent in ranges), max(extent.hi for extent in ranges)


def _size_problems(plan: BucketPlan, model: LoadedModel, request: PlanRequest) -> list[str]:
    """Where its sizes aren't the model's, or leave traffic out that was to be served."""
    problems = []
    for name, limits in model.axes.items():
        lo, hi = _extent(plan, name)
        whole = (limits.lo, limits.hi or hi)
        fits = whole[0] <= lo and hi <= whole[1] if name == model.length_axis else (lo, hi) == whole
        if not fits:
            problems.append(f"{name} is {lo} to {hi} in it, {whole[0]} to {whole[1]} here")
    longest = request.max_length
    if longest not in (None, plan.max_length):
        problems.append(f"--max-length is {longest}, it serves up to {plan.max_length}")
    if model.generation is not None and plan.min_length > 1:
        problems.append("it has no program for single tokens")
    short = 1 - request.lengths.share_over(plan.min_length - 1)
    if short > 0 and model.generation is None:
        problems.append(f"{format_share(short)} of the lengths are under {plan.min_length}")
    over = request.lengths.share_over(plan.max_length)
    if over and longest is None and model.generation is None:
        problems.append(f"{format_share(over)} of the lengths are over {plan.max_length}")
    joint = request.joint
    if joint is not None and joint.axes[1] in model.axes:
        second = joint.axes[1]
        lo, hi = _extent(plan, second)
        least, most = joint.min(second), joint.max(second)
        if least < lo or most > hi:
            problems.append(f"{second} is {lo} to {hi} in it, {least} to {most} in the sample")
    return problems
