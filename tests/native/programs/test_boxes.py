"""The operators on boxes of the C ABI against those in torch, and against results of torchvision."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from edgecompile.export.operators.boxes import roi_align, suppress
from tests.native.programs.aoti import ShimError
from tests.native.programs.box_cases import (
    AVERAGES,
    GROUPS,
    KEPT,
    SUPPRESSIONS,
    draw_boxes,
    draw_groups,
    draw_map,
    draw_regions,
    draw_scores,
    torchvision_results,
)
from tests.native.programs.torch_cases import Optional, ours


def kept(boxes: Tensor, scores: Tensor, groups: Tensor | None, threshold: float) -> Tensor:
    """The result of the native operator."""
    return ours("cpu_ec_suppress", boxes, scores, Optional(groups), threshold, results=1)[0]


@pytest.mark.parametrize(("dtype", "count", "threshold"), SUPPRESSIONS)
def test_suppression(dtype: torch.dtype, count: int, threshold: float) -> None:
    boxes, scores = draw_boxes(count, dtype), draw_scores(count, dtype)
    wanted = suppress(boxes, scores, None, threshold)
    assert torch.equal(kept(boxes, scores, None, threshold), wanted)
    assert wanted.tolist() == torchvision_results()[str((dtype, count, threshold))].tolist()


@pytest.mark.parametrize(("dtype", "count"), GROUPS)
def test_suppression_within_groups(dtype: torch.dtype, count: int) -> None:
    boxes, (scores, groups) = draw_boxes(count), draw_groups(count, dtype)
    wanted = suppress(boxes, scores, groups, 0.4)
    assert torch.equal(kept(boxes, scores, groups, 0.4), wanted)
    assert wanted.tolist() == torchvision_results()[str((dtype, count))].tolist()


def test_the_share_is_compared_as_torchvision_compares_it() -> None:
    # A third of their union is common to both: rounded up in float32, and down in float64.
    boxes = torch.tensor([[0.0, 0, 2, 1], [1.0, 0, 3, 1]])
    share = torch.tensor(1.0) / 3
    scores = torch.tensor([0.5, 0.9])
    assert kept(boxes, scores, None, 1 / 3).tolist() == [1]
    assert kept(boxes, scores, None, float(share)).tolist() == [1, 0]
    assert kept(boxes.double(), scores.double(), None, 1 / 3).tolist() == [1, 0]


def test_nan_and_infinity() -> None:
    boxes, scores = draw_boxes(40), draw_scores(40)
    scores[3], scores[4], scores[5] = float("nan"), float("-inf"), float("inf")
    boxes[7, 1], boxes[8, 2], boxes[9] = float("nan"), float("inf"), float("nan")
    for groups in (None, torch.arange(40) % 3):
        assert torch.equal(kept(boxes, scores, groups, 0.5), suppress(boxes, scores, groups, 0.5))
    assert kept(boxes, scores, None, 0.5)[0] == 3


def test_views_are_read_as_they_are() -> None:
    boxes, scores = draw_boxes(50), draw_scores(50)
    turned = boxes.t().contiguous().t()
    assert torch.equal(kept(turned, scores, None, 0.3), kept(boxes, scores, None, 0.3))
    doubled = torch.stack([scores, -scores], 1)[:, 0]
    assert torch.equal(kept(boxes, doubled, None, 0.3), kept(boxes, scores, None, 0.3))


@pytest.mark.parametrize(
    ("boxes", "scores", "groups", "problem"),
    [
        (torch.zeros(3, 5), torch.zeros(3), None, "5 numbers instead of 4"),
        (torch.zeros(3, 4), torch.zeros(2), None, "3 boxes have 2 scores"),
        (torch.zeros(3, 4), torch.zeros(3), torch.zeros(2), "groups of another shape"),
        (torch.zeros(12), torch.zeros(3), None, "boxes"),
        (torch.zeros(3, 4), torch.zeros(3, 1), None, "scores"),
        (torch.zeros(3, 4), torch.zeros(3).double(), None, "both must be float32"),
        (torch.zeros(3, 4).half(), torch.zeros(3).half(), None, "boxes are float16"),
    ],
)
def test_what_does_not_fit_is_refused(
    boxes: Tensor, scores: Tensor, groups: Tensor | None, problem: str
) -> None:
    with pytest.raises(ShimError, match=problem):
        kept(boxes, scores, groups, 0.5)


def aligned_boxes(x: Tensor, boxes: Tensor, *settings: float) -> Tensor:
    """The result of the native operator."""
    scale, *rest = settings
    return ours("cpu_ec_roi_align", x, boxes, float(scale), *map(int, rest), results=1)[0]


@pytest.mark.parametrize(("settings", "aligned", "size"), AVERAGES)
def test_averages_over_boxes(
    settings: tuple[float, ...], aligned: bool, size: tuple[int, int]
) -> None:
    x, boxes = draw_map(size), draw_regions(max(size) / settings[0])
    own = aligned_boxes(x, boxes, *settings, aligned)
    scale, (rows, columns, samples) = settings[0], map(int, settings[1:])
    wanted = roi_align(x, boxes, scale, rows, columns, samples, aligned)
    torch.testing.assert_close(own, wanted, rtol=1e-4, atol=1e-4)
    # Channels last in memory, as convolutions leave them.
    last = x.to(memory_format=torch.channels_last)
    assert torch.equal(aligned_boxes(last, boxes, *settings, aligned), own)
    theirs = torchvision_results()[str((settings, aligned, size))]
    torch.testing.assert_close(own[KEPT].flatten(), theirs, rtol=1e-6, atol=1e-6)


def test_no_boxes_have_no_averages() -> None:
    empty = aligned_boxes(torch.randn(1, 3, 4, 4), torch.zeros(0, 5), 1.0, 2, 2, -1, False)
    assert empty.numel() == 0


def test_boxes_that_cannot_be_read_are_refused() -> None:
    x = torch.randn(2, 3, 8, 8)
    for image in (2.0, -1.0, float("nan")):
        with pytest.raises(ShimError, match="box 0 is of image"):
            aligned_boxes(x, torch.tensor([[image, 0, 0, 4, 4]]), 1.0, 2, 2, 2, False)
    with pytest.raises(ShimError, match="samples"):
        aligned_boxes(x, torch.tensor([[0.0, 0, 0, 1e6, 1e6]]), 1.0, 2, 2, -1, False)
    with pytest.raises(ShimError, match="pixels"):
        aligned_boxes(x, torch.tensor([[0.0, 0, 0, 1, float("inf")]]), 1.0, 2, 2, -1, False)
    with pytest.raises(ShimError, match="4 numbers instead of 5"):
        aligned_boxes(x, torch.zeros(1, 4), 1.0, 2, 2, 2, False)
    nothing = aligned_boxes(
        x,
        torch.full((1, 5), float("nan")).index_fill(1, torch.tensor([0]), 0.0),
        1.0,
        2,
        2,
        -1,
        True,
    )
    assert not nothing.any()
