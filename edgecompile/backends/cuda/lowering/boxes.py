"""torchvision's operators on boxes, with kernels of ours; how many boxes are kept, the host reads."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from edgecompile.backends.cuda.kernels import boxes as kernels
from edgecompile.backends.cuda.kernels.sorting import SORT
from edgecompile.backends.lowering.inlining import inline
from edgecompile.backends.lowering.rewriting import Lowering, arguments_of, replace_results
from edgecompile.export.operators.boxes import MOST_MOVED, ROI_ALIGN

aten = torch.ops.aten


def mark_kept(
    boxes: Tensor, scores: Tensor, groups: Tensor | None = None, *, threshold: float
) -> tuple[Tensor, Tensor]:
    """The boxes' numbers in the order of their scores, and for each of those whether its box is kept."""
    # Where a program computes in half precision, what is common to two boxes is still of float32.
    boxes = boxes.to(torch.float32) if boxes.dtype != torch.float64 else boxes
    order = SORT(scores[None], scores.shape[0], True)[1][0]
    if groups is not None:
        # torchvision moves the groups of few boxes apart; of many each group is suppressed by itself.
        few = torch.full((1,), boxes.shape[0] * 4) <= MOST_MOVED
        lowest = torch.full((1,), float("-inf"), dtype=boxes.dtype)
        most = torch.cat([boxes.flatten(), lowest]).max()
        moved = boxes + (groups.to(boxes.dtype) * (most + 1))[:, None]
        boxes = torch.where(few, moved, boxes)
        groups = torch.where(few, 0, groups.to(torch.int64))[order]
    return order, kernels.SUPPRESS(boxes[order], groups, threshold)


def lower_averages(low: Lowering) -> None:
    """Makes averages over boxes calls of the kernel."""

    def align(node: Node) -> bool:
        x, boxes, *rest = arguments_of(node).values()

        def run(x: Tensor, boxes: Tensor) -> Tensor:
            images = boxes[:, 0]
            inside = ((images > -1) & (images < x.shape[0])).all()
            aten._assert_async.msg(inside, "a box is of an image that isn't there")
            arguments: Any = (x, boxes.to(torch.float32), *rest)
            result: Tensor = kernels.ROI_ALIGN(*arguments)
            return result

        replace_results(low.gm, node, inline(low.gm, node, run, [x, boxes], symbolic=True))
        return True

    low.each("boxes", {ROI_ALIGN}, align)
