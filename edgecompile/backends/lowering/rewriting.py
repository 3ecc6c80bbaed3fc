"""Steps that all graph rewrites share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.fx import GraphModule, Node

#: Registers a weight with its name, packed, and returns the name of the attribute.
Pack = Callable[[Tensor, str], str]


def arguments_of(node: Node) -> dict[str, Any]:
    """The arguments of an operator's call by the names in its schema, with the defaults of those
    that the call leaves out."""
    target: Any = node.target
    arguments = target._schema.arguments
    names = [argument.name for argument in arguments]
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    return {item.name: given.get(item.name, item.default_value) for item in arguments}


def replace(
    gm: GraphModule, first: Node, target: Any, args: Sequence[Any], last: Node | None = None
) -> Node:
    """Puts a call in place of a node, or of the chain of nodes from ``first`` to ``last``."""
    with gm.graph.inserting_before(first):
        new = gm.graph.call_function(target, tuple(args))
    last = last or first
    new.meta = dict(last.meta)
    last.replace_all_uses_with(new)
    erase_chain(gm, first, last)
    return new


def erase_chain(gm: GraphModule, first: Node, last: Node) -> None:
    """Removes a chain of nodes, each the only reader of the one before it."""
    while last is not first:
        before = last.args[0]
        assert isinstance(before, Node)
        gm.graph.erase_node(last)
        last = before
    gm.graph.erase_node(first)
