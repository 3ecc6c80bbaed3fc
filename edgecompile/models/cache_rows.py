"""Rows of keys and values in int8, as caches store them: a scale in bfloat16 for each 32 numbers.

A block is the two bytes of its scale, little-endian, and its numbers divided by the scale. The last block
of a row may have fewer numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

BLOCK, _SCALE = 32, 2
#: Bits of a float64 behind those that bfloat16 has.
_DROPPED = 52 - 7
#: The least scale, the least number of float32 that isn't denormal.
_LEAST = 2.0**-126
#: A bfloat16 that isn't finite.
_NAN = 0x7FC0


def row_bytes(width: int) -> int:
    """Bytes of a row of ``width`` numbers."""
    return width + -(-width // BLOCK) * _SCALE


def row_width(size: int) -> int:
    """The number of numbers in a row of ``size`` bytes."""
    return size - -(-size // (BLOCK + _SCALE)) * _SCALE


def to_bfloat16(x: Tensor) -> Tensor:
    """The nearest numbers of bfloat16, ties to even: in float64 where ``x`` is, which is no type to be rounded by."""
    if x.dtype != torch.float64:
        return x.to(torch.bfloat16)
    bits = x.view(torch.int64)
    bits = bits + (2 ** (_DROPPED - 1) - 1) + ((bits >> _DROPPED) & 1)
    rounded: Tensor = (bits >> _DROPPED) << _DROPPED
    return rounded.view(torch.float64)


def quantize_rows(x: Tensor) -> Tensor:
    """Rows [..., width] of float32 or float64 as int8 [..., row_bytes(width)].

    The scale of a block with NaN or infinity isn't finite, and one that would be denormal is 0.
    """
    width = x.shape[-1]
    blocks = -(-width // BLOCK)
    padded = pad(x, (0, blocks * BLOCK - width)).reshape(*x.shape[:-1], blocks, BLOCK)
    largest = padded.abs().amax(-1, keepdim=True)
    finite = largest.isfinite()
    scale = to_bfloat16(torch.where(finite, largest / 127, 0.0)).to(x.dtype)
    scale = torch.where(scale < _LEAST, 0.0, scale)
    values = torch.where(scale > 0, padded / scale, 0.0).round().clamp(-127, 127).to(torch.int8)
    bits = torch.where(finite, scale.to(torch.bfloat16).view(torch.int16), _NAN)
    scales = bits.to(torch.int16).view(torch.int8)
    return torch.cat([scales, values], -1).flatten(-2)[..., : row_bytes(width)].contiguous()


def dequantize_rows(rows: Tensor) -> Tensor:
    """The float32 numbers [..., width] of rows in int8."""
    size = rows.shape[-1]
    blocks = -(-size // (BLOCK + _SCALE))
    whole = pad(rows, (0, blocks * (BLOCK + _SCALE) - size))
    padded = whole.reshape(*rows.shape[:-1], blocks, BLOCK + _SCALE)
    scales = padded[..., :_SCALE].contiguous().view(torch.bfloat16).float()
    values: Tensor = padded[..., _SCALE:].float() * scales
    return values.flatten(-2)[..., : row_width(size)].contiguous()
