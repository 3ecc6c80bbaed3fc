"""Ranges of the numbers that a run reads from the GPU, by what the model asserts of them."""

from __future__ import annotations

from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

#: Sizes beyond it have no end: torch has several numbers for that.
_NO_END = 1 << 48


def largest_number(number: torch.SymInt) -> int | None:
    """The end of a number that a run reads from a tensor; None where it has none."""
    upper = number.node.shape_env.bound_sympy(number.node.expr).upper
    return int(upper) if upper.is_Integer and upper < _NO_END else None


def number_range(environment: Any, symbol: Any) -> tuple[Any, Any]:
    """The least and the most that such a number may be, as expressions of sizes that are known before it.

    They are what the model asserts of it. Without an end it is no size, and the most is the least.
    """
    span = environment.var_to_range[symbol]
    least = [span.lower] if span.lower.is_Integer else []
    most = [span.upper] if span.upper.is_Integer and span.upper < _NO_END else []
    for claim in environment.deferred_runtime_asserts.get(symbol, ()):
        relation = claim.expr
        if not isinstance(relation, (sympy.Le, sympy.Lt, sympy.Eq)):
            continue
        rest = sympy.expand(relation.lhs - relation.rhs)
        factor = rest.coeff(symbol)
        bound = rest - factor * symbol
        if factor not in (1, -1) or free_unbacked_symbols(bound) or symbol in bound.free_symbols:
            continue
        bound = -factor * bound - factor * isinstance(relation, sympy.Lt)
        if factor == 1 or isinstance(relation, sympy.Eq):
            most.append(bound)
        if factor == -1 or isinstance(relation, sympy.Eq):
            least.append(bound)
    lowest = sympy.Max(*least) if least else sympy.Integer(0)
    return lowest, sympy.Min(*most) if most else lowest
