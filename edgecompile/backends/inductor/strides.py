"""How far an index moves with a loop, read off its terms instead of by simplifying the whole."""

from __future__ import annotations

from typing import Any

import sympy  # type: ignore[import-untyped]


def moving_terms(index: Any, loop: Any) -> Any:
    """The sum of an index's terms that hold a loop's variable: the rest stays where it is."""
    terms = sympy.Add.make_args(index)
    moving = [term for term in terms if term.has(loop)]
    return index if len(moving) == len(terms) else sympy.Add(*moving)


def name_fixed(index: Any, loop: Any) -> dict[Any, Any]:
    """A symbol for each quotient and remainder in an index that doesn't hold a loop's variable."""
    names: dict[Any, Any] = {}
    parts = sympy.preorder_traversal(index)
    for part in parts:
        if isinstance(part, sympy.Function) and not part.has(loop):
            parts.skip()
            known = {"nonnegative": part.is_nonnegative, "positive": part.is_positive}
            name = sympy.Symbol(f"fixed{len(names)}", integer=True, **known)
            names.setdefault(part, name)
    return names


def read_stride(moving: Any, loop: Any) -> Any:
    """The factor of a loop's variable in a sum of its multiples; None for another sum."""
    stride = sympy.S.Zero
    for term in sympy.Add.make_args(moving):
        factors = sympy.Mul.make_args(term)
        others = [factor for factor in factors if factor != loop]
        if len(others) != len(factors) - 1 or any(factor.has(loop) for factor in others):
            return None
        stride += sympy.Mul(*others)
    return sympy.expand(stride)
