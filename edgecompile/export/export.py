"""Exports a loaded model with torch.export and proves the graph against eager.

Several ways to export are tried in order (:mod:`edgecompile.export.ladder`); a result counts only after
its graph was run against eager at several sizes of every axis (:mod:`edgecompile.export.checks`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from edgecompile.errors import ExportError, ModelError
from edgecompile.export.checks import (
    CheckResult,
    ExportScope,
    Range,
    Sizes,
    check_program,
    find_side_effects,
)
from edgecompile.export.conditions import input_nodes
from edgecompile.export.guards import GuardWatch, Reason, explain_failure, watch_guards
from edgecompile.export.ladder import (
    LADDER,
    STATIC_LADDER,
    ExportStrategy,
    program_ranges,
    trace_sizes,
)
from edgecompile.export.operators.recurrence import has_recurrences
from edgecompile.export.program import ExportedModel, fill_bounds
from edgecompile.export.unguarded import export_with
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.specs import OutputSpec


@dataclass(frozen=True)
class Attempt:
    """The result of one strategy: a program and the sizes it allows, or a reason for none.

    ``also`` are sizes at which it has to be checked beside the usual ones, ``result`` is what came of
    it over all of the wanted range if that is done.
    """

    strategy: ExportStrategy
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
        allow_narrower: if no strategy serves the whole range, take the one that is right for the
            widest part of it; ``ranges`` of the result then says which.
        ladder: the strategies to try; None: all.

    Raises:
        ExportError: nothing worked, or the model isn't deterministic or keeps state; names the
            axis, the condition and the line of the model's code where torch tells them.
        ModelError: the eager model fails, not at an end of the ranges alone.
    """
    spans = _resolve_ranges(loaded, ranges or {})
    scope = ExportScope(loaded, spans, trace_sizes(loaded, spans, hint))
    effects = find_side_effects(loaded, scope.traced, {axis: hi for axis, (_, hi) in spans.items()})
    if effects.problem:
        raise ExportError(
            f"the model '{loaded.name}' {effects.problem}",
            hint="a compiled program has no random numbers and keeps no state: take noise out of "
            "forward, and make what is kept an input and an output",
        )
    attempts: list[Attempt] = []
    eager: ModelError | None = None
    for strategy in ladder or (LADDER if scope.varies else STATIC_LADDER):
        if ladder is None and _in_vain(strategy, attempts, loaded):
            continue
        attempt = try_strategy(scope, strategy)
        if attempt.program is not None and attempt.ranges == spans:
            result = attempt.result or check_program(attempt.program, scope)
            if result.ok:
                return _finish(loaded, replace(attempt, result=result), effects.notes)
            if result.only_eager:
                # No other way to export can be right where the model itself fails.
                attempts = [replace(attempt, problem=f"{result.describe()}")]
                eager = result.eager[0]
                break
            attempt = replace(attempt, problem="wrong " + result.describe())
        attempts.append(attempt)
    part = _best_part(scope, attempts)
    if part is None and eager is not None:
        raise eager
    if part is not None and allow_narrower:
        return _finish(loaded, part, effects.notes)
    raise _refusal(scope, attempts, part)


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


def try_strategy(
    scope: ExportScope, strategy: ExportStrategy, watch: GuardWatch | None = None
) -> Attempt:
    """Exports by one strategy; ``watch`` knows the line of the model behind a failure."""
    inputs, spans = scope.loaded.inputs, scope.ranges
    try:
        program, also, result = export_with(scope, strategy)
    except Exception as exc:  # torch raises whatever the model or the tracer raises
        line = None if watch is None else watch.place_of(inputs)
        reason = explain_failure(exc, inputs, line)
        return Attempt(strategy, reason.text, f"{type(exc).__name__}: {exc}", reason=reason)
    real = program_ranges(program, inputs, spans)
    narrower = [f"{axis} {span_text(real[axis])}" for axis in spans if real[axis] != spans[axis]]
    problem = f"only for {', '.join(narrower)}" if narrower else ""
    return Attempt(strategy, problem, problem, program, real, also=also, result=result)


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
    first = attempts[0].reason if attempts else None
    fixed = first is not None and first.kind == "specialised"
    return fixed and (strategy.auto or (strategy.strict and strategy.deferred))


def _best_part(scope: ExportScope, attempts: Sequence[Attempt]) -> Attempt | None:
    """The attempt that is right for the widest part of the range, with that part."""
    best: Attempt | None = None
    traced = scope.traced
    for attempt in attempts:
        part = dict(attempt.ranges)
        for _ in range(_SHRINKS):
            inside = all(lo <= traced[axis] <= hi for axis, (lo, hi) in part.items())
            if not inside or _width(part) <= (_width(best.ranges) if best else 0):
                break
            assert attempt.program is not None
            result = check_program(attempt.program, replace(scope, ranges=part), attempt.also)
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


def _finish(loaded: LoadedModel, part: Attempt, effect_notes: Sequence[str]) -> ExportedModel:
    program, strategy, result = part.program, part.strategy, part.result
    assert program is not None and result is not None
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
        outputs=_with_free_sizes(program, loaded.outputs),
        ranges=part.ranges,
        length_axis=loaded.length_axis,
        strategy=strategy.name,
        checked=tuple({tuple(s.items()): s for s in result.passed}.values()),
        max_error=result.max_error,
        notes=tuple(notes),
    )


def _with_free_sizes(
    program: torch.export.ExportedProgram, outputs: Sequence[OutputSpec]
) -> tuple[OutputSpec, ...]:
    """The outputs, with None for sizes that depend on values: a few runs may have seen equal ones by chance."""
    by_name = {node.name: node.meta.get("val") for node in program.graph.nodes}
    names, form = program.graph_signature.user_outputs, program.call_spec.out_spec
    keys = form.context if form is not None and form.type is dict else ()
    values = dict(zip(keys, [by_name.get(str(name)) for name in names], strict=False))
    result = []
    for spec in outputs:
        dims = zip(
            spec.shape, getattr(values.get(spec.name), "shape", (0,) * len(spec.shape)), strict=True
        )
        shape = tuple(None if free_unbacked_symbols(size) else dim for dim, size in dims)
        result.append(replace(spec, shape=shape))
    return tuple(result)


def _refusal(scope: ExportScope, attempts: Sequence[Attempt], part: Attempt | None) -> ExportError:
    """The error that says why nothing worked; the first strategy's reason tells the most."""
    first = next((a for a in attempts if a.reason is not None), None)
    text = (first or attempts[0]).problem
    kind = "" if first is None or first.reason is None else first.reason.kind
    inputs, spans = scope.loaded.inputs, scope.ranges
    if first is not None and kind != "other":
        with watch_guards() as watch:
            try:
                export_with(scope, first.strategy)
            except Exception as again:
                text = explain_failure(again, inputs, watch.place_of(inputs)).text
    ranges = ", ".join(f"{axis} {span_text(span)}" for axis, span in spans.items())
    details = "\n\n".join(f"[{a.strategy.name}] {a.problem}\n{a.raw}".rstrip() for a in attempts)
    hints = []
    if kind == "data":
        hints.append("choose between results with torch.where instead of between lines of code")
    elif kind == "operator":
        hints.append("write the operator with torch's own, or leave it outside the model")
    elif scope.varies:
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
    )


def span_text(span: Range) -> str:
    """Sizes as people write them: ``12``, or ``1..16``."""
    return str(span[0]) if span[0] == span[1] else f"{span[0]}..{span[1]}"
