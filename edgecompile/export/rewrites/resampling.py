"""Resampling by areas, or with an antialiasing filter, which no runtime and no TensorRT has kernels for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from edgecompile.export.rewrites.pooling import average_over_areas
from edgecompile.export.rewrites.symbols import Size, sym_float, sym_int


def _triangle(x: Tensor) -> Tensor:
    return (1 - x.abs()).clamp(min=0)


def _cubic(x: Tensor) -> Tensor:
    """Keys' kernel, whose parameter is -0.5 in filters against aliasing."""
    x = x.abs()
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros_like(x)))


#: Of a factor that is taken apart.
_MOST_PARTS = 64
_FILTERS: Mapping[str, Callable[[Tensor], Tensor]] = {"bilinear": _triangle, "bicubic": _cubic}


def interpolate(
    x: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Any:
    """``torch.nn.functional.interpolate`` by areas, or with an antialiasing filter.

    Areas are adaptive pooling; filters are products with a table of weights for each axis.
    """
    dims = x.dim() - 2
    filtered = antialias and mode in _FILTERS and dims == 2 and x.dtype == torch.float32
    if not filtered and (mode != "area" or dims not in (1, 2, 3)):
        return NotImplemented
    factors: list[Any] = [None] * dims
    if size is None:
        many = isinstance(scale_factor, (list, tuple))
        given = list(scale_factor) if many else [scale_factor] * dims
        pairs = zip(x.shape[2:], given, strict=True)
        size = [_scaled(n, factor) for n, factor in pairs]
        factors = factors if recompute_scale_factor else given
    if not filtered:
        return average_over_areas(x, size)
    size = list(size) if isinstance(size, (list, tuple)) else [size] * dims
    filter_, corners = _FILTERS[mode], bool(align_corners)
    across = _weights(filter_, x.shape[3], size[1], factors[1], corners)
    down = _weights(filter_, x.shape[2], size[0], factors[0], corners)
    return down @ (x @ across.t())


def _scaled(size: Size, factor: float) -> Size:
    """The whole part of a size times a factor: of halves, quarters and so on without floats, as torch solves more of them."""
    parts = Fraction(factor)
    if parts.denominator <= _MOST_PARTS:
        return size * parts.numerator // parts.denominator
    return sym_int(sym_float(size) * factor)


def _weights(
    filter_: Callable[[Tensor], Tensor],
    size: Size,
    outputs: Size,
    factor: float | None,
    corners: bool,
) -> Tensor:
    """The share of each place in each output, ``[outputs, size]``."""
    if corners:
        scale = _number(size - 1) / _number(outputs - 1).clamp(min=1)
    elif factor is not None:
        scale = torch.full((), 1 / factor)
    else:
        scale = _number(size) / _number(outputs)
    centre = (torch.arange(outputs) + 0.5) * scale
    shares = filter_((torch.arange(size) + 0.5 - centre[:, None]) / scale.clamp(min=1))
    return shares / shares.sum(-1, keepdim=True)


def _number(size: Size) -> Tensor:
    return torch.full((), size, dtype=torch.float32)


#: What is computed instead of torch's functions, each with the same arguments.
RESAMPLING: dict[Any, Callable[..., Any]] = {functional.interpolate: interpolate}
