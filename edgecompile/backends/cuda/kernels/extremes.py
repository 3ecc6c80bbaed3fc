"""The largest or smallest of the values that an index sends to each place."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from edgecompile.backends.cuda.kernels.launch import define, launch


@triton.jit
def extreme_kernel(
    X, P, Y, H, total, n, size, LARGEST: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    place = tl.load(P + i, mask=i < total, other=-1)
    # What lies outside is nowhere: a mask costs less than memory of others.
    inside = (i < total) & (place >= 0) & (place < size)
    x = tl.load(X + i, mask=inside, other=0)
    at = i // n * size + place
    if LARGEST:
        tl.atomic_max(Y + at, x, mask=inside, sem="relaxed")
    else:
        tl.atomic_min(Y + at, x, mask=inside, sem="relaxed")
    tl.store(H + at, tl.full([BLOCK], 1, tl.int8), mask=inside)


def _end(dtype: torch.dtype, largest: bool) -> float | int:
    """The start value, which every number replaces."""
    if dtype.is_floating_point:
        return float("-inf") if largest else float("inf")
    return torch.iinfo(dtype).min if largest else torch.iinfo(dtype).max


def _reference(x: Tensor, places: Tensor, size: int, largest: bool) -> tuple[Tensor, Tensor]:
    y = x.new_full((x.shape[0], size), _end(x.dtype, largest))
    y.scatter_reduce_(1, places, x, "amax" if largest else "amin")
    hit = torch.zeros(y.shape, dtype=torch.int8, device=x.device)
    return y, hit.scatter_(1, places, 1)


@define("gpu_extremes", _reference)
def EXTREMES(x: Tensor, places: Tensor, size: int, largest: bool) -> tuple[Tensor, Tensor]:
    """The extreme of the values of each row that have the same place; and where there were any.

    Args:
        x: float32 or int64 [M, N]; smallest values ignore NaN.
        places: int64 [M, N], below ``size``.
        size: the number of positions of a row.
        largest: or smallest.

    Returns:
        [M, size], the lowest or highest number where no value goes; int8 [M, size], 1 or 0.
    """
    x, places = x.contiguous(), places.contiguous()
    lines, n = x.shape
    y = x.new_full((lines, size), _end(x.dtype, largest))
    hit = torch.zeros((lines, size), dtype=torch.int8, device=x.device)
    grid = (triton.cdiv(lines * n, 256),)
    launch(
        extreme_kernel, grid, x, places, y, hit, lines * n, n, size, reach=grid,
        LARGEST=largest, BLOCK=256, num_warps=4,
    )  # fmt: skip
    return y, hit


def find_last(places: Tensor, room: int) -> Tensor:
    """See :data:`edgecompile.backends.lowering.last_writes.FindLast`."""
    order = torch.arange(places.shape[1], device=places.device).expand(places.shape)
    # What lies outside reads nothing and keeps its own value: the write itself says that it is outside.
    inside = (places >= 0) & (places < room)
    kept = torch.where(inside, places, 0)
    last: Tensor = EXTREMES(torch.where(inside, order, -1), kept, room, True)[0]
    return torch.where(inside, last.gather(1, kept), order)
