"""torchvision's functions on boxes, for any number of boxes.

``batched_nms`` branches on the number, which may depend on values. And tracing takes for given that ``nms`` keeps
two boxes at least.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from edgecompile.export.operators.boxes import SUPPRESS


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Any:
    """``torchvision::nms``; NotImplemented for other than two matrices of floats, which it refuses itself."""
    if boxes.dim() != 2 or scores.dim() != 1 or not boxes.is_floating_point():
        return NotImplemented
    return SUPPRESS(boxes, scores, None, iou_threshold)


def box_operators() -> dict[Any, Callable[..., Any]]:
    """What is called instead of torchvision's operators; empty where it isn't imported."""
    packet: Any = getattr(torch.ops.torchvision, "nms", None)
    return {} if packet is None else {packet: nms, packet.default: nms}


def batched_nms(boxes: Tensor, scores: Tensor, idxs: Tensor, iou_threshold: float) -> Tensor:
    """``torchvision.ops.batched_nms``, with both ways of it in one operator."""
    kept: Tensor = SUPPRESS(boxes, scores, idxs, iou_threshold)
    return kept


def branching_functions() -> list[tuple[Any, Callable[..., Any]]]:
    """Functions of torchvision with those to call instead; none where it isn't imported."""
    module = sys.modules.get("torchvision.ops.boxes")
    original = getattr(module, "batched_nms", None)
    return [] if original is None else [(original, batched_nms)]
