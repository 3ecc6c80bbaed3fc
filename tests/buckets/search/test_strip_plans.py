"""What plans of strips say, and what is refused: examples; test_strips.py compares them with brute force."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgecompile.buckets.evaluation import expected_cost
from edgecompile.buckets.limits import BucketLimits
from edgecompile.buckets.plan import BucketPlan
from edgecompile.buckets.planner import plan_buckets
from edgecompile.buckets.ranges import AxisRange, Bucket
from edgecompile.buckets.search.strips import SearchBounds
from edgecompile.errors import PlanError
from edgecompile.lengths.joint import JointDistribution
from tests.buckets.search.test_strips import AXES, surface

RISING = surface(
    {
        1: {8: (1.4, 1.0), 64: (4.4, 4.0), 256: (16.4, 16.0)},
        8: {8: (6.4, 6.0), 64: (30.4, 30.0), 256: (126.4, 126.0)},
    }
)
TRAFFIC = JointDistribution.from_counts(
    AXES, {(n, b): 1 + (n * b) % 5 for n in range(4, 200, 7) for b in (1, 2, 4, 8)}, "traffic"
)


def test_notes_tell_the_gap_and_what_is_doubtful() -> None:
    plan = plan_buckets(TRAFFIC, RISING, max_buckets=6, max_sizes={"length": 150, "batch": 16})
    text = " ".join(plan.notes)
    assert "Plans are strips" in text and "This is the best of them" in text
    assert "the lower bound is" in text or "Proven optimal" in text
    assert "of the samples have a length over 150 and count as 150" in text
    assert "No sample has a batch over 8; those from 9 to 16 are served" in text
    assert "The last cost point on the axis batch is at 8" in text


def test_exact_boxes_say_what_to_tune_for() -> None:
    rows = {n: {k: (0.1 * k * n, 9.0 * k * n) for k in (1, 100)} for n in (1, 8)}
    sample = JointDistribution.from_counts(AXES, {(1, 8): 100, (50, 1): 10, (100, 4): 10})
    plan = plan_buckets(sample, surface(rows), max_buckets=1, max_sizes={"length": 128})
    (bucket,) = plan.buckets
    # 100·0.8 ms, 10·5 ms and 10·40 ms: half of 530 ms is spent at length 100, at batch 4.
    assert (bucket.mode, bucket.hint, bucket.range("batch").hint) == ("exact", 100, 4)
    assert plan.notes[0].startswith("One dynamic range is best: it runs every input unpadded")


def test_a_model_without_exact_costs_gets_padded_boxes() -> None:
    rows = {n: {k: (None, float(k * n)) for k in (1, 100)} for n in (1, 8)}
    plan = plan_buckets(TRAFFIC.clip("length", 100)[0], surface(rows), max_buckets=8)
    assert all(bucket.mode == "pad" for bucket in plan.buckets)
    assert all(bucket.pad_axes == AXES for bucket in plan.buckets)
    assert any("padded to fixed sizes: there are no exact costs" in n for n in plan.notes)


def test_limits_bound_the_number() -> None:
    plan = plan_buckets(TRAFFIC, RISING, max_buckets=8, limits=BucketLimits())
    assert len(plan.buckets) == 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_buckets": 0}, "`max_buckets` is 0"),
        ({"buckets": 5000}, "5000 buckets are wanted"),
        ({"max_buckets": None}, "every size would get its own"),
        ({"price_per_bucket": -1.0}, "price per bucket is -1.0"),
        ({"price_per_bucket": math.nan}, "price per bucket is nan"),
        ({"min_sizes": {"length": 0}}, "range 0..193 of length"),
        ({"max_sizes": {"batch": 2**31}}, "range 1..2147483648 of batch"),
        ({"min_sizes": {"batch": 2}}, "samples have a batch under the smallest served, 2"),
        ({"max_sizes": {"width": 2}}, "sizes are given for width"),
        ({"modes": ()}, "none allowed"),
    ],
)
def test_what_cannot_be_planned_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError) as caught:
        plan_buckets(TRAFFIC, RISING, **options)
    assert message in caught.value.message


def test_costs_over_other_axes_are_refused() -> None:
    other = replace(RISING, axes=("length", "width"))
    with pytest.raises(PlanError, match="sizes of length and batch, the costs are over length and"):
        plan_buckets(TRAFFIC, other)


def test_many_sizes_are_planned_by_a_heuristic_near_its_bound() -> None:
    rng = np.random.default_rng(3)
    lengths = np.minimum(rng.lognormal(4, 0.8, 20_000).astype(int) + 1, 512)
    others = np.minimum((lengths * rng.lognormal(0, 0.4, 20_000)).astype(int) + 1, 512)
    cells: dict[tuple[int, ...], int] = {}
    for cell in zip(lengths.tolist(), others.tolist(), strict=True):
        cells[cell] = cells.get(cell, 0) + 1
    sample = JointDistribution.from_counts(AXES, cells, "two lengths")
    rows = {
        n: {k: (1.5 + 0.03 * (k + n), 1.0 + 0.03 * (k + n)) for k in (1, 128, 512)}
        for n in (1, 128, 512)
    }
    plan = plan_buckets(sample, surface(rows), max_buckets=8, bounds=SearchBounds(steps=200_000))
    assert any("this is a heuristic" in note for note in plan.notes)
    assert plan.expected_ms == pytest.approx(expected_cost(plan.buckets, sample, surface(rows)))
    assert 1.0 <= (plan.expected_ms or 0) / (plan.lower_bound_ms or 0) < 1.5


def test_boxes_of_one_strip_may_leave_holes_on_the_length_axis() -> None:
    """Length cut first: buckets that agree in the batch needn't be neighbours."""

    def box(lo: int, hi: int, low: int, high: int) -> Bucket:
        axes = (("length", AxisRange(lo, hi, hi)), ("batch", AxisRange(low, high, high)))
        return Bucket("pad", axes, AXES)

    plan = BucketPlan(
        "length",
        (box(1, 4, 1, 2), box(1, 4, 3, 8), box(5, 9, 1, 8), box(10, 12, 1, 2), box(10, 12, 3, 8)),
    )
    with pytest.raises(PlanError, match=r"no bucket serves length 5..9, batch 1..2"):
        BucketPlan("length", tuple(b for b in plan.buckets if b.lo != 5))
    with pytest.raises(
        PlanError, match=r"length 1..4, batch 3..8 and length 4..9, batch 1..8 overl"
    ):
        BucketPlan("length", (*plan.buckets[:2], box(4, 9, 1, 8), *plan.buckets[3:]))
