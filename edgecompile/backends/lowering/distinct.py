"""Writes what finds distinct values, or repeats rows by counts, with sorts, sums and the places of a mask.

Sums at places are of 32 bits: Triton adds no wider integers to one place from several threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from edgecompile.backends.lowering.inlining import inline
from edgecompile.backends.lowering.rewriting import arguments_of, replace_results

aten = torch.ops.aten


def write_distinct(gm: GraphModule) -> None:
    """Rewrites ``unique`` and ``unique_consecutive`` without a dimension, and ``repeat_interleave`` by a tensor whose
    ``output_size`` is given."""
    for node in list(gm.graph.nodes):
        if node.target is aten._unique2.default:
            replace_results(gm, node, _put(gm, node, _find_distinct))
        elif node.target is aten.unique_consecutive.default and arguments_of(node)["dim"] is None:
            replace_results(gm, node, _put(gm, node, _find_runs))
        elif (
            node.target is aten.repeat_interleave.self_Tensor
            and arguments_of(node)["output_size"] is not None
        ):
            replace_results(gm, node, _put_repeated(gm, node))


def _put_repeated(gm: GraphModule, node: Node) -> list[Node]:
    bound = arguments_of(node)
    size, dim, operands = bound["output_size"], bound["dim"], [bound["self"], bound["repeats"]]
    if isinstance(size, Node):
        return inline(
            gm, node, lambda x, n, size: _repeat(x, n, dim, size), [*operands, size], symbolic=True
        )
    return inline(gm, node, lambda x, n: _repeat(x, n, dim, size), operands, symbolic=True)


def _put(gm: GraphModule, node: Node, function: Callable[..., Any]) -> list[Node]:
    return inline(gm, node, function, [arguments_of(node)["self"]], symbolic=True)


def _find_distinct(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Each value once, ascending; of each element the place of its value; how often each one occurs."""
    values, order = x.reshape(-1).sort(stable=True)
    uniques, group, counts = _find_runs(values)
    inverse = torch.zeros_like(group).index_put([order], group)
    return uniques, inverse.reshape(x.shape), counts


def _find_runs(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same of neighbours that are equal, in their order."""
    values = x.reshape(-1)
    place = torch.arange(values.shape[0], device=x.device)
    first = (place == 0) | (values != values.roll(1))
    uniques = values[first.nonzero().squeeze(1)]
    group = first.cumsum(0) - 1
    ones = torch.ones_like(group, dtype=torch.int32)
    counts = torch.zeros_like(uniques, dtype=torch.int32).index_add(0, group, ones)
    return uniques, group.reshape(x.shape), counts.to(torch.int64)


def _repeat(x: Tensor, counts: Tensor, dim: int | None, size: Any) -> Tensor:
    """Each row as often as ``counts`` says, ``size`` in all."""
    if dim is None:
        x, dim = x.reshape(-1), 0
    ends = counts.expand(x.shape[dim]).cumsum(0)
    # A row begins where the one before it ends; behind the last one none does.
    begins = torch.zeros(size + 1, dtype=torch.int32, device=x.device)
    begins = begins.index_add(0, ends, torch.ones_like(ends, dtype=torch.int32))
    return x.index_select(dim, begins[:size].cumsum(0))
