"""The ways to call torch.export, in the order in which they are tried."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from edgecompile.export.certain import certain_conditions
from edgecompile.export.conditions import Range, Residue, input_nodes
from edgecompile.export.guards import quiet_torch
from edgecompile.export.operators.recurrence import has_recurrences
from edgecompile.export.operators.whole_layers import WholeRecurrences
from edgecompile.export.rewrites.numbers import symbolic_math
from edgecompile.export.rewrites.varying import VaryingSizes
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.specs import InputSpec, usual_size
from edgecompile.runtime.format.sums import axes_of, parse_sum, size_of, size_span


@dataclass(frozen=True)
class ExportStrategy:
    """One way to export.

    Attributes:
        name: recorded with what it gave.
        strict: trace Python bytecode instead of running it.
        auto: let torch find out which sizes may vary, instead of demanding the whole range.
        deferred: turn conditions on sizes into checks in the graph where that is possible.
        apart: take sizes that follow from others for 2 or more, and compare where one is 1.
        recurrences: export recurrent layers as operators of our own, whose length may vary; for
            models that have such layers.
        unguarded: drop the conditions on sizes and compare at every size instead; see
            :mod:`edgecompile.export.unguarded`.
    """

    name: str
    strict: bool = False
    auto: bool = False
    deferred: bool = False
    apart: bool = False
    recurrences: bool = False
    unguarded: bool = False


# In a survey of 266 architectures 214 pass the first; of the others deferred checks rescue 15,
# AUTO 12 and strict tracing 2.
LADDER: tuple[ExportStrategy, ...] = (
    ExportStrategy("dim"),
    ExportStrategy("recurrences", recurrences=True),
    ExportStrategy("recurrences-deferred", deferred=True, recurrences=True),
    ExportStrategy("deferred", deferred=True),
    ExportStrategy("apart", deferred=True, apart=True),
    ExportStrategy("auto", auto=True),
    ExportStrategy("strict", strict=True),
    ExportStrategy("auto-deferred", auto=True, deferred=True),
    ExportStrategy("strict-deferred", strict=True, deferred=True),
    ExportStrategy("unguarded", deferred=True, unguarded=True),
)
# The argument that says whether a mask is causal, by name and position; None: to be found out.
_CAUSAL_HINTS: dict[type[torch.nn.Module], tuple[str, int]] = {
    torch.nn.TransformerEncoder: ("is_causal", 3),
    torch.nn.TransformerDecoder: ("tgt_is_causal", 6),
}
# With every size fixed many of them are the same. torch's recurrent layers take no lengths that are inputs.
STATIC_LADDER: tuple[ExportStrategy, ...] = (
    ExportStrategy("static"),
    ExportStrategy("static-recurrences", recurrences=True),
    ExportStrategy("static-strict", strict=True),
)


def export_program(
    module: torch.nn.Module,
    example: Mapping[str, torch.Tensor],
    inputs: Sequence[InputSpec],
    ranges: Mapping[str, Range],
    strategy: ExportStrategy,
    apart: list[Any] | None = None,
) -> torch.export.ExportedProgram:
    """Calls torch.export with the inputs as keyword arguments; raises whatever it raises.

    A strategy with ``apart`` adds what it takes for given to the list (:func:`certain_conditions`).
    """
    if strategy.recurrences and not has_recurrences(module):
        raise ValueError("the model has no LSTM, GRU or RNN")
    recurrences = WholeRecurrences() if strategy.recurrences else nullcontext()
    plain = strategy.strict  # Bytecode is traced without these.
    with (
        torch.no_grad(),
        quiet_torch(),
        certain_conditions(inputs, ranges, apart if strategy.apart else None),
        without_fast_path(),
        without_mask_detection(module),
        recurrences,
        nullcontext() if plain else VaryingSizes(),
        nullcontext() if plain else symbolic_math(casts=strategy.deferred),
    ):
        program = torch.export.export(
            module,
            (),
            dict(example),
            dynamic_shapes=_dynamic_shapes(inputs, ranges, strategy.auto),
            strict=strategy.strict,
            prefer_deferred_runtime_asserts_over_guards=strategy.deferred,
        )
    _make_storable(program)
    _state_sums(program, inputs, ranges)
    return program


def _state_sums(
    program: torch.export.ExportedProgram,
    inputs: Sequence[InputSpec],
    ranges: Mapping[str, Range],
) -> None:
    """Gives sizes that follow from axes the range that follows.

    torch takes every axis for 2 at least, as it does in the range of an axis, but states the ranges
    of sums as conditions.
    """
    for spec, node in zip(inputs, input_nodes(program), strict=True):
        for dim, size in zip(spec.shape, node.meta["val"].shape, strict=True):
            if isinstance(dim, str) and dim not in ranges and isinstance(size, torch.SymInt):
                old = program.range_constraints.get(size.node.expr)
                if old is not None:
                    lo, hi = size_span(dim, ranges)
                    most = upper_limit(old)
                    # From 2 on is what torch assumes of any size; another range is what the code needs.
                    least = lo if int(old.lower) <= 2 else max(lo, int(old.lower))
                    hi = hi if most is None else min(hi, most)
                    program.range_constraints[size.node.expr] = type(old)(least, hi)


def restore_ranges(program: torch.export.ExportedProgram) -> None:
    """Gives the inputs' symbolic sizes the whole range that the program serves.

    Conditions that tracing met (the length is below 1,000) narrow a symbol's range. They were dropped or tried at
    every size since, but code generated with the narrow range would be for few sizes: a sum of at most 999 terms, say.
    """
    for node in input_nodes(program):
        for size in getattr(node.meta.get("val"), "shape", ()):
            served = isinstance(size, torch.SymInt) and program.range_constraints.get(
                size.node.expr
            )
            if served:
                spans = size.node.shape_env.var_to_range
                # From 2 on, as torch takes any size that varies while it traces.
                least = max(served.lower, min(2, served.upper))
                spans[size.node.expr] = type(served)(least, served.upper)


def _make_storable(program: torch.export.ExportedProgram) -> None:
    """Writes how sizes are rounded in operators that a saved program can hold.

    torch stores neither ``math.floor`` nor ``math.ceil`` nor ``round`` of a size.
    """
    for node in [n for n in program.graph.nodes if n.target in (math.floor, math.ceil, round)]:
        if node.args[1:] in ((), (None,)):  # else to so many digits
            with program.graph.inserting_before(node):
                node.replace_all_uses_with(_rounded(node))
            program.graph.erase_node(node)
    program.graph_module.recompile()


def _rounded(node: torch.fx.Node) -> torch.fx.Node:
    """Nodes that compute the same as one that rounds a size, inserted where the graph inserts."""

    def add(function: Callable[..., Any], *args: Any) -> torch.fx.Node:
        result = node.graph.call_function(function, args)
        values = [arg.meta["val"] if isinstance(arg, torch.fx.Node) else arg for arg in args]
        result.meta = {**node.meta, "val": function(*values)}
        return result

    def floor(value: Any) -> torch.fx.Node:
        return add(torch.sym_int, add(operator.floordiv, value, 1.0))

    def ceil(value: Any) -> torch.fx.Node:
        return add(operator.neg, floor(add(operator.neg, value)))

    value = node.args[0]
    if node.target is not round:
        return floor(value) if node.target is math.floor else ceil(value)
    # Halfway between two whole numbers, where these two differ, it is the even one.
    low, high = ceil(add(operator.sub, value, 0.5)), floor(add(operator.add, value, 0.5))
    odd = add(operator.mod, low, 2)
    return add(operator.add, low, add(operator.mul, odd, add(operator.sub, high, low)))


def program_ranges(
    program: torch.export.ExportedProgram,
    inputs: Sequence[InputSpec],
    ranges: Mapping[str, Range],
) -> dict[str, Range]:
    """The sizes that a program allows, within ``ranges``; empty ranges have lo over hi.

    Inputs that share an axis may have symbols of their own (AUTO): their ranges are intersected.
    """
    result = dict(ranges)
    for spec, node in zip(inputs, input_nodes(program), strict=True):
        for axis, size in zip(spec.shape, node.meta["val"].shape, strict=True):
            if isinstance(axis, str) and axis in result:
                lo, hi = _size_range(program, size)
                old = result[axis]
                result[axis] = (max(old[0], lo), min(old[1], hi if hi is not None else old[1]))
            elif isinstance(axis, str) and (span := _own_span(program, size)) is not None:
                result.update(_solved(axis, span, result))
    return result


def _own_span(program: torch.export.ExportedProgram, size: Any) -> Range | None:
    """The range of a size that torch doesn't compute from others; None of others."""
    lo, hi = _size_range(program, size)
    return None if hi is not None and hi < lo else (lo, 2**31 if hi is None else hi)


def _solved(text: str, span: Range, ranges: Mapping[str, Range]) -> dict[str, Range]:
    """The part of an axis' range at which a sum of it alone lies within ``span``."""
    found = parse_sum(text)
    if found is None or len(found.terms) != 1 or found.terms[0][0] not in ranges:
        return {}
    axis = found.terms[0][0]
    lo, hi = ranges[axis]
    inside = [n for n in range(lo, hi + 1) if span[0] <= found.at({axis: n}) <= span[1]]
    return {axis: (inside[0], inside[-1]) if inside else (hi + 1, hi)}


@contextmanager
def without_fast_path() -> Iterator[None]:
    """Switches off nn.TransformerEncoder's fused path, which only Python can call."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


@contextmanager
def without_mask_detection(module: torch.nn.Module) -> Iterator[None]:
    """Keeps nn.TransformerEncoder and nn.TransformerDecoder from reading their masks' values.

    Without a hint, they compare a mask with the causal one, which is a branch on values. What they
    find out is a hint to choose a quicker kernel by; the mask is applied all the same.
    """
    hooks = []
    for part in module.modules():
        for kind, (word, position) in _CAUSAL_HINTS.items():
            if isinstance(part, kind) and type(part).forward is kind.forward:
                hook = partial(_say_not_causal, word, position)
                hooks.append(part.register_forward_pre_hook(hook, with_kwargs=True))
    try:
        yield
    finally:
        for handle in hooks:
            handle.remove()


def _say_not_causal(
    word: str, position: int, _: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if len(args) > position:
        return (*args[:position], bool(args[position]), *args[position + 1 :]), kwargs
    return args, {**kwargs, word: bool(kwargs.get(word))}


def _dynamic_shapes(
    inputs: Sequence[InputSpec], ranges: Mapping[str, Range], auto: bool
) -> dict[str, dict[int, Any]] | None:
    varying = {axis: span for axis, span in ranges.items() if span[0] < span[1]}
    if not varying:
        return None
    dim = torch.export.Dim
    dims: dict[str, Any] = {}
    names = dict.fromkeys(d for spec in inputs for d in spec.shape if isinstance(d, str))
    # A sum is made of the axes' own.
    for name in sorted(names, key=lambda name: name not in ranges):
        if not any(axis in varying for axis in axes_of(name, varying)):
            continue
        lo, hi = size_span(name, ranges)
        if lo == hi:
            continue
        derived = None if auto or name in varying else _derived(name, dims, ranges)
        if derived is None:
            named = name in varying and not auto
            derived = dim(name, min=lo, max=hi) if named else dim.AUTO(min=lo, max=hi)
        dims[name] = derived
    return {
        spec.name: {index: dims[axis] for index, axis in enumerate(spec.shape) if axis in dims}
        for spec in inputs
    }


def _derived(name: str, dims: Mapping[str, Any], ranges: Mapping[str, Range]) -> Any:
    """torch's own form of a sum of axes, which has one axis that varies and no negative factor; None: it hasn't one."""
    found = parse_sum(name)
    assert found is not None
    varying = [(axis, n) for axis, n in found.terms if ranges[axis][0] < ranges[axis][1]]
    if len(varying) != 1 or varying[0][1] < 1 or varying[0][0] not in dims:
        return None
    (axis, factor), constant = varying[0], found.constant
    constant += sum(n * ranges[other][0] for other, n in found.terms if other != axis)
    made = dims[axis] if factor == 1 else factor * dims[axis]
    return made + constant if constant > 0 else made - -constant if constant else made


def _size_range(program: torch.export.ExportedProgram, size: Any) -> tuple[int, int | None]:
    if str(size).isdigit():  # an int, or a symbol that was found to have one value only
        return int(str(size)), int(str(size))
    for expression, bounds in program.range_constraints.items():
        if str(expression) == str(size):
            return int(bounds.lower), upper_limit(bounds)
    return 1, 0  # a size computed from others: no range of its own


def upper_limit(constraint: Any) -> int | None:
    """The upper end of a range constraint; None if it has none."""
    try:
        # torch's own infinity for integers refuses this, sympy's does too.
        value = int(constraint.upper)
    except (OverflowError, TypeError, ValueError, AttributeError):
        return None
    return value if value < 2**31 else None


def trace_sizes(
    loaded: LoadedModel,
    spans: Mapping[str, Range],
    hint: Mapping[str, int] | None = None,
    residue: Residue | None = None,
) -> dict[str, int]:
    """Sizes to trace with: the hint, but 2 at least where the size varies, and all different.

    torch takes sizes 0 and 1 for constants, and sizes that are equal for one and the same. So sizes that
    follow from axes are 2 at least as well, and unlike the others. An axis with a ``residue`` has a size
    that leaves its remainder.
    """
    hint = hint or {}
    result: dict[str, int] = {}
    dims = dict.fromkeys(dim for spec in loaded.inputs for dim in spec.shape)
    sums = {dim: axes_of(dim, spans) for dim in dims if isinstance(dim, str) and dim not in spans}

    def is_apart(axis: str, size: int) -> bool:
        sizes = {**result, axis: size}
        found = [
            size_of(dim, sizes)
            for dim, axes in sums.items()
            if axis in axes and sizes.keys() >= set(axes)
        ]
        known = [*found, *sizes.values()]
        return min(found, default=2) >= 2 and len(set(known)) == len(known)

    for axis, (lo, hi) in spans.items():
        usual = 16 if axis == loaded.length_axis else usual_size(axis, lo, hi)
        size = min(max(hint.get(axis, usual), lo), hi)
        if lo < hi:
            size = min(max(size, 2), hi)
            free = [s for s in (*range(size, hi + 1), *range(size - 1, max(lo, 2) - 1, -1))]
            if residue is not None and residue.axis == axis:
                free = [s for s in free if residue.has({axis: s})]
            unlike = next((s for s in free if s not in result.values()), size)
            size = next((s for s in free if is_apart(axis, s)), unlike)
        result[axis] = size
    return result


def other_sizes(
    span: Range, size: int, moduli: Collection[int], residue: Residue | None = None
) -> list[int]:
    """Sizes of an axis to trace with where tracing with one failed; those that may do best first.

    Multiples of what conditions take remainders by leave none, and primes are nobody's own size.

    Args:
        span: the axis's smallest and largest size.
        size: the size that failed.
        moduli: numbers by which conditions take remainders.
        residue: the sizes of this axis that count; None: all within the span.
    """
    lo, hi, step = max(span[0], 2), span[1], 1
    if residue is not None:
        lo, step = residue.at_least(lo), residue.step
    free = sorted(set(range(lo, hi + 1, step)) - {size}, key=lambda n: abs(n - size))
    block = math.lcm(*moduli)
    chosen = []
    if 1 < block <= hi:
        wanted = (0, 1, block - 1)
        found = (
            next((n for n in free if n % block == rest and n >= 2 * block), 0) for rest in wanted
        )
        chosen += [n for n in found if n]
    primes = [n for n in free if all(n % d for d in range(2, math.isqrt(n) + 1))]
    chosen += [*[n for n in primes if n > size][:1], *[n for n in primes if n < size][:1]]
    return list(dict.fromkeys(chosen))
