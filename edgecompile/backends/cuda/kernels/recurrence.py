"""Recurrent layers step by step, of any length: a program for each sequence.

The state's share of the gates is a matrix-vector product in each step, whose weights stay in the
second-level cache. States are float32 in memory of their own, so that rounding doesn't add up.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from edgecompile.backends.cuda.kernels.launch import define, launch
from edgecompile.export.operators.recurrence import run_steps


@triton.jit
def _tanh(x):
    return 1 - 2 / (tl.exp(2 * x) + 1)


@triton.jit
def _share(W, B, S, at, rows, fits, H, BIAS: tl.constexpr, BH: tl.constexpr, BK: tl.constexpr):
    """The state's share of one gate for some rows."""
    total = tl.zeros([BH, BK], tl.float32)
    for start in range(0, H, BK):
        k = start + tl.arange(0, BK)
        w = tl.load(
            W + (at + rows[:, None]) * H + k[None, :],
            mask=fits[:, None] & (k[None, :] < H), other=0.0,
        )  # fmt: skip
        s = tl.load(S + k, mask=k < H, other=0.0, volatile=True)
        total += w.to(tl.float32) * s[None, :]
    z = tl.sum(total, 1)
    if BIAS:
        z += tl.load(B + at + rows, mask=fits, other=0.0).to(tl.float32)
    return z


@triton.jit
def recurrence_kernel(
    X, W, B, S, C, Y, length, batch, H, sxl, sxb,
    KIND: tl.constexpr, REVERSE: tl.constexpr, BIAS: tl.constexpr, BH: tl.constexpr,
    BK: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    for step in range(0, length):
        t = step
        if REVERSE:
            t = length - 1 - step
        x = X + tl.cast(t, tl.int64) * sxl + b * sxb
        old = S + ((step % 2) * batch + b) * H
        new = S + (((step + 1) % 2) * batch + b) * H
        for start in range(0, H, BH):
            rows = start + tl.arange(0, BH)
            fits = rows < H
            x0 = tl.load(x + rows, mask=fits, other=0.0).to(tl.float32)
            z0 = _share(W, B, old, 0, rows, fits, H, BIAS, BH, BK)
            if KIND == 0:
                x1 = tl.load(x + H + rows, mask=fits, other=0.0).to(tl.float32)
                x2 = tl.load(x + 2 * H + rows, mask=fits, other=0.0).to(tl.float32)
                x3 = tl.load(x + 3 * H + rows, mask=fits, other=0.0).to(tl.float32)
                f = tl.sigmoid(x1 + _share(W, B, old, H, rows, fits, H, BIAS, BH, BK))
                g = _tanh(x2 + _share(W, B, old, 2 * H, rows, fits, H, BIAS, BH, BK))
                o = tl.sigmoid(x3 + _share(W, B, old, 3 * H, rows, fits, H, BIAS, BH, BK))
                c = tl.load(C + b * H + rows, mask=fits, other=0.0)
                c = f * c + tl.sigmoid(x0 + z0) * g
                tl.store(C + b * H + rows, c, mask=fits)
                h = o * _tanh(c)
            elif KIND == 1:
                x1 = tl.load(x + H + rows, mask=fits, other=0.0).to(tl.float32)
                x2 = tl.load(x + 2 * H + rows, mask=fits, other=0.0).to(tl.float32)
                r = tl.sigmoid(x0 + z0)
                z = tl.sigmoid(x1 + _share(W, B, old, H, rows, fits, H, BIAS, BH, BK))
                n = _tanh(x2 + r * _share(W, B, old, 2 * H, rows, fits, H, BIAS, BH, BK))
                h = z * (tl.load(old + rows, mask=fits, other=0.0, volatile=True) - n) + n
            elif KIND == 2:
                h = _tanh(x0 + z0)
            else:
                h = tl.maximum(x0 + z0, 0.0)
            tl.store(new + rows, h, mask=fits)
            tl.store(
                Y + (tl.cast(t, tl.int64) * batch + b) * H + rows,
                h.to(Y.dtype.element_ty),
                mask=fits,
            )
        # The next step reads what all threads of this one have written.
        tl.debug_barrier()


def _reference(
    gates: Tensor, w: Tensor, bias: Tensor | None, h: Tensor, c: Tensor | None, *rest: int
) -> tuple[Tensor, Tensor, Tensor]:
    kind, reverse = rest
    wide: Any = [None if x is None else x.float() for x in (gates, w, bias, h, c)]
    x, weight, vector, first, cell = wide

    def share(state: Tensor) -> Tensor:
        return torch.nn.functional.linear(state, weight, vector)

    y, last, last_cell = run_steps(x, share, first, cell, kind, bool(reverse))
    return y.to(gates.dtype), last.to(gates.dtype), last_cell.to(gates.dtype)


@define("gpu_recurrence", _reference)
def RECURRENCE(
    gates: Tensor,
    w: Tensor,
    bias: Tensor | None,
    h0: Tensor,
    c0: Tensor | None,
    kind: int,
    reverse: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """As :data:`edgecompile.export.operators.recurrence.PLAIN`, of any floating dtype."""
    gates = gates if gates.stride(2) == 1 else gates.contiguous()
    w = w.contiguous()
    length, batch, _ = gates.shape
    hidden = h0.shape[1]
    y = gates.new_empty((length, batch, hidden))
    # The states of even and of odd steps.
    states = torch.stack([h0.float(), h0.float()])
    c = torch.zeros_like(h0, dtype=torch.float32) if c0 is None else c0.to(torch.float32, copy=True)
    block = min(64, triton.next_power_of_2(hidden))
    launch(
        recurrence_kernel, (batch,), gates, w, w if bias is None else bias, states, c, y,
        length, batch, hidden, gates.stride(0), gates.stride(1), reach=(length, w.numel()),
        KIND=kind, REVERSE=reverse, BIAS=bias is not None, BH=block, BK=block, num_warps=8,
    )  # fmt: skip
    last = torch.select(y, 0, 0 if reverse else length - 1).clone()
    last_cell = c.to(gates.dtype) if c0 is not None else gates.new_empty((0, hidden))
    return y, last, last_cell
