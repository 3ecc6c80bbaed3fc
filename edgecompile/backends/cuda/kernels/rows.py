"""The matmul of one row with an int8 matrix, which takes as long as reading the matrix once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from edgecompile.backends.cuda.kernels.launch import define, launch

#: Columns of a block, which are also the bytes that it reads of a row.
COLUMNS = 64
#: The most inputs of a step.
_STEP = 64
#: The most partial sums of an output: Inductor adds up this many without a kernel of its own.
_PARTS = 8


@triton.jit
def row_kernel(
    X, W, S, Y, K, N, part, block, BK: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    seen = n < N
    first = tl.program_id(1) * part
    end = tl.minimum(first + part, K)
    # One reduction at the end, since it goes across the warps.
    acc = tl.zeros([BK, BN], tl.float32)
    for begin in range(first, end, BK):
        k = begin + tl.arange(0, BK)
        x = tl.load(X + k, mask=k < end, other=0.0).to(tl.float32)
        w = tl.load(
            W + k[:, None].to(tl.int64) * N + n[None, :],
            mask=(k[:, None] < end) & seen[None, :], other=0,
        )  # fmt: skip
        s = tl.load(S + (begin // block) * N + n, mask=seen, other=0.0)
        acc += x[:, None] * (w.to(tl.float32) * s[None, :])
    tl.store(Y + tl.program_id(1) * N + n, tl.sum(acc, 0), mask=seen)


def _step(block: int, inputs: int) -> int:
    """Inputs of a step: a power of two, so that each step has one scale."""
    if block == inputs:
        return _STEP
    return min(_STEP, block & -block)


def _reference(x: Tensor, w: Tensor, scale: Tensor, part: int) -> Tensor:
    block = w.shape[0] // scale.shape[0]
    y = x.float().flatten()[:, None] * w.float() * scale.repeat_interleave(block, 0)
    return torch.stack([piece.sum(0) for piece in torch.split(y, part)])


@define("gpu_int8_row", _reference)
def ROW(x: Tensor, w: Tensor, scale: Tensor, part: int) -> Tensor:
    """Sums over each ``part`` of the inputs of ``x`` [1, K] times ``w`` [K, N], in float32 [parts, N].

    ``scale`` [blocks, N] is that of equal blocks of inputs; ``part`` is a multiple of 64.
    """
    inputs, outputs = w.shape
    block = inputs // scale.shape[0]
    parts = triton.cdiv(inputs, part)
    y = torch.empty((parts, outputs), dtype=torch.float32, device=x.device)
    launch(
        row_kernel, (triton.cdiv(outputs, COLUMNS), parts), x.contiguous(), w, scale, y,
        inputs, outputs, part, block, reach=(inputs, scale.numel(), y.numel()),
        BK=_step(block, inputs), BN=COLUMNS, num_warps=4, num_stages=3,
    )  # fmt: skip
    return y


def part_of(inputs: int, outputs: int, multiprocessors: int) -> int:
    """Inputs that one block sums up: few enough that every multiprocessor has two blocks, where it can.

    Args:
        inputs, outputs: sizes of the matrix.
        multiprocessors: the multiprocessors of the GPU.

    Returns:
        A multiple of a step, at least an eighth of the inputs.
    """
    parts = min(-(-2 * multiprocessors // -(-outputs // COLUMNS)), _PARTS)
    return -(-inputs // (parts * _STEP)) * _STEP
