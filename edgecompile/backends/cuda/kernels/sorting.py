"""Sorts and selections of any length: every value finds its place by counting those before it.

Quadratic, but all at once: a line of a few thousand values takes a GPU less than a sort in steps would.
Equal values keep their order, and NaN counts as the largest, as in the native runtime.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from edgecompile.backends.cuda.kernels.launch import define, launch


@triton.jit
def rank_kernel(X, V, P, n, k, DESCENDING: tl.constexpr, BI: tl.constexpr, BJ: tl.constexpr):  # fmt: skip
    blocks = tl.cdiv(n, BI)
    line = (tl.program_id(0) // blocks).to(tl.int64)
    i = (tl.program_id(0) % blocks) * BI + tl.arange(0, BI)
    x = tl.load(X + line * n + i, mask=i < n, other=0)
    x_nan = x != x
    rank = tl.zeros([BI], tl.int32)
    for start in range(0, n, BJ):
        j = start + tl.arange(0, BJ)
        y = tl.load(X + line * n + j, mask=j < n, other=0)
        y_nan = y != y
        if DESCENDING:
            before = (y[None, :] > x[:, None]) | (y_nan[None, :] & (x_nan[:, None] == 0))
        else:
            before = (y[None, :] < x[:, None]) | (x_nan[:, None] & (y_nan[None, :] == 0))
        equal = (y[None, :] == x[:, None]) | (x_nan[:, None] & y_nan[None, :])
        before = before | (equal & (j[None, :] < i[:, None]))
        rank += tl.sum((before & (j[None, :] < n)).to(tl.int32), 1)
    mask = (i < n) & (rank < k)
    tl.store(V + line * k + rank, x, mask=mask)
    tl.store(P + line * k + rank, i.to(tl.int64), mask=mask)


def _reference(x: Tensor, k: int, descending: bool) -> tuple[Tensor, Tensor]:
    values, places = torch.sort(x, dim=1, descending=descending, stable=True)
    return values[:, :k].contiguous(), places[:, :k].contiguous()


@define("gpu_sort", _reference)
def SORT(x: Tensor, k: int, descending: bool) -> tuple[Tensor, Tensor]:
    """The first ``k`` of each row of ``x`` [M, N] in order, and where they were (int64), [M, k]."""
    x = x.contiguous()
    lines, n = x.shape
    # Inductor loses memory that nothing fills where its size depends on values.
    values = torch.zeros((lines, k), dtype=x.dtype, device=x.device)
    places = torch.zeros((lines, k), dtype=torch.int64, device=x.device)
    grid = (triton.cdiv(n, 64) * lines,)
    launch(
        rank_kernel, grid, x, values, places, n, k,
        reach=(n, grid[0]), DESCENDING=descending, BI=64, BJ=64, num_warps=4,
    )  # fmt: skip
    return values, places
