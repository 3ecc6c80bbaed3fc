"""Symbolic sizes: what Inductor and torch's decompositions take for granted about them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._decomp import decompositions
from torch._inductor import fx_utils as inductor_fx_utils
from torch.fx import GraphModule
from torch.utils._sympy.value_ranges import ValueRanges

from edgecompile.errors import CompileError


def varying_sizes(gm: GraphModule) -> list[tuple[torch.SymInt, str]]:
    """The symbolic sizes of a graph's inputs, each with where it is found."""
    return [
        (size, f"dimension {dim} of '{node.name}'")
        for node in gm.graph.nodes
        if node.op == "placeholder" and isinstance(node.meta.get("val"), Tensor)
        for dim, size in enumerate(node.meta["val"].shape)
        if isinstance(size, torch.SymInt)
    ]


def assume_no_ones(sizes: Sequence[tuple[torch.SymInt, str]]) -> None:
    """Takes sizes that vary for 2 or more, as torch.export does while it traces.

    A program that was stored and read again begins at its true lower bound. Inductor then asks whether
    a size is 1, the answer cuts the range, and of a range 1 to 2 a constant would be left.
    """
    for size, _ in sizes:
        spans, symbol = size.node.shape_env.var_to_range, size.node._expr
        if symbol in spans and spans[symbol].lower < 2 <= spans[symbol].upper:
            spans[symbol] = ValueRanges(2, spans[symbol].upper)


def refuse_fixed(sizes: Sequence[tuple[torch.SymInt, str]], guards: Sequence[Any]) -> None:
    """Raises CompileError if Inductor took a size that varies for a constant."""
    for size, place in sizes:
        symbol = size.node._expr
        number = size.node.shape_env.replacements.get(symbol)
        own = [guard for guard in guards if symbol in guard.expr.free_symbols]
        if own and number is not None and number.is_number:
            where = str(own[-1].sloc).strip("()").rpartition(" in ")[2].lstrip("_")
            raise CompileError(
                f"torch's Inductor fixes {place} to {number}, the size that it tunes for: "
                f"{where or 'an operator'} can't be compiled for sizes that vary",
                hint="write it with operators whose sizes may vary; or in padded buckets (mode pad), "
                "each for a single length, if padding does no harm",
            )


def sizes_interpolated() -> AbstractContextManager[None]:
    """Makes interpolation right at sizes that its decomposition, which Inductor compiles, takes for impossible.

    With aligned corners an output of one place reads the first one; the decomposition divides by zero. And by a factor
    torch's own kernels copy an input that has as many places (a factor of 1.3 makes 3 of 3), as the linear ones do here.
    """
    interpolate: Any = decompositions._upsample_linear
    compute_scale: Any = decompositions._compute_scale
    largest: Any = torch.sym_max

    def scale(inner: Any, outer: Any, align_corners: bool, factor: float | None = None) -> Any:
        if align_corners:
            return (inner - 1.0) / largest(outer - 1, 1)
        return compute_scale(inner, outer, align_corners, factor)

    def linear_scale(
        inner: Any, outer: Any, align_corners: bool, factor: float | None = None
    ) -> Any:
        usual = scale(inner, outer, align_corners, factor)
        if align_corners or factor is None or not 1 < factor < 1.5:  # never as many, or one
            return usual
        return torch.where(torch.scalar_tensor(outer - inner) == 0, 1.0, usual)

    def interpolate_linearly(*args: Any) -> Any:
        with patch.multiple(decompositions, _compute_scale=linear_scale):
            return interpolate(*args)

    return patch.multiple(
        decompositions, _upsample_linear=interpolate_linearly, _compute_scale=scale
    )


def conditions_compared() -> AbstractContextManager[None]:
    """Lets Inductor compare conditions on sizes that graphs hold: it subtracts one from the other.

    It does so where it renews the values of a graph whose operators write in place.
    """
    module: Any = inductor_fx_utils
    is_same = module._is_fake_tensor_same

    def same(new: Any, old: Any, *args: Any, **kwargs: Any) -> bool:
        if isinstance(new, torch.SymBool) and isinstance(old, torch.SymBool):
            return bool(new.node.expr == old.node.expr)
        return bool(is_same(new, old, *args, **kwargs))

    return patch.multiple(module, _is_fake_tensor_same=same)
