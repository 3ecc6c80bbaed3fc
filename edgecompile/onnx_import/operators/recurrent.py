"""Recurrent layers, as torch's own where they compute the same."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from edgecompile.onnx_import.graph import Node
from edgecompile.onnx_import.table import OWN, operator

#: The places in ONNX's order of each of torch's gates.
_ORDER = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}
_USUAL = {"LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh"), "RNN": ("tanh",)}


@operator("LSTM", "GRU", "RNN", since=7)
def _recurrent(
    node: Node,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    lengths: Any = None,
    h: Tensor | None = None,
    c: Tensor | None = None,
    peepholes: Any = None,
) -> tuple[Tensor, ...]:
    _check(node, lengths, peepholes)
    return _run(node, x, _weights(node, w, r, b), h, c)


@operator("LSTM", "GRU", "RNN", domain=OWN)
def _prepared(node: Node, x: Tensor, h: Tensor | None, c: Tensor | None, *weights: Tensor) -> Any:
    return _run(node, x, weights, h, c)


def as_prepared(node: Node, tensors: list[Any]) -> tuple[str, list[Any]] | None:
    """A layer with constant weights as one with torch's; see :func:`operators.linear.as_linear`."""
    b = tensors[3] if len(node.inputs) > 3 and node.inputs[3] else None
    if tensors[1] is None or tensors[2] is None or (b is None and any(node.inputs[3:4])):
        return None
    inputs = [*node.inputs, *[""] * (8 - len(node.inputs))]
    _check(node, inputs[4] or None, inputs[7] or None)
    return node.operator, [
        0,
        5 if inputs[5] else None,
        6 if inputs[6] else None,
        *_weights(node, tensors[1], tensors[2], b),
    ]


def _check(node: Node, lengths: Any, peepholes: Any) -> None:
    """Refuses what torch's layers don't compute."""
    kind, both = node.operator, node.get("direction", "forward") == "bidirectional"
    named = [str(name).lower() for name in node.get("activations") or ()]
    usual = list(_USUAL[kind]) * (2 if both else 1)
    relu = kind == "RNN" and named and set(named) == {"relu"}
    for wrong, what in (
        (lengths is not None, "lengths of sequences"),
        (peepholes is not None, "peepholes"),
        (bool(named) and named != usual and not relu, f"the activations {', '.join(named)}"),
        (node.get("clip") is not None, "a clip"),
        (node.get("input_forget", 0), "input_forget"),
        (kind == "GRU" and not node.get("linear_before_reset", 0), "linear_before_reset=0"),
    ):
        if wrong:
            raise ValueError(f"it has {what}, which isn't supported")


def _weights(node: Node, w: Tensor, r: Tensor, b: Tensor | None) -> list[Tensor]:
    order = _ORDER[node.operator]

    def sort(rows: Tensor) -> Tensor:
        parts = rows.chunk(len(order))
        return torch.cat([parts[place] for place in order]).contiguous()

    weights = []
    for side in range(w.shape[0]):
        weights += [sort(w[side]), sort(r[side])]
        if b is not None:
            weights += [sort(half) for half in b[side].chunk(2)]
    return weights


def _run(
    node: Node, x: Tensor, weights: Any, h: Tensor | None, c: Tensor | None
) -> tuple[Tensor, ...]:
    direction = node.get("direction", "forward")
    both, reverse = direction == "bidirectional", direction == "reverse"
    sides = 2 if both else 1
    if node.get("layout", 0):
        x = x.transpose(0, 1)
        h = None if h is None else h.transpose(0, 1)
        c = None if c is None else c.transpose(0, 1)
    biased = len(weights) == 4 * sides
    start = h if h is not None else x.new_zeros(sides, x.shape[1], weights[1].shape[1])
    x = x.flip(0) if reverse else x
    options = (list(weights), biased, 1, 0.0, False, both, False)
    if node.operator == "LSTM":
        y, last, cell = torch.lstm(
            x, (start, c if c is not None else torch.zeros_like(start)), *options
        )
        results = [last, cell]
    else:
        named = [str(name).lower() for name in node.get("activations") or ()]
        plain = torch.rnn_relu if "relu" in named else torch.rnn_tanh
        run = torch.gru if node.operator == "GRU" else plain
        y, last = run(x, start, *options)
        results = [last]
    y = y.flip(0) if reverse else y
    # ONNX has a dimension of its own for the directions.
    y = y.unflatten(2, (sides, -1)).transpose(1, 2)
    if node.get("layout", 0):
        return (y.permute(2, 0, 1, 3), *(part.transpose(0, 1) for part in results))
    return (y, *results)
