"""Graph lowering of mixtures of experts: products of groups of rows, each with its own matrix.

transformers calls an operator of its own that only Python can run; aten's has no kernel here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from edgecompile.backends import ops
from edgecompile.backends.lowering.constants import constant_of, value_of

aten = torch.ops.aten

_NAMES = {"transformers.grouped_mm_fallback.default", "aten._grouped_mm.default"}


def lower_grouped(gm: GraphModule, pack: Callable[[str, Tensor], str], kept: dict[str, str]) -> int:
    """Rewrites grouped products to the runtime's operators; returns how many.

    Args:
        gm: rewritten in place.
        pack: registers weights ``[E, N, K]`` by name, packed, and returns the attribute's name.
        kept: gets the reason, by node name, for each product that is left as it is.
    """
    count = 0
    for node in list(gm.graph.nodes):
        if str(node.target) not in _NAMES:
            continue
        names = ("x", "w", "offs", "bias", "out_dtype")
        bound: dict[str, Any] = dict(zip(names, node.args, strict=False))
        bound.update({{"input": "x", "self": "x", "weight": "w", "mat2": "w"}.get(k, k): v
                      for k, v in node.kwargs.items()})  # fmt: skip
        reason = _obstacle(bound)
        if reason is not None:
            kept[node.name] = reason
            continue
        with gm.graph.inserting_before(node):
            new = _emit(gm, bound, pack)
        new.meta = dict(node.meta)
        node.replace_all_uses_with(new)
        gm.graph.erase_node(node)
        count += 1
    return count


def _obstacle(bound: dict[str, Any]) -> str | None:
    x, w = value_of(bound["x"]), value_of(bound["w"])
    if x is None or w is None or x.dtype != torch.float32 or w.dtype != torch.float32:
        return "the operands aren't float32 tensors"
    if x.dim() != 2 or w.dim() != 3 or bound.get("offs") is None:
        return "it isn't rows by groups of matrices"
    if bound.get("bias") is not None or bound.get("out_dtype") not in (None, torch.float32):
        return "it has a bias or another dtype of results"
    return None


def _emit(gm: GraphModule, bound: dict[str, Any], pack: Callable[[str, Tensor], str]) -> Node:
    """The product with packed matrices if they are constants, else with them as they are."""
    weight, transposed = bound["w"], False
    if isinstance(weight, Node) and weight.target is aten.transpose.int:
        dims = {int(d) % 3 for d in weight.args[1:3]}  # type: ignore[arg-type]
        source = constant_of(gm, weight.args[0])
        if source is not None and source.dim() == 3 and dims == {1, 2}:
            weight, transposed = weight.args[0], True
    constant = constant_of(gm, weight)
    if constant is None:
        return gm.graph.call_function(ops.GROUPED_MM, (bound["x"], bound["w"], bound["offs"]))
    matrices = constant if transposed else constant.transpose(1, 2)  # [E, N, K]
    attr = pack(str(weight.target) + ("" if transposed else ".t"), matrices)
    packed = gm.graph.get_attr(attr)
    n = int(matrices.shape[1])
    return gm.graph.call_function(ops.GROUPED_LINEAR, (bound["x"], packed, bound["offs"], n))
