"""Suppression of boxes, and averages over them, as torchvision's ``nms`` and ``roi_align`` compute them.

A suppression is one program for all boxes: each box waits for those of higher scores, and what one hides is marked by
all threads. That takes time in proportion to the number of boxes, and of those that are kept by the block of others.

A quotient decides which boxes are hidden and how many samples are taken, so divisions are exact, as torch's are.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from edgecompile.backends.cuda.kernels.launch import define, launch
from edgecompile.export.operators.boxes import roi_align, suppress


@triton.jit
def _larger(a, b):
    """The larger one; ``a`` where ``b`` is NaN, as C++ has it."""
    return tl.where(a < b, b, a)


@triton.jit
def suppression_kernel(B, G, T, K, n, GROUPED: tl.constexpr, BLOCK: tl.constexpr):
    limit = tl.load(T)
    for i in range(0, n):
        if tl.load(K + i, volatile=True) != 0:
            left, top = tl.load(B + 4 * i), tl.load(B + 4 * i + 1)
            right, bottom = tl.load(B + 4 * i + 2), tl.load(B + 4 * i + 3)
            area = (right - left) * (bottom - top)
            for start in range(i + 1, n, BLOCK):
                j = start + tl.arange(0, BLOCK)
                inside = j < n
                x, y = tl.load(B + 4 * j, mask=inside), tl.load(B + 4 * j + 1, mask=inside)
                u, v = tl.load(B + 4 * j + 2, mask=inside), tl.load(B + 4 * j + 3, mask=inside)
                width = -_larger(-right, -u) - _larger(left, x)
                height = -_larger(-bottom, -v) - _larger(top, y)
                zero = tl.zeros_like(width)
                common = _larger(zero, width) * _larger(zero, height)
                union = area + (u - x) * (v - y) - common
                if B.dtype.element_ty == tl.float64:  # Triton divides these exactly by itself
                    share = common / union
                else:
                    share = tl.div_rn(common, union)
                hidden = inside & (share.to(tl.float64) > limit)
                if GROUPED:
                    hidden = hidden & (tl.load(G + j, mask=inside) == tl.load(G + i))
                tl.store(K + j, tl.zeros([BLOCK], tl.int8), mask=hidden)
        # The next box reads what all threads have marked.
        tl.debug_barrier()


def _suppress_reference(boxes: Tensor, groups: Tensor | None, threshold: float) -> Tensor:
    kept = torch.zeros(len(boxes), dtype=torch.int8)
    if groups is not None:
        # The operator moves groups of few boxes apart; a group at a time is suppressed in either case.
        for group in set(groups.tolist()):
            places = (groups == group).nonzero().squeeze(1)
            kept[places] = _suppress_reference(boxes[places], None, threshold)
        return kept
    order = torch.arange(len(boxes), 0, -1, dtype=boxes.dtype)
    kept[suppress(boxes, order, None, threshold)] = 1
    return kept


@define("gpu_suppress", _suppress_reference)
def SUPPRESS(boxes: Tensor, groups: Tensor | None, threshold: float) -> Tensor:
    """1 for each box that stays, 0 for those that one before them hides.

    Args:
        boxes: float32 or float64 [N, 4], the highest score first.
        groups: int64 [N]: a box hides those of its group; None: all are in one.
        threshold: the share of a union that may be common to two boxes that stay.

    Returns:
        int8 [N].
    """
    boxes = boxes.contiguous()
    n = boxes.shape[0]
    kept = torch.ones((n,), dtype=torch.int8, device=boxes.device)
    limit = torch.full((1,), threshold, dtype=torch.float64, device=boxes.device)
    launch(
        suppression_kernel, (1,), boxes, boxes if groups is None else groups, limit, kept, n, reach=(4 * n,),
        GROUPED=groups is not None, BLOCK=1024, num_warps=8,
    )  # fmt: skip
    return kept


@triton.jit
def _neighbours(place, size):
    """The two pixels beside a place along one axis, their shares, and whether it lies on the map."""
    inside = (place >= -1) & (place <= size)
    place = tl.where(inside & (place > 0), place, 0.0)
    low = tl.minimum(place.to(tl.int32), size - 1)
    high = tl.minimum(low + 1, size - 1)
    share = tl.where(low == high, 0.0, place - low.to(tl.float32))
    return low, high, share, inside


@triton.jit
def _start_and_bin(first, last, scale, bins, ALIGNED: tl.constexpr):
    start, end = first * scale, last * scale
    if ALIGNED:
        start, end = start - 0.5, end - 0.5
    size = end - start
    if not ALIGNED:
        size = tl.where(size < 1.0, 1.0, size)
    return start, tl.div_rn(size, bins * 1.0)


@triton.jit
def align_kernel(
    X, B, S, Y, channels, height, width, rows, columns, SAMPLES: tl.constexpr, ALIGNED: tl.constexpr, BC: tl.constexpr
):  # fmt: skip
    bins = rows * columns
    box = (tl.program_id(0) // bins).to(tl.int64)
    row, column = tl.program_id(0) % bins // columns, tl.program_id(0) % columns
    scale = tl.load(S)
    image = tl.load(B + 5 * box).to(tl.int64)
    top, down = _start_and_bin(
        tl.load(B + 5 * box + 2), tl.load(B + 5 * box + 4), scale, rows, ALIGNED
    )
    left, across = _start_and_bin(
        tl.load(B + 5 * box + 1), tl.load(B + 5 * box + 3), scale, columns, ALIGNED
    )
    y_samples, x_samples = SAMPLES, SAMPLES
    if SAMPLES <= 0:
        # Of a box without a size, or with NaN for it, there is nothing to read.
        y_samples = tl.where(down > 0, tl.ceil(down), 0.0).to(tl.int32)
        x_samples = tl.where(across > 0, tl.ceil(across), 0.0).to(tl.int32)
    for first in range(0, channels, BC):
        c = first + tl.arange(0, BC)
        fits = c < channels
        plane = X + (image * channels + c).to(tl.int64) * height * width
        total = tl.zeros([BC], tl.float32)
        for i in range(0, y_samples):
            place = top + row * down + tl.div_rn((i + 0.5) * down, y_samples * 1.0)
            y, below, v, y_inside = _neighbours(place, height)
            for j in range(0, x_samples):
                place = left + column * across + tl.div_rn((j + 0.5) * across, x_samples * 1.0)
                x, beside, u, x_inside = _neighbours(place, width)
                mask = c < tl.where(y_inside & x_inside, channels, 0)
                a = tl.load(plane + y * width + x, mask=mask, other=0.0).to(tl.float32)
                b = tl.load(plane + y * width + beside, mask=mask, other=0.0).to(tl.float32)
                d = tl.load(plane + below * width + x, mask=mask, other=0.0).to(tl.float32)
                e = tl.load(plane + below * width + beside, mask=mask, other=0.0).to(tl.float32)
                total += (1 - v) * (1 - u) * a + (1 - v) * u * b + v * (1 - u) * d + v * u * e
        count = tl.maximum(y_samples * 1.0 * x_samples, 1.0)
        at = ((box * channels + c) * rows + row) * columns + column
        tl.store(Y + at, tl.div_rn(total, count).to(Y.dtype.element_ty), mask=fits)


def _align_reference(
    x: Tensor, boxes: Tensor, scale: float, rows: int, columns: int, samples: int, aligned: bool
) -> Tensor:
    return roi_align(x.float(), boxes, scale, rows, columns, samples, aligned).to(x.dtype)


@define("gpu_roi_align", _align_reference)
def ROI_ALIGN(
    x: Tensor, boxes: Tensor, scale: float, rows: int, columns: int, samples: int, aligned: bool
) -> Tensor:
    """As :data:`edgecompile.export.operators.boxes.ROI_ALIGN`, of ``x`` in half precision as well; boxes are float32."""
    x, boxes = x.contiguous(), boxes.contiguous()
    count, (_, channels, height, width) = boxes.shape[0], x.shape
    y = x.new_empty((count, channels, rows, columns))
    factor = torch.full((1,), scale, dtype=torch.float32, device=x.device)
    launch(
        align_kernel, (count * rows * columns,), x, boxes, factor, y, channels, height, width, rows, columns,
        reach=(height * width, count * rows * columns), SAMPLES=samples, ALIGNED=aligned, BC=128, num_warps=4,
    )  # fmt: skip
    return y
