"""Graph lowering of what surrounds linears: residual sums go into the product, norms behind it.

Runs after the linears are the runtime's operators. What a product adds while its sums are still in
registers saves reading and writing the activations once; a norm that follows directly leaves
Inductor nothing to fuse, and the runtime's own reads each row once instead of three times.
"""

from __future__ import annotations

import torch
from torch.fx import Node

from edgecompile.backends.lowering.constants import constant_of, value_of
from edgecompile.backends.lowering.in_place import ChangesInPlace
from edgecompile.backends.lowering.rewriting import Lowering, arguments_of, is_float32, replace
from edgecompile.backends.operators import ops

aten = torch.ops.aten

_RESIDUAL = 3  # where ec_linear takes it


def fuse_residuals(low: Lowering) -> None:
    """Moves ``linear(x) + y`` into the linear where shapes agree."""
    gm, changes = low.gm, ChangesInPlace(low.gm)

    def fuse(node: Node) -> bool:
        operands = _linear_and_other(node) if node.kwargs.get("alpha", 1) == 1 else None
        # The product moves to the sum's place, so its inputs must still be what they were.
        if operands is None or changes.between(operands[0], node):
            return False
        linear, other = operands
        args = (*linear.args[:_RESIDUAL], other, *linear.args[_RESIDUAL + 1 :])
        changes.replace(node, replace(gm, node, ops.LINEAR, args))
        gm.graph.erase_node(linear)
        return True

    low.each("residuals", {aten.add.Tensor}, fuse)


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
            and all(map(is_float32, values))
            and len({str(tuple(value.shape)) for value in values if value is not None}) == 1
        ):
            return linear, other
    return None


def lower_layer_norms(low: Lowering) -> None:
    """Rewrites norms over the last dimension of a linear's output."""

    def lower(node: Node) -> bool:
        bound = arguments_of(node)
        x, vectors = bound["input"], [bound["weight"], bound["bias"]]
        fit = all(v is None or is_float32(constant_of(low.gm, v)) for v in vectors)
        if x.target is not ops.LINEAR or len(bound["normalized_shape"]) != 1 or not fit:
            return False
        replace(low.gm, node, ops.LAYER_NORM, (x, *vectors, float(bound["eps"])))
        return True

    low.each("norms", {aten.layer_norm.default}, lower)
