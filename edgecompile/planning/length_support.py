"""The mode in which a model can be served: any length as it is, a part of the lengths, or padded.

What a model can do is found by exporting and running it, never assumed: a dynamic program for the
whole range; else one for each side of its conditions on the length, or for those sides that hold the
traffic where no program serves the others; else static programs to which shorter inputs are padded, if
padding changes nothing; else one for the one length that all the traffic has; else more sides than a
plan has buckets by default. What is left is refused with every reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from edgecompile.buckets.costs.grid import Mode
from edgecompile.buckets.limits import DEFAULT_MAX_BUCKETS, MOST_SIDES
from edgecompile.buckets.ranges import Bucket, span_text
from edgecompile.errors import ExportError, ModelError, PlanError
from edgecompile.export.store import ExportStore
from edgecompile.models.loaded import LoadedModel
from edgecompile.planning.padding import ASSUME_HINT, require_paddable
from edgecompile.planning.request import PlanRequest
from edgecompile.planning.scope import PlanScope, Side
from edgecompile.planning.sides import find_sides

#: So many different lengths are few enough to advise a static program for each.
_FEW_LENGTHS = 8

#: How many lengths are tried to find the least one that the eager model takes.
_MOST_TRIED = 32


@dataclass(frozen=True)
class LengthSupport:
    """The lengths and modes that a model can be served in.

    Attributes:
        scope: the sizes that are served; narrower than requested where the model allows no more.
        modes: the modes that the model can run in.
        note: the reason why some sizes or modes are left out; empty if none are.
    """

    scope: PlanScope
    modes: tuple[Mode, ...]
    note: str = ""

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """The simplest programs that serve the whole scope."""
        exact = "exact" in self.modes
        return self.scope.exact_buckets if exact else (self.scope.padded_bucket,)

    @property
    def bucket(self) -> Bucket:
        """The one of these that most of the traffic runs in."""
        traffic = self.scope.traffic

        def share(bucket: Bucket) -> float:
            return traffic.share_over(bucket.lo - 1) - traffic.share_over(bucket.hi)

        return max(self.buckets, key=share)


def find_length_support(
    exports: ExportStore, request: PlanRequest, scope: PlanScope
) -> LengthSupport:
    """The mode in which the model of ``exports`` can be served.

    Raises:
        ExportError: ``exact`` was asked for and the model can't be exported so, or a padded
            program can't be exported.
        PlanError: the model can run in neither mode; says why for both. Where ``pad`` was asked
            for, nothing is tried: see :func:`edgecompile.planning.padding.require_paddable`.
    """
    if request.mode == "pad":
        return LengthSupport(scope, ("pad",))
    try:
        exports.get(scope.whole_bucket)
    except ExportError as error:
        return _without_the_whole(exports, request, scope, error)
    if request.quick:
        return LengthSupport(scope, ("exact",))
    modes, unpaddable = _modes(exports.model, request, scope)
    note = f"only dynamic programs were considered: {unpaddable.message}" if unpaddable else ""
    return LengthSupport(scope, modes, note)


def _modes(
    model: LoadedModel, request: PlanRequest, scope: PlanScope
) -> tuple[tuple[Mode, ...], PlanError | None]:
    """The modes in which a scope can be served if it can be exported, and why not padded."""
    extent = scope.axes[0][1]
    if request.mode != "auto" or extent.lo == extent.hi:
        return ("exact",), None
    try:
        require_paddable(model, scope.pad_axes, assume=request.assume_paddable)
    except PlanError as error:
        return ("exact",), error
    except ModelError as error:
        text = f"{model.name} can't run in padded buckets: {error.message}"
        return ("exact",), PlanError(text, hint=error.hint)
    return ("exact", "pad"), None


def _without_the_whole(
    exports: ExportStore,
    request: PlanRequest,
    scope: PlanScope,
    error: ExportError,
) -> LengthSupport:
    """The remaining modes where no dynamic program serves the whole scope."""
    reason = error.message.splitlines()[0]
    most = request.buckets or request.max_buckets or DEFAULT_MAX_BUCKETS
    given_up: list[str] = []
    sides = find_sides(exports, scope, error, max(most, DEFAULT_MAX_BUCKETS), given_up)
    part = _covering_part(sides, request.max_length, scope)
    if part is not None and len(sides) <= most:
        modes = ("exact",) if part.strided else _modes(exports.model, request, part)[0]
        return LengthSupport(part, modes, _sides_note(part, scope, reason))
    works = _where_it_works(exports.model, scope) if request.mode == "auto" else scope
    modes, unpaddable = _modes(exports.model, request, works)
    if "pad" in modes:
        exports.get(works.padded_bucket)
        note = f"padded programs, since {reason}"
        if works is not scope:
            note += f"; from {works.axis} {works.axes[0][1].lo} on, as the model fails below"
        return LengthSupport(works, ("pad",), note)
    traffic = scope.traffic
    single = scope.narrowed(traffic.min, traffic.max) if traffic.min == traffic.max else None
    asks_more = request.max_length is not None and request.max_length != traffic.max
    if single is not None and not asks_more and _exports(exports, single):
        note = f"{scope.axis} {traffic.max} alone is served, which all of the traffic has: {reason}"
        return LengthSupport(single, ("exact",), note)
    if not request.buckets and not request.max_buckets and part is None:
        # Nothing else serves the model: now more programs than usual are better than none.
        given_up = []
        sides = find_sides(exports, scope, error, MOST_SIDES, given_up)
        part = _covering_part(sides, request.max_length, scope)
        if part is not None:
            return LengthSupport(part, ("exact",), _sides_note(part, scope, reason))
    if unpaddable is None:
        raise error
    hints = ["the model needs a mask that it heeds, or a graph without the condition"]
    if part is not None:
        hints.insert(0, f"{len(sides)} buckets would serve it, for {scope.axis} {_spans(part)}")
    if ASSUME_HINT in (unpaddable.hint or ""):
        hints.insert(0, ASSUME_HINT)
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
    hints += given_up
    raise PlanError(f"{reason}; and {unpaddable.message}", hint="; ".join(hints)) from error


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
    sides: Sequence[Side], max_length: int | None, scope: PlanScope
) -> PlanScope | None:
    """The part of the scope that the sides serve, if it is all that was asked for."""
    if not sides:
        return None
    traffic, lo, hi = scope.traffic, sides[0][0], max(end for _, end, _ in sides)
    enough = max_length is None or max_length <= hi
    if lo == hi or not enough or not lo <= traffic.min <= traffic.max <= hi:
        return None
    part = scope.narrowed(lo, hi)
    if any(step > 1 for *_, step in sides):
        return replace(part, strided=tuple(sides))
    return replace(part, cuts=tuple(start for start, *_ in sides[1:]))


def _sides_note(part: PlanScope, scope: PlanScope, reason: str) -> str:
    """A note on the served lengths and their modes."""
    own, whole = part.axes[0][1], scope.axes[0][1]
    notes = []
    if (own.lo, own.hi) != (whole.lo, whole.hi):
        notes.append(f"{scope.axis} {own.lo}..{own.hi} is served, where all of the traffic lies")
    count = len(part.programs)
    if count > DEFAULT_MAX_BUCKETS:
        shown = ", ".join(span_text(span) for span in part.programs[:3])
        notes.append(
            f"{scope.axis} {shown} and so on have {count} programs, which take {count} times as long "
            "to build as one"
        )
    elif count > 1:
        notes.append(f"{scope.axis} {_spans(part)} have programs of their own")
    return f"{'; '.join(notes)}: {reason}"


def _spans(part: PlanScope) -> str:
    """``1..6, 7..64 and 65..200``."""
    *others, last = [span_text(span) for span in part.programs]
    return f"{', '.join(others)} and {last}" if others else last
