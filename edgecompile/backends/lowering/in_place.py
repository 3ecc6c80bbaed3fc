"""Finds changes in place in a graph, and tells whether a node may move past them."""

from __future__ import annotations

import operator
from collections.abc import Iterable

import torch
from torch.fx import GraphModule, Node

aten = torch.ops.aten
#: The operators that may return their first operand or a view of it, and whose schemas don't say so.
_UNSAID = {
    *(aten.type_as, aten.dropout, aten.feature_dropout, aten.alpha_dropout),
    *(aten._unsafe_view, aten.unsafe_chunk, aten.unsafe_split, aten.unsafe_split_with_sizes),
    *(aten.atleast_1d, aten.atleast_2d, aten.atleast_3d),
}


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
    while (source := _shared(node)) is not None:
        node = source
    return node


def _shared(node: Node) -> Node | None:
    """The operand whose memory a node's result may be in."""
    if node.op != "call_function":
        return None
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        shares, name = node.target is operator.getitem, ""
    else:
        first = schema.arguments[0] if schema.arguments else None
        packet = getattr(node.target, "overloadpacket", None)
        shares = first is not None and (first.alias_info is not None or packet in _UNSAID)
        name = first.name if first is not None else ""
    source = node.args[0] if node.args else node.kwargs.get(name)
    return source if shares and isinstance(source, Node) else None


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
    written: list[Node] = []
    torch.fx.map_arg([x for name, x in named.items() if name in names], written.append)
    return written


def is_changed(node: Node) -> bool:
    """Whether the memory that a node's result is in is changed in place at any time."""
    sharing = _readers(memory_of(node))
    seen = set(sharing)
    for one in sharing:
        for user in one.users:
            if _may_change(user) and one in _written(user):
                return True
            if user not in seen and _shared(user) is one:
                seen.add(user)
                sharing.append(user)
    return False


def _readers(maker: Node) -> list[Node]:
    """The nodes that read the constant that ``maker`` reads, or one in its memory; itself where it reads none."""
    module = maker.graph.owning_module
    if maker.op != "get_attr" or module is None:
        return [maker]

    def place(node: Node) -> object:
        value = operator.attrgetter(str(node.target))(module)
        return value.untyped_storage().data_ptr() if isinstance(value, torch.Tensor) else node

    mine = place(maker)
    return [node for node in maker.graph.find_nodes(op="get_attr") if place(node) == mine]


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
