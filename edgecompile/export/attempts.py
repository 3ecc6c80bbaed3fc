"""Attempts to export a model: strategies in order, at some sizes and then at others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from edgecompile.buckets.ranges import span_text
from edgecompile.export.checks import CheckResult, ExportScope, Range, Sizes, check_program
from edgecompile.export.guards import GuardWatch, Reason, explain_failure, moduli_in, watch_guards
from edgecompile.export.ladder import (
    LADDER,
    STATIC_LADDER,
    ExportStrategy,
    other_sizes,
    program_ranges,
)
from edgecompile.export.operators.recurrence import has_recurrences
from edgecompile.export.unguarded import export_with
from edgecompile.models.loaded import LoadedModel

# How often a range is cut before an attempt is given up.
_SHRINKS = 4


@dataclass(frozen=True)
class Attempt:
    """The result of one strategy: a program and the sizes it allows, or a reason for none.

    ``traced`` are the sizes that it was traced with, ``watch`` has the conditions that tracing made.
    ``also`` are sizes at which it has to be checked beside the usual ones, ``result`` is what came of
    it over all of the wanted range if that is done.
    """

    strategy: ExportStrategy
    traced: Mapping[str, int]
    watch: GuardWatch
    problem: str
    raw: str = ""
    program: torch.export.ExportedProgram | None = None
    ranges: Mapping[str, Range] = field(default_factory=dict)
    reason: Reason | None = None
    also: Sequence[Sizes] = ()
    result: CheckResult | None = None


def climb(
    scope: ExportScope, ladder: Sequence[ExportStrategy] | None = None
) -> Iterator[Iterator[Attempt]]:
    """Tries one strategy after the other, for as long as the caller goes on.

    Where none served, they are tried at other sizes: a length may happen to be one of the model's
    own sizes, or have a remainder whose conditions torch can't solve.

    Args:
        scope: the model, and the sizes to trace with first.
        ladder: the strategies, for these sizes alone; None: all.

    Yields:
        The attempts at some sizes to trace with, each made when it is asked for.
    """
    seen: list[Attempt] = []
    for traced in [scope.traced] if ladder else _traces(scope, seen):
        yield _attempts(replace(scope, traced=traced), ladder, seen)


def _attempts(
    scope: ExportScope, ladder: Sequence[ExportStrategy] | None, seen: list[Attempt]
) -> Iterator[Attempt]:
    first = seen[0] if seen else None
    here: list[Attempt] = []
    for strategy in ladder or (LADDER if scope.varies else STATIC_LADDER):
        if ladder is None and _in_vain(strategy, here, scope.loaded):
            continue
        attempt = try_strategy(scope, strategy)
        here.append(attempt)
        seen.append(attempt)
        yield attempt
        if first is not None and _fixes(first) and _fixes(here[0]):
            return  # whatever the length is, the code fixes it


def _traces(scope: ExportScope, seen: Sequence[Attempt]) -> Iterator[Mapping[str, int]]:
    """The sizes to trace with: those of the scope, then others that may do better.

    Args:
        scope: the sizes to begin with.
        seen: the tried sizes so far; grows while these sizes are tried.
    """
    yield scope.traced
    axis = scope.loaded.length_axis
    if axis is None or not scope.varies:
        return
    kinds = {attempt.reason.kind for attempt in seen if attempt.reason is not None}
    if any(_fixes(attempt) and not _fixes(attempt, axis) for attempt in seen):
        return  # another axis is fixed, whatever the length is
    moduli = moduli_in(text for attempt in seen for text, _ in attempt.watch.found)
    sizes = other_sizes(scope.ranges[axis], scope.traced[axis], moduli, scope.residue)
    if not kinds & {"specialised", "unsolved"}:
        # Conditions on remainders may be fewer where there is no remainder.
        sizes = sizes[: bool(moduli and "guard" in kinds)]
    for size in sizes:
        reasons = [attempt.reason for attempt in seen if attempt.reason is not None]
        if any(reason.is_range for reason in reasons):
            return  # elsewhere the same condition holds, or its opposite
        if _fixes(seen[0]) and _fixes(seen[-1]) and seen[-1].traced != scope.traced:
            return  # whatever the length is, the code fixes it
        yield {**scope.traced, axis: size}


def attempt_name(attempt: Attempt, scope: ExportScope) -> str:
    """The strategy's name, with the sizes that it was traced with where these are others."""
    others = [f"{a} {n}" for a, n in attempt.traced.items() if n != scope.traced[a]]
    return f"{attempt.strategy.name} at {', '.join(others)}" if others else attempt.strategy.name


def _fixes(attempt: Attempt, axis: str = "") -> bool:
    """Whether the model's code fixes an axis, this one if it is named."""
    reason = attempt.reason
    fixed = reason is not None and reason.kind == "specialised"
    return (
        fixed and reason is not None and reason.guards[0].startswith(f"{axis} ==" if axis else "")
    )


def try_strategy(scope: ExportScope, strategy: ExportStrategy) -> Attempt:
    """Exports by one strategy."""
    inputs, spans, traced = scope.loaded.inputs, scope.ranges, scope.traced
    with watch_guards() as watch:
        try:
            program, also, result = export_with(scope, strategy)
        except Exception as exc:  # torch raises whatever the model or the tracer raises
            reason = explain_failure(exc, inputs, watch.place_of(inputs))
            raw = f"{type(exc).__name__}: {exc}"
            return Attempt(strategy, traced, watch, reason.text, raw, reason=reason)
    real = program_ranges(program, inputs, spans)
    narrower = [f"{axis} {span_text(real[axis])}" for axis in spans if real[axis] != spans[axis]]
    problem = f"only for {', '.join(narrower)}" if narrower else ""
    return Attempt(
        strategy, traced, watch, problem, problem, program, real, also=also, result=result
    )


def _in_vain(strategy: ExportStrategy, attempts: Sequence[Attempt], loaded: LoadedModel) -> bool:
    """Whether a strategy is for other models, or could only give a program for the size it traced.

    Where tracing the model fixes a size, AUTO lets it: the export succeeds and serves that size
    alone. Such models (loops over the length) are slow to trace.
    """
    if strategy.recurrences and not has_recurrences(loaded.module):
        return True
    if strategy.unguarded:
        # Dropping conditions helps where a program came of the same way with them.
        return not any(a.program is not None and a.strategy.deferred for a in attempts)
    fixed = bool(attempts) and _fixes(attempts[0])
    return fixed and (strategy.auto or (strategy.strict and strategy.deferred))


def best_part(scope: ExportScope, attempts: Sequence[Attempt]) -> Attempt | None:
    """The attempt that is right for the widest part of the range, with that part."""
    best: Attempt | None = None
    for attempt in attempts:
        part, traced = dict(attempt.ranges), attempt.traced
        for _ in range(_SHRINKS):
            inside = all(lo <= traced[axis] <= hi for axis, (lo, hi) in part.items())
            if not inside or _width(part) <= (_width(best.ranges) if best else 0):
                break
            assert attempt.program is not None
            own = replace(scope, ranges=part, traced=traced)
            result = check_program(attempt.program, own, attempt.also)
            if result.ok:
                best = replace(attempt, ranges=part, result=result)
                break
            part = _shrink(part, result.failed, traced)
    return best


def _width(ranges: Mapping[str, Range]) -> int:
    return sum(hi - lo for lo, hi in ranges.values())


def _shrink(
    part: Mapping[str, Range], failed: Sequence[tuple[Sizes, str]], traced: Mapping[str, int]
) -> dict[str, Range]:
    """Cuts the sizes that failed off the axis along which they lie farthest from the traced one."""
    result = dict(part)
    for sizes, _ in failed:
        axis = max(sizes, key=lambda name: abs(sizes[name] - traced[name]))
        lo, hi = result[axis]
        if sizes[axis] < traced[axis]:
            result[axis] = (max(lo, sizes[axis] + 1), hi)
        else:
            result[axis] = (lo, min(hi, sizes[axis] - 1))
    return result
