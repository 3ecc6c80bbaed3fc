"""Padding of a plan's buckets: only where it is proven, or was to be assumed, to change nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from edgecompile.buckets.plan import BucketPlan
from edgecompile.buckets.ranges import AxisRange
from edgecompile.errors import PlanError
from edgecompile.export.padding.check import ASSUMED, PROVEN, check_padding
from edgecompile.models.loaded import LoadedModel

#: The cure where nothing is known against padding.
ASSUME_HINT = "`assume_paddable=True` pads all the same, and the bundle says so"


def require_paddable(
    model: LoadedModel, axes: Iterable[tuple[str, AxisRange]], *, assume: bool = False
) -> str:
    """Proves that padding leaves the model's outputs as they are, before anything is built.

    Args:
        model: the model.
        axes: the padded axes, with the sizes to be served; an axis of a single size isn't padded.
        assume: be content with trials where nothing proves it.

    Returns:
        ``PROVEN``, or ``ASSUMED`` where only trials speak for padding along one of them.

    Raises:
        PlanError: padding changes its outputs, isn't proven harmless, or can't be done at all.
        ModelError: the eager model fails.
    """
    level = PROVEN
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
            hint = '`mode="exact"`, or a model that takes a mask and heeds it'
            if not verdict.harmful:
                hint += f"; {ASSUME_HINT}"
            raise PlanError(
                f"{model.name} can't run in padded buckets: {verdict.reason}", hint=hint
            )
        level = ASSUMED
    return level


def with_padding(
    plan: BucketPlan, model: LoadedModel, *, assume: bool = False, also: Collection[str] = ()
) -> BucketPlan:
    """The plan, which says whether its padding is proven; what it said itself is no proof.

    Args:
        plan: one that says that padding is assumed is content with trials.
        model: the model; its module keeps the proof, so that nothing is run twice.
        assume: be content with trials where nothing proves it.
        also: axes that the device pads, whatever the buckets do.

    Raises:
        PlanError: see :func:`require_paddable`; or the model hasn't the padded sizes.
        ModelError: the eager model fails.
    """
    names = {name for bucket in plan.buckets for name in bucket.pad_axes}.union(also)
    axes = []
    for name, _ in plan.buckets[0].axes:
        lo, hi = plan.extent(name)
        if name in names and lo < hi:
            axes.append((name, AxisRange(lo, hi, hi)))
    if not axes:
        return replace(plan, padding="")
    for name, extent in axes:
        limits = model.axes.get(name)
        if limits is None or extent.lo < limits.lo or extent.hi > (limits.hi or extent.hi):
            raise PlanError(
                f"the plan pads {name} {extent.lo} to {extent.hi}, but {model.name} takes "
                + ", ".join(f"{axis} {span}" for axis, span in model.axes.items()),
                hint="make the plan with the model",
            )
    padding = require_paddable(model, axes, assume=assume or plan.padding == ASSUMED)
    note = "nothing proves that padding leaves the outputs as they are: it was to be assumed"
    others = tuple(item for item in plan.notes if item != note)
    assumed = (note,) if padding == ASSUMED else ()
    return replace(plan, padding=padding, notes=(*others, *assumed))
