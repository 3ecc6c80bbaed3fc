"""Packed sequences as padded ones, whose sizes don't depend on values.

``pack_padded_sequence`` puts the real steps of a batch one behind the other, so many as the lengths say.
Here all steps stay, with the lengths beside them: a recurrent layer then keeps each row's state behind its
last step, and what is unpacked has the padding value there.

A packed sequence's numbers of rows at each step (``batch_sizes``) stand for it in torch's functions, and
lead to the lengths.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from edgecompile.export.operators.recurrence import KINDS, PLAIN, Layer, Stack

aten = torch.ops.aten

#: What makes a gate of an LSTM 0 or 1, whatever else is added.
_SHUT = 1e30


def _require(condition: Any, text: str) -> None:
    """Keeps a condition on a size that depends on values as one of the program."""
    aten._assert_scalar.default(condition, text)


@dataclass(frozen=True)
class Padded:
    """The rows of a packed sequence.

    Attributes:
        lengths: int64 ``[B]``, the longest first.
        steps: the number of steps, those behind all lengths included.
        most: the largest length, a size that depends on values.
    """

    lengths: Tensor
    steps: Any
    most: Any

    @property
    def rows(self) -> Any:
        """The number of rows."""
        return self.lengths.shape[0]

    def real(self) -> Tensor:
        """Whether a step belongs to a row, bool ``[L, B]``."""
        return torch.arange(self.steps)[:, None] < self.lengths

    def turned(self) -> Tensor:
        """The step that each takes its place from when rows are read from their last one, int64 ``[L, B]``."""
        step = torch.arange(self.steps)[:, None]
        return torch.where(self.real(), self.lengths - 1 - step, step)


def pack(x: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor, Padded]:
    """The steps ``[L * B, ...]``, as torch packs them, the number of rows at each step, and both as padded rows."""
    x = x.transpose(0, 1) if batch_first else x
    most = lengths.max().item()
    _require(most >= 1, "a row of a packed sequence has no steps")
    _require(most <= x.shape[0], "a length is over the number of steps")
    padded = Padded(lengths, x.shape[0], most)
    counts = (torch.arange(most)[:, None] < lengths).sum(1)
    return x.flatten(0, 1), counts, padded


def unpack(
    data: Tensor, padded: Padded, batch_first: bool, value: float, total: Any
) -> tuple[Tensor, Tensor]:
    """Rows of ``total`` steps with ``value`` behind the lengths, and the lengths."""
    x: Tensor = torch.unflatten(data, 0, (padded.steps, padded.rows))
    real = padded.real().reshape(padded.steps, padded.rows, *[1] * (x.dim() - 2))
    x = torch.where(real, x, torch.full((), value, dtype=x.dtype))
    if total is padded.most:
        x = x[: padded.most]
    else:
        x = torch.nn.functional.pad(
            x, (0, 0) * (x.dim() - 1) + (0, total - padded.steps), value=value
        )
    return (x.transpose(0, 1) if batch_first else x), padded.lengths


def run_packed(stack: Stack, data: Tensor, padded: Padded, *tensors: Tensor) -> tuple[Tensor, ...]:
    """What ``stack`` computes of packed rows; the arguments of :meth:`Stack.run`, and its results."""
    x: Tensor = torch.unflatten(data, 0, (padded.steps, padded.rows))
    real, turned, row = padded.real()[..., None], padded.turned(), torch.arange(padded.rows)

    def step(x: Tensor, layer: Layer, h0: Tensor, c0: Tensor | None, reverse: bool) -> Any:
        gates = torch.nn.functional.linear(x[turned, row] if reverse else x, layer.w_x, layer.b_x)
        if c0 is not None:
            # Behind a row's end nothing comes into its cell, and nothing leaves it.
            gates = torch.where(real, gates, _shut_gates(layer.w_h.shape[1]))
        y, _, c = PLAIN(gates, layer.w_h, layer.b_h, h0, c0, KINDS[stack.kind], False)
        return (
            torch.where(real, y[turned, row] if reverse else y, 0.0),
            y[padded.lengths - 1, row],
            c,
        )

    y, *ends = stack.run_layers(x, tensors, step)
    return (y.flatten(0, 1), *ends)


def _shut_gates(hidden: int) -> Tensor:
    """Gates ``[4 * H]`` that keep an LSTM's cell as it is: nothing in, nothing forgotten."""
    gate = torch.arange(4 * hidden) // hidden
    return torch.where(gate == 0, -_SHUT, torch.where(gate == 1, _SHUT, 0.0))
