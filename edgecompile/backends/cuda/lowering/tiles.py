"""The tiles of our own kernels, by what is known of a GPU and of the operands."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch import Tensor
from torch.fx import GraphModule

from edgecompile.backends.cuda.gemm.tiles import Product, choose_split
from edgecompile.backends.lowering.constants import value_of
from edgecompile.targets.gpu import GpuFacts


def hints_of(gm: GraphModule, inputs: Mapping[str, Tensor]) -> dict[Any, Any]:
    """The varying sizes at some inputs, by symbol."""
    hints: dict[Any, Any] = {}
    for node in gm.graph.nodes:
        value = value_of(node) if node.op == "placeholder" else None
        if value is None or node.name not in inputs:
            continue
        sizes: Any = value.shape
        for size, number in zip(sizes, inputs[node.name].shape, strict=True):
            if isinstance(size, torch.SymInt):
                hints[size.node.expr] = sympy.Integer(number)
    return hints


def size_of(size: int | torch.SymInt, hints: Mapping[Any, Any] | None = None) -> int:
    """A size; of a varying one what it is by the hints, or was when it was exported."""
    if isinstance(size, int):
        return size
    value = size.node.expr.xreplace(dict(hints or {}))
    if value.is_Integer:
        return int(value)
    hint = size.node.hint
    return int(hint) if hint is not None else 64


def attention_tile(q: Tensor, gpu: GpuFacts) -> tuple[int, int, int, int]:
    """Rows of queries, of keys, warps and stages for attention.

    A warp takes 16 rows, and a step's time is that of its loads: more rows cost a short text next to
    nothing, while a long one's keys are read once for all of them. Twice as many where there are enough
    for every multiprocessor.

    Args:
        q: queries, [..., L, D].
        gpu: the GPU that it is for.
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
    # A third stage gains up to 11 % on an H200; less shared memory has room for fewer blocks then.
    stages = 3 if gpu.compute_capability >= 90 and not wide and width <= 64 else 2
    # Queries, and the stages of keys and values.
    size = width * q.element_size()
    while columns > 16 and (rows + 2 * stages * columns) * size > gpu.shared_memory:
        columns //= 2
    return rows, columns, 2 if rows < 32 else max(4, rows // 16), stages


def convolution_tile(
    x: Tensor, w: Tensor, y: Tensor, groups: int, gpu: GpuFacts, hints: Mapping[Any, Any]
) -> list[int]:
    """Pixels, channels out, depth, warps, stages, and programs that share a tile, for a convolution.

    Args:
        x: the input, [B, C, H, L].
        w: the weight, packed.
        y: the output, [B, N, OH, OL].
        groups: the number of groups of channels.
        gpu: the GPU that it is for.
        hints: the assumed values of varying sizes.
    """
    rows = math.prod(size_of(y.shape[dim], hints) for dim in (0, 2, 3))
    if groups > 1 and int(x.shape[1]) == groups:
        return [*depthwise_tile(rows, int(y.shape[1]), gpu), 1]
    outputs, depth = map(int, w.shape)
    product = Product(rows, outputs // groups, depth, groups, x.element_size())
    tile, parts = choose_split(gpu, product)
    return [tile.m, tile.n, tile.k, tile.warps, tile.stages, parts]


def depthwise_tile(rows: int, outputs: int, gpu: GpuFacts) -> tuple[int, int, int, int, int]:
    """Pixels, channels, no depth, warps and stages where each channel is by itself.

    The best of twelve for eight layers of MobileNetV2 on an H100, but for 2 % in the mean and 10 % at most.
    """
    pixels, channels = 64, 32
    while pixels > 16 and -(-rows // pixels) * -(-outputs // channels) < 4 * gpu.multiprocessors:
        pixels //= 2
    return pixels, channels, 0, 4, 1
