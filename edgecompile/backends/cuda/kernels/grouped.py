"""Products of groups of rows, each with a matrix of its own: mixtures of experts."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from edgecompile.backends.cuda.kernels.launch import define, launch


@triton.jit
def grouped_kernel(
    X, W, E, Y, total, N, K, experts, sx, swe, swk, swn,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    columns = tl.cdiv(N, BN)
    first = (tl.program_id(0) // columns) * BM
    rows = first + tl.arange(0, BM)
    n = (tl.program_id(0) % columns) * BN + tl.arange(0, BN)
    acc = tl.zeros([BM, BN], tl.float32)
    start = 0
    for e in range(0, experts):
        end = tl.load(E + e).to(tl.int32)
        # Experts without a row in this block cost the reading of their end.
        if (end > first) & (start < first + BM) & (end > start):
            own = (rows >= start) & (rows < end) & (rows < total)
            for begin in range(0, K, BK):
                k = begin + tl.arange(0, BK)
                x = tl.load(
                    X + rows[:, None].to(tl.int64) * sx + k[None, :],
                    mask=own[:, None] & (k[None, :] < K), other=0.0,
                )  # fmt: skip
                w = tl.load(
                    W + tl.cast(e, tl.int64) * swe + k[:, None] * swk + n[None, :] * swn,
                    mask=(k[:, None] < K) & (n[None, :] < N), other=0.0,
                )  # fmt: skip
                acc = tl.dot(x, w, acc, input_precision="ieee")
        start = end
    tl.store(
        Y + rows[:, None].to(tl.int64) * N + n[None, :], acc.to(Y.dtype.element_ty),
        mask=(rows[:, None] < total) & (n[None, :] < N),
    )  # fmt: skip


def _reference(x: Tensor, w: Tensor, ends: Tensor) -> Tensor:
    y, start = x.new_zeros(x.shape[0], w.shape[2]), 0
    for matrix, end in zip(w, ends.tolist(), strict=True):
        y[start:end] = x[start:end] @ matrix
        start = end
    return y


@define("gpu_grouped_mm", _reference)
def GROUPED(x: Tensor, w: Tensor, ends: Tensor) -> Tensor:
    """Rows ``ends[e-1]..ends[e]`` of ``x`` [S, K] times ``w[e]`` of [E, K, N]; behind the last, zeros."""
    x = x if x.stride(1) == 1 else x.contiguous()
    y = torch.empty((x.shape[0], w.shape[2]), dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(x.shape[0], 32) * triton.cdiv(w.shape[2], 64),)
    launch(
        grouped_kernel, grid, x, w, ends.contiguous(), y,
        x.shape[0], w.shape[2], x.shape[1], w.shape[0], x.stride(0), *w.stride(),
        reach=(x.shape[0], w.shape[1] * w.stride(1) + w.shape[2] * w.stride(2)),
        BM=32, BN=64, BK=32, num_warps=4, num_stages=3,
    )  # fmt: skip
    return y
