"""The lengths on one side of the conditions that tracing meets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from edgecompile.buckets.limits import MOST_SIDES
from edgecompile.export.attempts import Attempt, try_strategy
from edgecompile.export.checks import ExportScope, Range
from edgecompile.export.conditions import Residue
from edgecompile.export.guards import condition_holds
from edgecompile.export.ladder import LADDER, trace_sizes
from edgecompile.models.loaded import LoadedModel


def find_parts(
    scope: ExportScope, attempts: Sequence[Attempt], part: Attempt | None, *, every: bool
) -> tuple[Range, ...]:
    """Ranges of the length axis that an export may hold for, the widest first.

    Args:
        scope: the model and its sizes.
        attempts: the failed attempts.
        part: the attempt that was right for the widest part of the range.
        every: whether conditions on remainders count, which hold in few ranges.
    """
    axis = scope.loaded.length_axis or ""
    told = (
        [part.ranges] if part is not None and (every or find_period(scope, attempts) == 1) else []
    )
    told += [a.ranges for a in attempts if a.program is not None]
    told += [a.reason.sizes for a in attempts if a.reason is not None]
    found = {sizes[axis] for sizes in told if axis in sizes}
    if axis in scope.ranges:
        for attempt in attempts:
            met = attempt.watch.conditions(scope.loaded.inputs)
            found.add(_where(scope, attempt.traced, met, every))
            if attempt.reason is not None and attempt.reason.kind == "guard":
                found.add(_where(scope, attempt.traced, attempt.reason.guards, every))
    found -= {scope.ranges.get(axis)}
    return tuple(sorted(found, key=lambda span: (span[0] - span[1], span)))


def find_period(scope: ExportScope, attempts: Sequence[Attempt]) -> int:
    """The number of lengths after which all conditions on remainders repeat; 1 if there are none."""
    if scope.loaded.length_axis not in scope.ranges:
        return 1
    periods = [
        period
        for attempt in attempts
        for text in dict.fromkeys(attempt.watch.conditions(scope.loaded.inputs))
        if (period := _repeats(scope, attempt.traced, text))
    ]
    return math.lcm(*periods)


def _repeats(scope: ExportScope, traced: Mapping[str, int], condition: str) -> int:
    """After how many lengths a condition on their remainder repeats; 0 of another condition."""
    axis = scope.loaded.length_axis or ""
    (lo, hi), step = scope.ranges[axis], scope.residue.step if scope.residue else 1
    tried = range(lo, hi + 1, step)[: 4 * MOST_SIDES]
    if "%" not in condition and "//" not in condition:
        return 0
    held = [condition_holds(condition, {**traced, axis: size}) for size in tried]
    if None in held or len(set(held)) == 1:
        return 0
    periods = range(2, min(MOST_SIDES, len(held) // 2) + 1)
    return next((n for n in periods if held[n:] == held[:-n]), 0)


def _where(
    scope: ExportScope, traced: Mapping[str, int], conditions: Sequence[str], every: bool
) -> Range:
    """The lengths about the traced one at which these conditions hold, as far as they are known.

    Args:
        scope: the model and its sizes.
        traced: the sizes that were traced.
        conditions: the conditions.
        every: whether conditions on remainders count.
    """
    axis = scope.loaded.length_axis or ""
    own, (lo, hi), step = traced[axis], scope.ranges[axis], 1
    if scope.residue is not None:
        step = scope.residue.step
    conditions = [
        c
        for c in dict.fromkeys(conditions)
        if condition_holds(c, traced) and (every or not _repeats(scope, traced, c))
    ]

    def last(sizes: Iterable[int]) -> int:
        """The last of the neighbouring sizes at which all hold."""
        end = own
        for size in sizes:
            if not all(condition_holds(c, {**traced, axis: size}) for c in conditions):
                break
            end = size
        return end

    return last(range(own - step, lo - 1, -step)), last(range(own + step, hi + 1, step))


def side_about(
    loaded: LoadedModel,
    ranges: Mapping[str, Range],
    length: int,
    residue: Residue | None = None,
) -> Range:
    """The lengths on one side of all conditions with ``length``, by the conditions that tracing meets.

    That takes a trace, no program: one for these lengths may still not be right, or be right for more.

    Args:
        loaded: the model; it has a length axis.
        ranges: smallest and largest size of every axis.
        length: the one to trace with.
        residue: the lengths that count; None: all.
    """
    axis = loaded.length_axis or ""
    traced = trace_sizes(loaded, ranges, {axis: length}, residue)
    scope = ExportScope(loaded, ranges, traced, residue)
    attempt = try_strategy(scope, LADDER[0])
    return _where(scope, attempt.traced, attempt.watch.conditions(loaded.inputs), every=False)
