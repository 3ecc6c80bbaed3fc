"""Operators that Inductor leaves to a library, to kernels of ours: sorts, recurrences, cached attention."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from edgecompile.backends.cpu.lowering.grouped import GROUPED
from edgecompile.backends.cuda.kernels import attention, extremes, grouped, recurrence, sorting
from edgecompile.backends.cuda.lowering.tiles import attention_tile
from edgecompile.backends.lowering.constants import value_of
from edgecompile.backends.lowering.inlining import inline
from edgecompile.backends.lowering.rewriting import (
    Lowering,
    arguments_of,
    replace,
    replace_results,
)
from edgecompile.export.operators.cached_attention import CACHED_ATTENTION
from edgecompile.export.operators.recurrence import PLAIN
from edgecompile.targets.gpu import GpuFacts

aten = torch.ops.aten

_BAGS = {aten.embedding_bag.default, aten.embedding_bag.padding_idx}
_SORTS = {aten.sort.default, aten.sort.stable, aten.argsort.default, aten.argsort.stable}


def lower_operators(low: Lowering, gpu: GpuFacts) -> None:
    """Rewrites what has a kernel of ours."""

    def attend(node: Node) -> bool:
        q = value_of(node.args[0])
        assert q is not None
        replace(low.gm, node, attention.CACHED_ATTENTION, (*node.args, *attention_tile(q, gpu)))
        return True

    def recur(node: Node) -> bool:
        replace(low.gm, node, recurrence.RECURRENCE, node.args)
        return True

    def sort(node: Node) -> bool:
        bound = arguments_of(node)
        results = _sorted(low, node, bound["self"], bound["dim"], None, bool(bound["descending"]))
        replace_results(low.gm, node, results[1:] if "argsort" in str(node.target) else results)
        return True

    def select(node: Node) -> bool:
        x, k, dim, largest, _ = arguments_of(node).values()
        replace_results(low.gm, node, _sorted(low, node, x, dim, k, bool(largest)))
        return True

    def count(node: Node) -> bool | str:
        x, bins, lo, hi = arguments_of(node).values()
        if not lo < hi:
            return "its range comes from the values"

        def run(x: Tensor) -> Tensor:
            value = x.reshape(-1, 1).to(torch.float32)
            place = ((value - lo) / (hi - lo) * bins).floor().clamp(max=bins - 1)
            place = torch.where((value >= lo) & (value <= hi), place, -1)
            return (place == torch.arange(bins)).sum(0).to(x.dtype)

        replace_results(low.gm, node, inline(low.gm, node, run, [x], symbolic=True))
        return True

    def pick(node: Node) -> bool | str:
        x, dim, index = arguments_of(node).values()
        value, places = value_of(x), value_of(index)
        if value is None or not value.dim() or places is None or places.dim() != 1:
            return "it isn't rows by a list of places"
        # What Inductor makes of index_select itself asks for the GPU.
        replace(low.gm, node, aten.index.Tensor, (x, [None] * (dim % value.dim()) + [index]))
        return True

    def group(node: Node) -> bool | str:
        x, w, ends, *rest = arguments_of(node).values()
        rows, matrices = value_of(x), value_of(w)
        if (
            rows is None
            or matrices is None
            or (rows.dim(), matrices.dim()) != (2, 3)
            or ends is None
        ):
            return "it isn't rows by groups of matrices"
        if any(item not in (None, rows.dtype, torch.float32) for item in rest):
            return "it has a bias or another dtype of results"
        replace(low.gm, node, grouped.GROUPED, (x, w, ends))
        return True

    def send(node: Node) -> bool | str:
        x, dim, index, src, how, include = arguments_of(node).values()
        target, places = value_of(x), value_of(index)
        if how == "sum":
            return False
        if target is None or places is None or how not in ("amax", "amin", "mean"):
            return f"its kind is {how}"
        if how == "mean" and not target.is_floating_point():
            return "its mean is of integers"
        others = [set(range(v.dim())) - {dim % max(v.dim(), 1)} for v in (target, places)]
        sizes = [
            [str(v.shape[i]) for i in sorted(o)]
            for v, o in zip((target, places), others, strict=True)
        ]
        if not target.dim() or sizes[0] != sizes[1]:
            return "its index doesn't reach all lines"
        function = _means if how == "mean" else partial(_extremes, largest=how == "amax")
        run = partial(function, dim=dim, include=include)
        replace_results(low.gm, node, inline(low.gm, node, run, [x, index, src], symbolic=True))
        return True

    def bag(node: Node) -> bool | str:
        bound = arguments_of(node)
        if any(taker.args[1] != 0 and taker.users for taker in node.users):
            return "its inner results are read"
        for taker in list(node.users):
            if taker.args[1] != 0:
                low.gm.graph.erase_node(taker)
        operands = [bound[name] for name in ("weight", "indices", "offsets")]
        equal = _equal_bags(operands[1], operands[2])
        if equal is not None:
            operands = [operands[0], equal]
        if bound["per_sample_weights"] is not None:
            operands.append(bound["per_sample_weights"])
        run: Any = partial(_bagged, last=bound["include_last_offset"])
        if equal is not None:
            run = _equally_bagged
        run = partial(run, mode=bound["mode"], padding=bound.get("padding_idx"))
        replace_results(low.gm, node, inline(low.gm, node, run, operands, symbolic=True))
        return True

    low.each("grouped", {n.target for n in low.gm.graph.nodes if str(n.target) in GROUPED}, group)
    low.each("bags", _BAGS, bag)
    low.each("attentions", {CACHED_ATTENTION}, attend)
    low.each("counts", {aten.histc.default}, count)
    low.each("selections", {aten.index_select.default}, pick)
    low.each("recurrences", {PLAIN}, recur)
    low.each("scatters", {aten.scatter_reduce.two}, send)
    low.each("sorts", _SORTS, sort)
    low.each("sorts", {aten.topk.default}, select)


def _equal_bags(ids: Node, offsets: Node) -> Node | None:
    """The matrix with a bag in each row that torch has made flat for ``embedding_bag``."""
    source = ids.args[0] if ids.target is aten.reshape.default else None
    matrix = value_of(source)
    if matrix is None or matrix.dim() != 2 or offsets.target is not aten.arange.start_step:
        return None
    ends = [x.meta["val"] if isinstance(x, Node) else x for x in offsets.args]
    expected = [0, matrix.shape[0] * matrix.shape[1], matrix.shape[1]]
    return source if list(map(str, ends)) == list(map(str, expected)) else None  # type: ignore[return-value]


def _equally_bagged(
    w: Tensor, ids: Tensor, *factors: Tensor, mode: int, padding: int | None
) -> Tensor:
    """Sums (mode 0), means or largest of the rows of a table that each line of ``ids`` [B, L] names."""
    rows = torch.embedding(w, ids)
    mask = torch.ones(ids.shape, dtype=torch.bool) if padding is None else ids != padding
    return _joined(rows, mask, [f.reshape(ids.shape) for f in factors], mode)


def _bagged(
    w: Tensor, ids: Tensor, offsets: Tensor, *factors: Tensor, mode: int, padding: Any, last: bool
) -> Tensor:
    """The same of ``ids`` [T], of which a bag ends where the next one begins: every bag reads all of them."""
    tokens = torch.arange(ids.shape[0])
    starts = offsets[:-1] if last else offsets
    ends = offsets[1:]
    if not last:
        ends = torch.cat([ends, torch.full((1,), ids.shape[0], dtype=offsets.dtype)])
    mask = (tokens >= starts[:, None]) & (tokens < ends[:, None])
    if padding is not None:
        mask = mask & (ids != padding)
    return _joined(torch.embedding(w, ids), mask, list(factors), mode)


def _joined(rows: Tensor, mask: Tensor, factors: list[Tensor], mode: int) -> Tensor:
    """The rows [.., L, D] in ``mask`` [B, L] as one of each bag; zeros of an empty one."""
    if mode == 2:
        most = torch.where(mask[..., None], rows, float("-inf")).amax(1)
        return torch.where(mask.any(1)[:, None], most, 0.0).to(rows.dtype)
    wide = rows.to(torch.float32)
    for factor in factors:
        wide = wide * factor[..., None]
    # Not a product with zeros: rows of other bags, or of padding, may be infinite or no numbers.
    total = torch.where(mask[..., None], wide, 0.0).sum(1)
    if mode == 1:
        total = total / mask.sum(1).clamp(min=1)[:, None]
    return total.to(rows.dtype)


def _extremes(
    x: Tensor, index: Tensor, src: Tensor, *, dim: int, largest: bool, include: bool
) -> Tensor:
    """The largest or smallest of what goes to each place of ``x``, with what is there or instead of it."""
    wide = torch.float32 if x.dtype.is_floating_point else torch.int64
    moved, places = x.movedim(dim, -1), index.movedim(dim, -1)
    # Of each dimension of the values, as many are sent as the index has.
    values = src[tuple([slice(size) for size in index.shape])].movedim(dim, -1)
    best, hit = extremes.EXTREMES(_lines(values).to(wide), _lines(places), moved.shape[-1], largest)
    best, hit = best.reshape(moved.shape).to(x.dtype), hit.reshape(moved.shape)
    if include:
        best = torch.maximum(best, moved) if largest else torch.minimum(best, moved)
    # Where nothing goes to, the kernel's number is no number of a narrower type.
    return torch.where(hit != 0, best, moved).movedim(-1, dim)


def _means(x: Tensor, index: Tensor, src: Tensor, *, dim: int, include: bool) -> Tensor:
    """The mean of what goes to each place of ``x``, with what is there or instead of it."""
    wide, zeros = x.to(torch.float32), torch.zeros(x.shape, dtype=torch.float32)
    source = src.to(torch.float32)
    count = zeros.scatter_add(dim, index, torch.ones(index.shape, dtype=torch.float32))
    if include:
        return ((wide.scatter_add(dim, index, source)) / (count + 1)).to(x.dtype)
    total = zeros.scatter_add(dim, index, source) / count.clamp(min=1)
    return torch.where(count > 0, total, wide).to(x.dtype)


def _lines(x: Tensor) -> Tensor:
    """A matrix of the lines along the last dimension, of which the values may decide the sizes: -1 for their number
    would ask whether one is 0."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1] if x.dim() else 1)


def _sorted(low: Lowering, node: Node, x: Node, dim: int, k: Any, descending: bool) -> list[Node]:
    operands = [x, k] if isinstance(k, Node) else [x]

    def run(x: Tensor, *sizes: Any) -> tuple[Tensor, Tensor]:
        boolean, dtype = x.dtype == torch.bool, x.dtype
        x = x.to(torch.uint8) if boolean else x
        moved = x.movedim(dim, -1) if x.dim() > 1 else x
        n = moved.shape[-1] if x.dim() else 1
        most = sizes[0] if sizes else n if k is None else k
        values, places = sorting.SORT(_lines(moved), most, descending)
        shape = (*moved.shape[:-1], most) if x.dim() else ()
        results = [y.reshape(shape) for y in (values, places)]
        if x.dim() > 1:
            results = [y.movedim(-1, dim) for y in results]
        return results[0].to(dtype) if boolean else results[0], results[1]

    return inline(low.gm, node, run, operands, symbolic=True)
