"""Sizes as tracing has them: numbers, or symbols that stand for a range of numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

#: A size or a number computed of sizes: an int or float, torch.SymInt or torch.SymFloat.
Size = Any

# torch's functions of symbols carry no annotations.
sym_float: Callable[[Size], Any] = torch.sym_float
sym_int: Callable[[Size], Any] = torch.sym_int
_sym_max: Callable[[Size, Size], Size] = torch.sym_max
_sym_min: Callable[[Size, Size], Size] = torch.sym_min


def is_symbol(value: object) -> bool:
    """Whether a number varies."""
    return isinstance(value, (torch.SymInt, torch.SymFloat))


def larger(a: Size, b: Size) -> Size:
    """The larger of two sizes, without a condition on them."""
    if statically_known_true(a >= b):
        return a
    return b if statically_known_true(b >= a) else _sym_max(a, b)


def smaller(a: Size, b: Size) -> Size:
    """The smaller of two sizes, without a condition on them."""
    if statically_known_true(a <= b):
        return a
    return b if statically_known_true(b <= a) else _sym_min(a, b)


def surely_equal(a: Size, b: Size) -> bool:
    """Whether two sizes are equal, whatever the symbols in them stand for."""
    return bool(statically_known_true(a == b))
