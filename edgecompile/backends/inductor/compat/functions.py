"""Private functions and tables of torch that are used as they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def scaled_product(
    rows: Tensor, columns: Tensor, row_scales: Tensor, column_scales: Tensor, dtype: torch.dtype
) -> Tensor:
    """``rows @ columns`` of e4m3, times both scales, in ``dtype``: what Inductor has a template for."""
    return torch._scaled_mm(rows, columns, row_scales, column_scales, out_dtype=dtype)


def torch_constant(kind: str, number: int) -> str:
    """The name in torch of what a serialized graph says by number: ``float32``, ``strided``.

    Args:
        kind: ``as_scalar_type``, ``as_layout`` or ``as_memory_format``.
        number: within that kind.
    """
    from torch._export.serde import serialize

    tables: dict[str, Mapping[Any, Any]] = {
        "as_scalar_type": serialize._SERIALIZE_TO_TORCH_DTYPE,
        "as_layout": serialize._SERIALIZE_TO_TORCH_LAYOUT,
        "as_memory_format": serialize._SERIALIZE_TO_TORCH_MEMORY_FORMAT,
    }
    return str(tables[kind][number]).removeprefix("torch.")
