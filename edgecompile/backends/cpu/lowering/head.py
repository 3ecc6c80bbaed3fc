"""The output head of a language model, of which a run may leave out tokens that may not come next.

A logit that is left out is minus infinity. So nothing but elementwise operators may stand between the head and the
program's only output: then no logit depends on that of another token.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from edgecompile.backends.cpu.lowering.tables import is_decoder
from edgecompile.backends.lowering.constants import value_of
from edgecompile.backends.lowering.rewriting import Lowering, arguments_of
from edgecompile.backends.operators import ops

aten = torch.ops.aten

#: Operators that compute each value from one of the first argument, and from a number or another value of that place.
_POINTWISE = {
    *(aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar),
    *(aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar),
    *(aten.tanh.default, aten.neg.default, aten.clone.default, aten.alias.default),
    *(aten._to_copy.default, aten.to.dtype, aten.contiguous.default),
}
#: Those that give the same values in another shape, rows after rows.
_RESHAPING = {
    *(aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.unsqueeze.default),
    *(aten.squeeze.dim, aten.squeeze.default, aten.squeeze.dims),
}
#: Those that take some of the places along a dimension.
_TAKING = {aten.select.int, aten.slice.Tensor, aten.index_select.default}


def mark_head(low: Lowering) -> None:
    """Lets a run of a language model's program leave out tokens, where its last product gives its logits."""
    gm = low.gm
    results: Any = next(node for node in gm.graph.nodes if node.op == "output").args[0]
    results = [results] if isinstance(results, Node) else list(results)
    if not is_decoder(gm) or len(results) != 1 or not isinstance(results[0], Node):
        return
    node, width = results[0], _width(results[0])
    while _count_readers(node) == 1 and node.target is not ops.LINEAR:
        if not _keeps_columns(node, width):
            return
        node = node.args[0]  # type: ignore[assignment]
    if _count_readers(node) == 1:
        node.target, node.args = ops.HEAD, node.args[:-1]  # a language model's never has pairs
        low.report.counts["heads"] += 1


def _count_readers(node: Node) -> int:
    """The number of operators that read a result's values."""
    return sum(user.target is not aten._assert_tensor_metadata.default for user in node.users)


def _keeps_columns(node: Node, width: int | None) -> bool:
    """Whether each column of a result depends on that of the first argument alone; both have ``width``."""
    source = node.args[0] if node.args else None
    if not isinstance(source, Node) or width is None or width != _width(node):
        return False
    if node.target in _TAKING:
        value, dim = value_of(source), arguments_of(node)["dim"]
        return value is not None and dim % value.dim() != value.dim() - 1
    if width != _width(source):
        return False
    return node.target in _POINTWISE or node.target in _RESHAPING


def _width(node: Any) -> int | None:
    """The size of a result's last dimension; None where it has none, or it isn't fixed."""
    value = value_of(node) if isinstance(node, Node) else None
    if value is None or value.dim() == 0 or not isinstance(value.shape[-1], int):
        return None
    return int(value.shape[-1])
