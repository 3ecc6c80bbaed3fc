"""Attention over a cache that holds more rows than are written: one operator for every decoder.

Where a program's context grows with each token, what a token may see follows from its place alone.
This operator takes the place instead of a mask, so that no mask is made, and no row behind the
last token is ever read: a step costs as much as its real context, for any size of the buffer.
The native runtime has it; what stands here lets torch run and trace a model that calls it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from edgecompile.export.operators.library import define
from edgecompile.models.cache_rows import dequantize_rows, row_width


def per_token(q: Tensor, v: Tensor) -> Tensor:
    """An empty result of attention: [B, H, L, D] over memory in the order [B, L, H, D]."""
    width = row_width(v.shape[3]) if v.dtype == torch.int8 else v.shape[3]
    return q.new_empty((q.shape[0], q.shape[2], q.shape[1], width)).transpose(1, 2)


def cached_attention(
    q: Tensor, k: Tensor, v: Tensor, position: Tensor, window: int, scale: float, softcap: float
) -> Tensor:
    """Computes the operator with torch's own ones; see :data:`CACHED_ATTENTION`."""
    if k.dtype == torch.int8:
        k, v = dequantize_rows(k), dequantize_rows(v)
    k, v = k.to(q.dtype), v.to(q.dtype)
    rows = position.reshape(1, 1) + torch.arange(q.shape[2])[:, None]
    keys = torch.arange(k.shape[2])[None]
    seen = keys <= rows
    if window > 0:
        seen &= keys > rows - window
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = q @ k.transpose(2, 3) * scale
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    weights = torch.softmax(scores.masked_fill(~seen, float("-inf")), 3)
    # The strides of the native kernel's result are part of the operator's contract.
    return per_token(q, v).copy_(weights @ v)


#: ``q`` [1, heads, new, dim], ``k`` and ``v`` [1, key heads, context, dim], both of its type, bfloat16 or
#: int8 with scales (:mod:`edgecompile.models.cache_rows`), [..., size] then,
#: ``position`` int64 [1]: the place of the first new token. Token i sees key j if ``j <= position + i`` and, with a
#: ``window`` above 0, ``j > position + i - window``. Query head h reads key head
#: ``h // (heads // key heads)``. With a ``softcap`` above 0 a score s becomes
#: ``softcap * tanh(s / softcap)``. Gives [1, heads, new, dim] over memory in the order of tokens.
CACHED_ATTENTION = define(
    "ec_cached_attention(Tensor q, Tensor k, Tensor v, Tensor position, int window, float scale, "
    "float softcap) -> Tensor",
    cached_attention,
    lambda q, k, v, *_: per_token(q, v),
)
