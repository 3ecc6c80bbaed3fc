"""Bounds of integer inputs that are looked up in a table, read from an exported graph.

An index outside its table aborts the compiled program, so the runtime checks bounds before each
run; a factory or a saved program need not declare them where the graph tells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from edgecompile.models.specs import InputSpec

_SAME_VALUES = {
    torch.ops.aten.alias.default,
    torch.ops.aten.clone.default,
    torch.ops.aten.contiguous.default,
    torch.ops.aten.reshape.default,
    torch.ops.aten.slice.Tensor,
    torch.ops.aten.to.dtype,
    torch.ops.aten.unsqueeze.default,
    torch.ops.aten.view.default,
}


def fill_bounds(
    program: torch.export.ExportedProgram, inputs: Sequence[InputSpec]
) -> tuple[InputSpec, ...]:
    """The inputs, each with the bounds that its use as an index sets, unless it has bounds."""
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    result = []
    for spec, name in zip(inputs, program.graph_signature.user_inputs, strict=True):
        rows = _table_rows(nodes[str(name)]) if spec.bounds is None else []
        result.append(replace(spec, bounds=(0, min(rows) - 1)) if rows else spec)
    return tuple(result)


def _table_rows(node: torch.fx.Node) -> list[int]:
    rows = []
    for user in node.users:
        if user.target is torch.ops.aten.embedding.default and user.args[1] is node:
            table = user.args[0]
            assert isinstance(table, torch.fx.Node)
            rows.append(int(table.meta["val"].shape[0]))
        elif user.target in _SAME_VALUES:
            rows.extend(_table_rows(user))
    return rows
