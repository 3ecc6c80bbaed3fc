"""Convolutions over images whose channels lie side by side, as products without a copy of the input.

A program of the grid owns some pixels of the output and some of its channels, and walks over the taps and
the channels of the input (Chetlur et al., "cuDNN", 2014: implicit products). Where there are too few
outputs for all multiprocessors, several programs share one's taps and channels, and their float32
sums are added up behind, by what Inductor fuses with its surroundings.

Offsets within one image, from its first pixel, are of 32 bits where the largest sizes allow it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from edgecompile.backends.cuda.kernels.launch import define, launch, needs_64_bits
from edgecompile.backends.operators import ops


@triton.jit
def _activated(x, KIND: tl.constexpr):
    if KIND == 1:
        x = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
    elif KIND == 2:
        x = 0.5 * x * (1 + tl.erf(x * 0.7071067811865476))
    elif KIND == 3:
        # 0.5 (1 + tanh(z)) = sigmoid(2z)
        x = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    elif KIND == 4:
        x = x * tl.sigmoid(x)
    elif KIND == 5:
        x = 1 - 2 / (tl.exp(2 * x) + 1)
    elif KIND == 6:
        x = tl.sigmoid(x)
    elif KIND == 7:
        x = tl.clamp(x, 0.0, 6.0, propagate_nan=tl.PropagateNan.ALL)
    elif KIND == 8:
        x = x * tl.clamp(x + 3.0, 0.0, 6.0) / 6.0
    elif KIND == 9:
        x = tl.clamp(x + 3.0, 0.0, 6.0, propagate_nan=tl.PropagateNan.ALL) / 6.0
    return x


@triton.jit
def convolution_kernel(
    X, W, B, R, Y, rows, H, L, OH, OL, parts, steps,
    C: tl.constexpr, N: tl.constexpr, GROUPS: tl.constexpr, KH: tl.constexpr, KL: tl.constexpr,
    SH: tl.constexpr, SL: tl.constexpr, PH: tl.constexpr, PL: tl.constexpr,
    DH: tl.constexpr, DL: tl.constexpr, SPLIT: tl.constexpr,
    BIAS: tl.constexpr, RESIDUAL: tl.constexpr, ACTIVATION: tl.constexpr, WIDE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    K: tl.constexpr = KH * KL * C
    ALL: tl.constexpr = GROUPS * C
    columns = tl.cdiv(N, BN)
    m = (tl.program_id(0) // columns) * BM + tl.arange(0, BM)
    n = (tl.program_id(0) % columns) * BN + tl.arange(0, BN)
    part = tl.program_id(1) % parts
    group = tl.program_id(1) // parts
    row_fits = m < rows
    n_fits = n < N
    line = m // OL
    # Rows that there aren't see no pixel.
    top = tl.where(row_fits, (line % OH) * SH - PH, -(1 << 20))
    left = (m % OL) * SL - PL
    first = ((line // OH).to(tl.int64) * H + top) * L + left
    x_at = X + first * ALL + group * C
    w_at = W + (group * N + n) * K
    acc = tl.zeros([BM, BN], tl.float32)
    for step in range(part * steps, tl.minimum((part + 1) * steps, tl.cdiv(K, BK))):
        k = step * BK + tl.arange(0, BK)
        if C % BK == 0:
            # All of the step's channels are of one tap.
            tap = step // (C // BK)
            down, along = tap // KL * DH, tap % KL * DL
            offset = (
                ((tl.cast(down, tl.int64) if WIDE else down) * L + along) * ALL
                + step % (C // BK) * BK
                + tl.arange(0, BK)
            )
            y, x = top + down, left + along
            seen = ((y >= 0) & (y < H) & (x >= 0) & (x < L))[:, None]
            w_seen = n_fits[None, :]
        else:
            tap = k // C
            down, along = tap // KL * DH, tap % KL * DL
            offset = ((tl.cast(down, tl.int64) if WIDE else down) * L + along) * ALL + k % C
            y, x = top[:, None] + down[None, :], left[:, None] + along[None, :]
            seen = (y >= 0) & (y < H) & (x >= 0) & (x < L) & (k < K)[None, :]
            w_seen = n_fits[None, :] & (k < K)[:, None]
        a = tl.load(x_at[:, None] + offset[None, :], mask=seen, other=0.0)
        b = tl.load(w_at[None, :] + k[:, None], mask=w_seen, other=0.0)
        acc = tl.dot(a, b, acc, input_precision="ieee")
    channel = group * N + n
    fits = row_fits[:, None] & n_fits[None, :]
    at = m[:, None].to(tl.int64) * (GROUPS * N) + channel[None, :]
    if SPLIT:
        at += part.to(tl.int64) * rows * (GROUPS * N)
    if BIAS:
        acc += tl.load(B + channel, mask=n_fits, other=0.0).to(tl.float32)[None, :]
    if RESIDUAL:
        acc += tl.load(R + at, mask=fits, other=0.0).to(tl.float32)
    tl.store(Y + at, _activated(acc, ACTIVATION).to(Y.dtype.element_ty), mask=fits)


@triton.jit
def depthwise_kernel(
    X, W, B, R, Y, rows, H, L, OH, OL,
    C: tl.constexpr, N: tl.constexpr, KH: tl.constexpr, KL: tl.constexpr,
    SH: tl.constexpr, SL: tl.constexpr, PH: tl.constexpr, PL: tl.constexpr,
    DH: tl.constexpr, DL: tl.constexpr,
    BIAS: tl.constexpr, RESIDUAL: tl.constexpr, ACTIVATION: tl.constexpr, WIDE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Each group has one channel of the input: ``W`` is [taps, N]."""
    columns = tl.cdiv(N, BN)
    m = (tl.program_id(0) // columns) * BM + tl.arange(0, BM)
    n = (tl.program_id(0) % columns) * BN + tl.arange(0, BN)
    row_fits = m < rows
    n_fits = n < N
    fits = row_fits[:, None] & n_fits[None, :]
    line = m // OL
    top = tl.where(row_fits, (line % OH) * SH - PH, -(1 << 20))
    left = (m % OL) * SL - PL
    first = ((line // OH).to(tl.int64) * H + top) * L + left
    x_at = (X + first * C)[:, None] + (n // (N // C))[None, :]
    acc = tl.zeros([BM, BN], tl.float32)
    for tap in range(0, KH * KL):
        down, along = tap // KL * DH, tap % KL * DL
        y, x = top + down, left + along
        seen = ((y >= 0) & (y < H) & (x >= 0) & (x < L))[:, None] & n_fits[None, :]
        a = tl.load(
            x_at + ((tl.cast(down, tl.int64) if WIDE else down) * L + along) * C,
            mask=seen,
            other=0.0,
        )
        b = tl.load(W + tap * N + n, mask=n_fits, other=0.0)
        acc += a.to(tl.float32) * b.to(tl.float32)[None, :]
    at = m[:, None].to(tl.int64) * N + n[None, :]
    if BIAS:
        acc += tl.load(B + n, mask=n_fits, other=0.0).to(tl.float32)[None, :]
    if RESIDUAL:
        acc += tl.load(R + at, mask=fits, other=0.0).to(tl.float32)
    tl.store(Y + at, _activated(acc, ACTIVATION).to(Y.dtype.element_ty), mask=fits)


def _reference(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    activation: int,
    tile: Sequence[int],
) -> Tensor:
    channels = x.shape[1] // groups
    if groups > 1 and channels == 1:
        weight = w.t().reshape(-1, 1, *kernel)
    else:
        weight = w.reshape(w.shape[0], *kernel, -1)[..., :channels].permute(0, 3, 1, 2)
    x = functional.pad(x, [padding[1], padding[3], padding[0], padding[2]])
    y = functional.conv2d(x, weight, bias, tuple(stride), 0, tuple(dilation), groups)
    y = ops.finish(y, residual, activation + ops.ACT_LAST)
    return y.contiguous(memory_format=torch.channels_last)


@define("gpu_convolution", _reference)
def CONVOLUTION(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    activation: int,
    tile: Sequence[int],
) -> Tensor:
    """A convolution of ``x`` [B, C, H, L], with what follows it.

    Args:
        x: the input, of any layout; channels last are read as they are.
        w: the weights from :func:`packed_weight`.
        bias: [N].
        residual: added to the results, [B, N, OH, OL].
        kernel, stride, dilation: one number for each of the two dimensions.
        padding: zeros before the first line and pixel, and behind the last line and pixel.
        groups: the number of groups of channels.
        activation: applied at the end; a number of :data:`ops.ACTIVATIONS`.
        tile: pixels, channels out, depth, warps, stages, and the programs that share one tile.

    Returns:
        [B, N, OH, OL], channels last.
    """
    batch, count, height, length = x.shape
    depthwise = groups > 1 and count == groups
    taps, outputs = math.prod(kernel), w.shape[1] if depthwise else w.shape[0]
    x = x.permute(0, 2, 3, 1)
    channels = 1 if depthwise else w.shape[1] // taps
    if channels * groups > count:
        x = functional.pad(x, [0, channels * groups - count])
    x = x.contiguous()
    oh, ol = (
        (size + padding[i] + padding[2 + i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1
        for i, size in enumerate((height, length))
    )
    bm, bn, bk, warps, stages, parts = tile
    rows = batch * oh * ol
    whole = (batch, oh, ol, outputs)
    y = x.new_empty(whole) if parts == 1 else x.new_empty((parts, *whole), dtype=torch.float32)
    options: dict[str, Any] = {
        "BIAS": bias is not None and parts == 1,
        "RESIDUAL": residual is not None and parts == 1,
        "ACTIVATION": activation if parts == 1 else 0,
        # A tap lies within the kernel's span of its first pixel.
        "WIDE": needs_64_bits(((kernel[0] - 1) * dilation[0] + 1) * length * x.shape[3]),
        "reach": (rows + bm, w.numel()),
    }
    last = None if residual is None else residual.permute(0, 2, 3, 1).contiguous()
    operands = x, w, w if bias is None else bias, w if last is None else last, y
    geometry = *kernel, *stride, *padding[:2], *dilation
    names = ("KH", "KL", "SH", "SL", "PH", "PL", "DH", "DL")
    options.update(zip(names, geometry, strict=True), BM=bm, BN=bn, num_warps=warps)
    blocks = triton.cdiv(rows, bm) * triton.cdiv(outputs if depthwise else outputs // groups, bn)
    sizes = rows, height, length, oh, ol
    if depthwise:
        launch(depthwise_kernel, (blocks,), *operands, *sizes, C=count, N=outputs, **options)
    else:
        steps = triton.cdiv(triton.cdiv(channels * taps, bk), parts)
        launch(
            convolution_kernel, (blocks, parts * groups), *operands, *sizes,
            parts, steps, C=channels, N=outputs // groups, GROUPS=groups, SPLIT=parts > 1, BK=bk,
            num_stages=stages, **options,
        )  # fmt: skip
    if parts > 1:
        # One by one: Inductor makes one pointwise operator of it, which others become part of.
        sums = reduce(torch.add, y.unbind(0))
        sums = sums if bias is None else sums + bias
        y = ops.finish(sums, last, activation + ops.ACT_LAST).to(x.dtype)
    return y.permute(0, 3, 1, 2)


def packed_weight(weight: Tensor, groups: int) -> Tensor:
    """A weight as the kernels read it: channels of a tap side by side.

    Args:
        weight: [N, C, KH, KL], C of one group.
        groups: the number of groups of channels.

    Returns:
        [N, taps * C], three channels filled up to four with zeros, so that pixels begin at multiples
        of 8 bytes; of groups with one channel [taps, N].
    """
    if groups > 1 and weight.shape[1] == 1:
        return weight.flatten(1).t().contiguous()
    last = weight.permute(0, 2, 3, 1)
    if weight.shape[1] == 3 and groups == 1:
        last = functional.pad(last, [0, 1])
    return last.flatten(1).contiguous()
