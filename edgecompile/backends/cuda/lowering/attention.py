"""Attention to the kernel of ours, whatever its mask; Inductor has none that it could take as it is."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from edgecompile.backends.cuda.kernels import attention as kernels
from edgecompile.backends.cuda.lowering.tiles import attention_tile
from edgecompile.backends.lowering.constants import value_of
from edgecompile.backends.lowering.inlining import inline
from edgecompile.backends.lowering.rewriting import (
    Lowering,
    arguments_of,
    replace_results,
)
from edgecompile.targets.gpu import GpuFacts

aten = torch.ops.aten

_FLOATS = (torch.float16, torch.bfloat16, torch.float32)


def lower_attention(low: Lowering, gpu: GpuFacts) -> None:
    """Rewrites every ``scaled_dot_product_attention``: to the kernel, or to products and a softmax."""

    def lower(node: Node) -> bool | str:
        bound = arguments_of(node)
        reason = _obstacle(bound)
        if reason is not None:
            _write_out(low.gm, node, bound)
            return reason
        q = value_of(bound["query"])
        assert q is not None
        tensors = [bound[name] for name in ("query", "key", "value")]
        graph, lift = low.gm.graph, 4 - q.dim()
        with graph.inserting_before(node):
            if bound["enable_gqa"] or lift == 0:
                grouped = [_ungrouped(x, q) for x in tensors[1:]]
                # Both or neither: the kernel reads keys and values with one number of heads.
                if grouped[0] is not tensors[1] and grouped[1] is not tensors[2]:
                    tensors[1:] = grouped
            for _ in range(lift):
                tensors = [graph.call_function(aten.unsqueeze.default, (x, 0)) for x in tensors]
            mask = _narrowest(bound["attn_mask"])
            scale = bound["scale"]
            scale = int(q.shape[-1]) ** -0.5 if scale is None else float(scale)
            order = _read_order(node) if lift == 0 else kernels.PER_TOKEN
            args = (*tensors, mask, bound["is_causal"], scale, *attention_tile(q, gpu), order)
            new = graph.call_function(kernels.ATTENTION, args)
            for _ in range(lift):
                new = graph.call_function(aten.squeeze.dim, (new, 0))
        new.meta = dict(node.meta)
        node.replace_all_uses_with(new)
        graph.erase_node(node)
        return True

    low.each("attentions", {aten.scaled_dot_product_attention.default}, lower)


def _obstacle(bound: dict[str, Any]) -> str | None:
    """The reason that the kernel can't compute it, or None."""
    values = [value_of(bound[name]) for name in ("query", "key", "value")]
    dtypes = {value.dtype for value in values if value is not None}
    if None in values or len(dtypes) > 1 or not dtypes <= set(_FLOATS):
        return "query, key and value aren't of one floating dtype"
    query, key, value = (v for v in values if v is not None)
    if not 2 <= query.dim() <= 4 or {key.dim(), value.dim()} != {query.dim()}:
        return "query, key and value aren't of one rank up to 4"
    if not all(str(x.shape[-1]).isdigit() and int(x.shape[-1]) <= 512 for x in (query, value)):
        return "the head dimension is dynamic or over 512"
    if query.dim() > 2 and len({str(x.shape[:-3]) for x in (query, key, value)}) > 1:
        return "the batch sizes of query, key and value differ"
    if query.dim() > 2:
        heads, keys, values_ = (str(x.shape[-3]) for x in (query, key, value))
        grouped = heads.isdigit() and keys.isdigit() and int(heads) % int(keys) == 0
        if keys != values_ or (heads != keys and not (grouped and bound["enable_gqa"])):
            return "the numbers of heads of query, key and value differ"
    if not isinstance(bound["is_causal"], bool):
        return "whether it is causal is computed"
    if not isinstance(bound["scale"], (int, float, type(None))):
        return "the scale is computed"
    if bound["attn_mask"] is not None:
        mask = value_of(bound["attn_mask"])
        if mask is None or mask.dtype not in (torch.bool, *_FLOATS) or mask.dim() > query.dim():
            return "the mask isn't a boolean or floating tensor of up to the query's rank"
    return "dropout is on" if bound["dropout_p"] else None


def _read_order(node: Node) -> tuple[int, ...]:
    """The order in which a result's dimensions are read, but for the last; memory then has the same.

    Else what reads a sequence that comes before its batch gathers each row from all over the result, and a product
    that does so in its own kernel takes several times its time.
    """
    order = [0, 1, 2, 3]
    reader = next(iter(node.users), node)
    while len(node.users) == 1 and reader.target in (aten.permute.default, aten.transpose.int):
        if reader.target is aten.permute.default:
            order = [order[dim] for dim in reader.args[1]]  # type: ignore[union-attr, index]
        else:
            one, other = reader.args[1:]
            order[one], order[other] = order[other], order[one]  # type: ignore[index]
        node, reader = reader, next(iter(reader.users), reader)
    *first, last = order
    return tuple(first) if last == 3 and first != [0, 1, 2] else kernels.PER_TOKEN


def _ungrouped(x: Node, q: Tensor) -> Node:
    """Keys or values before each was repeated for the heads of its group; else as they are."""
    expanded = x.args[0] if x.target in (aten.reshape.default, aten.view.default) else None
    if not isinstance(expanded, Node):
        return x
    lifted = expanded.args[0] if expanded.target is aten.expand.default else None
    if not isinstance(lifted, Node) or lifted.target is not aten.unsqueeze.default:
        return x
    source = lifted.args[0]
    whole, inner, wide = value_of(x), value_of(source), value_of(expanded)
    if whole is None or inner is None or wide is None or inner.dim() != 4 or whole.dim() != 4:
        return x
    heads = str(inner.shape[1]).isdigit() and str(q.shape[1]).isdigit()
    same = all(str(inner.shape[i]) == str(whole.shape[i]) for i in (0, 2, 3))
    repeated = lifted.args[1] == 2 and same and str(whole.shape[1]) == str(q.shape[1])
    return source if heads and repeated else x  # type: ignore[return-value]


def _narrowest(mask: Any) -> Any:
    """The mask before anything was spread over the queries that all of them see.

    The kernel repeats it, and reads a mask of keys once for all queries of a program. Masks of encoders are
    made as if of queries and keys: "the query's place isn't negative, and the key is no padding".
    """
    while isinstance(mask, Node) and mask.op == "call_function":
        wide, source = value_of(mask), mask.args[0] if mask.args else None
        narrow = value_of(source)
        if mask.target in _ANDS and isinstance(mask.args[1], Node):
            first, second = mask.args
            if not _is_true(first) and not _is_true(second):
                break
            mask = second if _is_true(first) else first
        elif wide is None or narrow is None or wide.dtype != narrow.dtype:
            break
        elif mask.target in _CASTS or (mask.target in _SPREADS and wide.dim() == narrow.dim()):
            mask = source
        else:
            break
    return mask


_ANDS = {aten.__and__.Tensor, aten.bitwise_and.Tensor, aten.logical_and.default}
_CASTS = {aten.to.dtype, aten.to.device, aten.to.dtype_layout}
_SPREADS = {aten.expand.default}
_VIEWS = {*_CASTS, *_SPREADS, aten.unsqueeze.default, aten.view.default, aten.reshape.default}


def _is_true(node: Any) -> bool:
    """Whether all of a boolean tensor is known to be true."""
    value = value_of(node)
    if value is None or value.dtype != torch.bool:
        return False
    if node.target in _VIEWS:
        return _is_true(node.args[0])
    if node.target in _ANDS:
        return all(map(_is_true, node.args))
    if node.target is aten.ge.Scalar:
        return node.args[1] <= 0 and _is_natural(node.args[0])
    return node.target in (aten.new_ones.default, aten.ones.default, aten.ones_like.default)


def _is_natural(node: Any) -> bool:
    """Whether whole numbers are known to be places, from 0 on."""
    value = value_of(node)
    if value is None or value.is_floating_point():
        return False
    if node.target in _VIEWS:
        return _is_natural(node.args[0])
    if node.target is aten.add.Tensor:
        more = node.args[1]
        return isinstance(more, int) and more >= 0 and not node.kwargs and _is_natural(node.args[0])
    return node.target is aten.arange.default


def _write_out(gm: GraphModule, node: Node, bound: dict[str, Any]) -> None:
    """Puts products and a softmax in place of an attention."""
    operands = [bound[name] for name in ("query", "key", "value")]
    mask, causal = bound["attn_mask"], bool(bound["is_causal"])
    grouped, scale = bool(bound["enable_gqa"]), bound["scale"]

    def run(q: Tensor, k: Tensor, v: Tensor, *masks: Tensor) -> Tensor:
        if grouped:
            k = k.repeat_interleave(q.shape[-3] // k.shape[-3], -3)
            v = v.repeat_interleave(q.shape[-3] // v.shape[-3], -3)
        s = (q @ k.transpose(-2, -1)).float() * (q.shape[-1] ** -0.5 if scale is None else scale)
        seen = torch.ones(1, 1, dtype=torch.bool, device=q.device)
        if causal:
            rows, keys = torch.arange(q.shape[-2]), torch.arange(k.shape[-2])
            seen = keys[None] <= rows[:, None]
        for m in masks:
            seen, s = (seen & m, s) if m.dtype == torch.bool else (seen, s + m)
        s = torch.where(seen, s, -torch.inf)
        p = torch.where(s.amax(-1, keepdim=True) == -torch.inf, 0.0, torch.softmax(s, -1))
        return p.to(v.dtype) @ v

    operands += [] if mask is None else [mask]
    replace_results(gm, node, inline(gm, node, run, operands, symbolic=True))
