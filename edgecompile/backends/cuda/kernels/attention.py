"""Attention as one kernel that stores no scores (Dao et al., "FlashAttention", 2022).

Each program of the grid owns some rows of queries of one head and walks over blocks of keys, with the
running maximum and sum of the softmax in registers, in float32. A row that sees no key gives zeros,
as torch's own attention does. Offsets within one sequence of the batch are of 32 bits
where the largest sizes allow it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from edgecompile.backends.cuda.kernels.launch import define, launch, needs_64_bits
from edgecompile.export.operators.cached_attention import cached_attention, per_token

#: Kinds of masks.
_NONE, _BOOLEAN, _ADDITIVE = 0, 1, 2
#: The order of a result's dimensions in memory, but for the last: [batch, query, head].
PER_TOKEN = (0, 2, 1)


@triton.jit
def attention_kernel(
    Q, K, V, M, P, Y,
    sqb, sqh, sql, skb, skh, skl, svb, svh, svl, smb, smh, smq, smk, sob, soh, sol,
    heads, group, queries, keys,
    SCALE: tl.constexpr, MASK: tl.constexpr, MASK_ROWS: tl.constexpr, CAUSAL: tl.constexpr, PLACED: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, WIDE: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    BD: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    # Where nothing else is done to scores, the exponential scales them, which is a power of 2.
    FOLDED: tl.constexpr = SOFTCAP == 0 and MASK != 2 and SCALE > 0
    UNIT: tl.constexpr = 1.4426950408889634 * (SCALE if FOLDED else 1.0)
    blocks = tl.cdiv(queries, BM)
    head = tl.program_id(0) // blocks
    b = (head // heads).to(tl.int64)
    h = (head % heads).to(tl.int64)
    kh = h // group
    start = (tl.program_id(0) % blocks) * BM
    rows = start + tl.arange(0, BM)
    d = tl.arange(0, BD)
    dv = tl.arange(0, BDV)
    row_fits = rows[:, None] < queries
    row_at = rows.to(tl.int64) if WIDE else rows
    q = tl.load(
        Q + b * sqb + h * sqh + row_at[:, None] * sql + d[None, :],
        mask=row_fits & (d[None, :] < D), other=0.0,
    )  # fmt: skip
    place = 0
    if PLACED:
        place = tl.load(P).to(tl.int32)
        # Rows behind the last token may hold anything, NaN too.
        keys = tl.minimum(keys, place + queries)
    first = 0
    last = keys
    if CAUSAL:
        last = tl.minimum(keys, place + start + BM)
    if WINDOW > 0:
        first = tl.maximum(0, (place + start - WINDOW + 1) // BN * BN)
    top = tl.full([BM], float("-inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, BDV], tl.float32)
    for begin in range(first, last, BN):
        cols = begin + tl.arange(0, BN)
        fits = cols < keys
        col_at = cols.to(tl.int64) if WIDE else cols
        k = tl.load(
            K + b * skb + kh * skh + col_at[None, :] * skl + d[:, None],
            mask=fits[None, :] & (d[:, None] < D), other=0.0,
        ).to(q.dtype)  # fmt: skip
        s = tl.dot(q, k, input_precision="ieee")
        if not FOLDED:
            s = s * SCALE
        if SOFTCAP > 0:
            # tanh(x) = 1 - 2 / (exp(2x) + 1)
            s = SOFTCAP * (1 - 2 / (tl.exp(2 * s / SOFTCAP) + 1))
        seen = fits[None, :]
        if CAUSAL:
            seen = seen & (cols[None, :] <= place + rows[:, None])
        if WINDOW > 0:
            seen = seen & (cols[None, :] > place + rows[:, None] - WINDOW)
        if MASK != 0:
            at = M + b * smb + h * smh
            if MASK_ROWS:
                m = tl.load(
                    at + row_at[:, None] * smq + col_at[None, :] * smk,
                    mask=row_fits & fits[None, :], other=0,
                )  # fmt: skip
            else:
                m = tl.load(at + col_at * smk, mask=fits, other=0)[None, :]
            if MASK == 1:
                seen = seen & (m != 0)
            else:
                s += m.to(tl.float32)
        s = tl.where(seen, s, float("-inf"))
        new = tl.maximum(top, tl.max(s, 1))
        # Until a key was seen there is nothing to subtract.
        shift = tl.where(new == float("-inf"), 0.0, new)
        p = tl.exp2((s - shift[:, None]) * UNIT)
        shrink = tl.exp2((top - shift) * UNIT)
        total = total * shrink + tl.sum(p, 1)
        v = tl.load(
            V + b * svb + kh * svh + col_at[:, None] * svl + dv[None, :],
            mask=fits[:, None] & (dv[None, :] < DV), other=0.0,
        ).to(q.dtype)  # fmt: skip
        acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
        top = new
    acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(
        Y + b * sob + h * soh + row_at[:, None] * sol + dv[None, :],
        acc.to(Y.dtype.element_ty), mask=row_fits & (dv[None, :] < DV),
    )  # fmt: skip


def _result(q: Tensor, v: Tensor, order: Sequence[int]) -> Tensor:
    """An empty result [B, H, L, E] over memory with its first dimensions in some order."""
    sizes = [q.shape[dim] for dim in order]
    places = [order.index(dim) for dim in range(3)]
    return q.new_empty((*sizes, v.shape[3])).permute(*places, 3)


def _reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    causal: bool,
    scale: float,
    rows: int,
    columns: int,
    warps: int,
    stages: int,
    order: Sequence[int],
) -> Tensor:
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.to(q.dtype)
    if mask is not None and causal:
        lower = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril()
        boolean = mask.dtype == torch.bool
        mask = mask & lower if boolean else mask.masked_fill(~lower, float("-inf"))
    y = torch.nn.functional.scaled_dot_product_attention(
        q,
        k,
        v,
        mask,
        0.0,
        causal and mask is None,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return _result(q, v, order).copy_(y)


def _dense(x: Tensor) -> Tensor:
    """With values of the last dimension side by side, as the kernels read them."""
    return x if x.stride(-1) == 1 else x.contiguous()


def mask_strides(mask: Tensor) -> list[Any]:
    """Steps over [batch, head, query, key]; 0 along what a mask of lower rank or size 1 repeats."""
    steps = [0 if size == 1 else step for size, step in zip(mask.shape, mask.stride(), strict=True)]
    return [0] * (4 - mask.dim()) + steps


def _run(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    place: Tensor | None,
    scale: float,
    tile: tuple[int, int, int, int],
    order: Sequence[int],
    **flags: Any,
) -> Tensor:
    q, k, v = _dense(q), _dense(k), _dense(v)
    batch, heads, queries, width = q.shape
    out = _result(q, v, order)
    kind, steps = _NONE, [0, 0, 0, 0]
    if mask is not None:
        kind = _BOOLEAN if mask.dtype == torch.bool else _ADDITIVE
        steps = mask_strides(mask)
    rows, columns, warps, stages = tile
    # Masked programs compute offsets of rows up to a whole tile behind the end.
    last_row, last_key = queries + rows, k.shape[2] + columns
    wide = needs_64_bits(
        *(last_row * step for step in (q.stride(2), out.stride(2))),
        *(last_key * step for step in (k.stride(2), v.stride(2))),
        last_row * steps[2] + last_key * steps[3],
    )
    launch(
        attention_kernel,
        (triton.cdiv(queries, rows) * batch * heads,),
        *(q, k, v, q if mask is None else mask, q if place is None else place, out),
        *(step for x in (q, k, v) for step in x.stride()[:3]),
        *steps,
        *out.stride()[:3],
        *(heads, heads // k.shape[1], queries, k.shape[2]),
        reach=(last_row, last_key),
        SCALE=scale,
        WIDE=wide,
        MASK=kind,
        # A step that varies isn't known to be none.
        MASK_ROWS=not (isinstance(steps[2], int) and steps[2] == 0),
        PLACED=place is not None,
        D=width,
        DV=v.shape[3],
        BD=max(16, triton.next_power_of_2(width)),
        BDV=max(16, triton.next_power_of_2(v.shape[3])),
        BM=rows,
        BN=columns,
        num_warps=warps,
        num_stages=stages,
        **flags,
    )
    return out


@define("gpu_attention", _reference)
def ATTENTION(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    causal: bool,
    scale: float,
    rows: int,
    columns: int,
    warps: int,
    stages: int,
    order: Sequence[int],
) -> Tensor:
    """Attention of ``q`` [B, H, L, D] over ``k`` [B, G, S, D] and ``v`` [B, G, S, E].

    Args:
        q, k, v: tensors of one floating dtype; query head h reads key head ``h // (H // G)``.
        mask: boolean (true: is seen) or added to the scores, of up to 4 dimensions that are
            broadcast to [B, H, L, S].
        causal: query i sees keys up to i alone.
        scale: the factor of the products.
        rows, columns, warps, stages: the tile of queries by keys, and how it is computed.
        order: the order of the result's dimensions in memory, but for the last.

    Returns:
        [B, H, L, E].
    """
    tile = rows, columns, warps, stages
    return _run(q, k, v, mask, None, scale, tile, order, CAUSAL=causal, WINDOW=0, SOFTCAP=0.0)


def _cached_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    position: Tensor,
    window: int,
    scale: float,
    softcap: float,
    *_: int,
) -> Tensor:
    y = cached_attention(q.float(), k.float(), v.float(), position, window, scale, softcap)
    return per_token(q, v).copy_(y)


@define("gpu_cached_attention", _cached_reference)
def CACHED_ATTENTION(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    position: Tensor,
    window: int,
    scale: float,
    softcap: float,
    rows: int,
    columns: int,
    warps: int,
    stages: int,
) -> Tensor:
    """As :data:`edgecompile.export.operators.cached_attention.CACHED_ATTENTION`, with a tile.

    No key behind the last token is read: the place of the first one is data, so that one graph of
    launches serves every step. Keys and values may be float32 beside narrower queries: a cache of the
    caller's is then rounded as it is read.
    """
    flags = {"CAUSAL": True, "WINDOW": window, "SOFTCAP": softcap}
    return _run(q, k, v, None, position, scale, (rows, columns, warps, stages), PER_TOKEN, **flags)
