"""Graph lowering of recurrent layers to the runtime's operator, with packed weights.

Also takes torch's own ``lstm``, ``gru`` and ``rnn`` of programs with a fixed length apart, which
would otherwise become one call of a library that a bundle doesn't have.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from edgecompile.backends import ops
from edgecompile.backends.lowering.constants import constant_of, value_of
from edgecompile.backends.lowering.inlining import inline
from edgecompile.export.operators import recurrence

aten = torch.ops.aten

#: torch's operators by name of the kind.
_WHOLE = {
    aten.lstm.input: "lstm",
    aten.gru.input: "gru",
    aten.rnn_tanh.input: "rnn_tanh",
    aten.rnn_relu.input: "rnn_relu",
}


def split_recurrences(gm: GraphModule) -> int:
    """Replaces torch's recurrent operators by layers of ours; returns how many there were."""
    count = 0
    for node in list(gm.graph.nodes):
        name = _WHOLE.get(node.target)
        if name is None:
            continue
        names = ("x", "states", "weights", "biases", "layers", "dropout", "training",
                 "bidirectional", "batch_first")  # fmt: skip
        bound: dict[str, Any] = dict(zip(names, node.args, strict=False))
        states = bound["states"]
        states = [states] if isinstance(states, Node) else list(states)
        weights = list(bound["weights"])
        directions = 2 if bound["bidirectional"] else 1
        each = 4 if bound["biases"] else 2
        value = value_of(bound["x"])
        if (
            len(weights) != bound["layers"] * directions * each
            or bound["training"]
            or value is None
            or value.dtype != torch.float32
        ):
            continue
        layers = partial(
            _run_layers,
            name,
            len(states),
            bound["biases"],
            bound["layers"],
            bound["bidirectional"],
            bound["batch_first"],
        )
        results = inline(gm, node, layers, [bound["x"], *states, *weights])
        for user in list(node.users):
            user.replace_all_uses_with(results[user.args[1]])
            gm.graph.erase_node(user)
        gm.graph.erase_node(node)
        count += 1
    return count


def _run_layers(
    name: str,
    states: int,
    biases: bool,
    layers: int,
    bidirectional: bool,
    batch_first: bool,
    x: Tensor,
    *tensors: Tensor,
) -> tuple[Tensor, ...]:
    return recurrence.run_layers(
        name, x, tensors[:states], tensors[states:], biases, layers, bidirectional, batch_first
    )


def lower_recurrences(
    gm: GraphModule, pack: Callable[[str, Tensor], str], kept: dict[str, str]
) -> int:
    """Gives each recurrent layer its packed weight; returns how many there are.

    Args:
        gm: rewritten in place.
        pack: registers a weight by its name, packed, and returns the attribute's name.
        kept: gets the reason, by node name, for each layer that can't be lowered.
    """
    count = 0
    for node in list(gm.graph.nodes):
        if node.target is not recurrence.PLAIN:
            continue
        gates, w, bias, h0, c0, kind, reverse = node.args
        weight = constant_of(gm, w)
        if weight is None or weight.dtype != torch.float32:
            kept[node.name] = "the weight isn't a constant float32 matrix"
            continue
        attr = pack(str(w.target), weight)
        with gm.graph.inserting_before(node):
            packed = gm.graph.get_attr(attr)
            args = (gates, packed, bias, h0, c0, kind, reverse)
            new = gm.graph.call_function(ops.RECURRENCE, args)
        new.meta = dict(node.meta)
        node.replace_all_uses_with(new)
        gm.graph.erase_node(node)
        count += 1
    return count
