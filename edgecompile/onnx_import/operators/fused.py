"""The operators of com.microsoft that ONNX Runtime's optimizers write."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from edgecompile.onnx_import.graph import Node
from edgecompile.onnx_import.operators.elementwise import gelu_tanh
from edgecompile.onnx_import.table import MICROSOFT, operator


@operator("Gelu", domain=MICROSOFT)
def _gelu(node: Node, x: Tensor) -> Tensor:
    return functional.gelu(x)


@operator("BiasGelu", domain=MICROSOFT)
def _bias_gelu(node: Node, x: Tensor, bias: Tensor) -> Tensor:
    return functional.gelu(x + bias)


@operator("FastGelu", domain=MICROSOFT)
def _fast_gelu(node: Node, x: Tensor, bias: Tensor | None = None) -> Tensor:
    return gelu_tanh(x if bias is None else x + bias)


@operator("QuickGelu", domain=MICROSOFT)
def _quick_gelu(node: Node, x: Tensor) -> Tensor:
    return x * torch.sigmoid(node.get("alpha", 1.702) * x)


@operator("SkipLayerNormalization", domain=MICROSOFT)
def _skip(
    node: Node, x: Tensor, skip: Tensor, scale: Tensor, beta: Any = None, bias: Any = None
) -> tuple[Any, ...]:
    total = x + skip if bias is None else x + skip + bias
    result = functional.layer_norm(total, total.shape[-1:], scale, beta, node.get("epsilon", 1e-12))
    return result, None, None, total


@operator("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def _skip_simple(
    node: Node, x: Tensor, skip: Tensor, scale: Tensor, bias: Any = None
) -> tuple[Any, ...]:
    total = x + skip if bias is None else x + skip + bias
    square = (total * total).mean(-1, keepdim=True)
    result = total * torch.rsqrt(square + node.get("epsilon", 1e-12)) * scale
    return result, None, None, total


@operator("EmbedLayerNormalization", domain=MICROSOFT)
def _embed(
    node: Node, ids: Tensor, segments: Any, words: Tensor, positions: Tensor, kinds: Any = None,
    scale: Any = None, beta: Any = None, mask: Any = None, places: Any = None,
) -> tuple[Any, ...]:  # fmt: skip
    total = functional.embedding(ids.to(torch.int64), words)
    if places is None:
        total = total + positions[: ids.shape[1]]
    else:
        total = total + functional.embedding(places.to(torch.int64), positions)
    if segments is not None and kinds is not None:
        total = total + functional.embedding(segments.to(torch.int64), kinds)
    result = functional.layer_norm(total, total.shape[-1:], scale, beta, node.get("epsilon", 1e-12))
    # Its second output counts a mask's ones; attention takes a whole mask as well.
    counted = (
        mask.sum(1, dtype=torch.int32) if mask is not None else ids.new_zeros(ids.shape[0]).int()
    )
    return result, counted, total


@operator("Attention", domain=MICROSOFT)
def _attention(
    node: Node, x: Tensor, weight: Tensor, bias: Any = None, mask: Any = None, past: Any = None,
    score: Any = None,
) -> Tensor:  # fmt: skip
    if past is not None or node.get("qkv_hidden_sizes") or node.get("do_rotary", 0):
        raise ValueError("past states, qkv_hidden_sizes and do_rotary aren't supported")
    if len([name for name in node.outputs if name]) > 1:
        raise ValueError("its state isn't supported as an output")
    parts = functional.linear(x, weight.t(), bias)
    query, key, value = parts.chunk(3, -1)
    return _attend(node, query, key, value, mask, score)


@operator("MultiHeadAttention", domain=MICROSOFT)
def _many_heads(
    node: Node, query: Tensor, key: Any = None, value: Any = None, bias: Any = None,
    mask: Any = None, score: Any = None, *past: Any,
) -> Tensor:  # fmt: skip
    if key is None or value is None or key.dim() != 3 or any(item is not None for item in past):
        raise ValueError("packed inputs and past states aren't supported")
    if len([name for name in node.outputs if name]) > 1:
        raise ValueError("its state isn't supported as an output")
    if bias is not None:
        first, second = query.shape[-1], query.shape[-1] + key.shape[-1]
        query, key = query + bias[:first], key + bias[first:second]
        value = value + bias[second:]
    return _attend(node, query, key, value, mask, score)


def _attend(node: Node, query: Tensor, key: Tensor, value: Tensor, mask: Any, score: Any) -> Tensor:
    heads = node.get("num_heads")

    def split(part: Tensor) -> Tensor:
        return part.unflatten(2, (heads, -1)).transpose(1, 2)

    query, key, value = split(query), split(key), split(value)
    scale = node.get("scale") or 1 / math.sqrt(query.shape[-1])
    added = None if score is None else score
    if mask is not None:
        low = _additive(node, mask, key.shape[2], query.dtype)
        added = low if added is None else added + low
    if node.get("unidirectional", 0):
        line = torch.arange(key.shape[2])
        later = line[None] > line[: query.shape[2], None]
        low = torch.zeros(later.shape).masked_fill(later, -math.inf)
        added = low if added is None else added + low
    result = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=added, scale=scale
    )
    return result.transpose(1, 2).flatten(2)


def _additive(node: Node, mask: Tensor, keys: Any, dtype: torch.dtype) -> Tensor:
    """A mask as what is added to the scores."""
    low = node.get("mask_filter_value", -10000.0)
    # One number for each text is that of its real positions.
    seen = torch.arange(keys)[None] < mask[:, None] if mask.dim() == 1 else mask != 0
    added = torch.where(seen, 0.0, low).to(dtype)
    while added.dim() < 4:
        added = added.unsqueeze(1)
    return added


@operator("MatMulNBits", domain=MICROSOFT)
def _few_bits(
    node: Node, x: Tensor, packed: Tensor, scales: Tensor, zeros: Any = None, places: Any = None,
    bias: Any = None,
) -> Tensor:  # fmt: skip
    return functional.linear(x, unpack(node, packed, scales, zeros, places).to(x.dtype), bias)


def unpack(node: Node, packed: Tensor, scales: Tensor, zeros: Any, places: Any = None) -> Tensor:
    """The weights of MatMulNBits, [N, K].

    Raises:
        ValueError: they are packed in another way than in four or eight bits, in order.
    """
    bits, block = node.get("bits", 4), node.get("block_size")
    rows, columns = node.get("N"), node.get("K")
    if bits not in (4, 8) or places is not None:
        raise ValueError("other weights than of 4 or 8 bits in order aren't supported")
    blocks = -(-columns // block)
    numbers = _numbers(packed.reshape(rows, -1), bits).reshape(rows, blocks, block)
    if zeros is None:
        zero: Any = float(2 ** (bits - 1))
    elif zeros.is_floating_point():
        zero = zeros.reshape(rows, blocks, 1)
    else:
        zero = _numbers(zeros.reshape(rows, -1), bits)[:, :blocks].reshape(rows, blocks, 1)
    wide = (numbers.to(scales.dtype) - zero) * scales.reshape(rows, blocks, 1)
    return wide.reshape(rows, -1)[:, :columns]


def _numbers(packed: Tensor, bits: int) -> Tensor:
    if bits == 8:
        return packed
    return torch.stack([packed & 15, packed >> 4], -1).flatten(-2)


def as_linear(node: Node, tensors: list[Any]) -> tuple[str, list[Any]] | None:
    """A product with packed constant weights as ``Linear``; see :func:`operators.linear.as_linear`."""
    if any(
        name and tensor is None for name, tensor in list(zip(node.inputs, tensors, strict=True))[1:]
    ):
        return None
    packed, scales, zeros, places, bias = (tensors[1:] + [None] * 5)[:5]
    weight = unpack(node, packed, scales, zeros, places)
    return "Linear", [0, weight.contiguous(), *([] if bias is None else [bias])]
