"""Graph lowering of recurrent layers to the runtime's operator, with packed weights.

Also divides torch's own ``lstm``, ``gru`` and ``rnn`` of programs with a fixed length into layers:
else each would become one call of a library that a bundle doesn't have.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from edgecompile.backends.lowering.constants import constant_of, value_of
from edgecompile.backends.lowering.inlining import inline
from edgecompile.backends.lowering.rewriting import (
    Lowering,
    Pack,
    arguments_of,
    is_float32,
    replace,
    replace_results,
)
from edgecompile.backends.operators import ops
from edgecompile.export.operators.recurrence import PLAIN, Stack

aten = torch.ops.aten

#: torch's operators by name of the kind.
_WHOLE: dict[Any, str] = {
    aten.lstm.input: "lstm",
    aten.gru.input: "gru",
    aten.rnn_tanh.input: "rnn_tanh",
    aten.rnn_relu.input: "rnn_relu",
}


def split_recurrences(low: Lowering) -> None:
    """Replaces torch's recurrent operators by layers of ours."""

    def split(node: Node) -> bool:
        x, states, weights, biases, layers, _, training, *rest = arguments_of(node).values()
        stack = Stack(_WHOLE[node.target], biases, layers, *rest)
        if len(weights) != stack.weights or training or not is_float32(value_of(x)):
            return False
        states = [states] if isinstance(states, Node) else states
        replace_results(low.gm, node, inline(low.gm, node, stack.run, [x, *states, *weights]))
        return True

    low.each("split", _WHOLE, split)


def lower_recurrences(low: Lowering, pack: Pack) -> None:
    """Gives each recurrent layer its weight as ``pack`` packs it."""

    def lower(node: Node) -> bool | str:
        gates, w, *rest = node.args
        weight = constant_of(low.gm, w)
        if not is_float32(weight):
            return "the weight isn't a constant float32 matrix"
        attr = pack(weight, str(w.target))  # type: ignore[union-attr]
        with low.gm.graph.inserting_before(node):
            packed = low.gm.graph.get_attr(attr)
        replace(low.gm, node, ops.RECURRENCE, (gates, packed, *rest))
        return True

    low.each("recurrences", {PLAIN}, lower)
