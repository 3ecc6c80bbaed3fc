"""Attention over a cache that holds more rows than are written: one operator for every decoder.

Where a program's context grows with each token, what a token may see follows from its place alone.
This operator takes the place instead of a mask, so that nobody makes a mask, and no row behind the
last token is ever read: a step costs what its real context costs, whatever the buffer's size.
The native runtime has it; what stands here lets torch run and trace a model that calls it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# torch.library's functions carry no annotations.
_LIBRARY: Any = torch.library.Library("edgecompile", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define(
    "ec_cached_attention(Tensor q, Tensor k, Tensor v, Tensor position, int window, float scale, "
    "float softcap) -> Tensor"
)


def cached_attention(
    q: Tensor, k: Tensor, v: Tensor, position: Tensor, window: int, scale: float, softcap: float
) -> Tensor:
    """What the operator computes, by torch's own; see :data:`CACHED_ATTENTION`."""
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
    y = weights @ v
    # The native kernel writes [B, L, H, D]; the strides are part of the operator's contract.
    return y.transpose(1, 2).contiguous().transpose(1, 2)


def _cached_attention_fake(
    q: Tensor, k: Tensor, v: Tensor, position: Tensor, window: int, scale: float, softcap: float
) -> Tensor:
    return q.new_empty((q.shape[0], q.shape[2], q.shape[1], v.shape[3])).transpose(1, 2)


_LIBRARY.impl("ec_cached_attention", cached_attention, "CPU")
torch.library.register_fake(
    "edgecompile::ec_cached_attention", _cached_attention_fake, lib=_LIBRARY
)

#: ``q`` [1, heads, new, dim], ``k`` and ``v`` [1, key heads, context, dim], ``position`` int64 [1]:
#: the place of the first new token. Token i sees key j if ``j <= position + i`` and, with a
#: ``window`` above 0, ``j > position + i - window``. Query head h reads key head
#: ``h // (heads // key heads)``. With a ``softcap`` above 0 a score s becomes
#: ``softcap * tanh(s / softcap)``. Gives [1, heads, new, dim] over memory in the order of tokens.
CACHED_ATTENTION = torch.ops.edgecompile.ec_cached_attention.default
