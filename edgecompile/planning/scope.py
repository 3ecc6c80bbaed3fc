"""The scope of a plan: its traffic, and the range of every axis of the model."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from edgecompile.buckets.ranges import AxisRange, Bucket
from edgecompile.errors import LengthsError, PlanError
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.lengths.joint import JointDistribution, both_axes_hint
from edgecompile.lengths.rows import IMAGE, MAX_LENGTH, UNNAMED
from edgecompile.lengths.served_traffic import missing_lengths
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.specs import BATCH, usual_size
from edgecompile.planning.request import PlanRequest
from edgecompile.units import format_share

#: Smallest and largest length of a program, and the distance between neighbouring lengths.
Side = tuple[int, int, int]


def side_between(side: Side, least: int = 1, most: int = MAX_LENGTH) -> Side | None:
    """The part of a side with lengths from ``least`` to ``most``; None if there is none."""
    lo, hi, step = side
    lo += max(0, least - lo + step - 1) // step * step
    hi = min(hi, most)
    hi -= (hi - lo) % step
    if lo > hi:
        return None
    return lo, hi, 1 if lo == hi else step


@dataclass(frozen=True)
class PlanScope:
    """The traffic and the sizes that are planned.

    Attributes:
        traffic: the lengths, none over the longest that is served.
        axes: range of every axis, the length axis first.
        joint: the sizes of two axes together, where a plan over both is wanted.
        cuts: lengths from which on the model's code takes another way: no bucket crosses them.
        strided: the programs of a model whose code looks at remainders of the length, each in steps;
            empty for another model.
    """

    traffic: LengthDistribution
    axes: tuple[tuple[str, AxisRange], ...]
    joint: JointDistribution | None = None
    cuts: tuple[int, ...] = ()
    strided: tuple[Side, ...] = ()

    @property
    def axis(self) -> str:
        """The length axis."""
        return self.axes[0][0]

    @property
    def second(self) -> str | None:
        """The other axis that is planned, if any."""
        return None if self.joint is None else self.joint.axes[1]

    @property
    def pad_axes(self) -> tuple[tuple[str, AxisRange], ...]:
        """The axes that its padded buckets pad: those that are planned."""
        return tuple(item for item in self.axes if item[0] in (self.axis, self.second))

    def second_sizes(self) -> tuple[int, ...]:
        """Sizes of the other axis at which to measure: both ends and the middle of its range."""
        if self.joint is None or self.second is None:
            return ()
        extent = dict(self.axes)[self.second]
        middle = self.joint.marginal(self.second).quantile(0.5)
        return tuple(sorted({extent.lo, min(max(middle, extent.lo), extent.hi), extent.hi}))

    @property
    def middle(self) -> int:
        """The median length, within the range."""
        own = self.axes[0][1]
        return min(max(self.traffic.quantile(0.5), own.lo), own.hi)

    @property
    def sides(self) -> tuple[tuple[int, int], ...]:
        """The ranges of lengths between cuts; the whole one where there are none."""
        own = self.axes[0][1]
        return tuple(zip((own.lo, *self.cuts), (*(c - 1 for c in self.cuts), own.hi), strict=True))

    @property
    def programs(self) -> tuple[Side, ...]:
        """The lengths of each program of dynamic length."""
        return self.strided or tuple((lo, hi, 1) for lo, hi in self.sides)

    def exact_bucket(self, lo: int, hi: int, step: int = 1) -> Bucket:
        """A program of dynamic length for ``lo``, ``lo + step``, … ``hi``, tuned for their median."""
        inside = [
            (length, count)
            for length, count in zip(self.traffic.lengths, self.traffic.counts, strict=True)
            if length in range(lo, hi + 1, step)
        ]
        traffic = LengthDistribution.from_counts(dict(inside)) if inside else self.traffic
        hint = AxisRange(lo, hi, hi, step).below(traffic.quantile(0.5))
        return Bucket("exact", ((self.axis, AxisRange(lo, hi, hint, step)), *self.axes[1:]))

    @property
    def whole_bucket(self) -> Bucket:
        """The program of dynamic length that serves every size, where no cuts forbid it."""
        own = self.axes[0][1]
        return self.exact_bucket(own.lo, own.hi)

    @property
    def exact_buckets(self) -> tuple[Bucket, ...]:
        """The fewest programs of dynamic length that serve every size: one for each side."""
        return tuple(self.exact_bucket(*program) for program in self.programs)

    @property
    def padded_bucket(self) -> Bucket:
        """The program of the longest length, to which all shorter inputs are padded."""
        own = self.axes[0][1]
        return Bucket("pad", ((self.axis, AxisRange(own.lo, own.hi, own.hi)), *self.axes[1:]))

    def narrowed(self, lo: int, hi: int) -> PlanScope:
        """The part of it with lengths ``lo`` to ``hi``."""
        own = AxisRange(lo, hi, min(max(self.axes[0][1].hint, lo), hi))
        cuts = tuple(cut for cut in self.cuts if lo < cut <= hi)
        return replace(self, axes=((self.axis, own), *self.axes[1:]), cuts=cuts)


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
    longest = int(request.traffic.max)
    max_length = request.max_length
    if max_length is None and fixed:
        shortest = request.traffic.min
        if (shortest, longest) != (limit, limit):
            raise LengthsError(
                f"{name} takes inputs of one size only, but the lengths given are {shortest} to {longest}",
                hint="leave them out: there is nothing to plan; or let a dimension vary: `image_size` of a "
                'folder takes a range of heights, a factory has axes ("axes": {"x": {1: "length"}})',
            )
    if max_length is not None:
        if limit is not None and max_length > limit:
            raise LengthsError(
                f"`max_length` is {max_length}, but {name} takes "
                + ("inputs of one size only" if fixed else f"at most {limit}"),
                hint="leave `max_length` out" if fixed else f"`max_length` may be {limit} or less",
            )
        return max_length
    if limit is None:
        return longest
    if longest > limit and not request.cut:
        _, share = request.traffic.clip(limit)
        raise LengthsError(
            f"{format_share(share)} of the lengths are over {limit}, the most that {name} takes "
            f"(the longest is {longest})",
            hint=f"`max_length={limit}` serves what fits; the caller has to cut the rest",
        )
    return limit


def plan_scope(model: LoadedModel, request: PlanRequest) -> PlanScope:
    """The scope of a plan: the traffic and the range of every axis, the length axis first.

    Raises:
        PlanError: the model has no length axis, lacks the second axis of the sample, or has another
            axis without an upper limit.
        LengthsError: the sizes don't fit the model.
    """
    axis = model.length_axis
    if axis is None:
        raise PlanError(
            f"{model.name} takes numbers without dimensions only, which no plan can be about",
            hint="give an input a dimension of 1",
        )
    limits = model.axes[axis]
    longest = longest_served(model.name, limits.hi, request, fixed=limits.lo == limits.hi)
    shortest = limits.lo
    served, _ = request.traffic.clip(longest)
    middle = min(max(served.quantile(0.5), shortest), longest)
    axes = {axis: AxisRange(shortest, longest, middle)}
    for name, other in model.axes.items():
        if name != axis:
            top = other.hi or other.lo
            axes[name] = AxisRange(other.lo, top, usual_size(name, other.lo, top))
    joint = request.joint
    if joint is not None:
        second = joint.axes[1]
        others = both_axes_hint(model.axes, axis) if second == BATCH else ""
        if second not in axes or second == axis:
            raise PlanError(
                f"the sample has the axis {second}, but the axes of {model.name} are "
                f"{', '.join(axes)}",
                hint="name the column after the axis, or leave it out" + others,
            )
        extent = model.axes[second]
        top = joint.max(second)
        if joint.min(second) < extent.lo or top > (extent.hi or top):
            raise LengthsError(
                f"{second} in the sample is {joint.min(second)} to {top}, but {model.name} takes "
                f"{extent}",
                hint="give a range that holds the sample, such as a `batch` of (smallest, largest)"
                + others,
            )
        axes[second] = AxisRange(extent.lo, extent.hi or top, joint.marginal(second).quantile(0.5))
        joint, _ = joint.clip(axis, longest)
    _refuse_unlimited(model, {axis, BATCH, *(() if joint is None else joint.axes)})
    return PlanScope(served, tuple(axes.items()), joint)


def _refuse_unlimited(model: LoadedModel, settled: Collection[str]) -> None:
    """Raises a PlanError if nothing says up to which size an axis has to be served."""
    open_ended = [name for name, a in model.axes.items() if a.hi is None and name not in settled]
    if open_ended:
        first = open_ended[0]
        raise PlanError(
            f"{model.name} has no upper limit for {' and '.join(open_ended)}, and `lengths` counts "
            f"{model.length_axis} alone",
            hint=f'give it one, such as 512: "limits": {{"{first}": (1, 512)}} beside "axes" in a '
            "ModelSpec or what a factory returns, max of its torch.export.Dim in a saved program",
        )


def _refuse_ignored(model: LoadedModel, lengths: LengthDistribution) -> None:
    """Raises a LengthsError if sizes of an axis of the model are in the sample, but not counted, or may be."""
    for name, limits in model.axes.items():
        if name == model.length_axis or limits.lo == limits.hi:
            continue
        both = f'{{"axes": ["length", "{name}"], "sizes": [[12, 3]], "counts": [1]}}'
        if name.lower() in lengths.ignored:
            raise LengthsError(
                f"{lengths.source}: the column '{name}' isn't counted, and {model.name} has an axis of this name",
                hint=f"leave the column out, or name two axes: {both}",
            )
        # A batch is seldom logged without its name, and a language model's other axes never.
        if UNNAMED in lengths.ignored and name != BATCH and model.generation is None:
            if {name, model.length_axis} == {*IMAGE}:
                both = 'the first line "height,width" or "width,height"'
            raise LengthsError(
                f"{lengths.source}: the second column has no name, and may be a count or the {name} of {model.name}",
                hint=f'for counts write the first line "length,count"; for sizes give {both}',
            )


def with_traffic(request: PlanRequest, model: LoadedModel) -> PlanRequest:
    """The request with lengths, on axes named as the model's; every batch size once if there are none.

    Raises:
        UsageError: the model's lengths vary, so that they are needed.
        LengthsError: a column that isn't counted has the name of an axis that varies, or may have it.
    """
    axis = model.length_axis
    if request.lengths is not None:
        joint = request.joint
        _refuse_ignored(model, request.lengths)
        if joint is not None and axis == joint.axes[1]:
            return replace(request, joint=joint.turned(), lengths=joint.marginal(axis))
        if joint is not None and axis is not None and axis not in joint.axes:
            # A sample's "length" is the length axis, whatever its name.
            request = replace(request, joint=replace(joint, axes=(axis, joint.axes[1])))
        return request
    limits = None if axis is None else model.axes[axis]
    if limits is None or (axis != BATCH and limits.lo != limits.hi):
        raise missing_lengths()
    sizes = range(limits.lo, (limits.hi or limits.lo) + 1)
    source = "every batch size once" if len(sizes) > 1 else "the one size that there is"
    lengths = LengthDistribution.from_counts(dict.fromkeys(sizes, 1), source)
    return replace(request, lengths=lengths)
