"""YOLOS, a detector of transformers that looks for objects by queries: a small one, with random weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Boxes(nn.Module):
    """Images [1, 3, height, width] to logits [1, 10, labels] and boxes [1, 10, 4]."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        found = self.model(image)
        return found.logits, found.pred_boxes


def yolos() -> dict[str, Any]:
    """YOLOS, whose tables of positions are resampled to the image's size."""
    from transformers import YolosConfig, YolosForObjectDetection

    torch.manual_seed(0)
    make: Any = YolosConfig
    config = make(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        image_size=[64, 96], patch_size=16, num_detection_tokens=10, num_labels=5,
    )  # fmt: skip
    return {
        "module": Boxes(YolosForObjectDetection(config).eval()).eval(),
        "inputs": {"image": torch.randn(1, 3, 64, 96)},
        "axes": {"image": {2: "height", 3: "width"}},
        "limits": {"height": (16, 128), "width": (16, 128)},
        "length_axis": "height",
        "outputs": ["logits", "boxes"],
    }
