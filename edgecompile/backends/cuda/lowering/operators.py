"""Operators that Inductor leaves to a library, to kernels of ours: sorts, recurrences, cached attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from edgecompile.backends.cuda.kernels import attention, grouped, recurrence, sorting
from edgecompile.backends.cuda.lowering.tiles import attention_tile
from edgecompile.backends.lowering.constants import value_of
from edgecompile.backends.lowering.grouped import GROUPED
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

    low.each("grouped", {n.target for n in low.gm.graph.nodes if str(n.target) in GROUPED}, group)
    low.each("attentions", {CACHED_ATTENTION}, attend)
    low.each("counts", {aten.histc.default}, count)
    low.each("selections", {aten.index_select.default}, pick)
    low.each("recurrences", {PLAIN}, recur)
    low.each("sorts", _SORTS, sort)
    low.each("sorts", {aten.topk.default}, select)


def _sorted(low: Lowering, node: Node, x: Node, dim: int, k: Any, descending: bool) -> list[Node]:
    operands = [x, k] if isinstance(k, Node) else [x]

    def run(x: Tensor, *sizes: Any) -> tuple[Tensor, Tensor]:
        boolean, dtype = x.dtype == torch.bool, x.dtype
        x = x.to(torch.uint8) if boolean else x
        moved = x.movedim(dim, -1) if x.dim() > 1 else x
        n = moved.shape[-1] if x.dim() else 1
        most = sizes[0] if sizes else n if k is None else k
        flat = moved.reshape(-1, n)
        values, places = sorting.SORT(flat, most, descending)
        shape = (*moved.shape[:-1], most) if x.dim() else ()
        results = [y.reshape(shape) for y in (values, places)]
        if x.dim() > 1:
            results = [y.movedim(-1, dim) for y in results]
        return results[0].to(dtype) if boolean else results[0], results[1]

    return inline(low.gm, node, run, operands, symbolic=True)
