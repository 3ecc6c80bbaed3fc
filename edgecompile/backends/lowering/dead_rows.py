"""Leaves out rows of a run that nothing reads.

A run of a prompt gives the logits behind one token. Behind the last layer that writes a cache or a state, only the
row of that token matters. So its selection moves up through everything that works by rows, as far as other rows
aren't needed, and what it passed computes one row. In models whose upper layers read the caches of others (Gemma 3n,
Gemma 4) that is most of the work of a prompt.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node, map_arg

from edgecompile.backends.lowering.in_place import changed_memory, changes_in_place, memory_of
from edgecompile.backends.lowering.inlining import fake_value
from edgecompile.backends.lowering.row_rules import Rows, find_rows, is_one
from edgecompile.export.operators.cached_attention import CACHED_ATTENTION

aten = torch.ops.aten
_ASSERTION = aten._assert_tensor_metadata.default


def drop_dead_rows(gm: GraphModule) -> int:
    """Rewrites ``gm`` in place.

    Returns:
        The number of nodes that compute one row instead of all.
    """
    roots = [found for node in gm.graph.nodes if (found := _selection(node)) is not None]
    # Rows that several nodes select differently are needed in full where their ways meet.
    dropped = 0
    for index in dict.fromkeys(index for _, _, index in roots):
        dropped += _DeadRows(gm, [(n, d) for n, d, i in roots if i is index], index).drop()
    return dropped


def _selection(node: Node) -> tuple[Node, int, Node] | None:
    """A node that selects one row by a number that only a run knows: itself, the dimension, the number."""
    args: Any = node.args
    if node.target is aten.index_select.default:
        x, dim, index = args
    elif node.target is aten.index.Tensor:
        x, given = args
        places = [place for place, item in enumerate(given) if item is not None]
        if len(places) != 1:
            return None
        dim, index = places[0], given[places[0]]
    else:
        return None
    value, number = x.meta.get("val"), index.meta.get("val")
    if not isinstance(value, Tensor) or not isinstance(number, Tensor):
        return None
    if number.dtype != torch.int64 or len(number.shape) != 1 or not is_one(number.shape[0]):
        return None
    dim %= value.dim()
    return None if is_one(value.shape[dim]) else (node, dim, index)


def _changes_its_own(node: Node) -> bool:
    """Whether a pointwise operator changes an operand that nothing else reads, and that has memory of its own."""
    x = node.args[0] if node.args else None
    if not isinstance(x, Node) or torch.Tag.pointwise not in getattr(node.target, "tags", ()):
        return False
    readers = [user for user in x.users if user.target is not _ASSERTION]
    return readers == [node] and memory_of(x) is x and x.op == "call_function"


class _DeadRows:
    """The rewriting of what the selections of one row lead to."""

    def __init__(self, gm: GraphModule, roots: Sequence[tuple[Node, int]], index: Node) -> None:
        self._gm, self._roots, self._index = gm, dict(roots), index
        self._order = {node: place for place, node in enumerate(gm.graph.nodes)}
        changes = changes_in_place(gm)
        self._alone = {node for node in changes if _changes_its_own(node)}
        self._changed = changed_memory(node for node in changes if node not in self._alone)
        self._made: dict[Node, Node] = {}

    def drop(self) -> int:
        """Rewrites what can be; returns the number of nodes."""
        rows = self._find()
        for node, found in rows.items():
            self._made[node] = self._write(node, found)
        for root in self._roots:
            x: Any = root.args[0]
            if x in self._made:
                root.replace_all_uses_with(self._made[x])
                self._gm.graph.erase_node(root)
        for node in reversed(rows):
            for user in list(node.users):
                self._gm.graph.erase_node(user)  # an assertion
            self._gm.graph.erase_node(node)
        return len(rows)

    def _find(self) -> dict[Node, Rows]:
        """The nodes of which one row is needed, in the order of the graph."""
        whole: set[Node] = set()
        while True:
            rows = self._find_beside(whole)
            apart = {node for node in rows if self._needs_whole(node, rows)}
            if not apart:
                return dict(reversed(rows.items()))
            whole |= apart

    def _find_beside(self, whole: set[Node]) -> dict[Node, Rows]:
        """The nodes of which one row is needed, the last first, where all rows of ``whole`` are."""
        needed, wanted = {*whole, self._index}, defaultdict[Node, set[int]](set)
        rows: dict[Node, Rows] = {}
        for node in reversed(self._gm.graph.nodes):
            if node.target is _ASSERTION:
                continue
            found = None
            if node in self._roots:
                wanted[node.args[0]].add(self._roots[node])
                continue
            if node not in needed and len(wanted[node]) == 1:
                found = self._rows_of(node, *wanted[node])
            if found is None:
                needed.update(node.all_input_nodes)
                continue
            rows[node] = found
            for item, dim in found.inputs.items():
                wanted[item].add(dim)
            needed.update(set(node.all_input_nodes) - set(found.inputs))
        return rows

    def _needs_whole(self, node: Node, rows: Mapping[Node, Rows]) -> bool:
        """Whether a node can't compute one row, since others compute all."""
        x: Any = node.args[0]
        if node in self._alone or node.target is operator.getitem:
            # A change in place becomes a value of its own, which its operand must be, too; a tuple has no row.
            return x not in rows
        # Linears of one input become one, with one matrix for programs of any length.
        return node.target is aten.linear.default and any(
            user.target is aten.linear.default and user not in rows for user in x.users
        )

    def _rows_of(self, node: Node, dim: int) -> Rows | None:
        """How a node works by rows; None: it doesn't, or it is a part of memory that something changes."""
        early = self._order[self._index] > self._order[node]
        return None if early or memory_of(node) in self._changed else find_rows(node, dim)

    def _write(self, node: Node, rows: Rows) -> Node:
        """The node's computation for one row, put in front of it."""

        def of(item: Node) -> Node:
            if item not in rows.inputs or item in self._made:
                return self._made.get(item, item)
            return self._call(node, aten.index_select.default, item, rows.inputs[item], self._index)

        with self._gm.graph.inserting_before(node):
            args, kwargs = map_arg((rows.args, dict(node.kwargs)), of)
            if node.target is CACHED_ATTENTION:
                # It counts tokens from the first of the run.
                args = (
                    *args[:3],
                    self._call(node, aten.add.Tensor, args[3], self._index),
                    *args[4:],
                )
            return self._call(node, rows.target, *args, **kwargs)

    def _call(self, near: Node, target: Any, *args: Any, **kwargs: Any) -> Node:
        new = self._gm.graph.call_function(target, args, kwargs)
        given = map_arg((args, kwargs), lambda item: self._value(item, near))
        new.meta = {**near.meta, "val": target(*given[0], **given[1])}
        return new

    def _value(self, node: Node, near: Node) -> Any:
        """The value that export recorded; parameters have none."""
        return node.meta["val"] if "val" in node.meta else fake_value(self._gm, node, near)
