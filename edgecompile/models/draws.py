"""Gives drawn values the kinds of :mod:`edgecompile.models.kinds`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from edgecompile.models.kinds import (
    ASCENDING,
    CONSTANT,
    DESCENDING,
    FAR,
    FEW,
    HIGHEST,
    LOWEST,
    MOSTLY_PADDING,
    PADDING,
    RUNS,
    SPARSE,
    STEADY,
)
from edgecompile.models.specs import InputSpec
from edgecompile.runtime.format.dtypes import BY_NAME

#: Makes values like real ones: of a drawn tensor, its length dimension, the value that it is padded with, the
#: range of its values and a source of random numbers.
_Kind = Callable[[Tensor, int, float, "tuple[float, float] | None", torch.Generator], Tensor]


def _few(x: Tensor, dim: int, pad: float, span: object, random: torch.Generator) -> Tensor:
    n = x.shape[dim]
    return x.index_select(dim, torch.randint(0, max(1, n // 3), (n,), generator=random))


def _runs(x: Tensor, dim: int, pad: float, span: object, random: torch.Generator) -> Tensor:
    begins = torch.randint(0, 4, (x.shape[dim],), generator=random) == 0
    return x.index_select(dim, begins.cumsum(0).clamp(max=x.shape[dim] - 1))


def _constant(x: Tensor, dim: int, pad: float, *_: object) -> Tensor:
    return x.narrow(dim, 0, 1).expand_as(x)


def _steady(x: Tensor, dim: int, pad: float, *_: object) -> Tensor:
    same = _constant(x, dim, pad)
    return same + (x - same) / 16 if x.is_floating_point() else same


def _far(x: Tensor, dim: int, pad: float, span: tuple[float, float] | None, _: object) -> Tensor:
    if span is None:
        return x + 8
    # In the last eighth of the range.
    if x.is_floating_point():
        return span[1] - (x - span[0]) / 8
    return int(span[1]) - torch.div(x - int(span[0]), 8, rounding_mode="floor")


def _sparse(x: Tensor, dim: int, pad: float, *_: object) -> Tensor:
    mask = torch.zeros(x.numel(), dtype=torch.bool)
    mask[::11] = True
    return torch.where(mask.view(x.shape), x, torch.full_like(x, pad))


_KINDS: dict[str, _Kind] = {
    FEW: _few,
    RUNS: _runs,
    ASCENDING: lambda x, dim, *_: x.sort(dim).values,
    DESCENDING: lambda x, dim, *_: x.sort(dim, descending=True).values,
    CONSTANT: _constant,
    STEADY: _steady,
    FAR: _far,
    SPARSE: _sparse,
    MOSTLY_PADDING: _sparse,
    PADDING: lambda x, dim, pad, *_: torch.full_like(x, pad),
    LOWEST: lambda x, *_: -x.abs() - 0.1,
    HIGHEST: lambda x, *_: x.abs() + 0.1,
    "around -4": lambda x, *_: x - 4,
    "100 times as large": lambda x, *_: 100 * x,
    # All scores of a row are then far above or far below those of padding.
    "100 times as large and the same at all positions": lambda x, dim, pad, *_: (
        100 * _constant(x, dim, pad)
    ),
    "a thousandth as large": lambda x, *_: x / 1000,
}
#: What becomes of whole numbers as well: it moves them, or stays in their range.
WHOLE = (
    STEADY,
    FEW,
    RUNS,
    ASCENDING,
    DESCENDING,
    CONSTANT,
    FAR,
    MOSTLY_PADDING,
    PADDING,
    LOWEST,
    HIGHEST,
)


def is_drawn(spec: InputSpec) -> bool:
    """Whether an input's values are free: it is no mask and no cache, and no size bounds them."""
    return not (spec.is_mask or spec.follows_sizes or spec.in_place or spec.dtype == "bool")


def shape_values(
    spec: InputSpec, x: Tensor, axis: str | None, kind: str, random: torch.Generator
) -> Tensor:
    """A drawn tensor as a kind has it; an input with bounds stays within them.

    Args:
        spec: the input.
        x: its independent values.
        axis: the length axis; of inputs without it the largest dimension takes its place.
        kind: one of the kinds above, or "".
        random: a source of random numbers.
    """
    if not kind or not is_drawn(spec) or not x.numel() or not x.dim():
        return x
    along, span = axis in spec.shape, spec.span({})
    dim = spec.shape.index(axis) if along and axis else max(range(x.dim()), key=x.shape.__getitem__)
    if BY_NAME[spec.dtype].kind == "f":
        if kind in (ASCENDING, DESCENDING) and not along:
            return x
        y = _KINDS[kind](x, dim, float(spec.pad or 0), span, random)
        return (y if span is None else y.clamp(float(span[0]), float(span[1]))).to(x.dtype)
    if kind not in WHOLE:
        return x
    lo, hi = (int(end) for end in span or (0, 1))
    # What equals the pad value may count as padding, whatever the mask says.
    edge = {LOWEST: lo + (spec.pad == lo), HIGHEST: hi - (spec.pad == hi)}
    if kind in edge:
        return torch.full_like(x, edge[kind]) if lo < hi else x
    pad = int(spec.pad) if spec.pad is not None and lo <= spec.pad <= hi else lo
    return _KINDS[kind](x, dim, pad, (lo, hi), random).to(x.dtype)
