"""Exports a loaded model with torch.export and proves the graph against eager.

Several ways to export are tried in order (:mod:`edgecompile.export.attempts`); a result counts only after
its graph was run against eager at several sizes of every axis (:mod:`edgecompile.export.checks`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from edgecompile.errors import ExportError
from edgecompile.export.attempts import Attempt, best_part, climb, try_strategy
from edgecompile.export.checks import (
    ExportScope,
    Range,
    check_program,
    choose_sizes,
    find_side_effects,
)
from edgecompile.export.conditions import Residue, input_nodes, size_symbols
from edgecompile.export.ladder import (
    LADDER,
    STATIC_LADDER,
    ExportStrategy,
    restore_ranges,
    trace_sizes,
)
from edgecompile.export.program import ExportedModel, fill_bounds
from edgecompile.export.refusal import refusal
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.specs import OutputSpec
from edgecompile.runtime.format.sums import axes_of, size_of


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
                served = _without_ones(own, replace(attempt, result=result))
                return _finish(scope, served, effects.notes)
            if result.only_eager:
                # No other way to export can be right where the model itself fails.
                part = best_part(scope, [replace(attempt, problem=result.describe())])
                if part is None:
                    raise result.eager[0]
                attempts = [replace(attempt, problem=result.describe())]
                break
            attempt = replace(attempt, problem="wrong " + result.describe())
        attempts.append(attempt)
    if allow_narrower and (part := best_part(scope, attempts)) is not None:
        return _finish(scope, part, effects.notes)
    raise refusal(scope, attempts)


def _without_ones(scope: ExportScope, attempt: Attempt) -> Attempt:
    """The attempt, or one that is traced with larger sizes, so that none which follows from them is 1.

    A feature map of a small image may have one column. Inductor takes a size that is 1 where it was traced for 1
    everywhere.
    """
    program, loaded = attempt.program, scope.loaded
    assert program is not None
    symbols = size_symbols(program.graph_module, loaded.inputs)
    shapes = (getattr(node.meta.get("val"), "shape", ()) for node in program.graph.nodes)
    varying = (size for shape in shapes for size in shape if isinstance(size, torch.SymInt))
    sizes = {size.node.expr for size in varying} - symbols.keys()
    sizes = {size for size in sizes if size.free_symbols <= symbols.keys()}

    def ones(traced: Mapping[str, int]) -> set[str]:
        numbers = {symbol: size_of(axis, traced) for symbol, axis in symbols.items()}
        few = [size for size in sizes if size.xreplace(numbers) == 1]
        names = {symbols[symbol] for size in few for symbol in size.free_symbols}
        return {axis for name in names for axis in axes_of(name, scope.ranges)}

    traced = dict(scope.traced)
    while small := ones(traced):
        wanted = {axis: 2 * size if axis in small else size for axis, size in traced.items()}
        larger = trace_sizes(loaded, scope.ranges, wanted, scope.residue)
        if sum(larger.values()) <= sum(traced.values()):
            return attempt  # they can't be
        traced = larger
    if traced == scope.traced:
        return attempt
    other = try_strategy(replace(scope, traced=traced), attempt.strategy)
    if other.program is None or other.ranges != attempt.ranges:
        return attempt
    result = other.result or check_program(other.program, replace(scope, traced=traced))
    return replace(other, result=result) if result.ok else attempt


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
