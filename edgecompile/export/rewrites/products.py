"""Products and distances of rows that torch computes by kernels of its own, which no runtime has."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def bilinear(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``torch.nn.functional.bilinear``: ``[..., I]``, ``[..., J]``, ``[O, I, J]`` to ``[..., O]``."""
    # A linear layer for each row of the first input, then for each of the second.
    outputs, first, second = weight.shape
    partial = functional.linear(x, weight.permute(0, 2, 1).reshape(outputs * second, first))
    table: Tensor = torch.unflatten(partial, -1, (outputs, second))
    result = (table @ y.unsqueeze(-1)).squeeze(-1)
    return result if bias is None else result + bias


def cdist(a: Tensor, b: Tensor, p: float = 2.0, compute_mode: Any = None) -> Any:
    """``torch.cdist``: ``[..., P, D]``, ``[..., R, D]`` to ``[..., P, R]``, always by differences.

    Where there are over 25 rows torch's own takes a product of matrices instead, which loses digits
    of small distances.
    """
    if not a.is_floating_point():
        return NotImplemented
    apart = (a.unsqueeze(-2) - b.unsqueeze(-3)).abs()
    if p == 0:
        return (apart != 0).to(a.dtype).sum(-1)
    if p == 1:
        return apart.sum(-1)
    if p == 2:
        return apart.square().sum(-1).sqrt()
    return apart.amax(-1) if math.isinf(p) else apart.pow(p).sum(-1).pow(1 / p)


#: What is computed instead of torch's functions, each with the same arguments.
PRODUCTS: dict[Any, Callable[..., Any]] = {
    functional.bilinear: bilinear,
    torch.bilinear: bilinear,
    torch.cdist: cdist,
}
