"""Suppression of boxes and averages over them, for a GPU."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("triton")

from edgecompile.backends.cuda.kernels import boxes as kernels
from edgecompile.backends.cuda.kernels.launch import interpreted
from edgecompile.backends.cuda.make_source import make_gpu_source
from edgecompile.buckets.ranges import AxisRange, Bucket
from edgecompile.export.export import export_model
from edgecompile.export.operators.boxes import ROI_ALIGN, SUPPRESS
from edgecompile.loaders.load import load_model
from edgecompile.targets.profile import load_target
from tests.backends.cuda.test_gpu_lowering import lowered, targets
from tests.factories.detector import OPS
from tests.needs import need_triton

COUNT = torch.export.Dim("count", min=2, max=3000)


def drawn(count: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Boxes, many of which hide others, with scores of which some are equal."""
    generator = torch.Generator().manual_seed(count)
    corners = torch.rand(count, 2, generator=generator, dtype=dtype) * 40
    sizes = torch.rand(count, 2, generator=generator, dtype=dtype) * 20
    scores = (torch.rand(count, generator=generator, dtype=dtype) * 50).round() / 50
    return torch.cat([corners, corners + sizes], 1), scores


class Suppresses(nn.Module):
    def forward(self, boxes: Tensor, scores: Tensor, groups: Tensor) -> Any:
        kept = OPS.nms(boxes, scores, 0.4)
        best = kept[:3]
        of_groups = SUPPRESS(boxes, scores, groups, 0.5)
        return kept, boxes[kept], scores[best].sum(), of_groups, groups[of_groups]


def test_what_is_kept_of_any_number_of_boxes() -> None:
    def inputs(count: int) -> dict[str, Tensor]:
        boxes, scores = drawn(count)
        return {"boxes": boxes, "scores": scores, "groups": torch.arange(count) % 3}

    module = Suppresses()
    shapes = {name: {0: COUNT} for name in ("boxes", "scores", "groups")}
    graph, report = lowered(module, inputs(9), "fp32", shapes)
    assert report.counts["selections"] == 2
    found = targets(graph)
    assert not {SUPPRESS, OPS.nms} & {*found}
    assert torch.ops.edgecompile.gpu_suppress.default in found
    # From 1,001 boxes on groups aren't moved apart.
    for count in (2, 30, 1000, 1001):
        given = inputs(count)
        with torch.no_grad():
            want, got = module(**given), graph(**given)
        for one, other in zip(got, want, strict=True):
            assert torch.equal(one, other)
        assert 0 < len(want[0]) < count or count == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_suppression_kernel(dtype: torch.dtype) -> None:
    boxes, _ = drawn(40, dtype)
    boxes[3, 0], boxes[6, 2], boxes[4], boxes[7] = torch.nan, torch.inf, boxes[5], boxes[7].flip(0)
    for groups in (None, torch.arange(40) % 3):
        want = kernels.SUPPRESS(boxes, groups, 0.3)
        with interpreted():
            got = kernels.SUPPRESS(boxes, groups, 0.3)
        assert torch.equal(got, want)
        assert 0 < int(want.sum()) < 40


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("samples", [2, 0])
def test_averages_kernel(samples: int, aligned: bool) -> None:
    x = torch.randn(2, 5, 9, 11, generator=torch.Generator().manual_seed(0))
    boxes = torch.cat([torch.arange(4)[:, None] % 2, drawn(4)[0] / 3 - 4], 1)
    boxes[2, 1:] = 5  # has no size
    want = ROI_ALIGN(x, boxes, 0.7, 2, 1, samples, aligned)
    boxes[3, 1] = torch.nan
    dtype, bound = (torch.float16, 3e-3) if aligned else (torch.float32, 3e-6)
    with interpreted():
        got = kernels.ROI_ALIGN(x.to(dtype), boxes, 0.7, 2, 1, samples, aligned)
    assert got.dtype == dtype and not got[3].any()
    assert (got[:3] - want[:3]).abs().max().item() < bound


def test_averages_over_what_is_kept() -> None:
    class Averages(nn.Module):
        def forward(self, boxes: Tensor, scores: Tensor, x: Tensor) -> Tensor:
            kept = boxes[OPS.nms(boxes, scores, 0.4)]
            regions = torch.cat([torch.zeros_like(kept[:, :1]), kept], 1)
            result: Tensor = OPS.roi_align(x, regions, 0.25, 2, 3, 2, True)
            return result

    boxes, scores = drawn(12)
    given = {"boxes": boxes, "scores": scores, "x": torch.randn(1, 4, 9, 11)}
    shapes: dict[str, Any] = {"boxes": {0: COUNT}, "scores": {0: COUNT}, "x": None}
    graph, _ = lowered(Averages(), given, "fp16", shapes)
    assert torch.ops.edgecompile.gpu_roi_align.default in targets(graph)
    want, got = Averages()(**given), graph(**given)
    assert got.shape == want.shape and got.dtype == want.dtype
    assert (got - want).abs().max().item() < 3e-2


def test_boxes_with_too_many_samples_are_refused() -> None:
    class Averages(nn.Module):
        def forward(self, regions: Tensor, x: Tensor) -> Tensor:
            result: Tensor = OPS.roi_align(x, regions, 0.5, 2, 3, 0, False)
            return result

    def regions(right: float) -> Tensor:
        box = [0.0, 1, 2, 9, 7]
        return torch.tensor([box, [0.0, 1, 2, right, 1e6]])

    x = torch.randn(1, 4, 9, 11)
    shapes: dict[str, Any] = {"regions": {0: COUNT}, "x": None}
    graph, _ = lowered(Averages(), {"regions": regions(9).clamp(max=9), "x": x}, "fp32", shapes)
    for right in (torch.inf, 1e6):
        with pytest.raises(RuntimeError, match="a box has too many samples"):
            graph(regions=regions(right), x=x)
    # A box without a size along one axis has none, however long it is along the other.
    few = regions(1e4).index_fill(1, torch.tensor([2]), torch.nan)
    assert not graph(regions=few, x=x).any()


def test_code_for_boxes_that_a_mask_left() -> None:
    class Found(nn.Module):
        def forward(self, boxes: Tensor, scores: Tensor) -> Tensor:
            taken = scores > 0.5
            boxes, scores = boxes[taken], scores[taken]
            kept = boxes[OPS.nms(boxes, scores, 0.4)]
            regions = torch.cat([torch.zeros_like(kept[:, :1]), kept], 1)
            result: Tensor = OPS.roi_align(torch.ones(1, 4, 9, 9), regions, 0.25, 3, 1, 0, False)
            return result

    boxes, scores = drawn(8)
    axes = {"boxes": {0: "length"}, "scores": {0: "length"}}
    spec = {"module": Found(), "inputs": {"boxes": boxes, "scores": scores}, "axes": axes}
    exported = export_model(load_model({**spec, "limits": {"length": (1, 64)}}))
    bucket = Bucket("exact", (("length", AxisRange(1, 64, 8)),))
    gpu = load_target("cuda-sm90").gpu
    assert gpu is not None
    made = make_gpu_source(exported, bucket, gpu.facts, "fp32", need_triton())
    ptx = {re.sub(r"_\d+$", "", kernel.name): kernel.ptx for kernel in made.kernels}
    assert "rank_kernel" in ptx
    for name in ("suppression_kernel", "align_kernel"):
        # Each step is rounded: a difference in the last bit could hide another box, or take a sample more.
        assert "div.rn.f32" in ptx[name] and not re.search(r"div\.full|fma\.rn\.f", ptx[name])
