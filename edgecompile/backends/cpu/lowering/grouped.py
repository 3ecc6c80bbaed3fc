"""Graph lowering of mixtures of experts: products of groups of rows, each with its own matrix.

transformers calls an operator of its own that only Python can run; aten's has no kernel here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from edgecompile.backends.lowering.constants import constant_of, value_of
from edgecompile.backends.lowering.rewriting import (
    Lowering,
    Pack,
    arguments_of,
    is_float32,
    replace,
)
from edgecompile.backends.operators import ops

aten = torch.ops.aten

#: The operators that multiply groups of rows.
GROUPED = {"transformers.grouped_mm_fallback.default", "aten._grouped_mm.default"}


def lower_grouped(low: Lowering, pack: Pack) -> None:
    """Rewrites grouped products to the runtime's operators; ``pack`` packs weights ``[E, N, K]``."""

    def lower(node: Node) -> bool | str:
        x, w, offs, *rest = arguments_of(node).values()
        reason = _obstacle(x, w, offs, *rest)
        if reason is not None:
            return reason
        with low.gm.graph.inserting_before(node):
            target, args = _product(low.gm, x, w, offs, pack)
        replace(low.gm, node, target, args)
        return True

    low.each("grouped", {n.target for n in low.gm.graph.nodes if str(n.target) in GROUPED}, lower)


def _obstacle(
    x: Node, w: Node, offs: Node | None, bias: Any = None, dtype: torch.dtype | None = None
) -> str | None:
    rows, matrices = value_of(x), value_of(w)
    if not is_float32(rows) or not is_float32(matrices):
        return "the operands aren't float32 tensors"
    if rows.dim() != 2 or matrices.dim() != 3 or offs is None:
        return "it isn't rows by groups of matrices"
    if bias is not None or dtype not in (None, torch.float32):
        return "it has a bias or another dtype of results"
    return None


def _product(gm: GraphModule, x: Node, w: Node, offs: Any, pack: Pack) -> tuple[Any, list[Any]]:
    """The product with packed matrices if they are constants, else with them as they are."""
    weight, transposed = w, False
    if w.target is aten.transpose.int:
        dims = {int(d) % 3 for d in w.args[1:3]}  # type: ignore[arg-type]
        source = constant_of(gm, w.args[0])
        if source is not None and source.dim() == 3 and dims == {1, 2}:
            weight, transposed = w.all_input_nodes[0], True
    constant = constant_of(gm, weight)
    if constant is None:
        return ops.GROUPED_MM, [x, w, offs]
    matrices = constant if transposed else constant.transpose(1, 2)  # [E, N, K]
    attr = pack(matrices, str(weight.target) + ("" if transposed else ".t"))
    return ops.GROUPED_LINEAR, [x, gm.graph.get_attr(attr), offs, int(matrices.shape[1])]
