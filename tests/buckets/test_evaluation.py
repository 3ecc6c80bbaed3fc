from __future__ import annotations

import pytest

from edgecompile.buckets.costs.grid import CostPoint
from edgecompile.buckets.evaluation import evaluate_buckets, expected_cost, find_buckets, run_costs
from edgecompile.buckets.ranges import AxisRange, Bucket
from edgecompile.buckets.traffic import Traffic
from edgecompile.errors import PlanError
from edgecompile.lengths.joint import JointDistribution
from tests.buckets.costs.grids import two_axes

AXES = ("length", "batch")
SURFACE = two_axes(
    AXES,
    [(b, CostPoint(n, 2.0 * n * b, 1.0 * n * b)) for b in (1, 10) for n in (1, 100)],
    "measured",
)
SAMPLE = JointDistribution.from_counts(AXES, {(10, 1): 6, (50, 2): 3, (100, 8): 1})


def box(mode: str, length: tuple[int, int], batch: tuple[int, int], pads: int = 2) -> Bucket:
    axes = (("length", AxisRange(*length, length[1])), ("batch", AxisRange(*batch, batch[1])))
    return Bucket(mode, axes, AXES[:pads] if mode == "pad" else ())  # type: ignore[arg-type]


BOXES = (
    box("exact", (1, 20), (1, 8)),
    box("pad", (21, 100), (1, 4)),
    box("pad", (21, 100), (5, 8)),
)


def test_figures_by_hand() -> None:
    assert run_costs(BOXES, SAMPLE, SURFACE).tolist() == pytest.approx([20, 400, 800])
    found = evaluate_buckets(BOXES, SAMPLE, SURFACE)
    assert found.expected_ms == pytest.approx((6 * 20 + 3 * 400 + 800) / 10)
    assert found.expected_ms == expected_cost(BOXES, SAMPLE, SURFACE)
    assert (found.p50_ms, found.p99_ms, found.programs) == (20, 800, 3)
    # 3 runs of 100·4 elements for 50·2 each.
    assert found.padding_waste == pytest.approx(3 * 300 / (60 + 1200 + 800))


def test_a_box_may_pad_the_length_alone() -> None:
    boxes = (box("exact", (1, 20), (1, 8)), box("pad", (21, 100), (1, 8), pads=1))
    assert run_costs(boxes, SAMPLE, SURFACE).tolist() == pytest.approx([20, 200, 800])
    found = evaluate_buckets(boxes, SAMPLE, SURFACE)
    assert found.padding_waste == pytest.approx(3 * 100 / (60 + 3 * 200 + 800))


def test_the_first_bucket_serves() -> None:
    boxes = (box("exact", (1, 100), (1, 2)), box("pad", (1, 100), (1, 8)))
    assert find_buckets(boxes, Traffic.of(SAMPLE)).tolist() == [0, 0, 1]


def test_sizes_outside_are_named() -> None:
    with pytest.raises(PlanError, match=r"no bucket serves length 100, batch 8\n"):
        evaluate_buckets(BOXES[:2], SAMPLE, SURFACE)
    assert find_buckets(BOXES[:2], Traffic.of(SAMPLE), partly=True).tolist() == [0, 1, -1]
    other = JointDistribution.from_counts(("length", "width"), {(1, 1): 1})
    with pytest.raises(PlanError, match="the sample has sizes of width"):
        find_buckets(BOXES, Traffic.of(other))
