"""torchvision's operators on boxes become the runtime's."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from edgecompile.backends.lowering.boxes import lower_boxes
from edgecompile.backends.lowering.rewriting import Lowering, LoweringReport
from edgecompile.export.operators.boxes import ROI_ALIGN, SUPPRESS
from edgecompile.export.rewrites.numbers import symbolic_math
from tests.factories.detector import OPS


class Both(nn.Module):
    def forward(self, x: Tensor, boxes: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        kept = boxes[OPS.nms(boxes, scores, 0.5)]
        regions = torch.cat([torch.zeros_like(kept[:, :1]), kept], 1)
        return kept, OPS.roi_align(x, regions, 0.25, 3, 2, -1, False)


def draw(count: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    first = torch.rand(count, 2, dtype=dtype) * 20
    boxes = torch.cat([first, first + torch.rand(count, 2, dtype=dtype) * 20], 1)
    return torch.randn(1, 4, 11, 9, dtype=dtype), boxes, torch.rand(count, dtype=dtype)


def exported(dtype: torch.dtype = torch.float32) -> Any:
    count = torch.export.Dim("count", max=500)
    shapes = {"x": None, "boxes": {0: count}, "scores": {0: count}}
    return torch.export.export(Both(), draw(30, dtype), dynamic_shapes=shapes).module()


def test_both_are_lowered() -> None:
    graph = exported()
    report = LoweringReport()
    lower_boxes(Lowering(graph, report))
    graph.graph.lint()
    graph.recompile()
    assert {SUPPRESS, ROI_ALIGN} <= {node.target for node in graph.graph.nodes}
    assert report.counts["boxes"] == 2
    for count in (2, 3, 200):
        inputs = draw(count)
        for mine, theirs in zip(graph(*inputs), Both()(*inputs), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_averages_in_float64_stay() -> None:
    graph, report = exported(torch.float64), LoweringReport()
    lower_boxes(Lowering(graph, report))
    assert ROI_ALIGN not in {node.target for node in graph.graph.nodes}
    assert list(report.kept.values()) == ["it computes in torch.float64"]


def test_groups_are_one_operator_for_any_number_of_boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("torchvision.ops.boxes")

    def batched_nms(boxes: Tensor, scores: Tensor, idxs: Tensor, iou_threshold: float) -> Tensor:
        if boxes.numel() > 4000:  # a branch, as torchvision has it
            raise AssertionError
        return OPS.nms(boxes + idxs[:, None] * 100, scores, iou_threshold)  # type: ignore[no-any-return]

    module.batched_nms = batched_nms  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    own = ModuleType("model_of_boxes")
    own.__file__ = "/models/model_of_boxes.py"
    own.suppress = batched_nms  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, own.__name__, own)

    class Grouped(nn.Module):
        def forward(self, boxes: Tensor, scores: Tensor, groups: Tensor) -> Tensor:
            best = boxes[scores > 0.1]
            return own.suppress(best, scores[scores > 0.1], groups[scores > 0.1], 0.5)  # type: ignore[no-any-return]

    _, boxes, scores = draw(40)
    with symbolic_math():
        program = torch.export.export(Grouped(), (boxes, scores, torch.arange(40) % 3))
    assert [n.target for n in program.graph.nodes if n.target is SUPPRESS]
    assert own.suppress is batched_nms
