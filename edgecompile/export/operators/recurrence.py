"""Recurrent layers as one operator for each layer and direction, whose length may vary.

torch's own LSTM, GRU and RNN fix the number of steps when they are exported. Here a layer is a
product of all its inputs, which is an ordinary linear layer, and ``edgecompile::recurrence`` over
the steps. Kinds and the order of gates are torch's (torch.nn.LSTM, GRU and RNN document the
formulas).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

__all__ = [
    "KINDS",
    "PLAIN",
    "empty_results",
    "has_recurrences",
    "run_layers",
    "run_steps",
    "WholeRecurrences",
]

#: Codes of the kinds; the native kernel has the same.
KINDS = {"lstm": 0, "gru": 1, "rnn_tanh": 2, "rnn_relu": 3}

# A fragment, since the backends' operators live under the same name.
_LIBRARY: Any = torch.library.Library("edgecompile", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define(
    "recurrence(Tensor gates, Tensor w, Tensor? bias, Tensor h0, Tensor? c0, int kind, "
    "bool reverse) -> (Tensor, Tensor, Tensor)"
)

#: Of torch.lstm, torch.gru and so on, as the modules call them.
_ARGUMENTS = 9

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
        project: gives the state's share ``[B, G*H]`` for a state ``[B, H]``.
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


def empty_results(gates: Tensor, h0: Tensor, kind: int) -> _Results:
    """What :func:`run_steps` returns, without values."""
    length, batch, _ = gates.shape
    hidden = h0.shape[1]
    lasting = batch if kind == KINDS["lstm"] else 0
    return (
        gates.new_empty((length, batch, hidden)),
        gates.new_empty((batch, hidden)),
        gates.new_empty((lasting, hidden)),
    )


def _cpu(
    gates: Tensor,
    w: Tensor,
    bias: Tensor | None,
    h0: Tensor,
    c0: Tensor | None,
    kind: int,
    reverse: bool,
) -> _Results:
    return run_steps(gates, lambda h: nn.functional.linear(h, w, bias), h0, c0, kind, reverse)


def _fake(
    gates: Tensor,
    w: Tensor,
    bias: Tensor | None,
    h0: Tensor,
    c0: Tensor | None,
    kind: int,
    reverse: bool,
) -> _Results:
    return empty_results(gates, h0, kind)


_LIBRARY.impl("recurrence", _cpu, "CPU")
torch.library.register_fake("edgecompile::recurrence", _fake, lib=_LIBRARY)

#: One layer in one direction, with its weights ``[G*H, H]`` as the module has them.
PLAIN = torch.ops.edgecompile.recurrence.default


def run_layers(
    name: str,
    x: Tensor,
    states: Sequence[Tensor],
    weights: Sequence[Tensor],
    biases: bool,
    layers: int,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """What ``torch.lstm`` and its like compute, without dropout.

    Args:
        name: one of :data:`KINDS`.
        x: ``[L, B, I]``, or ``[B, L, I]`` with ``batch_first``.
        states: ``[layers * directions, B, H]``, and an LSTM's second one.
        weights: for each layer and direction input weights, state weights and, with ``biases``,
            their biases.
        biases, layers, bidirectional, batch_first: as of the module.

    Returns:
        The last layer's states, ``[L, B, directions * H]`` or with the batch first, then the last
        states of all layers.
    """
    directions = 2 if bidirectional else 1
    each = len(weights) // (layers * directions)
    if batch_first:
        x = x.transpose(0, 1)
    ends: list[Tensor] = []
    second: list[Tensor] = []
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            i = layer * directions + direction
            w_x, w_h, *bias = weights[i * each : (i + 1) * each]
            b_x, b_h = bias if biases else (None, None)
            gates = nn.functional.linear(x, w_x, b_x)
            c0 = states[1][i] if len(states) > 1 else None
            y, h, c = PLAIN(gates, w_h, b_h, states[0][i], c0, KINDS[name], direction == 1)
            outputs.append(y)
            ends.append(h)
            second.append(c)
        x = torch.cat(outputs, 2) if directions > 1 else outputs[0]
    result = x.transpose(0, 1) if batch_first else x
    if len(states) > 1:
        return result, torch.stack(ends), torch.stack(second)
    return result, torch.stack(ends)


def has_recurrences(module: nn.Module) -> bool:
    """Whether a part of the module is one of torch's recurrent layers."""
    return any(isinstance(part, nn.RNNBase) for part in module.modules())


class WholeRecurrences(TorchFunctionMode):
    """While it is entered, torch's recurrent layers call :data:`PLAIN`.

    Layers with projections, packed sequences and other dtypes than float32 stay torch's.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in KINDS and len(args) == _ARGUMENTS and not kwargs:
            x, state, weights, biases, layers, _, training, bidirectional, batch_first = args
            states = (state,) if isinstance(state, Tensor) else tuple(state)
            count = layers * (2 if bidirectional else 1) * (4 if biases else 2)
            # A packed sequence has its batch sizes in second place, and weights in fourth.
            if (
                isinstance(biases, bool)
                and isinstance(weights, (list, tuple))
                and len(weights) == count
                and not training
                and x.dtype == torch.float32
            ):
                return run_layers(
                    name, x, states, weights, biases, layers, bidirectional, batch_first
                )
        return func(*args, **(kwargs or {}))
