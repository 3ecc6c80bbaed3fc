"""Keys and values to rows of int8 with scales, as caches store them, and back: two operators.

The layout and the rounding are those of :mod:`edgecompile.models.cache_rows`.
"""

from __future__ import annotations

import torch

from edgecompile.export.operators.library import define
from edgecompile.models.cache_rows import dequantize_rows, quantize_rows, row_bytes, row_width

#: ``x`` float32 [..., width] as int8 [..., row_bytes(width)].
QUANTIZE_ROWS = define(
    "ec_quantize_rows(Tensor x) -> Tensor",
    quantize_rows,
    lambda x: x.new_empty((*x.shape[:-1], row_bytes(x.shape[-1])), dtype=torch.int8),
)
#: ``rows`` int8 [..., size] as float32 [..., row_width(size)].
DEQUANTIZE_ROWS = define(
    "ec_dequantize_rows(Tensor rows) -> Tensor",
    dequantize_rows,
    lambda rows: rows.new_empty((*rows.shape[:-1], row_width(rows.shape[-1])), dtype=torch.float32),
)
