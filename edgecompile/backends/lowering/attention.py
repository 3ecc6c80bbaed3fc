"""Graph lowering of attention: ``scaled_dot_product_attention`` to the runtime's operator."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from edgecompile.backends import ops
from edgecompile.backends.lowering.constants import value_of
from edgecompile.backends.lowering.in_place import changes_in_place
from edgecompile.backends.lowering.rewriting import arguments_of, replace

aten = torch.ops.aten


def lower_attention(gm: GraphModule, kept: dict[str, str], narrow: bool) -> int:
    """Rewrites attentions to ``ec_attention``; returns how many.

    Args:
        gm: rewritten in place.
        kept: gets the reason, by node name, for each attention that is left to Inductor.
        narrow: whether the operands of its products may be rounded to bfloat16.
    """
    target = aten.scaled_dot_product_attention.default
    masks: dict[Node, Node] = {}
    changes = set(changes_in_place(gm))
    count = 0
    for node in list(gm.graph.nodes):
        if node in changes:
            masks.clear()  # a view of what was changed is another mask now
        if node.target is not target:
            continue
        bound = arguments_of(node)
        reason = _attention_obstacle(bound)
        if reason is not None:
            kept[node.name] = reason
            continue
        query = value_of(bound["query"])
        assert query is not None
        scale = bound["scale"]
        scale = int(query.shape[3]) ** -0.5 if scale is None else float(scale)
        with gm.graph.inserting_before(node):
            mask = _materialised(gm, bound["attn_mask"], masks)
        args = (
            bound["query"],
            bound["key"],
            bound["value"],
            mask,
            bound["is_causal"],
            scale,
            narrow,
        )
        replace(gm, node, ops.ATTENTION, args)
        count += 1
    return count


def _attention_obstacle(bound: dict[str, Any]) -> str | None:
    """The reason that an attention can't be lowered, or None."""
    values = []
    for name in ("query", "key", "value"):
        value = value_of(bound[name])
        if value is None or value.dim() != 4 or value.dtype != torch.float32:
            return f"{name} isn't a 4-dimensional float32 tensor"
        values.append(value)
    query, key, value = values
    widths: list[Any] = [query.shape[3], value.shape[3]]  # numbers, or torch's symbols
    if not all(isinstance(width, int) for width in widths):
        return "the head dimension is dynamic"
    if len({str(tensor.shape[0]) for tensor in values}) > 1:
        return "the batch sizes of query, key and value differ"
    # With the flag, groups of heads share a key; without it, eager broadcasts a single one.
    grouped = bound["enable_gqa"] or str(key.shape[1]) == "1"
    heads = {str(tensor.shape[1]) for tensor in (values[1:] if grouped else values)}
    if len(heads) > 1:
        return "the numbers of heads of query, key and value differ"
    if not isinstance(bound["is_causal"], bool):
        return "whether it is causal is computed"
    if not isinstance(bound["scale"], (int, float, type(None))):
        return "the scale is computed"
    if bound["attn_mask"] is not None:
        mask = value_of(bound["attn_mask"])
        if mask is None or mask.dtype not in (torch.bool, torch.float32) or mask.dim() > 4:
            return "the mask isn't a boolean or float32 tensor of up to 4 dimensions"
    if bound["dropout_p"]:
        return "dropout is on"
    return None


def _materialised(gm: GraphModule, mask: Any, done: dict[Node, Node]) -> Node | None:
    """The mask as a buffer of rank 4, made once for all the attentions that share it.

    Inductor computes what it generates code for once for each operator that reads it, be it a view
    or a clone; what an operator of the runtime made is a buffer that all of them read. The kernel
    broadcasts axes of size 1, so an expanded mask is passed as it was before the expansion.
    """
    if mask is None:
        return None
    source: Node = mask
    while source.target is aten.expand.default and _rank(source) == _rank(source.args[0]):
        source = source.args[0]  # type: ignore[assignment]
    if source not in done:
        result = source
        for _ in range(4 - _rank(source)):
            result = gm.graph.call_function(aten.unsqueeze.default, (result, 0))
        if source.op == "call_function":
            result = gm.graph.call_function(ops.COPY, (result,))
        done[source] = result
    return done[source]


def _rank(node: Any) -> int:
    value = value_of(node)
    assert value is not None
    return value.dim()
