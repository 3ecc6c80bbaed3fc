"""The tiles of our own kernels, by what is known of a GPU and of the operands."""

from __future__ import annotations

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

    Many rows reuse each key more often, few rows make more programs: the most that give every
    multiprocessor work.

    Args:
        q: queries, [..., L, D].
        gpu: that it is for.
    """
    width, wide = max(16, 1 << (int(q.shape[-1]) - 1).bit_length()), q.dtype == torch.float32
    queries = size_of(q.shape[-2])
    heads = 1
    for size in q.shape[:-2]:
        heads *= size_of(size)
    most = 32 if wide or width > 128 else 64 if width > 64 else 128
    rows = 16
    while (
        rows < most and rows < queries and heads * -(-queries // (2 * rows)) >= gpu.multiprocessors
    ):
        rows *= 2
    # More spill (ptxas -v for sm_87 and sm_90).
    columns = 64 if not wide and width <= 64 and rows >= 32 else 32
    # Queries, and two stages of keys and values.
    while columns > 16 and (rows + 4 * columns) * width * q.element_size() > gpu.shared_memory:
        columns //= 2
    return rows, columns, 2 if rows < 32 else max(4, rows // 16), 2
