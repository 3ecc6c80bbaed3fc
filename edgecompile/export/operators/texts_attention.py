"""Attention of one token of each of several texts, each over its own cache, which it also writes.

The caches of different texts lie in different places of memory, and have different lengths. So this
operator takes their addresses as numbers: a text can join others for one token, and nothing is copied.
The native runtime has it; what stands here lets torch run and trace a model that calls it.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from edgecompile.export.operators.cached_attention import cached_attention, per_token
from edgecompile.export.operators.library import define

#: Name of the input of such a program that has the addresses of all caches, int64 [caches, texts].
CACHES = "caches"


def texts_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    position: Tensor,
    context: int,
    window: int,
    scale: float,
    softcap: float,
) -> Tensor:
    """Computes the operator with torch's own ones; see :data:`TEXTS_ATTENTION`."""
    result = per_token(q, v)
    for text, place in enumerate(position.tolist()):
        first = torch.tensor([place if keys[text] else 0])
        seen_keys = _write(k[0, :, text], int(keys[text]), context, place)
        seen_values = _write(v[0, :, text], int(values[text]), context, place)
        query = q[:, :, text : text + 1]
        seen = cached_attention(query, seen_keys, seen_values, first, window, scale, softcap)
        result[:, :, text] = seen[:, :, 0]
    return result


def _write(row: Tensor, address: int, context: int, place: int) -> Tensor:
    """Writes a row [heads, dim] into a cache; the cache as attention takes it."""
    if not address:
        return row[None].transpose(0, 1)[None]
    size = context * row.numel() * row.element_size()
    memory = torch.frombuffer((ctypes.c_char * size).from_address(address), dtype=row.dtype)
    cache = memory.view(context, *row.shape)
    cache[place] = row
    return cache.transpose(0, 1)[None]


#: ``q`` float32 [1, heads, texts, dim], ``k`` and ``v`` [1, key heads, texts, dim], both float32,
#: bfloat16 or int8 with scales: a token of each text. ``keys`` and ``values`` int64 [texts]: the addresses of its caches, of the type
#: of ``k``, [context, key heads, dim].
#: ``position`` int64 [texts]: the row that is written, and the last one that is seen. At the address 0
#: there is no cache: the token sees itself alone. The rest is as in
#: :data:`edgecompile.export.operators.cached_attention.CACHED_ATTENTION`.
TEXTS_ATTENTION = define(
    "ec_texts_attention(Tensor q, Tensor k, Tensor v, Tensor keys, Tensor values, Tensor position, "
    "int context, int window, float scale, float softcap) -> Tensor",
    texts_attention,
    lambda q, k, v, *_: per_token(q, v),
)
