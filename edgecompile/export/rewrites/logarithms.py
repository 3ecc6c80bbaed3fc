"""Logarithms of sizes that vary, which exported programs have no operator for.

A logarithm becomes powers and products, which are right to some 13 digits: enough for a factor, not
for a decision. What is decided by one (how many levels a tree has, whether a size is over a limit) is
decided by Python's own function, and tracing keeps the range of sizes over which it is the same.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from edgecompile.export.rewrites.symbols import Size, sym_float

#: The root that is taken before the series, and the terms of that: for sizes of up to 2**31. ONNX
#: computes in float32, where a higher root would leave too few digits.
_ROOT = 32
_TERMS = 14
#: Sizes beyond this are not told apart.
_MOST = 1 << 40
#: What Python raises outside of where a function is defined.
_UNDEFINED = (ValueError, ZeroDivisionError, OverflowError)


class Logarithm(torch.SymFloat):
    """A number computed of the logarithm of one size, and by constants of that.

    Args:
        symbol: the symbol in tracing's expressions.
        size: the size; None: there are several, or it isn't a whole number.
        function: a function that gives the very number for a size; monotonic.
    """

    def __init__(self, symbol: Any, size: Size, function: Callable[[int], float]) -> None:
        super().__init__(symbol.node)  # type: ignore[no-untyped-call]
        self._size, self._function = size, function

    def _with(self, apply: Callable[[Any, Any], Any], other: Any, turned: bool = False) -> Any:
        def of(number: Any, plain: Any) -> Any:
            return apply(plain, number) if turned else apply(number, plain)

        own_symbol = torch.SymFloat(self.node)  # type: ignore[no-untyped-call]
        symbol = of(own_symbol, other)
        if not isinstance(symbol, torch.SymFloat):
            return symbol  # of a tensor
        own, constant = self._function, isinstance(other, (int, float))
        # A constant over a logarithm has a pole at the size 1.
        constant = constant and not (turned and apply is operator.truediv)
        return Logarithm(symbol, self._size if constant else None, lambda n: of(own(n), other))

    def __add__(self, other: Any) -> Any:
        return self._with(operator.add, other)

    def __radd__(self, other: Any) -> Any:
        return self._with(operator.add, other, True)

    def __sub__(self, other: Any) -> Any:
        return self._with(operator.sub, other)

    def __rsub__(self, other: Any) -> Any:
        return self._with(operator.sub, other, True)

    def __mul__(self, other: Any) -> Any:
        return self._with(operator.mul, other)

    def __rmul__(self, other: Any) -> Any:
        return self._with(operator.mul, other, True)

    def __truediv__(self, other: Any) -> Any:
        return self._with(operator.truediv, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._with(operator.truediv, other, True)

    def __rpow__(self, other: Any) -> Any:
        return self._with(operator.pow, other, True)

    def __neg__(self) -> Any:
        return self._with(operator.mul, -1)

    def __floordiv__(self, other: Any) -> Any:
        return self._decide(lambda number: number // other)

    def __mod__(self, other: Any) -> Any:
        quotient, own = self // other, self._function
        rest = self - quotient * other
        # Python's own remainder where the quotient is this one, and monotonic elsewhere.
        return Logarithm(
            rest, self._size, lambda n: own(n) % other + (own(n) // other - quotient) * other
        )

    # torch's comparison would be of the series, which differs from Python's number by roundings.
    def __eq__(self, other: object) -> Any:
        if self._size is None or not isinstance(other, (int, float)):
            return super().__eq__(other)
        wanted: float = other

        def side(number: float) -> int:
            return (number > wanted) - (number < wanted)

        return self._reaches(side) and self._decide(side) == 0

    def __ne__(self, other: object) -> Any:
        if self._size is None or not isinstance(other, (int, float)):
            return super().__ne__(other)
        return not self.__eq__(other)

    __hash__ = torch.SymFloat.__hash__

    def is_integer(self) -> bool:
        """As ``float.is_integer``."""
        low, high = self._decide(lambda number: (math.floor(number), math.ceil(number)))
        return bool(low == high)

    def __lt__(self, other: Any) -> bool:
        return bool(self._decide(lambda number: number < other))

    def __le__(self, other: Any) -> bool:
        return bool(self._decide(lambda number: number <= other))

    def __gt__(self, other: Any) -> bool:
        return bool(self._decide(lambda number: number > other))

    def __ge__(self, other: Any) -> bool:
        return bool(self._decide(lambda number: number >= other))

    def __ceil__(self) -> int:
        return int(self._decide(math.ceil))

    def __floor__(self) -> int:
        return int(self._decide(math.floor))

    def __trunc__(self) -> int:
        return int(self._decide(math.trunc))

    def __int__(self) -> int:
        return int(self._decide(math.trunc))

    def __round__(self, digits: int | None = None) -> Any:
        return self._decide(lambda number: round(number, digits))

    def _reaches(self, side: Callable[[float], int]) -> bool:
        """Whether ``side``, which ascends or descends with the size, is 0 at some size."""
        assert self._size is not None
        traced = int(self._size.node.hint)
        own = side(self._function(traced))

        def is_side(size: int, wanted: int) -> bool:
            try:
                return side(self._function(size)) == wanted
            except _UNDEFINED:
                return False

        ends = [_last(lambda n: is_side(n, own), traced, far) for far in (0, _MOST)]
        return own == 0 or is_side(ends[0] - 1, 0) or is_side(ends[1] + 1, 0)

    def _decide(self, choose: Callable[[float], Any]) -> Any:
        """The result of ``choose`` for the number; the sizes with the same result become conditions."""
        if self._size is None:
            raise ValueError(
                "a decision by the logarithms of several sizes, or of one that was divided, isn't "
                "exact: decide by the sizes themselves"
            )
        traced = int(self._size.node.hint)
        chosen = choose(self._function(traced))

        def same(size: int) -> bool:
            try:
                return bool(choose(self._function(size)) == chosen)
            except _UNDEFINED:
                return False

        low = _last(same, traced, 0)
        high = _last(same, traced, _MOST)
        # Comparing puts the range into the program's conditions.
        if self._size >= low and (high == _MOST or self._size <= high):
            return chosen
        raise AssertionError("a traced size lies within its own range")


def _last(same: Callable[[int], bool], near: int, far: int) -> int:
    """The last size from ``near`` towards ``far`` at which ``same`` holds, as it does at ``near``."""
    if same(far):
        return far
    while abs(far - near) > 1:
        middle = (near + far) // 2
        near, far = (middle, far) if same(middle) else (near, middle)
    return near


def logarithm(
    x: Size, function: Callable[[Any], float], base: float = math.e, added: int = 0
) -> Logarithm:
    """``function`` of ``x``: the logarithm of ``x + added``."""
    root = (sym_float(x) + added) ** (1 / _ROOT)
    ratio = (root - 1) / (root + 1)
    square = ratio * ratio
    series: Any = 1 / (2 * _TERMS - 1)
    for term in reversed(range(_TERMS - 1)):
        series = series * square + 1 / (2 * term + 1)
    symbol = series * ratio * (2 * _ROOT / math.log(base))
    return Logarithm(symbol, x if isinstance(x, torch.SymInt) else None, function)
