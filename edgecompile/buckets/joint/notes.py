"""What a person should know about a plan over two axes, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from edgecompile.buckets.costs.curves import Mode
from edgecompile.buckets.costs.surfaces import CostSurface
from edgecompile.buckets.joint.search import SlabPlans
from edgecompile.buckets.notes import ms_text, next_bucket_note, saving_note
from edgecompile.buckets.ranges import Bucket
from edgecompile.lengths.joint import JointDistribution
from edgecompile.units import format_share

# A bound that is missed by less than this share is met: rounding mustn't decide.
MET = 1e-6


def joint_notes(
    buckets: Sequence[Bucket],
    *,
    sample: JointDistribution,
    surface: CostSurface,
    modes: tuple[Mode, ...],
    max_sizes: dict[str, int],
    searches: Sequence[SlabPlans],
    outer: int,
    expected_by_count: Sequence[float],
    expected_ms: float,
    price: float,
    most: int | None,
    forced: bool,
    lower_bound_ms: float,
) -> tuple[str, ...]:
    """Explains the choice of :func:`edgecompile.buckets.joint.plan.plan_joint`.

    Args:
        buckets: the chosen buckets.
        sample: the sizes as they were given, before clipping.
        surface: the costs that were planned with.
        modes: the modes that were allowed and have costs.
        max_sizes: the largest size served on each axis.
        searches: what was found in each order.
        outer: the axis that is cut first in the chosen plan.
        expected_by_count: mean cost of the best plan of 1, 2, … buckets, without their price.
        expected_ms: mean cost of the chosen buckets.
        price: what a bucket has to save.
        most: the most buckets allowed, None for no bound.
        forced: whether the number of buckets was given.
        lower_bound_ms: what no other buckets can beat, their price included.
    """
    count = len(buckets)
    notes = [_why_one(buckets[0], sample.axes, expected_ms)] if count == 1 else []
    if count > 1 and expected_by_count:
        notes.append(saving_note(count, expected_ms, expected_by_count[0], buckets))
    notes.append(_class(searches, sample.axes, outer, count))
    notes.append(_gap(expected_ms + price * count, lower_bound_ms, most, forced, count))
    notes += next_bucket_note(count, expected_by_count, price, most, forced)
    if modes == ("pad",):
        why = "the surface has no exact costs" if "exact" not in surface.modes else "as asked for"
        notes.append(f"Every bucket is padded to fixed sizes: {why}.")
    if surface.kind == "modelled":
        notes.append(
            "The costs are modelled, not measured: a run on the target may rank otherwise."
        )
    for axis in sample.axes:
        notes += _axis_doubts(axis, sample, surface, max_sizes[axis])
    return tuple(notes)


def _why_one(bucket: Bucket, axes: tuple[str, ...], expected_ms: float) -> str:
    if bucket.mode == "exact":
        return (
            f"One dynamic range is best: it runs every {axes[0]} and {axes[1]} unpadded, for "
            f"{ms_text(expected_ms)} on average."
        )
    sizes = " and ".join(f"{axis} {bucket.range(axis).hi}" for axis in axes)
    return (
        f"One static program is best: it pads every input to {sizes} and takes "
        f"{ms_text(expected_ms)}."
    )


def _class(searches: Sequence[SlabPlans], axes: tuple[str, ...], outer: int, count: int) -> str:
    text = "Plans are slabs: one axis is cut first, the other within each slab"
    if count > 1:
        text += f"; here {axes[outer]} is cut first"
    partial = [search for search in searches if not search.whole]
    if not partial:
        return f"{text}. This is the best of them."
    limits = " and ".join(
        f"at {search.tried} of {search.possible} sizes of {axes[search.outer]}"
        for search in partial
    )
    return f"{text}. Slabs were tried only {limits}, so this is a heuristic."


def _gap(total: float, bound: float, most: int | None, forced: bool, count: int) -> str:
    gap = total / bound - 1.0
    number = f"{count} " if forced else "" if most is None else f"up to {most} "
    if gap <= MET:
        return (
            f"Proven optimal: no other set of {number}buckets of any shape, overlapping or not, "
            "costs less."
        )
    return (
        f"At most {format_share(gap)} over the best set of {number}buckets of any shape: the "
        f"lower bound is {ms_text(bound)}."
    )


def _axis_doubts(
    axis: str, sample: JointDistribution, surface: CostSurface, max_size: int
) -> list[str]:
    notes = []
    share = sample.share_over(axis, max_size)
    if share:
        notes.append(
            f"{format_share(share)} of the samples have a {axis} over {max_size} and count as "
            f"{max_size} here; at run time the caller must cut them down, or they are refused."
        )
    if sample.max(axis) < max_size:
        notes.append(
            f"No sample has a {axis} over {sample.max(axis)}; those from {sample.max(axis) + 1} to "
            f"{max_size} are served, but nothing is known of how often they come."
        )
    last = surface.grid(axis)[-1]
    if max_size > last:
        notes.append(
            f"The last cost point on the axis {axis} is at {last}; the costs of larger inputs, up "
            f"to {max_size}, are extrapolated."
        )
    return notes
