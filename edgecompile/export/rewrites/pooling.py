"""Pooling along axes whose size varies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from edgecompile.export.rewrites.ceil_pooling import ceil_max_pool
from edgecompile.export.rewrites.symbols import Size, is_symbol, larger, surely_equal


def max_pool1d(
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """``torch.max_pool1d`` by ``max_pool2d`` over rows of one element each.

    NotImplemented where no size varies or indices are asked for, which torch traces as it is.
    """
    if ceil_mode:
        return ceil_max_pool(1, x, kernel_size, stride, padding, dilation, True, return_indices)
    if return_indices or not is_symbol(x.shape[-1]):
        return NotImplemented

    def pair(value: Any, other: int) -> tuple[Any, ...]:
        return (other, *value) if isinstance(value, (list, tuple)) else (other, value)

    # No stride, or an empty one, is the kernel's size.
    stride = kernel_size if stride is None or stride in ((), []) else stride
    planes = torch.max_pool2d(
        x.unsqueeze(-2),
        pair(kernel_size, 1),
        pair(stride, 1),
        pair(padding, 0),
        pair(dilation, 1),
    )
    return planes.squeeze(-2)


def _windows(n: Size, outputs: Size) -> tuple[Tensor, Tensor, Tensor]:
    """The places that each output of adaptive pooling covers.

    Returns:
        int64 places ``[outputs, widest window]``, where a narrower window repeats its last place;
        bool, whether a place isn't such a repetition; int64 widths ``[outputs]``.
    """
    output = torch.arange(outputs)
    start = output * n // outputs
    end = -(-(output + 1) * n // outputs)
    # In a form that torch sees to be more than one. There may be no output: half of one row is none.
    widest = (n - 1) // larger(outputs, 1) + 2
    places = start[:, None] + torch.arange(widest)
    return torch.minimum(places, end[:, None] - 1), places < end[:, None], end - start


def _taken(x: Tensor, dim: int, places: Tensor) -> Tensor:
    """``x`` with its axis ``dim``, which is negative, replaced by two: outputs and their windows."""
    index: tuple[Any, ...] = (..., places, *(slice(None),) * (-dim - 1))
    return x[index]


def _averaged(x: Tensor, dim: int, outputs: Size) -> Tensor:
    """The means along ``dim``, which is negative."""
    if surely_equal(outputs, 1):
        return x.mean(dim, keepdim=True)
    places, inside, widths = _windows(x.shape[dim], outputs)
    after = (1,) * (-dim - 1)
    values, mask = _taken(x, dim, places), inside.reshape(*inside.shape, *after)
    total = torch.where(mask, values, torch.zeros((), dtype=x.dtype)).sum(dim)
    return total / widths.to(x.dtype).reshape(-1, *after)


def _largest(x: Tensor, dim: int, outputs: Size) -> Tensor:
    """The maxima along ``dim``, which is negative."""
    if surely_equal(outputs, 1):
        return x.amax(dim, keepdim=True)
    return _taken(x, dim, _windows(x.shape[dim], outputs)[0]).amax(dim)


def _largest_with_places(x: Tensor, outputs: Sequence[Size]) -> tuple[Tensor, Tensor]:
    """The maxima over the last axes, and their places in ``x`` with these axes flattened."""
    found: Tensor | None = None
    step: Size = 1
    for dim, out in zip(range(-1, -len(outputs) - 1, -1), reversed(outputs), strict=True):
        size = x.shape[dim]
        places = _windows(size, out)[0]
        best = _taken(x, dim, places).max(dim)
        # A window begins with the first of its places and goes on one by one.
        place = best.indices + places[:, 0].reshape(-1, *(1,) * (-dim - 1))
        found = place if found is None else place * step + found.gather(dim, place)
        x, step = best.values, step * size
    assert found is not None
    return x, found


def _adaptive(dims: int, pool: Callable[..., Tensor] | None, x: Tensor, output_size: Any) -> Any:
    """Adaptive pooling over the last ``dims`` axes, one after another.

    NotImplemented where none of them varies. Without ``pool``: maxima with their places.
    """
    sizes = list(output_size) if isinstance(output_size, (list, tuple)) else [output_size] * dims
    if len(sizes) != dims or x.dim() not in (dims + 1, dims + 2):
        return NotImplemented
    own = x.shape[-dims:]
    outputs = [n if out is None else out for n, out in zip(own, sizes, strict=True)]
    if not any(is_symbol(size) for size in (*own, *outputs)):
        return NotImplemented
    if pool is None:
        return _largest_with_places(x, outputs)
    for dim, out in zip(range(-dims, 0), outputs, strict=True):
        if not surely_equal(x.shape[dim], out):
            x = pool(x, dim, out)
    return x


def _adaptive_max(dims: int, x: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    return _adaptive(dims, None if return_indices else _largest, x, output_size)


def _adaptive_max_with_places(
    dims: int, x: Tensor, output_size: Any, return_indices: bool = False
) -> Any:
    return _adaptive(dims, None, x, output_size)


def average_over_areas(x: Tensor, size: Any) -> Any:
    """The means over the areas that each output of ``size`` covers; NotImplemented where no size varies."""
    return _adaptive(x.dim() - 2, _averaged, x, size)


#: What is computed instead of torch's functions, each with the same arguments.
POOLING: dict[Any, Callable[..., Any]] = {
    functional.max_pool1d: max_pool1d,
    torch.max_pool1d: max_pool1d,
    torch.adaptive_avg_pool1d: partial(_adaptive, 1, _averaged),
    functional.adaptive_avg_pool2d: partial(_adaptive, 2, _averaged),
    functional.adaptive_avg_pool3d: partial(_adaptive, 3, _averaged),
    functional.adaptive_max_pool1d: partial(_adaptive_max, 1),
    functional.adaptive_max_pool2d: partial(_adaptive_max, 2),
    functional.adaptive_max_pool3d: partial(_adaptive_max, 3),
    torch.adaptive_max_pool1d: partial(_adaptive_max_with_places, 1),
    functional.adaptive_max_pool1d_with_indices: partial(_adaptive_max_with_places, 1),
    functional.adaptive_max_pool2d_with_indices: partial(_adaptive_max_with_places, 2),
    functional.adaptive_max_pool3d_with_indices: partial(_adaptive_max_with_places, 3),
}
