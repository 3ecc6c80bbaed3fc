"""Conditions on sizes that hold at all sizes, or at none.

torch compares a condition with the ends of its sizes' ranges alone. ``2 * (length // 2) < length + 1``
holds for all whole numbers, but torch keeps it as a condition of the program, and then can't show that
it holds. Here conditions with quotients, remainders, maxima and the like are tried at every size: those
that always give the same never become conditions.

A long range isn't tried as a whole. An expression of sums, quotients and remainders by constants grows
by the same number from one period of its divisors to the next. So the difference of two of them is
linear along the sizes with one remainder, and the ends of these tell the rest.

torch gives an input's size that is a sum of axes (``32*height``) no upper limit while it traces. Here it has the
values that the axes give it.
"""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import sympy  # type: ignore[import-untyped]
from torch.fx.experimental.symbolic_shapes import ShapeEnv, free_unbacked_symbols

from edgecompile.export.guards import axis_texts, condition_holds, condition_tree, tree_value
from edgecompile.models.specs import InputSpec
from edgecompile.runtime.format.sums import parse_sum

#: Sizes, of all axes together, that a condition is tried at, at most.
_MOST_SIZES = 4096
#: Others compare ends alone, as torch does.
_WORTH = re.compile(r"//|Mod\(|Max\(|Min\(|ceil|floor|Ceil|Floor")

#: The smallest and the largest value, both inclusive, and the step between values, which is 1 where none is given.
Range = tuple[int, int] | tuple[int, int, int]


def outcome(expression: str, ranges: Mapping[str, Range]) -> bool | None:
    """Whether a condition holds at every size (True) or at none (False); None: it depends, or isn't known.

    Args:
        expression: the condition, in torch's words or Python's.
        ranges: range of every name in it.
    """
    values_of = {name: _values(span) for name, span in ranges.items()}
    count = math.prod(map(len, values_of.values()))
    if count < 1:
        return None
    if count > _MOST_SIZES:
        return _outcome_of_ends(expression, ranges)
    # The ends first: they differ where the condition is a limit.
    spans = [(values[-1], *values[:-1]) for values in values_of.values()]
    values = (dict(zip(ranges, sizes, strict=True)) for sizes in itertools.product(*spans))
    return _same(condition_holds(expression, sizes) for sizes in values)


def _values(span: Range) -> range:
    lo, hi, *step = span
    return range(lo, hi + 1, *step)


def _same(results: Iterator[bool | None]) -> bool | None:
    first = next(results, None)
    return first if first is not None and all(item == first for item in results) else None


def _outcome_of_ends(expression: str, ranges: Mapping[str, Range]) -> bool | None:
    """The outcome of a comparison of numbers with a period, by the first and last sizes of each remainder."""
    if len(ranges) != 1:
        return None
    ((name, (lo, hi, *_)),) = ranges.items()  # what holds at every size holds at every other one
    try:
        tree = condition_tree(expression)
        if not isinstance(tree, ast.Compare) or len(tree.ops) != 1:
            return None
        step = math.lcm(_period(tree.left, name), _period(tree.comparators[0], name))
        if step > _MOST_SIZES // 2 or hi - lo < 2 * step:
            return None

        def difference(size: int) -> int:
            left, right = (tree_value(t, {name: size}) for t in (tree.left, tree.comparators[0]))
            return int(left - right)

        ends = [
            (difference(size), difference(hi - (hi - size) % step)) for size in range(lo, lo + step)
        ]
    except (SyntaxError, ValueError, LookupError, ArithmeticError):
        return None
    if isinstance(tree.ops[0], (ast.Eq, ast.NotEq)):
        # Between ends of two signs there may be a zero.
        equal = [first == last == 0 for first, last in ends]
        if any(first * last <= 0 for first, last in ends if (first, last) != (0, 0)):
            return None
        found = _same(iter(equal))
        return None if found is None else found == isinstance(tree.ops[0], ast.Eq)
    compare = ast.Compare(ast.Name("d", ast.Load()), tree.ops, [ast.Constant(0)])
    return _same(bool(tree_value(compare, {"d": d})) for pair in ends for d in pair)


def _period(node: ast.AST, name: str) -> int:
    """After how many sizes a whole number grows by the same again; raises LookupError for other numbers."""
    match node:
        case ast.Constant(value=int()):
            return 1
        case ast.Name(id=own) if own == name:
            return 1
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return _period(inner, name)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right):
            return math.lcm(_period(left, name), _period(right, name))
        case ast.BinOp(left=ast.Constant(value=int()), op=ast.Mult(), right=inner):
            return _period(inner, name)
        case ast.BinOp(left=inner, op=ast.Mult(), right=ast.Constant(value=int())):
            return _period(inner, name)
        case ast.BinOp(
            left=inner, op=ast.FloorDiv() | ast.Mod(), right=ast.Constant(value=int() as divisor)
        ) if divisor > 0:
            # The divided number grows by a whole number in its period, and by a multiple in so many.
            return _period(inner, name) * divisor
    raise LookupError(ast.dump(node))


def if_apart(expression: Any) -> bool | None:
    """Whether a condition holds where a size that follows from others is 2 or more; None: it isn't whether one is 1.

    Strides are products of sizes. That two of them differ, or that one is no multiple of another, is another way to
    say that a size isn't 1.
    """
    if not isinstance(expression, sympy.core.relational.Relational):
        return None
    left, right = expression.args
    if right.is_zero and left.func.__name__ in ("Mod", "PythonMod"):
        left, right = left.args  # a size is a multiple of its product with another one if that is 1
    if not (left.is_Integer or right.is_Integer):
        factor, other = left / right, right / left
        left, right = (factor, sympy.Integer(1)) if _is_whole(factor) else (sympy.Integer(1), other)
    size, number = (left, right) if right.is_Integer else (right, left)
    turned = size is right
    # Strides and bytes are multiples: that 32 rows are more than 32 says that there is more than one.
    factor, primitive = size.as_content_primitive()
    if factor.is_Integer:
        size, number = primitive, number / factor
    if not number.is_Integer or size.is_Symbol or not size.free_symbols or not _is_whole(size):
        return None
    at_one, at_two, beyond = (
        bool(expression.func(number, n) if turned else expression.func(n, number))
        for n in (1, 2, sympy.oo)
    )
    return at_two if at_one != at_two == beyond else None


def _is_whole(factor: Any) -> bool:
    """Whether nothing is divided in a product, but within functions that give whole numbers."""
    return not any(power.is_Pow and power.exp.is_negative for power in sympy.Mul.make_args(factor))


@contextmanager
def certain_conditions(
    inputs: Sequence[InputSpec],
    axes: Mapping[str, tuple[int, int]],
    apart: list[Any] | None = None,
) -> Iterator[None]:
    """Lets torch's tracing decide conditions that always give the same without keeping them.

    Args:
        inputs: the inputs of the traced model.
        axes: smallest and largest size of every axis, both inclusive.
        apart: gets conditions (sympy) that hold unless a size that follows from others is 1. They are taken for
            given, as torch takes an axis' own size for 2 or more. None: they are torch's to decide.
    """
    known: dict[tuple[str, tuple[tuple[str, Range], ...]], bool | None] = {}
    evaluate: Callable[..., Any] = ShapeEnv.evaluate_expr
    require: Callable[..., Any] = ShapeEnv.guard_or_defer_runtime_assert

    def decide(environment: ShapeEnv, expression: Any) -> bool | None:
        text = str(expression)
        if not isinstance(expression, sympy.logic.boolalg.Boolean) or not _WORTH.search(text):
            return None
        symbols = sorted(expression.free_symbols, key=str)
        ranges = _ranges(environment, symbols, inputs, axes)
        if not ranges:
            return None
        key = text, tuple(ranges.items())
        if key not in known:
            known[key] = outcome(text, ranges)
            if apart is not None and known[key] is None:
                known[key] = if_apart(expression)
                if known[key] is not None:
                    apart.append(expression if known[key] else sympy.Not(expression))
        return known[key]

    def evaluate_expr(environment: Any, expression: Any, *args: Any, **kwargs: Any) -> Any:
        found = decide(environment, expression)
        if found is not None:
            return sympy.true if found else sympy.false
        return evaluate(environment, expression, *args, **kwargs)

    def guard(environment: Any, expression: Any, *args: Any, **kwargs: Any) -> Any:
        return decide(environment, expression) or require(environment, expression, *args, **kwargs)

    with patch.multiple(ShapeEnv, evaluate_expr=evaluate_expr, guard_or_defer_runtime_assert=guard):
        yield


def _ranges(
    environment: ShapeEnv,
    symbols: Sequence[Any],
    inputs: Sequence[InputSpec],
    axes: Mapping[str, tuple[int, int]],
) -> dict[str, Range]:
    """The ranges of inputs' sizes; empty where one isn't such a size, or has no upper end."""
    result: dict[str, Range] = {}
    for symbol in symbols:
        span = environment.var_to_range.get(symbol)
        if free_unbacked_symbols(symbol) or span is None or not span.is_int:
            return {}
        source = environment.var_to_sources.get(symbol, [None])[0]
        name = "" if source is None else axis_texts(source.name, inputs)
        most = _values_of_sum(name, axes)
        try:
            # torch's own infinity refuses this, sympy's does too.
            lo = int(span.lower)
            result[str(symbol)] = (lo, int(span.upper)) if most is None else _from(lo, most)
        except (AttributeError, OverflowError, TypeError, ValueError):
            return {}
    return result


def _values_of_sum(text: str, axes: Mapping[str, tuple[int, int]]) -> tuple[int, int, int] | None:
    """The values of a sum of axes; None of an axis itself, whose range torch knows, and of other texts."""
    found = None if text in axes else parse_sum(text)
    if found is None or any(axis not in axes for axis, _ in found.terms):
        return None
    steps = [abs(factor) for axis, factor in found.terms if axes[axis][0] < axes[axis][1]]
    return (*found.span(axes), math.gcd(*steps) or 1)


def _from(least: int, values: tuple[int, int, int]) -> tuple[int, int, int]:
    """The values that aren't below the least."""
    lo, hi, step = values
    return max(lo, least + (lo - least) % step), hi, step
