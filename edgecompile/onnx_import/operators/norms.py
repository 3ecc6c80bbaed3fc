"""Normalizations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from edgecompile.onnx_import.graph import Node
from edgecompile.onnx_import.table import operator


@operator("BatchNormalization")
def _batch(node: Node, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    if node.get("training_mode", 0) or sum(map(bool, node.outputs)) > 1:
        raise ValueError("it is in training mode, which isn't supported")
    return functional.batch_norm(x, mean, var, scale, bias, False, 0.0, node.get("epsilon", 1e-5))


@operator("InstanceNormalization")
def _instance(node: Node, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    return functional.instance_norm(x, weight=scale, bias=bias, eps=node.get("epsilon", 1e-5))


@operator("LayerNormalization")
def layer_normalization(node: Node, x: Tensor, scale: Tensor, bias: Tensor | None = None) -> Any:
    """A normalization over the dimensions from an axis on."""
    axis, epsilon = node.get("axis", -1) % x.dim(), node.get("epsilon", 1e-5)
    axes = list(range(axis, x.dim()))
    sizes = x.shape[axis:]
    if len(node.outputs) == 1 and scale.shape == sizes:
        return functional.layer_norm(x, sizes, scale, bias, epsilon)
    mean = x.mean(axes, keepdim=True)
    centred = x - mean
    inverse = torch.rsqrt((centred * centred).mean(axes, keepdim=True) + epsilon)
    result = centred * inverse * scale
    return (result if bias is None else result + bias), mean, inverse


@operator("RMSNormalization", "SimplifiedLayerNormalization")
def rms_normalization(node: Node, x: Tensor, scale: Tensor) -> Tensor:
    """A normalization by the root of the mean square."""
    axes = list(range(node.get("axis", -1) % x.dim(), x.dim()))
    square = (x * x).mean(axes, keepdim=True)
    return x * torch.rsqrt(square + node.get("epsilon", 1e-5)) * scale


@operator("GroupNormalization", since=18)
def _group(node: Node, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    groups, epsilon = node.get("num_groups"), node.get("epsilon", 1e-5)
    if node.opset < 21:  # a factor for each group, not for each channel
        each = x.shape[1] // groups
        scale, bias = scale.repeat_interleave(each), bias.repeat_interleave(each)
    return functional.group_norm(x, groups, scale, bias, epsilon)


@operator("MeanVarianceNormalization")
def _mean_variance(node: Node, x: Tensor) -> Tensor:
    axes = list(node.get("axes") or [0, 2, 3])
    centred = x - x.mean(axes, keepdim=True)
    return centred / (torch.sqrt((centred * centred).mean(axes, keepdim=True)) + 1e-9)


@operator("LRN")
def _local_response(node: Node, x: Tensor) -> Tensor:
    size = node.get("size")
    square = (x * x).unsqueeze(1)
    flat = square.flatten(3) if x.dim() > 3 else square
    before = (size - 1) // 2
    padded = functional.pad(flat, (0, 0, before, size - 1 - before))
    total = functional.avg_pool2d(padded.reshape(x.shape[0], 1, -1, flat.shape[-1]), (size, 1), 1)
    divisor = node.get("bias", 1.0) + node.get("alpha", 1e-4) * total.reshape(x.shape)
    return x / divisor ** node.get("beta", 0.75)
