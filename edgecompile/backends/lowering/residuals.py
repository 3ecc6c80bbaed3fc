"""Graph lowering of what surrounds linears: residual sums go into the product, norms behind it.

Runs after the linears are the runtime's operators. What a product adds while its sums are still in
registers saves reading and writing the activations once; a norm that follows directly leaves
Inductor nothing to fuse, and the runtime's own reads each row once instead of three times.
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from edgecompile.backends import ops
from edgecompile.backends.lowering.constants import constant_of, value_of
from edgecompile.backends.lowering.in_place import ChangesInPlace
from edgecompile.backends.lowering.rewriting import arguments_of, replace

aten = torch.ops.aten

_RESIDUAL = 3  # where ec_linear takes it


def fuse_residuals(gm: GraphModule) -> int:
    """Moves ``linear(x) + y`` into the linear where shapes agree; returns how often."""
    count = 0
    changes = ChangesInPlace(gm)
    for node in list(gm.graph.nodes):
        if node.target is not aten.add.Tensor or node.kwargs.get("alpha", 1) != 1:
            continue
        operands = _linear_and_other(node)
        if operands is None:
            continue
        linear, other = operands
        # The product moves to the sum's place, so its inputs must still be what they were.
        if changes.between(linear, node):
            continue
        args = (*linear.args[:_RESIDUAL], other, *linear.args[_RESIDUAL + 1 :])
        changes.replace(node, replace(gm, node, ops.LINEAR, args))
        gm.graph.erase_node(linear)
        count += 1
    return count


def _linear_and_other(add: Node) -> tuple[Node, Node] | None:
    """The operands of a sum, if one is a linear that only the sum reads, and the other fits it."""
    first, second = add.args[:2]
    if not isinstance(first, Node) or not isinstance(second, Node) or first is second:
        return None
    total = value_of(add)
    for linear, other in ((first, second), (second, first)):
        if linear.target is not ops.LINEAR or linear.args[_RESIDUAL] is not None:
            continue
        values = total, value_of(linear), value_of(other)
        if (
            len(linear.users) == 1
            and all(value is not None and value.dtype == torch.float32 for value in values)
            and len({str(tuple(value.shape)) for value in values if value is not None}) == 1
        ):
            return linear, other
    return None


def lower_layer_norms(gm: GraphModule) -> int:
    """Rewrites norms over the last dimension of a linear's output; returns how many."""
    count = 0
    for node in list(gm.graph.nodes):
        if node.target is not aten.layer_norm.default:
            continue
        bound = arguments_of(node)
        x = bound["input"]
        if x.target is not ops.LINEAR or len(bound["normalized_shape"]) != 1:
            continue
        vectors = [bound["weight"], bound["bias"]]
        constants = [constant_of(gm, vector) for vector in vectors]
        if any(
            vector is not None and (constant is None or constant.dtype != torch.float32)
            for vector, constant in zip(vectors, constants, strict=True)
        ):
            continue
        replace(gm, node, ops.LAYER_NORM, (x, *vectors, float(bound["eps"])))
        count += 1
    return count
