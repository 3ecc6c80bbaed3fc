"""Operators on boxes, as torchvision has them, for programs that run without it.

The number of boxes that non-maximum suppression keeps depends on values, so it differs between runs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph

from edgecompile.export.operators.library import define
from edgecompile.models.source_lines import line_of_trace

#: The most numbers (4 a box) for which torchvision's ``batched_nms`` moves the groups apart and runs one
#: suppression. For more it runs one for each group.
MOST_MOVED = 4000


def suppress(boxes: Tensor, scores: Tensor, groups: Tensor | None, threshold: float) -> Tensor:
    """Computes the operator with torch's own ones; see :data:`SUPPRESS`."""
    if not len(boxes):
        return boxes.new_empty(0, dtype=torch.int64)
    if groups is not None and boxes.numel() <= MOST_MOVED:
        offsets = groups.to(boxes.dtype) * (boxes.max() + 1)
        boxes, groups = boxes + offsets[:, None], None
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    order = scores.sort(descending=True, stable=True)[1]
    gone = torch.zeros(len(boxes), dtype=torch.bool)
    kept = []
    for i in order.tolist():
        if gone[i]:
            continue
        kept.append(i)
        first, last = boxes[i, :2], boxes[i, 2:]
        starts = torch.where(first < boxes[:, :2], boxes[:, :2], first)
        ends = torch.where(boxes[:, 2:] < last, boxes[:, 2:], last)
        sides = torch.where(ends - starts > 0, ends - starts, 0)
        common = sides[:, 0] * sides[:, 1]
        over = (common / (area[i] + area - common)).double() > threshold
        gone |= over if groups is None else over & (groups == groups[i])
    return torch.tensor(kept, dtype=torch.int64)


def _suppress_fake(boxes: Tensor, *_: Any) -> Tensor:
    context: Any = torch.library.get_ctx()
    return boxes.new_empty(context.new_dynamic_size(), dtype=torch.int64)


#: Non-maximum suppression. ``boxes`` [N, 4] (left, top, right, bottom) and ``scores`` [N] are both float32 or both
#: float64. ``groups`` [N]: boxes suppress only boxes of their group; None: all boxes are in one. Gives the indices of
#: the kept boxes, int64 [K], the highest score first, equal scores by index. A box is kept unless its intersection
#: over union with a box that was kept before exceeds ``threshold``.
SUPPRESS = define(
    "ec_suppress(Tensor boxes, Tensor scores, Tensor? groups, float threshold) -> Tensor",
    suppress,
    _suppress_fake,
)


def roi_align(
    x: Tensor, boxes: Tensor, scale: float, rows: int, columns: int, samples: int, aligned: bool
) -> Tensor:
    """Computes the operator with torch's own ones; see :data:`ROI_ALIGN`."""
    result = x.new_zeros(len(boxes), x.shape[1], rows, columns)
    for number, (image, *sides) in enumerate(boxes):
        left, top, right, bottom = (side * scale - (0.5 if aligned else 0.0) for side in sides)
        y, y_samples = _places(top, bottom - top, rows, samples, aligned)
        x_, x_samples = _places(left, right - left, columns, samples, aligned)
        if not y_samples or not x_samples:
            continue
        down, across = _shares(y, x.shape[2]), _shares(x_, x.shape[3])
        each = down.to(x.dtype) @ x[int(image)] @ across.to(x.dtype).t()
        bins = each.reshape(-1, rows, y_samples, columns, x_samples)
        result[number] = bins.mean((2, 4))
    return result


def _places(
    start: Tensor, size: Tensor, bins: int, samples: int, aligned: bool
) -> tuple[Tensor, int]:
    """The coordinates of a box's samples along one axis, and the number of samples in a bin."""
    size = size if aligned else size.clamp(min=1.0)
    each = samples if samples > 0 else max(int((size / bins).ceil().nan_to_num(0)), 0)
    steps = torch.arange(bins)[:, None] + (torch.arange(each) + 0.5) / max(each, 1)
    return (start + steps.to(start.dtype) * (size / bins)).flatten(), each


def _shares(places: Tensor, size: int) -> Tensor:
    """The weights of linear interpolation, ``[places, size]``, of ``size`` pixels; 0 outside the image."""
    inside = (places >= -1) & (places <= size)
    near = places.clamp(0, size - 1)
    return (1 - (torch.arange(size) - near[:, None]).abs()).clamp(min=0) * inside[:, None]


#: Averages over the bins of boxes. ``x`` [N, C, H, W] and ``boxes`` [K, 5] are float32. A box is the index of its image,
#: then left, top, right and bottom in units of ``1 / scale`` pixels. Gives [K, C, rows, columns]: each bin's mean of
#: ``samples`` by ``samples`` interpolated values, or with 0 or less of about one for each pixel. With ``aligned`` the
#: pixels' centres are at halves.
ROI_ALIGN = define(
    "ec_roi_align(Tensor x, Tensor boxes, float scale, int rows, int columns, int samples, bool aligned) -> Tensor",
    roi_align,
    lambda x, boxes, scale, rows, columns, *_: x.new_empty(
        (boxes.shape[0], x.shape[1], rows, columns)
    ),
)

#: torchvision's names of the operators, by their names in a graph.
_NAMES = {
    "edgecompile::ec_suppress": "nms",
    "torchvision::nms": "nms",
    "edgecompile::ec_roi_align": "roi_align",
    "torchvision::roi_align": "roi_align",
}


def describe_boxes(graph: Graph) -> str:
    """The operators on boxes in an exported graph, with their lines: ``nms (net.py:12)``; "" without any."""
    lines: dict[str, list[str]] = {}
    for node in graph.nodes:
        name = _NAMES.get(str(getattr(getattr(node.target, "_schema", None), "name", "")))
        if name is not None:
            place = line_of_trace(node.meta.get("stack_trace"))
            lines.setdefault(name, []).extend([] if place is None else [place.short])
    return " and ".join(
        f"{name} ({', '.join(dict.fromkeys(places))})" if places else name
        for name, places in lines.items()
    )
