"""Detectors of transformers that look for objects by queries: small ones, with random weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.factories.detector import OPS


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


#: Sizes that RT-DETRv2 and D-FINE share.
_SMALL = {
    "d_model": 32, "encoder_hidden_dim": 32, "encoder_ffn_dim": 64, "encoder_attention_heads": 4,
    "decoder_in_channels": [32, 32, 32], "decoder_ffn_dim": 64, "decoder_attention_heads": 4, "decoder_layers": 2,
    "decoder_n_points": 2, "num_queries": 10, "num_labels": 5, "num_denoising": 0, "freeze_backbone_batch_norms": False,
}  # fmt: skip
_STAGES = ["stage2", "stage3", "stage4"]


def _rt_detr() -> nn.Module:
    from transformers import RTDetrResNetConfig, RTDetrV2Config, RTDetrV2ForObjectDetection

    make: Any = RTDetrResNetConfig
    backbone = make(
        embedding_size=8, hidden_sizes=[8, 16, 24, 32], depths=[1] * 4, layer_type="basic", out_features=_STAGES
    )  # fmt: skip
    make = RTDetrV2Config
    config = make(backbone_config=backbone, encoder_in_channels=[16, 24, 32], **_SMALL)
    model = RTDetrV2ForObjectDetection(config)
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d):
            # The mean of all runs. With a rest of the first statistics values vanish on their way: all scores tie.
            norm.momentum = None
    return _as_trained(model)


def _d_fine() -> nn.Module:
    from transformers import DFineConfig, DFineForObjectDetection, HGNetV2Config

    make: Any = HGNetV2Config
    backbone = make(
        stem_channels=[3, 8, 8], stage_in_channels=[8, 16, 16, 32], stage_mid_channels=[8, 8, 8, 16],
        stage_out_channels=[16, 16, 32, 32], stage_num_blocks=[1] * 4, stage_numb_of_layers=[1] * 4,
        hidden_sizes=[16, 16, 32, 32], depths=[1] * 4, embedding_size=8, out_features=_STAGES,
    )  # fmt: skip
    make = DFineConfig
    config = make(
        backbone_config=backbone, encoder_in_channels=[16, 32, 32], max_num_bins=8, lqe_hidden_dim=16,
        **_SMALL,
    )  # fmt: skip
    return _as_trained(DFineForObjectDetection(config))


def _as_trained(model: Any) -> nn.Module:
    """Weights that tell queries apart, and statistics of norms: those of a new model make all scores tie.

    Larger weights would let the decoder magnify roundings: eager differs from float64 by 3e-3 then.
    """
    for weight in model.parameters():
        if weight.dim() > 1:
            nn.init.normal_(weight, std=(0.5 / weight[0].numel()) ** 0.5)
    model.train()
    with torch.no_grad():
        for _ in range(20):
            model(torch.randn(2, 3, 96, 64))
    module: nn.Module = model.eval()
    return module


class Kept(nn.Module):
    """Detectors with what follows them: the best pairs of query and label, of those above a threshold what NMS keeps."""

    def __init__(self, *models: nn.Module) -> None:
        super().__init__()
        self.models = nn.ModuleList(map(Boxes, models))

    def forward(self, image: Tensor, threshold: Tensor) -> tuple[Tensor, ...]:
        outputs: list[Tensor] = []
        for model in self.models:
            logits, boxes = model(image)
            outputs += self.detect(logits, boxes, threshold)
        return tuple(outputs)

    @staticmethod
    def detect(logits: Tensor, boxes: Tensor, threshold: Tensor) -> tuple[Tensor, ...]:
        scores, places = logits[0].sigmoid().flatten().topk(20)
        labels = places % logits.shape[2]
        x, y, width, height = boxes[0][places // logits.shape[2]].unbind(-1)
        corners = torch.stack([x - width / 2, y - height / 2, x + width / 2, y + height / 2], -1)
        found = scores > threshold
        scores, labels, corners = scores[found], labels[found], corners[found]
        kept = OPS.nms(corners, scores, 0.5)
        return logits, boxes, labels[kept], corners[kept], scores[kept]


def detr() -> dict[str, Any]:
    """RT-DETRv2 and D-FINE in one module, as one build takes half of the time of two."""
    torch.manual_seed(0)
    names = ("logits", "boxes", "labels", "kept", "scores")
    return {
        "module": Kept(_rt_detr(), _d_fine()).eval(),
        "inputs": {"image": torch.randn(1, 3, 96, 64), "threshold": torch.tensor([0.3])},
        "axes": {"image": {2: "32*height", 3: "32*width"}},
        "limits": {"height": (2, 5), "width": (2, 5)},
        "length_axis": "height",
        "outputs": [f"{model}_{name}" for model in ("rt_detr", "d_fine") for name in names],
    }
