"""What a person should know about a plan, in sentences: why these buckets, and what is doubtful."""

from __future__ import annotations

from collections.abc import Sequence

from edgecompile.buckets.costs.sources import CostCurve, Mode
from edgecompile.buckets.ranges import Bucket
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.units import format_share


def plan_notes(
    buckets: Sequence[Bucket],
    *,
    sample: LengthDistribution,
    curve: CostCurve,
    modes: tuple[Mode, ...],
    expected_by_count: Sequence[float],
    expected_ms: float,
    price: float,
    most: int | None,
    forced: bool,
) -> tuple[str, ...]:
    """Explains the choice of :func:`edgecompile.buckets.plan.plan_buckets`.

    Args:
        buckets: the chosen buckets.
        sample: the lengths as they were given, before clipping.
        curve: the costs that were planned with.
        modes: the modes that were allowed and have costs.
        expected_by_count: mean cost of the best plan of 1, 2, … buckets, without their price.
        expected_ms: mean cost of the chosen buckets.
        price: what a bucket has to save.
        most: the most buckets allowed, None for no bound.
        forced: whether the number of buckets was given.
    """
    max_length = buckets[-1].hi
    notes = [_why_one(buckets[0], expected_ms)] if len(buckets) == 1 else []
    if len(buckets) > 1 and expected_by_count:
        notes.append(saving_note(len(buckets), expected_ms, expected_by_count[0], buckets))
    notes += next_bucket_note(len(buckets), expected_by_count, price, most, forced)
    if modes == ("pad",):
        why = "the cost curve has no exact costs" if "exact" not in curve.modes else "as asked for"
        notes.append(f"Every bucket is padded to a fixed length: {why}.")
    if curve.kind == "modelled":
        notes.append(
            "The costs are modelled, not measured: a run on the target may rank otherwise."
        )
    share = sample.share_over(max_length)
    if share:
        notes.append(
            f"{format_share(share)} of the samples are longer than {max_length} and count as "
            f"{max_length} here; at run time the caller must truncate them, or they are refused."
        )
    if sample.max < max_length:
        notes.append(
            f"No sample is longer than {sample.max}; the lengths from {sample.max + 1} to "
            f"{max_length} are served, but nothing is known of how often they come."
        )
    if curve.extrapolates(max_length):
        notes.append(
            f"The last cost point is at {curve.points[-1].length}; the costs of longer inputs, up "
            f"to {max_length}, are extrapolated."
        )
    return tuple(notes)


def _why_one(bucket: Bucket, expected_ms: float) -> str:
    if bucket.mode == "exact":
        return (
            "One dynamic range is best: it runs every length unpadded, for "
            f"{ms_text(expected_ms)} on average."
        )
    return (
        f"One static program is best: it pads every input to {bucket.hi} and takes "
        f"{ms_text(expected_ms)}."
    )


def saving_note(count: int, chosen: float, single: float, buckets: Sequence[Bucket]) -> str:
    """What several buckets save against one: mean costs in ms, ``single`` of the best one."""
    padded = sum(bucket.mode == "pad" for bucket in buckets)
    kinds = {0: "all exact", count: "all padded"}.get(padded, f"{padded} of them padded")
    saved = single - chosen
    if saved <= 1e-9 * single:
        return f"{count} buckets ({kinds}) save nothing against the best single bucket."
    return (
        f"{count} buckets ({kinds}) save {ms_text(saved)} a run ({format_share(saved / single)}) against "
        f"the best single bucket, {ms_text(single)}."
    )


def next_bucket_note(
    count: int, by_count: Sequence[float], price: float, most: int | None, forced: bool
) -> list[str]:
    """What further buckets would save, and why they weren't made; empty if that's unknown."""
    if len(by_count) <= count:
        return []
    # Two more buckets can save where one can't, so the best of all larger counts is told.
    further = min(range(count, len(by_count)), key=lambda k: by_count[k] + price * (k - count))
    saved = by_count[count - 1] - by_count[further]
    more = further + 1 - count
    noun = "a further bucket" if more == 1 else f"{more} further buckets"
    if saved <= 1e-9 * by_count[count - 1]:
        return ["More buckets would save nothing."]
    text = f"{noun[0].upper()}{noun[1:]} would save {ms_text(saved)} a run"
    text += f" ({format_share(saved / by_count[count - 1])})"
    if forced:
        return [f"{text}, but the number of buckets was given."]
    if most is not None and count + more > most:
        return [f"{text}, but {most} is the most allowed."]
    return [f"{text}, less than the {ms_text(price * more)} that it has to save."]


def ms_text(value: float) -> str:
    """Milliseconds with their unit."""
    return f"{value:.3g} ms" if abs(value) < 100 else f"{value:.0f} ms"
