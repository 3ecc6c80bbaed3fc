"""Pooling whose last window may reach beyond a varying axis (``ceil_mode``), by pooling of what is padded.

Whether there is such a window depends on the size. Tracing would keep one answer as a condition, and
generated code takes the answer at the size that its kernels are tuned for. An axis that is padded up to
the end of its last window has none that reaches beyond.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from edgecompile.export.rewrites.symbols import Size, is_symbol, larger, smaller


def _each(dims: int, *values: Any) -> list[list[Any]]:
    """Each value once for each axis."""
    lists = [list(value) if isinstance(value, (list, tuple)) else [value] for value in values]
    return [item * dims if len(item) == 1 else item for item in lists]


def _last_window(n: Size, kernel: int, stride: int, padding: int, dilation: int) -> tuple[Any, Any]:
    """The number of windows along an axis of ``n``, and how far the last one reaches beyond its padding."""
    span = dilation * (kernel - 1) + 1
    outputs = (n + 2 * padding - span + stride - 1) // stride + 1
    if stride + padding <= span:
        return outputs, (outputs - 1) * stride + span - n - 2 * padding
    # A window has to begin before the padding at the end does.
    outputs = smaller(outputs, (n + padding - 1) // stride + 1)
    return outputs, larger((outputs - 1) * stride + span - n - 2 * padding, 0)


def _extended(x: Tensor, beyond: Sequence[Size], value: float) -> Tensor:
    """``x`` with so many elements more at the ends of its last axes."""
    return functional.pad(x, [side for more in reversed(beyond) for side in (0, more)], value=value)


def _is_own(x: Tensor, dims: int, ceil_mode: Any) -> bool:
    return bool(ceil_mode) and x.is_floating_point() and any(map(is_symbol, x.shape[-dims:]))


def ceil_max_pool(
    dims: int,
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Max pooling over the last ``dims`` axes; NotImplemented without ``ceil_mode`` or where none varies."""
    if not _is_own(x, dims, ceil_mode):
        return NotImplemented
    stride = kernel_size if stride in (None, (), []) else stride
    kernels, strides, paddings, dilations = _each(dims, kernel_size, stride, padding, dilation)
    own: tuple[Size, ...] = x.shape[-dims:]
    beyond = [
        _last_window(*sizes)[1]
        for sizes in zip(own, kernels, strides, paddings, dilations, strict=True)
    ]
    x = _extended(x, beyond, -math.inf)
    if dims == 1:
        x = x.unsqueeze(-2)
        kernels, strides, dilations = [1, *kernels], [1, *strides], [1, *dilations]
        paddings, own, beyond = [0, *paddings], (1, *own), [0, *beyond]
    pool: Any = functional.max_pool3d if dims == 3 else functional.max_pool2d
    found = pool(x, kernels, strides, paddings, dilations, return_indices=return_indices)
    values, places = found if return_indices else (found, None)
    if places is not None:
        places = _narrowed(places, own, beyond)
    if dims == 1:
        values, places = values.squeeze(-2), places if places is None else places.squeeze(-2)
    return (values, places) if return_indices else values


def _with_places(dims: int, *args: Any, **kwargs: Any) -> Any:
    return ceil_max_pool(dims, *args[:6], **{**kwargs, "return_indices": True})


def _narrowed(places: Tensor, own: Sequence[Size], beyond: Sequence[Size]) -> Tensor:
    """Places in axes that were extended, as places in the axes themselves."""
    result: Any = 0
    step: Size = 1
    for n, more in zip(reversed(own), reversed(beyond), strict=True):
        wide = n + more
        result, places, step = result + places % wide * step, places // wide, step * n
    return torch.as_tensor(result)


def ceil_avg_pool(
    dims: int,
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """Average pooling over the last ``dims`` axes; NotImplemented without ``ceil_mode`` or where none varies."""
    if not _is_own(x, dims, ceil_mode):
        return NotImplemented
    stride = kernel_size if stride in (None, (), []) else stride
    kernels, strides, paddings = _each(dims, kernel_size, stride, padding)
    beyond, counts = [], []
    for n, kernel, stride_, pad in zip(x.shape[-dims:], kernels, strides, paddings, strict=True):
        outputs, more = _last_window(n, kernel, stride_, pad, 1)
        first = torch.arange(outputs) * stride_ - pad
        # What lies beyond the padding is no part of a window.
        end = (first + kernel).clamp(max=n + pad)
        if not count_include_pad:
            first, end = first.clamp(min=0), end.clamp(max=n)
        beyond.append(more)
        counts.append(end - first)
    x = _extended(x, beyond, 0.0)
    flat = dims == 1
    if flat:
        x = x.unsqueeze(-2)
        kernels, strides, paddings = [1, *kernels], [1, *strides], [0, *paddings]
    pool: Any = functional.avg_pool3d if dims == 3 else functional.avg_pool2d
    total = pool(x, kernels, strides, paddings, divisor_override=divisor_override or 1)
    total = total.squeeze(-2) if flat else total
    if divisor_override is not None:
        return total
    shares = counts[0]
    for count in counts[1:]:
        shares = shares.unsqueeze(-1) * count
    return total / shares.to(x.dtype)


#: What is computed instead of torch's functions, each with the same arguments.
CEIL_POOLING: dict[Any, Callable[..., Any]] = {
    functional.max_pool2d: partial(ceil_max_pool, 2),
    torch.max_pool2d: partial(ceil_max_pool, 2),
    functional.max_pool3d: partial(ceil_max_pool, 3),
    torch.max_pool3d: partial(ceil_max_pool, 3),
    functional.max_pool1d_with_indices: partial(_with_places, 1),
    functional.max_pool2d_with_indices: partial(_with_places, 2),
    functional.max_pool3d_with_indices: partial(_with_places, 3),
    functional.avg_pool1d: partial(ceil_avg_pool, 1),
    functional.avg_pool2d: partial(ceil_avg_pool, 2),
    functional.avg_pool3d: partial(ceil_avg_pool, 3),
}
