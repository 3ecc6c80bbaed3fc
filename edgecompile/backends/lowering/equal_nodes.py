"""Nodes of a graph that compute the same from the same are made one.

Models repeat themselves: every layer slices the attention mask again, for example. What is equal before the
lowering is then shared by all that it reaches, where Inductor would see a different buffer in each
operator of the runtime's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from edgecompile.backends.lowering.in_place import changes_in_place
from edgecompile.backends.lowering.rewriting import Lowering


def merge_equal_nodes(low: Lowering) -> None:
    """Replaces each node by an earlier equal one, if there is one.

    A graph in which anything is changed in place, or that calls what isn't an operator with a
    schema, is left alone there: two equal expressions need not be equal values then.
    """
    if changes_in_place(low.gm):
        return
    first: dict[Any, Node] = {}
    for node in list(low.gm.graph.nodes):
        key = _key(node)
        earlier = node if key is None else first.setdefault(key, node)
        if earlier is not node:
            node.replace_all_uses_with(earlier)
            low.gm.graph.erase_node(node)
            low.report.counts["equal"] += 1


def _key(node: Node) -> Any:
    """A hashable key of the node's computation; None if it may not be merged."""
    if node.op == "get_attr":
        return (node.op, node.target)
    if node.op != "call_function":
        return None
    schema = getattr(node.target, "_schema", None)  # none: arithmetic on sizes, getitem
    if schema is not None:
        random = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
        if random or not schema.returns:
            return None
    # Nodes print as their names, and equal numbers of other types differently.
    return node.op, node.target, repr(node.args), repr(sorted(node.kwargs.items()))
