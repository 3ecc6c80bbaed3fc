"""Expressions of loop indices: how Inductor reads their strides, and integers computed from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import sympy  # type: ignore[import-untyped]
import torch
from torch._inductor.codegen import cpp as inductor_cpp
from torch._inductor.index_propagation import IndexPropagation, TypedExpr
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from edgecompile.backends.inductor.strides import moving_terms, name_fixed, read_stride


@contextmanager
def strides_read() -> Iterator[None]:
    """Lets Inductor read how far an index moves with a loop, which it does often, off the terms that move.

    Inductor simplifies the whole index for it. That took minutes for positions behind strided convolutions, whose
    sizes are quotients of quotients. Where the code holds the stride, it stays as Inductor writes it.
    """
    module: Any = inductor_cpp
    simplified, tiles = module.stride_at_vec_range, module.CppTile2DKernel
    write = tiles.gen_transposed_tile_load_store

    def stride(index: Any, loop: Any, lanes: int | None = None) -> Any:
        if not isinstance(loop, sympy.Symbol):
            return simplified(index, loop, lanes)
        moving = moving_terms(index, loop)
        found = read_stride(moving, loop)
        if found is not None:
            return found
        names = name_fixed(moving, loop)
        found = simplified(moving.xreplace(names), loop, lanes)
        return found.xreplace({name: quotient for quotient, name in names.items()})

    def write_stride(*args: Any, **kwargs: Any) -> Any:
        with patch.multiple(module, stride_at_vec_range=simplified):
            return write(*args, **kwargs)

    with (
        patch.multiple(module, stride_at_vec_range=stride),
        patch.multiple(tiles, gen_transposed_tile_load_store=write_stride),
    ):
        yield


@contextmanager
def overflow_heeded(served: Mapping[Any, Any]) -> Iterator[list[str]]:
    """Makes Inductor compute integers with their type's range where they may leave it.

    It computes what depends on positions and sizes alone as expressions of unlimited integers, and
    simplifies them; torch's integers wrap around. What it would so have computed is listed.
    """
    start, original = IndexPropagation.__init__, IndexPropagation.propagate_sympy
    overflows: list[str] = []

    def begin(self: Any, inner: Any, loops: Mapping[Any, Any], indirect: Any) -> None:
        start(self, inner, loops, indirect)  # type: ignore[arg-type]
        ranges = {**self.shape_env.var_to_range, **served}
        ends = {
            # A loop over nothing has no last place.
            loop: max(bound_sympy(sympy.sympify(size), ranges).upper - 1, 0)
            for loop, size in loops.items()
        }
        self.bounds = {**ranges, **{loop: ValueRanges(0, end) for loop, end in ends.items()}}

    def propagate(self: Any, name: str, args: Any, kwargs: Any) -> Any:
        result: Any = original(self, name, args, kwargs)
        value = getattr(result, "value", None)
        if not isinstance(value, TypedExpr) or _fits(value.expr, value.dtype, self.bounds):
            return result
        overflows.append(str(value.expr))
        return self.fallback(name, args, kwargs)

    with patch.multiple(IndexPropagation, __init__=begin, propagate_sympy=propagate):
        yield overflows


def _fits(expression: Any, dtype: torch.dtype, ranges: dict[Any, Any]) -> bool:
    """Whether an integer stays within its type's range, as far as its bounds are known."""
    whole = not (dtype.is_floating_point or dtype == torch.bool)
    symbols = getattr(expression, "free_symbols", ())
    # Sizes that depend on values have no bounds.
    if not whole or not all(s in ranges and ranges[s].upper.is_Integer for s in symbols):
        return True
    bounds, limits = bound_sympy(sympy.sympify(expression), ranges), torch.iinfo(dtype)
    # Bounds beyond 64 bits are infinite.
    return bool(limits.min <= bounds.lower and bounds.upper <= limits.max)
