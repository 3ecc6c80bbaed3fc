"""Selections whose size depends on values, written with a count that the host reads in the middle of a run.

A mask becomes the places of what is true in it: all of them are found on the GPU, in memory for as many as the mask
has elements, and the host reads one number, how many there are, which is the size of what follows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from edgecompile.backends.cuda.lowering.boxes import mark_kept
from edgecompile.backends.cuda.lowering.narrow import is_changed
from edgecompile.backends.cuda.lowering.values import record_again
from edgecompile.backends.lowering.constants import constant_of, value_of
from edgecompile.backends.lowering.inlining import inline
from edgecompile.backends.lowering.rewriting import Lowering, replace_results
from edgecompile.export.operators.boxes import SUPPRESS

aten = torch.ops.aten

_PUTS = (aten.index_put_.default, aten.index_put.default)


def count_selections(low: Lowering) -> None:
    """Rewrites ``nonzero``, suppressions of boxes, and masks among the indices that are read or written."""
    counting = _Counting(low.gm)
    for node in list(low.gm.graph.nodes):
        low.report.counts["selections"] += counting.rewrite(node)
    if low.report.counts["selections"]:
        record_again(low.gm)


class _Counting:
    def __init__(self, gm: GraphModule) -> None:
        self.gm = gm
        self.known: dict[Node, list[Node]] = {}

    def rewrite(self, node: Node) -> bool:
        args: tuple[Any, ...] = node.args
        if node.target is aten.nonzero.default:
            columns = self._find(node, args[0])
            result = inline(
                self.gm, node, lambda *each: torch.stack(each, 1), columns, symbolic=True
            )
            replace_results(self.gm, node, result)
            return True
        if node.target is SUPPRESS:
            *tensors, threshold = args

            def keep(*tensors: Tensor) -> Tensor:
                order, kept = mark_kept(*tensors, threshold=threshold)
                return order[_find_places(kept)[0]]

            given = [tensor for tensor in tensors if tensor is not None]
            replace_results(self.gm, node, inline(self.gm, node, keep, given, symbolic=True))
            return True
        if node.target is aten.index.Tensor or node.target in _PUTS:
            return self._index(node, args)
        return False

    def _index(self, node: Node, args: tuple[Any, ...]) -> bool:
        masks = [index for index in args[1] if index is not None and self._is_mask(index)]
        if not masks or (node.target in _PUTS and self._value(args[2]).dim() == 0):
            return False  # one number is put where a mask is true, which takes no places
        indices: list[Node | None] = []
        for index in args[1]:
            indices += self._find(node, index) if index in masks else [index]
        node.args = (args[0], indices, *args[2:])
        node.meta.pop("unbacked_bindings", None)
        return True

    def _value(self, node: Node) -> Tensor:
        constant = constant_of(self.gm, node)
        value = value_of(node) if constant is None else constant
        assert value is not None
        return value

    def _is_mask(self, node: Node) -> bool:
        return self._value(node).dtype == torch.bool

    def _find(self, before: Node, mask: Node) -> list[Node]:
        """The indices of true elements, one tensor for each dimension."""
        if mask not in self.known or is_changed(mask):
            self.known[mask] = inline(self.gm, before, _find_places, [mask], symbolic=True)
        return self.known[mask]


def _find_places(mask: Tensor) -> tuple[Tensor, ...]:
    sizes: Sequence[Any] = mask.shape
    room, device = math.prod(sizes), mask.device
    marks = mask.reshape(-1) if mask.dtype == torch.bool else mask.reshape(-1) != 0
    # Behind all others is a place for whatever isn't true.
    targets = torch.where(marks, marks.cumsum(0) - 1, room)
    order = torch.zeros(room + 1, dtype=torch.int64, device=device)
    order = order.index_put([targets], torch.arange(room, device=device))
    count: Any = marks.sum().item()
    aten._assert_scalar.default(count >= 0, "a count is negative")
    aten._assert_scalar.default(count <= room, "a count exceeds its mask")
    place = order[torch.arange(count, device=device)]
    columns: list[Tensor] = []
    for size in reversed(sizes):
        columns.append(place % size if len(columns) + 1 < len(sizes) else place)
        place = place // size
    return tuple(reversed(columns))
