"""A plan that was given: whether it fits the model, the target and the traffic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from edgecompile.buckets.plan import BucketPlan
from edgecompile.buckets.ranges import AxisRange
from edgecompile.errors import PlanError
from edgecompile.models.loaded import LoadedModel, model_structure
from edgecompile.planning.request import PlanRequest
from edgecompile.planning.scope import PlanScope
from edgecompile.targets.profile import TargetProfile
from edgecompile.units import format_share


def check_plan(
    plan: BucketPlan, model: LoadedModel, request: PlanRequest, profile: TargetProfile
) -> PlanScope:
    """The scope of a given plan, if it fits the model, the target and the traffic.

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
    problems = [
        f"it was made for the {name} {plan.made_for[name]}, not for {own}"
        for name, own in (("structure", model_structure(model)), ("target", profile.name))
        if plan.made_for.get(name, own) != own
    ]
    names = [name for name, _ in plan.buckets[0].axes]
    if plan.length_axis != axis or set(names) != set(model.axes):
        problems.append(f"it has the axes {', '.join(names)}, the model {', '.join(model.axes)}")
    else:
        problems += _size_problems(plan, model, request)
    if problems:
        raise PlanError(
            "the plan doesn't fit: " + "; ".join(problems),
            hint="edgecompile plan makes one with the same model, options and lengths",
        )
    served, _ = request.traffic.clip(plan.max_length)
    axes = []
    for name in names:
        lo, hi = plan.extent(name)
        hint = min(max(served.quantile(0.5), lo), hi) if name == axis else lo
        axes.append((name, AxisRange(lo, hi, hint)))
    joint = request.joint
    joint = joint and joint.clip(axis, plan.max_length)[0]
    lengths = [bucket.axes[0][1] for bucket in plan.buckets]
    in_steps = any(own.step > 1 for own in lengths)
    strided = tuple((own.lo, own.hi, own.step) for own in lengths) if in_steps else ()
    return PlanScope(served, tuple(axes), joint, plan.cuts, strided)


def _size_problems(plan: BucketPlan, model: LoadedModel, request: PlanRequest) -> list[str]:
    """The sizes that aren't the model's, or that leave out traffic that was to be served."""
    problems = []
    for name, limits in model.axes.items():
        lo, hi = plan.extent(name)
        whole = (limits.lo, limits.hi or hi)
        fits = whole[0] <= lo and hi <= whole[1] if name == model.length_axis else (lo, hi) == whole
        if not fits:
            problems.append(f"{name} is {lo} to {hi} in it, {whole[0]} to {whole[1]} here")
    longest = request.max_length
    if longest not in (None, plan.max_length):
        problems.append(f"`max_length` is {longest}, it serves up to {plan.max_length}")
    if model.generation is not None and plan.min_length > 1:
        problems.append("it has no program for single tokens")
    lookup = 1 if model.generation is None else model.generation.spec.lookup
    if any(bucket.lo <= lookup < bucket.hi for bucket in plan.buckets if bucket.lo > 1):
        problems.append(f"it has no program for 2 to {lookup} tokens alone, which `lookup` needs")
    short = 1 - request.traffic.share_over(plan.min_length - 1)
    if short > 0 and model.generation is None:
        problems.append(f"{format_share(short)} of the lengths are under {plan.min_length}")
    over = request.traffic.share_over(plan.max_length)
    if over and longest is None and model.generation is None:
        problems.append(f"{format_share(over)} of the lengths are over {plan.max_length}")
    joint = request.joint
    if joint is not None and joint.axes[1] in model.axes:
        second = joint.axes[1]
        lo, hi = plan.extent(second)
        least, most = joint.min(second), joint.max(second)
        if least < lo or most > hi:
            problems.append(f"{second} is {lo} to {hi} in it, {least} to {most} in the sample")
    return problems


def without_foreign_costs(plan: BucketPlan, made_for: Mapping[str, str]) -> tuple[BucketPlan, str]:
    """The plan without costs that aren't this build's, and a note about it."""
    note = "the plan is the one that was given; nothing was measured for it"
    others = [
        f"{name} {value}"
        for name, value in plan.made_for.items()
        if value != made_for.get(name, value)
    ]
    if not others:
        return plan, note
    bare = replace(
        BucketPlan(plan.length_axis, plan.buckets, source=plan.source, cuts=plan.cuts),
        made_for=made_for,
        padding=plan.padding,
    )
    if plan.expected_ms is None:
        return bare, note  # it has no costs
    return bare, f"{note}; its costs are of {', '.join(others)}, so they are left out"
