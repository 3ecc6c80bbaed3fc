"""Tables of tokens that are a language model's output head as well, stored once.

A linear layer's weight is packed. Where a table of embeddings is that very matrix, its rows are read from
the packed one, rounded as products take it, so that the table itself needn't be stored.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from edgecompile.backends.lowering.constants import constant_of, value_of
from edgecompile.backends.lowering.in_place import changed_memory, changes_in_place
from edgecompile.backends.lowering.rewriting import Lowering, arguments_of, replace
from edgecompile.backends.operators import ops

_EMBEDDING = torch.ops.aten.embedding.default


def share_tables(low: Lowering) -> None:
    """Lets embeddings read the packed weight that holds their table, behind the rewriting of linears.

    Only in programs of language models: what rounds the tables of others isn't judged by texts. A table that
    something else reads stays as it is.
    """
    gm = low.gm
    if not is_decoder(gm):
        return
    lookups: dict[str, list[Node]] = {}
    for node in gm.graph.nodes:
        if node.target is _EMBEDDING and constant_of(gm, node.args[0]) is not None:
            lookups.setdefault(str(node.args[0].target), []).append(node)
    for name, nodes in lookups.items():
        readers = {
            user
            for node in gm.graph.nodes
            if node.op == "get_attr" and node.target == name
            for user in node.users
        }
        table = constant_of(gm, nodes[0].args[0])
        attr = None if table is None or readers != set(nodes) else _find_packed(low, table)
        if attr is None or table is None:
            continue
        n, k = (int(size) for size in table.shape)
        for node in nodes:
            with gm.graph.inserting_before(node):
                packed = gm.graph.get_attr(attr)
            replace(gm, node, ops.PACKED_ROWS, (packed, arguments_of(node)["indices"], n, k))
        low.report.tables.setdefault(attr, []).append(name)
        low.report.counts["tables"] += 1


def is_decoder(gm: GraphModule) -> bool:
    """Whether all inputs of floats are changed in place, or caches lie at addresses: it's a language model then.

    A decoder behind a source has other inputs of floats.
    """
    at_addresses = (ops.TEXTS_ATTENTION, ops.TEXTS_SCAN, ops.TEXTS_WINDOW)
    if any(node.target in at_addresses for node in gm.graph.nodes):
        return True
    inputs = [node for node in gm.graph.nodes if node.op == "placeholder"]
    values = {node: value_of(node) for node in inputs}
    floats = [
        node for node, value in values.items() if value is not None and value.is_floating_point()
    ]
    changed = changed_memory(changes_in_place(gm)) if floats else set()
    return bool(floats) and all(node in changed for node in floats)


def _find_packed(low: Lowering, table: Tensor) -> str | None:
    """The packed weight that holds this matrix and nothing else."""
    for attr, names in low.report.packed.items():
        if len(names) != 1:
            continue
        value: Any = low.gm
        for part in names[0].split("."):
            value = getattr(value, part, None)
        if isinstance(value, Tensor) and _equal(value.detach(), table):
            return attr
    return None


def _equal(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype or a.dim() != 2:
        return False
    same = a.data_ptr() == b.data_ptr() and a.stride() == b.stride()
    return same or torch.equal(a, b)
