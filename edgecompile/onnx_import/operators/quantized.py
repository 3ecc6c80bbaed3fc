"""Quantization, computed as the numbers that it stands for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from edgecompile.onnx_import.elements import DTYPES
from edgecompile.onnx_import.graph import Node
from edgecompile.onnx_import.operators.convolutions import convolve
from edgecompile.onnx_import.table import operator


def _along(node: Node, x: Tensor, values: Tensor) -> Tensor:
    """Scales or zero points in the shape in which they are broadcast to ``x``."""
    if values.numel() == 1 and values.dim() <= 1:
        return values.reshape(())
    axis, block = node.get("axis", 1) % x.dim(), node.get("block_size", 0)
    if block:
        return values.repeat_interleave(block, axis).narrow(axis, 0, x.shape[axis])
    return values.reshape([-1 if dim == axis else 1 for dim in range(x.dim())])


def _rounded(x: Tensor, zero: Tensor | None, dtype: torch.dtype, low: int, high: int) -> Tensor:
    whole = torch.round(x)
    whole = whole if zero is None else whole + zero.to(x.dtype)
    return torch.clamp(whole, low, high).to(dtype)


@operator("QuantizeLinear")
@operator("QuantizeLinear", domain="com.microsoft")
def _quantize(node: Node, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    number = node.get("output_dtype", 0)
    dtype = zero.dtype if zero is not None else DTYPES[number] if number else torch.uint8
    limits = torch.iinfo(dtype)
    zero = None if zero is None else _along(node, x, zero)
    scale = _along(node, x, scale)
    return _rounded(x.to(scale.dtype) / scale, zero, dtype, limits.min, limits.max)


@operator("DequantizeLinear")
@operator("DequantizeLinear", domain="com.microsoft")
def _dequantize(node: Node, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    wide = x.to(torch.int32)
    if zero is not None:
        wide = wide - _along(node, x, zero).to(torch.int32)
    return wide.to(scale.dtype) * _along(node, x, scale)


@operator("DynamicQuantizeLinear")
def _dynamic(node: Node, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    low = torch.clamp_max(x.amin(), 0)
    high = torch.clamp_min(x.amax(), 0)
    scale = (high - low) / 255
    zero = torch.clamp(torch.round(-low / scale), 0, 255)
    whole = torch.clamp(torch.round(x / scale) + zero, 0, 255)
    return whole.to(torch.uint8), scale, zero.to(torch.uint8)


def _shifted(x: Tensor, zero: Tensor | None, axis: int | None = None) -> Tensor:
    wide = x.to(torch.int32)
    if zero is None:
        return wide
    if zero.dim() == 1 and zero.numel() > 1 and axis is not None:
        zero = zero.reshape([-1 if dim == axis % x.dim() else 1 for dim in range(x.dim())])
    return wide - zero.to(torch.int32)


@operator("MatMulInteger")
def _whole_product(
    node: Node, a: Tensor, b: Tensor, zero_a: Tensor | None = None, zero_b: Tensor | None = None
) -> Tensor:
    return torch.matmul(_shifted(a, zero_a, -2), _shifted(b, zero_b, -1))


@operator("QLinearMatMul")
def _quantized_product(
    node: Node, a: Tensor, scale_a: Tensor, zero_a: Tensor, b: Tensor, scale_b: Tensor,
    zero_b: Tensor, scale: Tensor, zero: Tensor,
) -> Tensor:  # fmt: skip
    total = torch.matmul(_shifted(a, zero_a, -2), _shifted(b, zero_b, -1))
    return _out(total, scale_a * scale_b / scale, zero)


def _out(total: Tensor, factor: Tensor, zero: Tensor) -> Tensor:
    limits = torch.iinfo(zero.dtype)
    return _rounded(total.to(torch.float32) * factor, zero, zero.dtype, limits.min, limits.max)


def _whole_convolution(node: Node, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    # float64 holds every sum of products of bytes exactly.
    exact = convolve(node, x.to(torch.float64), weight.to(torch.float64), None)
    total = exact.to(torch.int32)
    return total if bias is None else total + bias.reshape([1, -1] + [1] * (x.dim() - 2))


@operator("ConvInteger")
def _convolve_whole(
    node: Node,
    x: Tensor,
    weight: Tensor,
    zero_x: Tensor | None = None,
    zero_w: Tensor | None = None,
) -> Tensor:
    return _whole_convolution(node, _shifted(x, zero_x), _shifted(weight, zero_w, 0), None)


@operator("QLinearConv")
def _convolve_quantized(
    node: Node, x: Tensor, scale_x: Tensor, zero_x: Tensor, weight: Tensor, scale_w: Tensor,
    zero_w: Tensor, scale: Tensor, zero: Tensor, bias: Any = None,
) -> Tensor:  # fmt: skip
    total = _whole_convolution(node, _shifted(x, zero_x), _shifted(weight, zero_w, 0), bias)
    factor = scale_x * scale_w / scale
    if factor.numel() > 1:
        factor = factor.reshape([1, -1] + [1] * (x.dim() - 2))
    return _out(total, factor, zero)
