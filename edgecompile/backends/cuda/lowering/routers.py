"""Finds the products whose results are compared to choose what is computed further on, such as a mixture's experts.

Two nearly equal results mustn't change their order by a rounding that could be spared: another expert is another
answer. These products are small, and cost little in float32.
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from edgecompile.backends.lowering.constants import constant_of

aten = torch.ops.aten

#: They choose.
_CHOICES = {
    aten.topk.default, aten.max.dim, aten.argmax.default, aten.sort.default, aten.sort.stable,
    aten.argsort.default, aten.argsort.stable,
}  # fmt: skip
#: What may stand between a product and a choice, by the names of operators.
_BETWEEN = {
    "to", "_to_copy", "type_as", "softmax", "_softmax", "log_softmax", "sigmoid", "softplus", "sqrt", "tanh", "add",
    "sub", "mul", "div", "abs", "clamp", "masked_fill", "where", "scatter", "view", "reshape", "flatten", "squeeze",
    "unsqueeze", "transpose", "permute", "expand", "contiguous", "slice", "select", "clone", "sum", "topk", "max",
}  # fmt: skip
_LINEAR = aten.linear.default
#: Outputs of a product up to which it is one of these: not a vocabulary's.
_MOST = 512


def find_routers(gm: GraphModule) -> set[Node]:
    """The linear layers of up to 512 outputs whose results are compared."""
    routers: set[Node] = set()
    seen: set[Node] = set()
    todo = [node.args[0] for node in gm.graph.nodes if node.target in _CHOICES]
    while todo:
        node = todo.pop()
        if not isinstance(node, Node) or node in seen:
            continue
        seen.add(node)
        schema = getattr(node.target, "_schema", None)
        name = str(schema.name).partition("::")[2] if schema is not None else ""
        if node.target is _LINEAR:
            weight = _constant_behind(gm, node.args[1])
            if weight is not None and weight.shape[0] <= _MOST:
                routers.add(node)
        elif name in _BETWEEN or getattr(node.target, "__name__", "") == "getitem":
            todo += node.all_input_nodes
    return routers


def _constant_behind(gm: GraphModule, node: object) -> torch.Tensor | None:
    """A constant, or one that the model itself converts."""
    while isinstance(node, Node) and node.target in (aten.to.dtype, aten._to_copy.default):
        node = node.args[0]
    return constant_of(gm, node)
