"""Finds changes in place in a graph, and tells whether a node may move past them."""

from __future__ import annotations

import operator
from collections.abc import Iterable

import torch
from torch.fx import GraphModule, Node


def changes_in_place(gm: GraphModule) -> list[Node]:
    """The nodes that may change a tensor that another node made; what isn't known may."""
    return [node for node in gm.graph.nodes if _may_change(node)]


def _may_change(node: Node) -> bool:
    if node.op == "call_module":
        # Checks of inputs, which export puts in front of a graph, return nothing.
        return bool(node.users)
    if node.op == "call_function":
        schema = getattr(node.target, "_schema", None)
        module = getattr(node.target, "__module__", "")
        return module != "_operator" if schema is None else bool(schema.is_mutable)
    return node.op == "call_method"


def memory_of(node: Node) -> Node:
    """The node that made the memory that a node's result may be in."""
    while node.op == "call_function" and node.args and isinstance(node.args[0], Node):
        schema = getattr(node.target, "_schema", None)
        if schema is None:
            shares = node.target is operator.getitem
        else:
            # ``type_as`` returns its operand where nothing is to be converted, and doesn't say so.
            shares = schema.arguments[0].alias_info is not None
            shares = shares or node.target is torch.ops.aten.type_as.default
        if not shares:
            break
        node = node.args[0]
    return node


def changed_memory(changes: Iterable[Node]) -> set[Node]:
    """The nodes that made the memory that ``changes`` change in place."""
    return {memory_of(x) for node in changes for x in _written(node)}


def _written(node: Node) -> list[Node]:
    """The operands that a node may change in place."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return node.all_input_nodes
    names = {x.name for x in schema.arguments if x.alias_info and x.alias_info.is_write}
    pairs = zip((x.name for x in schema.arguments), node.args, strict=False)
    named = {**dict(pairs), **node.kwargs}
    return [x for name, x in named.items() if name in names and isinstance(x, Node)]


def is_changed(node: Node) -> bool:
    """Whether the memory that a node's result is in is changed in place at any time."""
    maker = memory_of(node)
    sharing = [maker]
    for one in sharing:
        for user in one.users:
            if _may_change(user) and one in _written(user):
                return True
            if user not in sharing and memory_of(user) is maker:
                sharing.append(user)
    return False


class ChangesInPlace:
    """The places of changes in a graph, as it was when this was made."""

    def __init__(self, gm: GraphModule) -> None:
        self._order = {node: i for i, node in enumerate(gm.graph.nodes)}
        self._changes = [self._order[node] for node in changes_in_place(gm)]

    def before(self, node: Node) -> int:
        """The number of changes before a node, itself included."""
        return sum(i <= self._order[node] for i in self._changes)

    def between(self, first: Node, second: Node) -> bool:
        """Whether anything is changed between two nodes, the first of which comes earlier."""
        start, end = self._order[first], self._order[second]
        return any(start < i < end for i in self._changes)

    def replace(self, old: Node, new: Node) -> None:
        """Notes that ``new`` stands at the place of ``old``."""
        self._order[new] = self._order[old]
