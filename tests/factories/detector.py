"""A detector of plain layers whose boxes are suppressed, and torchvision's operators where it isn't installed."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from edgecompile.export.operators.boxes import roi_align, suppress

#: Scores of boxes that are taken.
THRESHOLD = 0.5


def find_torchvision() -> Any:
    """torchvision; None where it isn't installed, or made for another torch."""
    try:
        return importlib.import_module("torchvision")
    except (ImportError, RuntimeError):
        return None


def _stand_in() -> Any:
    """Operators under torchvision's names and signatures, for the part of it that is tested here."""
    library: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.impl("nms", lambda boxes, scores, most: suppress(boxes, scores, None, most), "CPU")
    library.define(
        "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
        "int sampling_ratio, bool aligned) -> Tensor"
    )
    library.impl("roi_align", roi_align, "CPU")

    def kept(boxes: Tensor, *_: Any) -> Tensor:
        size = torch.library.get_ctx().new_dynamic_size()
        return boxes.new_empty(size, dtype=torch.int64)

    def averages(x: Tensor, boxes: Tensor, _: float, rows: int, columns: int, *__: Any) -> Tensor:
        return x.new_empty(boxes.shape[0], x.shape[1], rows, columns)

    torch.library.register_fake("torchvision::nms", kept, lib=library)
    torch.library.register_fake("torchvision::roi_align", averages, lib=library)
    return library


# A library's operators live as long as it does. A build runs this file once more.
_KNOWN = find_torchvision() is not None or hasattr(torch.ops.torchvision, "nms")
_LIBRARY = None if _KNOWN else _stand_in()
OPS = SimpleNamespace(
    nms=torch.ops.torchvision.nms.default, roi_align=torch.ops.torchvision.roi_align.default
)


def _convolution(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.SiLU()
    )


class Detector(nn.Module):
    """Images [1, 3, height, width] to boxes [K, 4], scores [K] and averages of features [K, 8, 2, 2]."""

    def __init__(self) -> None:
        super().__init__()
        self.fine, self.coarse = _convolution(3, 8, 2), _convolution(8, 8, 2)
        self.merge = _convolution(16, 8, 1)
        heads = [nn.Conv2d(8, 5, 1) for _ in range(2)]
        for head in heads:
            nn.init.normal_(head.weight, std=4)
            assert head.bias is not None
            nn.init.constant_(head.bias[4:], -1)  # there is nothing in a black image
        self.heads = nn.ModuleList(heads)

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        fine = self.fine(image)
        coarse = self.coarse(fine)
        larger = nn.functional.interpolate(coarse, size=fine.shape[2:], mode="nearest")
        fine = self.merge(torch.cat([fine, larger], 1))
        found = [
            self.decode(head(x), stride)
            for head, x, stride in zip(self.heads, (fine, coarse), (2, 4), strict=True)
        ]
        boxes, scores = (torch.cat(parts) for parts in zip(*found, strict=True))
        taken = scores > THRESHOLD
        boxes, scores = boxes[taken], scores[taken]
        kept = OPS.nms(boxes, scores, 0.4)
        boxes, scores = boxes[kept], scores[kept]
        regions = torch.cat([torch.zeros_like(boxes[:, :1]), boxes], 1)
        return boxes, scores, OPS.roi_align(fine, regions, 0.5, 2, 2, 2, True)

    @staticmethod
    def decode(x: Tensor, stride: int) -> tuple[Tensor, Tensor]:
        height, width = x.shape[2:]
        rows, columns = torch.arange(height) + 0.5, torch.arange(width) + 0.5
        places = torch.stack([columns.expand(height, width), rows[:, None].expand(height, width)])
        centres = (places + x[0, :2].tanh()) * stride
        halves = x[0, 2:4].sigmoid() * 2 * stride
        boxes = torch.cat([centres - halves, centres + halves]).flatten(1).t()
        return boxes, x[0, 4].sigmoid().flatten()


def detector() -> dict[str, Any]:
    torch.manual_seed(0)
    return {
        "module": Detector(),
        "inputs": {"image": torch.randn(1, 3, 16, 24)},
        "axes": {"image": {2: "height", 3: "width"}},
        "limits": {"height": (8, 32), "width": (8, 32)},
        "length_axis": "height",
        "outputs": ["boxes", "scores", "features"],
    }
