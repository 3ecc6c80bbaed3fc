"""Exports a loaded model with torch.export and proves the graph against eager.

Several ways to export are tried in order (:mod:`edgecompile.export.ladder`); a result counts only after
its graph was run against eager at several sizes of every axis (:mod:`edgecompile.export.checks`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from edgecompile.buckets.limits import MOST_SIDES
from edgecompile.buckets.ranges import span_text
from edgecompile.errors import ExportError
from edgecompile.export.checks import (
    CheckResult,
    ExportScope,
    Range,
    Sizes,
    check_program,
    choose_sizes,
    find_side_effects,
)
from edgecompile.export.conditions import Residue, input_nodes, size_symbols
from edgecompile.export.guards import (
    GuardWatch,
    Reason,
    condition_holds,
    explain_failure,
    moduli_in,
    watch_guards,
)
from edgecompile.export.ladder import (
    LADDER,
    STATIC_LADDER,
    ExportStrategy,
    other_sizes,
    program_ranges,
    restore_ranges,
    trace_sizes,
)
from edgecompile.export.operators.recurrence import has_recurrences
from edgecompile.export.program import ExportedModel, fill_bounds
from edgecompile.export.unguarded import export_with
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.specs import OutputSpec, tied_sizes
from edgecompile.runtime.format.sums import size_of


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


# How often a range is cut before an attempt is given up.
_SHRINKS = 4


def export_model(
    loaded: LoadedModel,
    ranges: Mapping[str, Range] | None = None,
    *,
    hint: Mapping[str, int] | None = None,
    residue: Residue | None = None,
    allow_narrower: bool = False,
    ladder: Sequence[ExportStrategy] | None = None,
) -> ExportedModel:
    """Exports ``loaded`` for all sizes within ``ranges``.

    Args:
        loaded: the model.
        ranges: smallest and largest size per axis, both inclusive; axes left out take the model's
            own limits. An axis with equal ends is fixed in the program: padded buckets are
            exported so.
        hint: the size per axis to trace with, which generated kernels are tuned for.
        residue: the sizes of the length axis to serve; both ends of its range are among them.
            None: all within the range.
        allow_narrower: if no strategy serves the whole range, take the one that is right for the
            widest part of it; ``ranges`` of the result then says which.
        ladder: the strategies to try; None: all.

    Raises:
        ExportError: nothing worked, or the model isn't deterministic or keeps state; names the
            axis, the condition and the line of the model's code where torch tells them.
        ModelError: the eager model fails, not at an end of the ranges alone.
    """
    spans = _resolve_ranges(loaded, ranges or {})
    scope = ExportScope(loaded, spans, trace_sizes(loaded, spans, hint, residue), residue)
    effects = find_side_effects(loaded, scope.traced, {axis: hi for axis, (_, hi) in spans.items()})
    if effects.problem:
        raise ExportError(
            f"the model '{loaded.name}' {effects.problem}",
            hint="a compiled program has no random numbers and keeps no state: take noise out of "
            "forward, and make what is kept an input and an output",
        )
    attempts: list[Attempt] = []
    for attempt in chain.from_iterable(climb(scope, ladder)):
        if attempt.program is not None and attempt.ranges == spans:
            own = replace(scope, traced=attempt.traced)
            result = attempt.result or check_program(attempt.program, own)
            if result.ok:
                return _finish(scope, replace(attempt, result=result), effects.notes)
            if result.only_eager:
                # No other way to export can be right where the model itself fails.
                part = _best_part(scope, [replace(attempt, problem=result.describe())])
                if part is None:
                    raise result.eager[0]
                attempts = [replace(attempt, problem=result.describe())]
                break
            attempt = replace(attempt, problem="wrong " + result.describe())
        attempts.append(attempt)
    if allow_narrower and (part := _best_part(scope, attempts)) is not None:
        return _finish(scope, part, effects.notes)
    raise refusal(scope, attempts)


def _resolve_ranges(loaded: LoadedModel, ranges: Mapping[str, Range]) -> dict[str, Range]:
    problems = [f"the model has no axis '{axis}'" for axis in ranges if axis not in loaded.axes]
    result = {}
    for axis, limits in loaded.axes.items():
        lo, hi = ranges.get(axis, (limits.lo, limits.hi))
        if hi is None:
            problems.append(f"the axis '{axis}' has no upper limit of its own: one must be given")
            continue
        if not limits.lo <= lo <= hi <= (limits.hi or hi):
            problems.append(f"{axis} {lo}..{hi} isn't within what the model allows, {limits}")
        result[axis] = (lo, hi)
    if problems:
        raise ExportError(f"the model '{loaded.name}': " + "; ".join(problems))
    return result


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


def _best_part(scope: ExportScope, attempts: Sequence[Attempt]) -> Attempt | None:
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


def _finish(scope: ExportScope, part: Attempt, effect_notes: Sequence[str]) -> ExportedModel:
    program, strategy, result, loaded = part.program, part.strategy, part.result, scope.loaded
    assert program is not None and result is not None
    restore_ranges(program)
    notes = list(effect_notes)
    for spec, node in zip(loaded.inputs, input_nodes(program), strict=True):
        if not node.users:
            notes.append(f"the input '{spec.name}' has no influence on the outputs")
    if strategy not in (LADDER[0], STATIC_LADDER[0]):
        notes.append(f"torch.export's plain form was refused; '{strategy.name}' served")
    if strategy.unguarded:
        notes.append(
            "conditions on sizes that tracing made were dropped: the program agrees with eager at "
            f"{len(result.passed)} sizes, of every kind that they tell apart"
        )
    return ExportedModel(
        name=loaded.name,
        source=program,
        inputs=fill_bounds(program, loaded.inputs),
        outputs=_with_free_sizes(program, replace(scope, ranges=part.ranges)),
        ranges=part.ranges,
        length_axis=loaded.length_axis,
        strategy=strategy.name,
        checked=tuple({tuple(s.items()): s for s in result.passed}.values()),
        max_error=result.max_error,
        notes=tuple(notes),
        residue=scope.residue,
    )


def _with_free_sizes(
    program: torch.export.ExportedProgram, scope: ExportScope
) -> tuple[OutputSpec, ...]:
    """The outputs, with None for sizes that aren't what the model's first runs let expect.

    These may depend on values, which a few runs saw equal by chance; or the model cuts at a length
    that none of the runs reached.
    """
    loaded = scope.loaded
    by_name = {node.name: node.meta.get("val") for node in program.graph.nodes}
    names, form = program.graph_signature.user_outputs, program.call_spec.out_spec
    keys = form.context if form is not None and form.type is dict else ()
    values = dict(zip(keys, [by_name.get(str(name)) for name in names], strict=False))
    symbols = size_symbols(program.graph_module, loaded.inputs)
    tried = choose_sizes(scope.ranges, {}, loaded.length_axis, scope.residue)

    def is_other(dim: int | str, size: Any) -> bool:
        if not isinstance(size, torch.SymInt):
            return any(size != size_of(dim, sizes) for sizes in tried)
        if free_unbacked_symbols(size):
            return True
        expression = size.node.expr
        if not expression.free_symbols <= symbols.keys():
            return False
        return any(
            expression.xreplace({s: size_of(a, sizes) for s, a in symbols.items()})
            != size_of(dim, sizes)
            for sizes in tried
        )

    result = []
    for spec in loaded.outputs:
        known = getattr(values.get(spec.name), "shape", None)
        if known is not None and len(known) == len(spec.shape):
            dims = zip(spec.shape, known, strict=True)
            shape = tuple(None if d is None or is_other(d, size) else d for d, size in dims)
            spec = replace(spec, shape=shape)
        result.append(spec)
    return tuple(result)


def refusal(scope: ExportScope, attempts: Sequence[Attempt]) -> ExportError:
    """The error that says why nothing worked; the first strategy's reason tells the most."""
    part = _best_part(scope, attempts)
    first = next((a for a in attempts if a.reason is not None), None)
    text = (first or attempts[0]).problem
    kind = "" if first is None or first.reason is None else first.reason.kind
    spans, steps = scope.ranges, {}
    if scope.residue is not None:
        steps[scope.residue.axis] = scope.residue.step
    ranges = ", ".join(
        f"{axis} {span_text((*span, steps.get(axis, 1)))}" for axis, span in spans.items()
    )
    details = "\n\n".join(
        f"[{attempt_name(a, scope)}] {a.problem}\n{a.raw}".rstrip() for a in attempts
    )
    hints = []
    if kind == "data":
        hints.append("choose between results with torch.where instead of between lines of code")
    elif kind == "operator":
        hints.append("write the operator with torch's own, or leave it outside the model")
    elif scope.varies and not tied_sizes(scope.loaded.inputs, (scope.loaded.length_axis or "",)):
        hints.append('padded buckets have one fixed length each and may still work: `mode="pad"`')
    if part is not None:
        less = [f"{a} {span_text(s)}" for a, s in part.ranges.items() if s != spans[a]]
        hints.append(f"it can be exported for {', '.join(less)}")
    hints.append("`details` shows what torch said")
    return ExportError(
        f"the model '{scope.loaded.name}' can't be exported for {ranges or 'fixed sizes'}: {text}",
        hint="; ".join(hints),
        details=details,
        served=None if part is None else part.ranges,
        parts=_parts(scope, attempts, part, every=False),
        period=_period(scope, attempts),
        near=_parts(scope, attempts, part, every=True),
    )


def _parts(
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
    told = [part.ranges] if part is not None and (every or _period(scope, attempts) == 1) else []
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


def _period(scope: ExportScope, attempts: Sequence[Attempt]) -> int:
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
