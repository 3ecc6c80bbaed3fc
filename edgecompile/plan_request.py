"""What a plan is asked for, and what that means for a model: its scope."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgecompile.compilation import NATIVE
from edgecompile.errors import LengthsError, PlanError
from edgecompile.gpu_specs import GPU_PRECISION
from edgecompile.joint import JointDistribution
from edgecompile.kits import KitScope
from edgecompile.lengths import LengthDistribution
from edgecompile.limits import BucketLimits
from edgecompile.models import LoadedModel
from edgecompile.padding import ASSUMED, PROVEN, check_padding
from edgecompile.precision import FP32, Precision
from edgecompile.ranges import AxisRange
from edgecompile.units import format_share

__all__ = ["PlanRequest", "plan_scope", "require_paddable", "served_length"]


@dataclass(frozen=True)
class PlanRequest:
    """What decides a plan beside the model and the target.

    Attributes:
        lengths: the traffic.
        joint: its sizes on the length axis and another one, for a plan over both.
        buckets: exactly so many programs.
        max_buckets: at most so many programs.
        max_length: longest length to serve; None: the model's own limit, or the longest seen.
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
    assume_paddable: bool = False

    def __post_init__(self) -> None:
        BucketLimits().most(self.max_buckets, self.buckets)


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
            fixed = limit == model.axes[model.length_axis].lo
            raise LengthsError(
                f"--max-length is {wanted}, but {model.name} takes "
                + ("inputs of one size only" if fixed else f"at most {limit}"),
                hint="leave --max-length out" if fixed else f"use --max-length {limit} or less",
            )
        return wanted
    if limit is None:
        return longest
    if longest > limit:
        _, share = request.lengths.clip(limit)
        raise LengthsError(
            f"{format_share(share)} of the lengths are over {limit}, the most that {model.name} takes "
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
        raise PlanError(f"{model.name} has no length axis, so there is nothing to plan")
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
    model: LoadedModel, shortest: int, longest: int, *, assume: bool = False
) -> str:
    """Proves that padding leaves the model's outputs as they are, before anything is built.

    Args:
        model: the model.
        shortest, longest: lengths to be served.
        assume: be content with trials where nothing proves it.

    Returns:
        ``PROVEN``, or ``ASSUMED`` where only trials speak for it.

    Raises:
        PlanError: padding changes its outputs, isn't proven harmless, or can't be done at all.
    """
    middle = (shortest + longest) // 2
    pairs = dict.fromkeys([(shortest, longest), (shortest, shortest + 1), (middle, longest)])
    verdict = check_padding(model, [(a, b) for a, b in pairs if a < b <= longest])
    if verdict.safe:
        return PROVEN
    if assume and not verdict.harmful:
        return ASSUMED
    hint = "--mode exact, or a model that takes a mask and heeds it"
    if not verdict.harmful:
        hint += "; --assume-paddable builds it all the same, and says so in the bundle"
    raise PlanError(f"{model.name} can't run in padded buckets: {verdict.reason}", hint=hint)
