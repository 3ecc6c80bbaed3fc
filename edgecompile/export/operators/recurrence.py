"""Recurrent layers as one operator for each layer and direction, whose length may vary.

torch's own LSTM, GRU and RNN fix the number of steps when they are exported. Here a layer is a
product of all its inputs, which is an ordinary linear layer, and ``edgecompile::recurrence`` over
the steps. Kinds and the order of gates are torch's (torch.nn.LSTM, GRU and RNN document the
formulas).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from edgecompile.export.operators.library import define

#: Codes of the kinds; the native kernel has the same.
KINDS = {"lstm": 0, "gru": 1, "rnn_tanh": 2, "rnn_relu": 3}

_Results = tuple[Tensor, Tensor, Tensor]


def _step(kind: int, x: Tensor, z: Tensor, h: Tensor, c: Tensor | None) -> tuple[Tensor, Any]:
    """The next state, from the input's share of the gates and the state's."""
    if kind == KINDS["lstm"]:
        assert c is not None
        i, f, g, o = (x + z).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c
    if kind == KINDS["gru"]:
        xr, xz, xn = x.chunk(3, 1)
        zr, zz, zn = z.chunk(3, 1)
        n = torch.tanh(xn + torch.sigmoid(xr + zr) * zn)
        return torch.sigmoid(xz + zz) * (h - n) + n, None
    return (torch.tanh if kind == KINDS["rnn_tanh"] else torch.relu)(x + z), None


def run_steps(
    gates: Tensor,
    project: Callable[[Tensor], Tensor],
    h: Tensor,
    c: Tensor | None,
    kind: int,
    reverse: bool,
) -> _Results:
    """All steps of one layer in one direction.

    Args:
        gates: ``[L, B, G*H]``, the inputs' share of the gates.
        project: a function that gives the state's share ``[B, G*H]`` for a state ``[B, H]``.
        h, c: the first state ``[B, H]``; ``c`` for an LSTM only.
        kind: one of :data:`KINDS`.
        reverse: whether the last input comes first.

    Returns:
        ``[L, B, H]``, the last state ``[B, H]``, and the last ``c``: empty for other kinds.
    """
    length, batch, _ = gates.shape
    y = gates.new_empty((length, batch, h.shape[1]))
    for t in reversed(range(length)) if reverse else range(length):
        h, c = _step(kind, gates[t], project(h), h, c)
        y[t] = h
    return y, h.clone(), gates.new_empty((0, h.shape[1])) if c is None else c.clone()


def empty_results(gates: Tensor, w: Any, bias: Any, h0: Tensor, c0: Any, *_: Any) -> _Results:
    """Results of the operator's shapes, without values."""
    (length, batch, _width), hidden = gates.shape, h0.shape[1]
    lasting = 0 if c0 is None else batch
    sizes = (length, batch, hidden), (batch, hidden), (lasting, hidden)
    return gates.new_empty(sizes[0]), gates.new_empty(sizes[1]), gates.new_empty(sizes[2])


#: One layer in one direction, with its weights ``[G*H, H]`` as the module has them.
PLAIN = define(
    "recurrence(Tensor gates, Tensor w, Tensor? bias, Tensor h0, Tensor? c0, int kind, "
    "bool reverse) -> (Tensor, Tensor, Tensor)",
    lambda gates, w, bias, *rest: run_steps(
        gates, lambda h: nn.functional.linear(h, w, bias), *rest
    ),
    empty_results,
)


class Layer(NamedTuple):
    """Weights of the input and of the state of one layer in one direction, and their biases."""

    w_x: Tensor
    w_h: Tensor
    b_x: Tensor | None = None
    b_h: Tensor | None = None


@dataclass(frozen=True)
class Stack:
    """Recurrent layers one above the other, as ``torch.lstm`` and its like take them.

    Attributes:
        kind: one of :data:`KINDS`.
        biases, layers, bidirectional, batch_first: the arguments of the module.
    """

    kind: str
    biases: bool
    layers: int
    bidirectional: bool
    batch_first: bool

    @property
    def weights(self) -> int:
        """The number of tensors of weights and biases in a stack without projections."""
        return self.layers * (2 if self.bidirectional else 1) * (4 if self.biases else 2)

    def run(self, x: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Computes what torch does, without dropout.

        Args:
            x: ``[L, B, I]``, or ``[B, L, I]`` with ``batch_first``.
            tensors: the first states ``[layers * directions, B, H]``, two of an LSTM, one of the
                others; then for each layer and direction input weights, state weights and, with
                ``biases``, their biases.

        Returns:
            The last layer's states, ``[L, B, directions * H]`` or with the batch first, then the
            last states of all layers.
        """

        def step(x: Tensor, layer: Layer, h0: Tensor, c0: Tensor | None, reverse: bool) -> _Results:
            gates = nn.functional.linear(x, layer.w_x, layer.b_x)
            return PLAIN(gates, layer.w_h, layer.b_h, h0, c0, KINDS[self.kind], reverse)  # type: ignore[no-any-return]

        y, *ends = self.run_layers(x.transpose(0, 1) if self.batch_first else x, tensors, step)
        return (y.transpose(0, 1) if self.batch_first else y, *ends)

    def run_layers(
        self, x: Tensor, tensors: Sequence[Tensor], step: Callable[..., _Results]
    ) -> tuple[Tensor, ...]:
        """The results of :meth:`run` for ``[L, B, I]``, by a function for one layer in one direction.

        Args:
            x: the input of the first layer.
            tensors: the tensors of :meth:`run`.
            step: gets a layer's input, its :class:`Layer`, its first states (None: no second one), and whether it
                runs from the last step on; gives the results of :data:`PLAIN`.
        """
        lstm, directions = self.kind == "lstm", 2 if self.bidirectional else 1
        states, weights = tensors[: 1 + lstm], tensors[1 + lstm :]
        each = 4 if self.biases else 2
        ends: list[Tensor] = []
        second: list[Tensor] = []
        for layer in range(self.layers):
            outputs = []
            for direction in range(directions):
                i = layer * directions + direction
                own = Layer(*weights[i * each : (i + 1) * each])
                y, h, c = step(x, own, states[0][i], states[1][i] if lstm else None, direction == 1)
                outputs.append(y)
                ends.append(h)
                second.append(c)
            x = torch.cat(outputs, 2) if directions > 1 else outputs[0]
        return (x, torch.stack(ends), *([torch.stack(second)] if lstm else []))


def has_recurrences(module: nn.Module) -> bool:
    """Whether a part of the module is one of torch's recurrent layers, or says that it calls their functions."""
    return any(
        isinstance(part, nn.RNNBase) or getattr(part, "calls_recurrences", False)
        for part in module.modules()
    )
