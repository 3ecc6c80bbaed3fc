"""The sides of conditions on the length: lengths that one program each can serve.

Tracing takes one side of ``if length > 64`` or of ``x[:, :100]``, so no program serves both. A failed
export tells for which range it would have held: torch says so, or the conditions that tracing met are
tried at the lengths about the traced one (``if length == 64``). That range is exported by itself, then
what lies below and above it, each traced at a length of its own. Where these fail as well, the model
has many sides (``x.split(32, 1)``), and a single trace tells the extent of the next one.

A condition on a remainder (``if length % 2``) has no such ranges: the lengths of each remainder are a
side. Sides may be nested: each range of odd lengths, or odd lengths within a range.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edgecompile.errors import ExportError, ModelError
from edgecompile.export.sides import side_about
from edgecompile.export.store import ExportStore, residue_of
from edgecompile.planning.scope import PlanScope, Side, side_between

#: Exports that may fail in the search beside the first: each climbs the whole ladder in vain.
_MOST_FAILURES = 8
#: After so many failures the extent of a side is looked up by a trace before anything is exported.
_PATIENCE = 2

Range = tuple[int, int]


def find_sides(
    exports: ExportStore, scope: PlanScope, error: ExportError, most: int, notes: list[str]
) -> tuple[Side, ...]:
    """Lengths with a program each, around the traffic.

    Args:
        exports: Export store of the model; gets the program of each side.
        scope: the lengths that no single program serves.
        error: the reason why not.
        most: the most sides.
        notes: list that gets a sentence if the search was given up.

    Returns:
        The sides, ascending. Together they serve every length from the smallest to the largest once.
        Empty if there are none, or too many.
    """
    own = scope.axes[0][1]
    search = _Search(exports, scope, most)
    found = sorted(search.divide((own.lo, own.hi, 1), error))
    if search.is_spent:
        notes.append(
            f"the search for ranges of {scope.axis} with a program each was given up after "
            f"{len(search.failed)} failed exports"
        )
    served = {size for lo, hi, step in found for size in range(lo, hi + 1, step)}
    if scope.middle not in served:
        return ()
    first = last = scope.middle
    while first - 1 in served:
        first -= 1
    while last + 1 in served:
        last += 1
    parts = [side_between(side, first, last) for side in found]
    sides = tuple(part for part in parts if part is not None)
    return sides if len(sides) <= most else ()


class _Search:
    """The search for sides, and how much of it is left."""

    def __init__(self, exports: ExportStore, scope: PlanScope, most: int) -> None:
        self.exports, self.scope, self.most = exports, scope, most
        self.found = 0
        self.failed: set[Side] = set()

    @property
    def is_spent(self) -> bool:
        """Whether as many exports failed as the search may cost."""
        return len(self.failed) > max(_MOST_FAILURES, self.most // 2)

    def divide(self, span: Side | None, error: ExportError | None = None) -> Iterator[Side]:
        """The sides within ``span``; ``error`` says why it isn't one, where that is known."""
        if span is None or self.found > self.most or self.is_spent:
            return
        lo, hi, step = span
        if error is None:
            if len(self.failed) >= _PATIENCE:
                part = self._next(span)
                if part is not None and part[0] < part[1] and part != span:
                    yield from self._around(part, span)
                    return
            try:
                self.exports.get(self.scope.exact_bucket(*span))
            except ModelError:
                return  # the model itself fails there
            except ExportError as failure:
                error = failure
                self.failed.add(span)
            else:
                self.found += 1
                yield span
                return
        likely, without_one = _parts(error.parts, span)
        # A prompt is cut into pieces of any length: its programs are for ranges.
        period = error.period if self.exports.model.generation is None else 1
        first = side_between((lo, hi, step * period))
        # Where one program serves the lengths of a remainder, but none a range, remainders decide.
        by_remainder = period > 1 and not self._serves(likely[:1]) and self._serves([first])
        yield from (
            (by_remainder and self._by_remainder(span, period))
            or self._within(likely, span)
            or self._by_remainder(span, period)
            or self._within(without_one, span)
            or self._within(_parts(error.near, span)[0], span)
            or self._single(span)
        )

    def _serves(self, sides: Sequence[Side | None]) -> bool:
        """Whether a program serves all of the first side, if there is one."""
        if not sides or sides[0] is None or self.is_spent:
            return False
        try:
            self.exports.get(self.scope.exact_bucket(*sides[0]))
        except (ExportError, ModelError):
            self.failed.add(sides[0])
            return False
        return True

    def _within(self, parts: Sequence[Side], span: Side) -> list[Side]:
        """The sides within the first of the parts that has some, then those of ``span`` around it."""
        for part in parts:
            inner = list(self.divide(part))
            if inner:
                return list(self._around(part, span, inner))
        return []

    def _by_remainder(self, span: Side, period: int) -> list[Side]:
        """The sides within the lengths of each remainder; none if the first of these has none."""
        lo, hi, step = span
        found: list[Side] = []
        if period == 1 or self.found + period > self.most:
            return found
        for rest in range(period):
            inner = list(self.divide(side_between((lo + rest * step, hi, step * period))))
            if not inner and lo + rest * step <= hi:
                return []
            found += inner
        return found

    def _single(self, span: Side) -> Iterator[Side]:
        """Each length of ``span`` by itself, where these aren't too many."""
        lo, hi, step = span
        if lo < hi and self.found + (hi - lo) // step < self.most:
            for length in range(lo, hi + 1, step):
                yield from self.divide((length, length, 1))

    def _around(
        self, part: Side, span: Side, inner: Sequence[Side] | None = None
    ) -> Iterator[Side]:
        """The sides within ``part`` of ``span``, then those below and above it."""
        yield from self.divide(part) if inner is None else inner
        yield from self.divide(side_between(span, span[0], part[0] - 1))
        yield from self.divide(side_between(span, part[1] + 1, span[1]))

    def _next(self, span: Side) -> Side | None:
        """The side of the length that is traced within ``span``, by its conditions."""
        bucket = self.scope.exact_bucket(*span)
        ranges = {name: (extent.lo, extent.hi) for name, extent in bucket.program_axes}
        hint = bucket.range(self.scope.axis).hint
        return side_between(span, *side_about(self.exports.model, ranges, hint, residue_of(bucket)))


def _parts(ranges: Sequence[Range], span: Side) -> tuple[list[Side], list[Side]]:
    """Smaller parts of ``span`` that may be sides, the likeliest first; then all of it without length 1."""
    lo, hi, _ = span
    parts = [part for ends in ranges if (part := side_between(span, *ends)) is not None]
    parts = [part for part in parts if part[0] < part[1] and part != span]
    # torch takes 0 and 1 for constants: what it says to begin at 2 may hold for 1, too.
    without_one = [part for part in parts if part[:2] == (2, hi) and lo == 1]
    likely: list[Side] = []
    for part in parts:
        if part not in without_one:
            if part[0] == 2 and lo == 1:
                likely.append((lo, *part[1:]))
            likely.append(part)
    return likely, without_one
