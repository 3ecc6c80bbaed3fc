"""Graph lowering of recurrent layers to the runtime's operator, with packed weights.

Also divides torch's own ``lstm``, ``gru`` and ``rnn`` of programs with a fixed length into layers:
else each would become one call of a library that a bundle doesn't have.
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from edgecompile.backends import ops
from edgecompile.backends.lowering.constants import constant_of, value_of
from edgecompile.backends.lowering.inlining import inline
from edgecompile.backends.lowering.rewriting import Pack, arguments_of, replace
from edgecompile.export.operators.recurrence import PLAIN, Stack

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
        kind = _WHOLE.get(node.target)
        if kind is None:
            continue
        x, states, weights, biases, layers, _, training, *rest = arguments_of(node).values()
        stack = Stack(kind, biases, layers, *rest)
        value = value_of(x)
        float32 = value is not None and value.dtype == torch.float32
        if len(weights) != stack.weights or training or not float32:
            continue
        states = [states] if isinstance(states, Node) else states
        results = inline(gm, node, stack.run, [x, *states, *weights])
        for user in list(node.users):
            user.replace_all_uses_with(results[user.args[1]])
            gm.graph.erase_node(user)
        gm.graph.erase_node(node)
        count += 1
    return count


def lower_recurrences(gm: GraphModule, pack: Pack, kept: dict[str, str]) -> int:
    """Gives each recurrent layer its packed weight; returns how many there are.

    Args:
        gm: rewritten in place.
        pack: packs a weight.
        kept: gets the reason, by node name, for each layer that can't be lowered.
    """
    count = 0
    for node in list(gm.graph.nodes):
        if node.target is not PLAIN:
            continue
        gates, w, *rest = node.args
        weight = constant_of(gm, w)
        if weight is None or weight.dtype != torch.float32:
            kept[node.name] = "the weight isn't a constant float32 matrix"
            continue
        attr = pack(weight, str(w.target))
        with gm.graph.inserting_before(node):
            packed = gm.graph.get_attr(attr)
        replace(gm, node, ops.RECURRENCE, (gates, packed, *rest))
        count += 1
    return count
