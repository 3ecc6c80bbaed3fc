"""Convolutions and pools."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from edgecompile.onnx_import.graph import Node
from edgecompile.onnx_import.table import operator

_CONV = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_TRANSPOSED = {
    1: functional.conv_transpose1d,
    2: functional.conv_transpose2d,
    3: functional.conv_transpose3d,
}
_MAX = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}
_AVERAGE = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}


def _window(
    node: Node, x: Tensor, kernel: Sequence[int]
) -> tuple[list[int], list[int], list[Any], list[Any]]:
    """Strides, dilations, and the elements to add before and behind each dimension."""
    rank = len(kernel)
    strides = list(node.get("strides") or [1] * rank)
    dilations = list(node.get("dilations") or [1] * rank)
    pads: list[Any] = list(node.get("pads") or [0] * (2 * rank))
    auto = node.get("auto_pad", "NOTSET")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        before, after = [], []
        for size, k, stride, dilation in zip(x.shape[2:], kernel, strides, dilations, strict=True):
            reach = (k - 1) * dilation + 1
            out = (size + stride - 1) // stride
            total = torch.sym_max((out - 1) * stride + reach - size, 0)
            small = total // 2
            first = small if auto == "SAME_UPPER" else total - small
            before.append(first)
            after.append(total - first)
        return strides, dilations, before, after
    if auto == "VALID":
        pads = [0] * (2 * rank)
    return strides, dilations, pads[:rank], pads[rank:]


def _padded(x: Tensor, before: Sequence[Any], after: Sequence[Any], value: float = 0.0) -> Tensor:
    flat = [n for a, b in zip(reversed(before), reversed(after), strict=True) for n in (a, b)]
    return functional.pad(x, flat, value=value)


def _symmetric(before: Sequence[Any], after: Sequence[Any]) -> bool:
    pairs = list(zip(before, after, strict=True))
    return all(isinstance(a, int) and isinstance(b, int) and a == b for a, b in pairs)


@operator("Conv")
def convolve(node: Node, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A convolution, with any padding."""
    strides, dilations, before, after = _window(node, x, weight.shape[2:])
    if not _symmetric(before, after):
        x, before = _padded(x, before, after), [0] * len(before)
    return _CONV[x.dim() - 2](x, weight, bias, strides, before, dilations, node.get("group", 1))


@operator("ConvTranspose")
def _transposed(node: Node, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    kernel = weight.shape[2:]
    rank = len(kernel)
    strides = list(node.get("strides") or [1] * rank)
    dilations = list(node.get("dilations") or [1] * rank)
    more = list(node.get("output_padding") or [0] * rank)
    pads: list[Any] = list(node.get("pads") or [0] * (2 * rank))
    auto, asked = node.get("auto_pad", "NOTSET"), node.get("output_shape")
    if asked or auto in ("SAME_UPPER", "SAME_LOWER"):
        for i in range(rank):
            full = strides[i] * (x.shape[2 + i] - 1) + more[i] + (kernel[i] - 1) * dilations[i] + 1
            total = full - (asked[-rank:][i] if asked else x.shape[2 + i] * strides[i])
            if isinstance(total, int) and total < 0:
                more[i], total = more[i] - total, 0
            first = total - total // 2 if auto != "SAME_UPPER" else total // 2
            pads[i], pads[rank + i] = first, total - first
    run, groups = _TRANSPOSED[rank], node.get("group", 1)
    before, after = pads[:rank], pads[rank:]
    if _symmetric(before, after):
        return run(x, weight, bias, strides, before, more, groups, dilations)
    result = run(x, weight, bias, strides, 0, more, groups, dilations)
    for i in range(rank):
        size = result.shape[2 + i]
        result = result.narrow(2 + i, before[i], size - before[i] - after[i])
    return result


def _without_late(
    result: Tensor, x: Tensor, strides: Sequence[int], before: Sequence[Any], after: Sequence[Any]
) -> Tensor:
    """The windows of a pool with ceil_mode that begin before the padding behind ``x``."""
    for i, (stride, first, last) in enumerate(zip(strides, before, after, strict=True)):
        if not isinstance(last, int) or last > 0:
            count = (x.shape[2 + i] + first + stride - 1) // stride
            count = torch.sym_min(result.shape[2 + i], count)
            result = result.narrow(2 + i, 0, count)
    return result


@operator("MaxPool")
def _max_pool(node: Node, x: Tensor) -> Tensor:
    if len(node.outputs) > 1:
        raise ValueError("it gives indices, which isn't supported")
    kernel = list(node.get("kernel_shape"))
    strides, dilations, before, after = _window(node, x, kernel)
    whole, ceil = x.dtype if not x.is_floating_point() else None, bool(node.get("ceil_mode", 0))
    x = x if whole is None else x.float()
    fits = all(isinstance(p, int) and 2 * p <= k for p, k in zip(before, kernel, strict=True))
    run = _MAX[x.dim() - 2]
    if _symmetric(before, after) and fits:
        result = run(x, kernel, strides, before, dilations, ceil)
    else:
        result = run(_padded(x, before, after, -math.inf), kernel, strides, 0, dilations, ceil)
        result = _without_late(result, x, strides, before, after) if ceil else result
    return result if whole is None else result.to(whole)


@operator("AveragePool")
def _average_pool(node: Node, x: Tensor) -> Tensor:
    kernel = list(node.get("kernel_shape"))
    strides, dilations, before, after = _window(node, x, kernel)
    if any(dilation != 1 for dilation in dilations):
        raise ValueError("its dilations aren't supported")
    counted, ceil = bool(node.get("count_include_pad", 0)), bool(node.get("ceil_mode", 0))
    run = _AVERAGE[x.dim() - 2]
    fits = all(isinstance(p, int) and 2 * p <= k for p, k in zip(before, kernel, strict=True))
    if _symmetric(before, after) and fits:
        return run(x, kernel, strides, before, ceil, counted)
    share = run(
        _padded(torch.ones_like(x), before, after, 1.0 if counted else 0.0),
        kernel,
        strides,
        0,
        ceil,
    )
    result = run(_padded(x, before, after), kernel, strides, 0, ceil) / share
    return _without_late(result, x, strides, before, after) if ceil else result


@operator("GlobalAveragePool")
def _global_average(node: Node, x: Tensor) -> Tensor:
    return x.mean(list(range(2, x.dim())), keepdim=True)


@operator("GlobalMaxPool")
def _global_max(node: Node, x: Tensor) -> Tensor:
    return x.amax(list(range(2, x.dim())), keepdim=True)


@operator("LpPool")
def _lp_pool(node: Node, x: Tensor) -> Tensor:
    kernel, p = list(node.get("kernel_shape")), node.get("p", 2)
    strides, dilations, before, after = _window(node, x, kernel)
    if any(dilation != 1 for dilation in dilations) or node.get("ceil_mode", 0):
        raise ValueError("its dilations and ceil_mode aren't supported")
    powers = _padded(x.abs() ** p, before, after)
    return (_AVERAGE[x.dim() - 2](powers, kernel, strides) * math.prod(kernel)) ** (1 / p)
