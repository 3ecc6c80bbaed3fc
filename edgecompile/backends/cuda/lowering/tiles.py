"""The tiles of our own kernels, by what is known of a GPU and of the operands."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from edgecompile.targets.gpu import GpuFacts


def size_of(size: int | torch.SymInt) -> int:
    """A size, or what a varying one was when it was exported."""
    if isinstance(size, int):
        return size
    hint = size.node.hint
    return int(hint) if hint is not None else 64


def attention_tile(q: Tensor, gpu: GpuFacts) -> tuple[int, int, int, int]:
    """Rows of queries, of keys, warps and stages for attention.

    A warp takes 16 rows, and a step's time is that of its loads: more rows cost a short text next to
    nothing, while a long one's keys are read once for all of them. Twice as many where there are enough
    for every multiprocessor.

    Args:
        q: queries, [..., L, D].
        gpu: that it is for.
    """
    width, wide = max(16, 1 << (int(q.shape[-1]) - 1).bit_length()), q.dtype == torch.float32
    # What it was exported with says little of what a varying length will be.
    queries = max(size_of(q.shape[-2]), 1 if isinstance(q.shape[-2], int) else 64)
    heads = math.prod(map(size_of, q.shape[:-2]))
    rows = 32 if wide or width > 128 else 64
    while rows > 16 and rows // 2 >= queries:
        rows //= 2
    if rows == 64 and width <= 64 and heads * -(-queries // 128) >= gpu.multiprocessors:
        rows = 128
    # More spill (ptxas -v for sm_87 and sm_90).
    columns = 64 if not wide and width <= 64 and rows >= 32 else 32
    # Queries, and two stages of keys and values.
    while columns > 16 and (rows + 4 * columns) * width * q.element_size() > gpu.shared_memory:
        columns //= 2
    return rows, columns, 2 if rows < 32 else max(4, rows // 16), 2
