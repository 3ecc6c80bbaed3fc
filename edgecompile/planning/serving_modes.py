"""The mode in which a model can be served: any length as it is, a part of the lengths, or padded.

What a model can do is found by exporting and running it, never assumed: a dynamic program for the
whole range; else one for the part of the range where an export is right, if the traffic is in it;
else static programs to which shorter inputs are padded, if padding changes nothing; else for the one
length that all the traffic has. What is left is refused with every reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgecompile.buckets.costs.grid import Mode
from edgecompile.buckets.ranges import Bucket
from edgecompile.errors import ExportError, ModelError, PlanError
from edgecompile.export.store import ExportStore
from edgecompile.models.loaded import LoadedModel
from edgecompile.planning.padding import require_paddable
from edgecompile.planning.request import PlanRequest
from edgecompile.planning.scope import PlanScope

#: So many different lengths are few enough to advise a static program for each.
_FEW_LENGTHS = 8

#: How many lengths are tried to find the least one that the eager model takes.
_MOST_TRIED = 32

Range = tuple[int, int]


@dataclass(frozen=True)
class ServingMode:
    """The lengths and modes that a model can be served in.

    Attributes:
        scope: what is served; narrower than what was asked about where the model allows no more.
        modes: those that the model can run in.
        note: why not all of it and in every mode; empty if nothing was left out.
    """

    scope: PlanScope
    modes: tuple[Mode, ...]
    note: str = ""

    @property
    def bucket(self) -> Bucket:
        """The simplest program that serves the whole scope."""
        exact = "exact" in self.modes
        return self.scope.whole_bucket if exact else self.scope.padded_bucket


def find_serving_mode(exports: ExportStore, request: PlanRequest, scope: PlanScope) -> ServingMode:
    """The mode in which the model of ``exports`` can be served.

    Raises:
        ExportError: ``exact`` was asked for and the model can't be exported so, or a padded
            program can't be exported.
        PlanError: the model can run in neither mode; says why for both. Where ``pad`` was asked
            for, nothing is tried: see :func:`edgecompile.planning.padding.require_paddable`.
    """
    if request.mode == "pad":
        return ServingMode(scope, ("pad",))
    try:
        exports.get(scope.whole_bucket)
    except ExportError as error:
        return _without_the_whole(exports, request, scope, error)
    if request.quick:
        return ServingMode(scope, ("exact",))
    modes, unpaddable = _modes(exports.model, request, scope)
    note = f"only dynamic programs were considered: {unpaddable}" if unpaddable else ""
    return ServingMode(scope, modes, note)


def _modes(
    model: LoadedModel, request: PlanRequest, scope: PlanScope
) -> tuple[tuple[Mode, ...], str]:
    """The modes in which a scope can be served if it can be exported, and why not padded."""
    extent = scope.axes[0][1]
    if request.mode != "auto" or extent.lo == extent.hi:
        return ("exact",), ""
    try:
        require_paddable(model, scope.pad_axes, assume=request.assume_paddable)
    except PlanError as error:
        return ("exact",), error.message
    except ModelError as error:
        return ("exact",), f"{model.name} can't run in padded buckets: {error.message}"
    return ("exact", "pad"), ""


def _without_the_whole(
    exports: ExportStore,
    request: PlanRequest,
    scope: PlanScope,
    error: ExportError,
) -> ServingMode:
    """The remaining modes where no dynamic program serves the whole scope."""
    reason = error.message.splitlines()[0]
    part = _covering_part(error.served, request, scope)
    if part is not None and _exports(exports, part):
        span = part.axes[0][1]
        note = (
            f"{scope.axis} {span.lo}..{span.hi} is served, where all of the traffic lies: {reason}"
        )
        return ServingMode(part, _modes(exports.model, request, part)[0], note)
    works = _where_it_works(exports.model, scope) if request.mode == "auto" else scope
    modes, unpaddable = _modes(exports.model, request, works)
    if "pad" in modes:
        exports.get(works.padded_bucket)
        note = f"padded programs, since {reason}"
        if works is not scope:
            note += f"; from {works.axis} {works.axes[0][1].lo} on, as the model fails below"
        return ServingMode(works, ("pad",), note)
    traffic = scope.traffic
    single = scope.narrowed(traffic.min, traffic.max) if traffic.min == traffic.max else None
    asks_more = request.max_length is not None and request.max_length != traffic.max
    if single is not None and not asks_more and _exports(exports, single):
        note = f"{scope.axis} {traffic.max} alone is served, which all of the traffic has: {reason}"
        return ServingMode(single, ("exact",), note)
    if request.mode == "exact":
        raise error
    hints = ["the model needs a mask that it heeds, or a graph without the condition"]
    if error.served:
        less = [f"{axis} {lo}..{hi}" for axis, (lo, hi) in error.served.items() if lo < hi]
        if less and less[0].startswith(scope.axis):
            hints.insert(0, f"it can be exported for {', '.join(less)}: cut the lengths to that")
    if 1 < len(traffic.lengths) <= _FEW_LENGTHS:
        lengths = ", ".join(map(str, traffic.lengths))
        hints.append(
            f"the traffic has {len(traffic.lengths)} different lengths ({lengths}): a bundle for "
            "each alone (its length as both limits of the axis) needs neither"
        )
    raise PlanError(f"{reason}; and {unpaddable}", hint="; ".join(hints)) from error


def _where_it_works(model: LoadedModel, scope: PlanScope) -> PlanScope:
    """The scope from the least length on at which the eager model doesn't fail.

    As it is if that is longer than the traffic's least: padding will tell why.
    """
    own, others = scope.axes[0][1], {name: extent.lo for name, extent in scope.axes[1:]}
    for length in range(own.lo, min(scope.traffic.min, own.lo + _MOST_TRIED) + 1):
        try:
            model.run(model.make_example({**others, scope.axis: length}))
        except ModelError:
            continue
        return scope if length == own.lo else scope.narrowed(length, own.hi)
    return scope


def _exports(exports: ExportStore, scope: PlanScope) -> bool:
    try:
        exports.get(scope.whole_bucket)
    except ExportError:
        return False
    return True


def _covering_part(
    served: Mapping[str, Range] | None, request: PlanRequest, scope: PlanScope
) -> PlanScope | None:
    """The part of the scope that an export is right for, if it is all that was asked for."""
    if served is None or scope.joint is not None:
        return None
    for name, extent in scope.axes[1:]:
        if served.get(name, (extent.lo, extent.hi)) != (extent.lo, extent.hi):
            return None
    whole, traffic = scope.axes[0][1], scope.traffic
    lo, hi = served.get(scope.axis, (whole.lo, whole.hi))
    enough = request.max_length is None or request.max_length <= hi
    if lo == hi or not enough or not lo <= traffic.min <= traffic.max <= hi:
        return None
    return scope.narrowed(lo, hi)
