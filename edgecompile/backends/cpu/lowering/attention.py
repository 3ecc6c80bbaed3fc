"""Graph lowering of attention: ``scaled_dot_product_attention`` to the runtime's operator."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from edgecompile.backends.lowering.constants import value_of
from edgecompile.backends.lowering.in_place import (
    ChangesInPlace,
    changed_memory,
    changes_in_place,
    memory_of,
)
from edgecompile.backends.lowering.rewriting import Lowering, arguments_of, is_float32, replace
from edgecompile.backends.operators import ops
from edgecompile.export.operators.cache_rows import DEQUANTIZE_ROWS
from edgecompile.export.operators.cached_attention import CACHED_ATTENTION
from edgecompile.export.operators.copy import COPY

aten = torch.ops.aten

#: Operators that read a cache as float32, and the types of such caches.
_READERS = (aten.to.dtype, aten._to_copy.default, DEQUANTIZE_ROWS)
_STORED = (torch.bfloat16, torch.int8)


def lower_attention(low: Lowering, narrow: bool) -> None:
    """Rewrites attentions to ``ec_attention``; with ``narrow`` the operands of its products may be
    rounded to bfloat16."""
    changes = ChangesInPlace(low.gm)
    masks: dict[tuple[Node, int], Node] = {}

    def lower(node: Node) -> bool | str:
        bound = arguments_of(node)
        reason = _attention_obstacle(bound)
        if reason is not None:
            return reason
        q, k, v, scale = (bound[name] for name in ("query", "key", "value", "scale"))
        scale = int(q.meta["val"].shape[3]) ** -0.5 if scale is None else float(scale)
        with low.gm.graph.inserting_before(node):
            # A view of what was changed meanwhile is another mask.
            mask = _materialised(low.gm, bound["attn_mask"], masks, changes.before(node))
        args = (q, k, v, mask, bound["is_causal"], scale, narrow)
        replace(low.gm, node, ops.ATTENTION, args)
        return True

    low.each("attentions", {aten.scaled_dot_product_attention.default}, lower)


def read_stored(gm: GraphModule) -> None:
    """Lets attention read caches in bfloat16 and int8 as they are, without a copy of the context in float32."""
    order = {node: index for index, node in enumerate(gm.graph.nodes)}
    changes = changes_in_place(gm)

    def stored(node: Node, reader: Node) -> Node:
        source = node.args[0] if node.target in _READERS and node.args else None
        if not isinstance(source, Node) or getattr(value_of(source), "dtype", None) not in _STORED:
            return node
        between = [x for x in changes if order[node] < order[x] < order[reader]]
        return node if memory_of(source) in changed_memory(between) else source

    for node in gm.graph.nodes:
        if node.target is CACHED_ATTENTION:
            query, *operands = node.args
            read = [stored(operand, node) for operand in operands[:2]]
            # Either both or none: the kernel takes no mixture.
            if all(new is not old for new, old in zip(read, operands, strict=False)):
                node.args = (query, *read, *operands[2:])


def _attention_obstacle(bound: dict[str, Any]) -> str | None:
    """The reason that an attention can't be lowered, or None."""
    values = []
    for name in ("query", "key", "value"):
        value = value_of(bound[name])
        if not is_float32(value) or value.dim() != 4:
            return f"{name} isn't a 4-dimensional float32 tensor"
        values.append(value)
    query, key, value = values
    # A symbol that was found to have one value is a number, too.
    if not all(str(tensor.shape[3]).isdigit() for tensor in (query, value)):
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


def _materialised(
    gm: GraphModule, mask: Any, done: dict[tuple[Node, int], Node], changes: int
) -> Node | None:
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
    key = source, changes
    if key not in done:
        result = source
        for _ in range(4 - _rank(source)):
            result = gm.graph.call_function(aten.unsqueeze.default, (result, 0))
        if source.op == "call_function":
            result = gm.graph.call_function(COPY, (result,))
        done[key] = result
    return done[key]


def _rank(node: Any) -> int:
    value = value_of(node)
    assert value is not None
    return value.dim()
