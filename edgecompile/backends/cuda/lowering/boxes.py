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

#: The kernel counts them in 32 bits.
_MOST_SAMPLES = 2.0**31


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


def _few_samples(boxes: Tensor, scale: float, rows: int, columns: int, aligned: bool) -> Tensor:
    """Whether the samples of every box, about one for each pixel, are few enough for the kernel to count them."""
    sides = boxes * scale
    total: Any = 1.0
    fits: Any = True
    for first, bins in ((1, columns), (2, rows)):
        size = sides[:, first + 2] - sides[:, first]
        samples = ((size if aligned else size.clamp(min=1)) / bins).ceil()
        # A box without a size, or with NaN for it, has none.
        samples = torch.where(samples > 0, samples, 0)
        fits = fits & (samples < _MOST_SAMPLES)
        total = total * samples * bins
    result: Tensor = (fits & (total < _MOST_SAMPLES)).all()
    return result


def lower_averages(low: Lowering) -> None:
    """Makes averages over boxes calls of the kernel."""

    def align(node: Node) -> bool:
        bound = arguments_of(node)
        x, boxes, *rest = bound.values()

        def run(x: Tensor, boxes: Tensor) -> Tensor:
            images = boxes[:, 0]
            inside = ((images > -1) & (images < x.shape[0])).all()
            aten._assert_async.msg(inside, "a box is of an image that isn't there")
            if bound["samples"] <= 0:
                scale, rows, columns, _, aligned = rest
                few = _few_samples(boxes.to(torch.float32), scale, rows, columns, aligned)
                aten._assert_async.msg(few, "a box has too many samples")
            arguments: Any = (x, boxes.to(torch.float32), *rest)
            result: Tensor = kernels.ROI_ALIGN(*arguments)
            return result

        replace_results(low.gm, node, inline(low.gm, node, run, [x, boxes], symbolic=True))
        return True

    low.each("boxes", {ROI_ALIGN}, align)
