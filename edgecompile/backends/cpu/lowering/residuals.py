"""Graph lowering of what surrounds products: residual sums go into the product, norms behind it.

Runs after linears and convolutions are the runtime's operators. What a product adds while its sums are still in
registers saves reading and writing the activations once; a norm that follows directly leaves
Inductor nothing to fuse, and the runtime's own reads each row once instead of three times.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from edgecompile.backends.cpu.lowering.activations import activation_of
from edgecompile.backends.lowering.constants import constant_of, value_of
from edgecompile.backends.lowering.convolutions import permutation, permuted, replace_permuted
from edgecompile.backends.lowering.in_place import ChangesInPlace
from edgecompile.backends.lowering.rewriting import Lowering, arguments_of, is_float32, replace
from edgecompile.backends.operators import ops
from edgecompile.backends.operators.convolution import CONVOLUTION

aten = torch.ops.aten

#: Where an operator takes its residual, and the code of its activation.
_RESIDUAL = 3
_ACTIVATION = {
    operator: [argument.name for argument in operator._schema.arguments].index("act")
    for operator in (ops.LINEAR, CONVOLUTION)
}


def fuse_residuals(low: Lowering) -> None:
    """Moves ``product(x) + y`` into the product where shapes agree, and an activation behind it.

    Products are linears and convolutions. Between a linear and the sum may be the ``permute`` of a
    pointwise convolution.
    """
    gm, changes = low.gm, ChangesInPlace(low.gm)

    def fuse(node: Node) -> bool:
        addends = _product_and_other(node) if node.kwargs.get("alpha", 1) == 1 else None
        # The product moves to the sum's place, so its inputs must still be what they were.
        if addends is None or changes.between(addends[0], node):
            return False
        product, other = addends
        args = list(product.args)
        last, at = node, _ACTIVATION[product.target]
        behind = activation_of(node)
        if behind is not None and args[at] == ops.ACTIVATIONS["none"]:
            last, code = behind
            args[at] = code + ops.ACT_LAST
            low.report.counts["activations"] += 1
        view = next(iter(product.users))
        order = None if view is node else permutation(view)
        if order is None:
            args[_RESIDUAL] = other
            new = replace(gm, node, product.target, args, last)
        else:
            new = _fuse_permuted(gm, node, last, (view, other), order, product.target, args)
        changes.replace(node, new)
        gm.graph.erase_node(product)
        return True

    low.each("residuals", {aten.add.Tensor, aten.add_.Tensor}, fuse)


def _fuse_permuted(
    gm: GraphModule,
    add: Node,
    last: Node,
    nodes: tuple[Node, Node],
    order: list[int],
    target: Any,
    args: list[Any],
) -> Node:
    """Puts a product and its ``permute`` in place of the nodes from the sum to ``last``.

    Args:
        gm: the module.
        add: the sum.
        last: the sum, or the activation behind it.
        nodes: the ``permute`` of the old product, which is erased, and the other addend.
        order: the dimensions of the ``permute``.
        target: the operator.
        args: the arguments of the new product; its residual isn't set.
    """
    view, other = nodes
    inverse = [order.index(dim) for dim in range(len(order))]
    with gm.graph.inserting_before(add):
        args[_RESIDUAL] = permuted(gm, other, inverse)
        new = gm.graph.call_function(target, tuple(args))
        new.meta = dict(view.args[0].meta)  # type: ignore[union-attr]
    replace_permuted(gm, last, inverse, new)
    back = replace(gm, add, aten.permute.default, (new, order), last)
    if not back.users:
        gm.graph.erase_node(back)
    gm.graph.erase_node(view)
    return new


def _product_and_other(add: Node) -> tuple[Node, Node] | None:
    """The operands of a sum, if one is a product that only the sum reads, and the other fits it."""
    first, second = add.args[:2]
    if not isinstance(first, Node) or not isinstance(second, Node) or first is second:
        return None
    total = value_of(add)
    pairs = [(first, second), (second, first)]
    if add.target is aten.add_.Tensor:
        pairs = pairs[:1]  # what a sum in place changes has to be the product
    for operand, other in pairs:
        product = operand
        if permutation(operand) is not None and isinstance(operand.args[0], Node):
            product = operand.args[0]
        values = total, value_of(operand), value_of(other)
        if (
            product.target in _ACTIVATION
            and product.args[_RESIDUAL] is None
            and len(product.users) == len(operand.users) == 1
            and all(map(is_float32, values))
            and len({str(tuple(value.shape)) for value in values if value is not None}) == 1
        ):
            return product, other
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
