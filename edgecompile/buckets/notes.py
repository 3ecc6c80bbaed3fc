"""Notes on a plan for people: the reasons for these buckets, and the doubts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from edgecompile.buckets.plan import BucketPlan
from edgecompile.buckets.search.problem import Problem
from edgecompile.buckets.search.strips import StripSearch
from edgecompile.buckets.traffic import Traffic
from edgecompile.units import format_ms, format_share

# A saving or a gap of less than this share is none: rounding mustn't decide.
_NOTHING = 1e-9
_MET = 1e-6


def plan_notes(
    plan: BucketPlan,
    problem: Problem,
    traffic: Traffic,
    searches: Sequence[StripSearch],
    outer: int | None,
) -> BucketPlan:
    """The plan with notes that explain its choice.

    Args:
        plan: the chosen plan.
        problem: the problem that it was chosen for.
        traffic: the sizes as they were given, before clipping.
        searches: the best strips of each order.
        outer: the axis that is cut first in the chosen plan; None where parts of it differ.
    """
    notes = [describe_saving(plan)]
    if plan.lower_bound_ms is not None:
        notes += [_strips(searches, problem.axes, outer, len(plan.buckets))]
        notes += [_gap(plan, plan.lower_bound_ms, problem)]
    notes += [_next_bucket(plan, problem)]
    if problem.modes == ("pad",):
        why = "there are no exact costs" if "exact" not in problem.costs.modes else "as asked for"
        notes.append(f"Every bucket is padded to fixed sizes: {why}.")
    if problem.costs.kind == "modelled":
        notes.append(
            "The costs are modelled, not measured: a run on the target may rank otherwise."
        )
    for index in range(len(problem.axes)):
        notes += _doubts(index, problem, traffic)
    return replace(plan, notes=tuple(note for note in notes if note))


def describe_saving(plan: BucketPlan) -> str:
    """The saving of several buckets against one, or the reason for one.

    Args:
        plan: one that was planned with costs.
    """
    assert plan.expected_ms is not None
    count, mean, by_count = len(plan.buckets), _ms(plan.expected_ms), plan.expected_by_count
    if plan.cuts:
        starts = ", ".join(map(str, plan.cuts))
        return (
            f"{count} buckets take {mean} on average; one has to begin at {plan.length_axis} {starts}, "
            "from where the model's code takes another way."
        )
    if count == 1:
        totals = [ms + plan.price_per_bucket * further for further, ms in enumerate(by_count)]
        is_best = not totals or totals[0] <= min(totals) * (1 + _NOTHING)
        rank = "is best" if is_best else "is all that is allowed"
        first = plan.buckets[0]
        if first.mode == "exact":
            return f"One dynamic range {rank}: it runs every input unpadded, for {mean} on average."
        sizes = " and ".join(f"{axis} {first.range(axis).hi}" for axis in plan.divided)
        return f"One static program {rank}: it pads every input to {sizes} and takes {mean}."
    padded = sum(bucket.mode == "pad" for bucket in plan.buckets)
    kinds = {0: "all exact", count: "all padded"}.get(padded, f"{padded} of them padded")
    if not by_count:
        return f"{count} buckets ({kinds}) take {mean} on average."
    saved = by_count[0] - plan.expected_ms
    if saved <= _NOTHING * by_count[0]:
        return f"{count} buckets ({kinds}) save nothing against the best single bucket."
    return (
        f"{count} buckets ({kinds}) save {_ms(saved)} a run ({format_share(saved / by_count[0])}) "
        f"against the best single bucket, {_ms(by_count[0])}."
    )


def _strips(
    searches: Sequence[StripSearch], axes: Sequence[str], outer: int | None, count: int
) -> str:
    text = "Plans are strips: one axis is cut first, the other within each strip"
    if count > 1 and outer is not None:
        text += f"; here {axes[outer]} is cut first"
    partial = [
        f"at {search.tried} of {search.possible} sizes of {axes[search.outer]}"
        for search in searches
        if not search.whole
    ]
    if not partial:
        return f"{text}. This is the best of them."
    return f"{text}. Strips were tried only {' and '.join(partial)}, so this is a heuristic."


def _gap(plan: BucketPlan, bound: float, problem: Problem) -> str:
    assert plan.expected_ms is not None
    count, most = len(plan.buckets), problem.most
    gap = (plan.expected_ms + plan.price_per_bucket * count) / bound - 1.0
    number = f"{count} " if problem.count else "" if most is None else f"up to {most} "
    if gap <= _MET:
        return (
            f"Proven optimal: no other set of {number}buckets of any shape, overlapping or not, "
            "costs less."
        )
    return (
        f"At most {format_share(gap)} over the best set of {number}buckets of any shape: the "
        f"lower bound is {_ms(bound)}."
    )


def _next_bucket(plan: BucketPlan, problem: Problem) -> str:
    """The saving of further buckets, and why they weren't made; empty if that's unknown."""
    count, by_count, price = len(plan.buckets), plan.expected_by_count, plan.price_per_bucket
    if len(by_count) <= count:
        return ""
    # Two more buckets can save where one can't, so the best of all larger counts is named.
    further = min(range(count, len(by_count)), key=lambda k: by_count[k] + price * (k - count))
    saved, more = by_count[count - 1] - by_count[further], further + 1 - count
    if saved <= _NOTHING * by_count[count - 1]:
        return "More buckets would save nothing."
    noun = "A further bucket" if more == 1 else f"{more} further buckets"
    text = f"{noun} would save {_ms(saved)} a run ({format_share(saved / by_count[count - 1])})"
    if problem.count is not None:
        return f"{text}, but the number of buckets was given."
    if problem.most is not None and count + more > problem.most:
        return f"{text}, but {problem.most} is the most allowed."
    return f"{text}, less than the {_ms(price * more)} that it has to save."


def _doubts(index: int, problem: Problem, traffic: Traffic) -> Iterator[str]:
    """The doubts about the sizes on one axis."""
    axis, high, largest = problem.axes[index], problem.highs[index], traffic.most[index]
    share = traffic.share_over(index, high)
    if share:
        yield (
            f"{format_share(share)} of the samples have a {axis} over {high} and count as {high} "
            "here; at run time the caller must truncate them, or they are refused."
        )
    if largest < high:
        yield (
            f"No sample has a {axis} over {largest}; those from {largest + 1} to {high} are "
            "served, but nothing is known of how often they come."
        )
    last = problem.costs.sizes(index)[-1]
    if high > last:
        yield (
            f"The last cost point on the axis {axis} is at {last}; the costs of larger inputs, up "
            f"to {high}, are extrapolated."
        )


def _ms(value: float) -> str:
    return f"{format_ms(value)} ms"
