"""Products: those that share an input become one, and those with a vector sums.

Inductor's template of a product wants 16 rows at least, and fails for a single one. A product with a
vector is bound by reading the matrix: as a sum it is one of Inductor's reductions, whose loads and
ends other operators become part of.
"""

from __future__ import annotations

import itertools
import math
import operator
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from edgecompile.backends.cpu.lowering.activations import activation_of
from edgecompile.backends.lowering.constants import constant_of, packed_name, value_of
from edgecompile.backends.lowering.in_place import ChangesInPlace, memory_of
from edgecompile.backends.lowering.inlining import inline
from edgecompile.backends.lowering.rewriting import Lowering, arguments_of, replace_results
from edgecompile.backends.operators import ops

aten = torch.ops.aten

#: Widths that a product is cut at: rows of 16 bytes begin there, in every dtype.
_ALIGNED = 8

#: Activations that Inductor writes into the kernel of a linear: it stays one of its own. Before others,
#: linears that share an input are merged.
_JOINING = {
    ops.ACTIVATIONS[n] for n in ("relu", "gelu_erf", "gelu_tanh", "silu", "tanh", "sigmoid")
}

_MATRICES = {aten.matmul.default, aten.bmm.default, aten.mm.default}


def merge_linears(low: Lowering) -> None:
    """Makes one product of linears that read the same input, such as query, key and value."""
    gm, changes = low.gm, ChangesInPlace(low.gm)
    groups: dict[tuple[Node, bool], list[Node]] = {}
    for node in gm.graph.nodes:
        behind = activation_of(node)
        if node.target is not aten.linear.default or (behind and behind[1] in _JOINING):
            continue
        x, weight, bias = arguments_of(node).values()
        matrix, vector = constant_of(gm, weight), constant_of(gm, bias)
        whole = matrix is not None and matrix.dim() == 2 and matrix.shape[0] % _ALIGNED == 0
        if whole and (bias is None) == (vector is None) and not _mixes_rows(node):
            group = groups.setdefault((x, bias is None), [])
            if not group or not changes.between(group[0], node):
                group.append(node)
    for (x, plain), group in groups.items():
        if len({value_of(node).dtype for node in group}) > 1 or len(group) < 2:  # type: ignore[union-attr]
            continue
        first, operands = group[0], [arguments_of(node) for node in group]
        with gm.graph.inserting_before(first):
            names = ("weight",) if plain else ("weight", "bias")
            parameters = [_joined(low, [bound[name] for bound in operands]) for name in names]
            wide = gm.graph.call_function(aten.linear.default, (x, *parameters))
            widths = [int(constant_of(gm, b["weight"]).shape[0]) for b in operands]  # type: ignore[union-attr]
            value = value_of(first)
            assert value is not None
            wide.meta = dict(first.meta)
            wide.meta["val"] = value.new_empty((*value.shape[:-1], sum(widths)))
            parts = gm.graph.call_function(aten.split_with_sizes.default, (wide, widths, -1))
            parts.meta = {"nn_module_stack": first.meta.get("nn_module_stack")}
            slices = [
                gm.graph.call_function(operator.getitem, (parts, i)) for i in range(len(group))
            ]
        for node, part in zip(group, slices, strict=True):
            part.meta = dict(node.meta)
            node.replace_all_uses_with(part)
            gm.graph.erase_node(node)
        low.report.counts["merged"] += len(group)


def _mixes_rows(linear: Node) -> bool:
    """Whether a view of the result takes values of several rows as neighbours: they aren't in a part of a wider one."""
    width = str(value_of(linear).shape[-1])  # type: ignore[union-attr]
    views, seen = [linear], {linear}
    while views:
        for user in views.pop().users:
            # What is made contiguous is a copy then.
            copies = user.target is aten.contiguous.default or memory_of(user) is not linear
            if user in seen or copies:
                continue
            seen.add(user)
            views.append(user)
            if user.target is not aten.view.default:
                continue
            ends = itertools.accumulate(reversed(value_of(user).shape), operator.mul)  # type: ignore[union-attr]
            if not any(str(end) == width for end in ends):
                return True
    return False


def _joined(low: Lowering, nodes: list[Any]) -> Node:
    """A constant of several, one below the other."""
    names = [str(node.target) for node in nodes]
    attr = packed_name(names)
    if not hasattr(low.gm, attr):
        low.gm.register_buffer(attr, torch.cat([constant_of(low.gm, n) for n in nodes]))  # type: ignore[misc]
        low.report.packed[attr] = names
    return low.gm.graph.get_attr(attr)


def sum_vectors(low: Lowering) -> None:
    """Rewrites products with a vector, or of two, as sums."""

    def linear(node: Node) -> bool:
        x, weight, bias = arguments_of(node).values()
        rows, matrix = value_of(x), value_of(weight)
        if matrix is None:
            matrix = constant_of(low.gm, weight)
        if rows is None or matrix is None or matrix.dim() != 2:
            return False
        sizes = [int(s) if str(s).isdigit() else 0 for s in rows.shape[:-1]]
        if math.prod(sizes) != 1 and str(matrix.shape[0]) != "1":
            return False

        def run(x: Tensor, w: Tensor, *biases: Tensor) -> Tensor:
            y = (x.float().unsqueeze(-2) * w.float()).sum(-1)
            for b in biases:
                y = y + b.float()
            return y.to(x.dtype)

        operands = [x, weight, *([] if bias is None else [bias])]
        replace_results(low.gm, node, inline(low.gm, node, run, operands, symbolic=True))
        return True

    def matrices(node: Node) -> bool:
        a, b = (value_of(x) for x in node.args[:2])
        if a is None or b is None or a.dim() < 2 or b.dim() < 2 or not a.is_floating_point():
            return False
        if "1" not in (str(a.shape[-2]), str(a.shape[-1]), str(b.shape[-1])):
            return False

        def run(a: Tensor, b: Tensor) -> Tensor:
            if str(a.shape[-1]) == "1":
                return a * b
            return (a.float().unsqueeze(-1) * b.float().unsqueeze(-3)).sum(-2).to(a.dtype)

        results = inline(low.gm, node, run, list(node.args[:2]), symbolic=True)  # type: ignore[arg-type]
        replace_results(low.gm, node, results)
        return True

    low.each("vectors", {aten.linear.default}, linear)
    low.each("vectors", _MATRICES, matrices)
