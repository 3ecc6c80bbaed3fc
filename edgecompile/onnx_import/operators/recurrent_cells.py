"""Cells of recurrent layers as ONNX defines them: gates, activations and a clip."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from edgecompile.onnx_import.graph import Node

Activation = Callable[[Tensor], Tensor]

#: The usual activations of each operator, for one direction.
USUAL = {"LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh"), "RNN": ("tanh",)}


class _Form(NamedTuple):
    """An activation: a function of a tensor, alpha and beta, and the defaults of those that it has.

    A default is None where ONNX Runtime has another than ONNX.
    """

    compute: Callable[[Tensor, float, float], Tensor]
    defaults: tuple[float | None, ...] = ()


#: By name in small letters, as ONNX Runtime compares them.
_ACTIVATIONS = {
    "affine": _Form(lambda x, a, b: a * x + b, (None, 0.0)),
    "elu": _Form(lambda x, a, b: functional.elu(x, a), (1.0,)),
    "hardsigmoid": _Form(lambda x, a, b: (a * x + b).clamp(0.0, 1.0), (0.2, 0.5)),
    "leakyrelu": _Form(lambda x, a, b: functional.leaky_relu(x, a), (0.01,)),
    "relu": _Form(lambda x, a, b: torch.relu(x)),
    "scaledtanh": _Form(lambda x, a, b: a * torch.tanh(b * x), (None, None)),
    "sigmoid": _Form(lambda x, a, b: torch.sigmoid(x)),
    "softplus": _Form(lambda x, a, b: functional.softplus(x)),
    "softsign": _Form(lambda x, a, b: functional.softsign(x)),
    "tanh": _Form(lambda x, a, b: torch.tanh(x)),
    "thresholdedrelu": _Form(lambda x, a, b: torch.where(x > a, x, 0.0), (None,)),
}


def names_activations(node: Node, sides: int) -> list[str]:
    """The activations of all directions, in small letters.

    Raises:
        ValueError: the node names one that ONNX doesn't have, or another number of them.
    """
    usual = list(USUAL[node.operator]) * sides
    named = [str(name).lower() for name in node.get("activations") or usual]
    for name in named:
        if name not in _ACTIVATIONS:
            raise ValueError(f"it has the activation {name}, which isn't supported")
    if len(named) != len(usual):
        raise ValueError(f"it has {len(named)} activations and needs {len(usual)}")
    return named


def activations(node: Node, sides: int) -> list[Activation]:
    """The activations of all directions as functions, behind the node's clip.

    An LSTM's last one has none: ONNX Runtime clips what goes into gates only.
    """
    alphas = list(node.get("activation_alpha") or ())
    betas = list(node.get("activation_beta") or ())
    clip = node.get("clip")
    result = []
    for place, name in enumerate(names_activations(node, sides)):
        form = _ACTIVATIONS[name]
        # An activation takes the next numbers of the lists, if it has such ones.
        numbers: list[float] = []
        for given, default in zip((alphas, betas), form.defaults, strict=False):
            number = given.pop(0) if given else default
            if number is None:
                raise ValueError(
                    f"it has the activation {name} without its alpha or beta, which isn't supported"
                )
            numbers.append(float(number))
        output = node.operator == "LSTM" and place % 3 == 2
        result.append(_bind(form, [*numbers, 0.0, 0.0], None if output else clip))
    return result


def _bind(form: _Form, numbers: Sequence[float], clip: float | None) -> Activation:
    def compute(x: Tensor) -> Tensor:
        x = x if clip is None else x.clamp(-clip, clip)
        return form.compute(x, numbers[0], numbers[1])

    return compute


class Weights(NamedTuple):
    """Weights of one direction.

    Attributes:
        r: weights of the state, ``[G*H, H]``.
        b: biases of the state, ``[G*H]``.
        p: peepholes of an LSTM, ``[3*H]``.
    """

    r: Tensor
    b: Tensor | None = None
    p: Tensor | None = None


def step(
    node: Node, used: Sequence[Activation], x: Tensor, h: Tensor, c: Any, weights: Weights
) -> tuple[Tensor, Any]:
    """The next state ``[B, H]``, and an LSTM's next cell.

    Args:
        node: the node, for its attributes.
        used: the activations of one direction.
        x: the input's share of the gates with its biases, ``[B, G*H]``.
        h, c: the state and an LSTM's cell.
        weights: the weights.
    """
    if node.operator == "GRU":
        return _gru(node, used, x, h, weights), None
    z = functional.linear(h, weights.r, weights.b)
    if node.operator == "RNN":
        return used[0](x + z), None
    return _lstm(node, used, x + z, c, weights.p)


def _gru(node: Node, used: Sequence[Activation], x: Tensor, h: Tensor, weights: Weights) -> Tensor:
    size = h.shape[1]
    gate, candidate = used
    r, b = weights.r, weights.b
    first = functional.linear(h, r[: 2 * size], None if b is None else b[: 2 * size])
    update, reset = gate(x[:, : 2 * size] + first).chunk(2, 1)
    last, bias = r[2 * size :], None if b is None else b[2 * size :]
    if node.get("linear_before_reset", 0):
        share = reset * functional.linear(h, last, bias)
    else:
        share = functional.linear(reset * h, last, bias)
    return (1.0 - update) * candidate(x[:, 2 * size :] + share) + update * h


def _lstm(
    node: Node, used: Sequence[Activation], gates: Tensor, c: Tensor, p: Tensor | None
) -> tuple[Tensor, Tensor]:
    gate, candidate, last = used
    i, o, f, g = gates.chunk(4, 1)
    p_i, p_o, p_f = (None, None, None) if p is None else p.chunk(3)
    i = gate(i if p_i is None else i + p_i * c)
    f = 1.0 - i if node.get("input_forget", 0) else gate(f if p_f is None else f + p_f * c)
    c = f * c + i * candidate(g)
    o = gate(o if p_o is None else o + p_o * c)
    return o * last(c), c
