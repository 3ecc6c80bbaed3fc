"""The figures of a plan, against sums made by hand."""

from __future__ import annotations

import json

import pytest

from edgecompile.buckets.assessment import allowed_programs, assess_plan
from edgecompile.buckets.costs.grid import CostGrid, CostPoint
from edgecompile.buckets.figures import bucket_figures
from edgecompile.buckets.plan import BucketPlan
from edgecompile.buckets.planner import plan_buckets
from edgecompile.buckets.ranges import AxisRange, Bucket
from edgecompile.errors import PlanError
from edgecompile.lengths.distribution import LengthDistribution

CURVE = CostGrid(
    (CostPoint(1, 1.2, 1.0), CostPoint(16, 3.0, 2.5), CostPoint(64, 9.0, 8.0)), "measured"
)


def bucket(lo: int, hi: int, mode: str) -> Bucket:
    return Bucket(mode, (("length", AxisRange(lo, hi, hi)),))  # type: ignore[arg-type]


def test_figures_of_each_bucket() -> None:
    plan = BucketPlan("length", (bucket(1, 16, "pad"), bucket(17, 64, "exact")), cost_model=CURVE)
    sample = LengthDistribution((4, 16, 64, 80), (2, 1, 1, 1))
    first, second = bucket_figures(plan, sample)
    assert (first.share, second.share) == (0.6, 0.2)
    assert first.padding_waste == pytest.approx(1 - (4 + 4 + 16) / (3 * 16))
    assert second.padding_waste == 0
    assert (first.expected_ms, second.expected_ms) == (2.5, 9.0)


def test_a_bucket_without_samples_and_a_plan_without_costs() -> None:
    plan = BucketPlan("length", (bucket(1, 16, "pad"), bucket(17, 64, "exact")))
    figures = bucket_figures(plan, LengthDistribution((4,), (3,)))
    assert [item.expected_ms for item in figures] == [None, None]
    assert figures[1].share == 0 and figures[1].padding_waste == 0


def test_figures_agree_with_the_planner() -> None:
    sample = LengthDistribution.from_samples([1 + i * i % 61 for i in range(300)])
    plan = plan_buckets(sample, CURVE, max_buckets=4, max_sizes={"length": 64})
    figures = bucket_figures(plan, sample)
    mean = sum(item.share * (item.expected_ms or 0) for item in figures)
    assert mean == pytest.approx(plan.expected_ms)
    assert sum(item.share for item in figures) == pytest.approx(1)


def test_assessment() -> None:
    sample = LengthDistribution.from_samples([1 + i * i % 90 for i in range(300)])
    plan = plan_buckets(sample, CURVE, max_buckets=3, max_sizes={"length": 64})
    judged = assess_plan(plan, sample, programs=3, seed=5)
    assert judged.interval.low <= (plan.expected_ms or 0) <= judged.interval.high
    assert judged.served.lengths.max == 64 and judged.traffic.lengths.max > 64
    document = judged.to_json()
    assert json.dumps(document) == json.dumps(
        assess_plan(plan, sample, programs=3, seed=5).to_json()
    )
    assert document["lengths"]["n"] == 300 and document["held_out"]["samples"] == 60
    assert min(policy["regret"] for policy in document["policies"].values()) >= -1e-9
    # What every later stage reads: the judgement beside it is ignored.
    assert BucketPlan.from_json(document) == plan
    assert "Costs are measured, at 3 points." in judged.sentences()


def test_a_small_sample_is_not_split() -> None:
    sample = LengthDistribution((4, 9), (3, 5))
    plan = plan_buckets(sample, CURVE, max_buckets=2)
    judged = assess_plan(plan, sample, programs=2)
    assert judged.held_out is None and judged.to_json()["held_out"] is None


def test_what_cannot_be_assessed() -> None:
    plan = BucketPlan("length", (bucket(8, 64, "exact"),))
    with pytest.raises(ValueError, match="without costs"):
        assess_plan(plan, LengthDistribution((9,), (1,)), programs=1)
    costed = BucketPlan("length", (bucket(8, 64, "exact"),), cost_model=CURVE)
    with pytest.raises(PlanError):
        assess_plan(costed, LengthDistribution((4, 9), (1, 1)), programs=1)


def test_other_rules_may_use_what_the_plan_was_allowed() -> None:
    sample = LengthDistribution.from_counts({n: 3 for n in range(1, 60)})
    points = tuple(CostPoint(n, None, 1.0 + n) for n in (1, 60))
    curve = CostGrid(points, "measured")
    bounded = plan_buckets(sample, curve, max_buckets=5, price_per_bucket=10.0)
    assert len(bounded.buckets) < 5 == allowed_programs(bounded)
    assert allowed_programs(plan_buckets(sample, curve, buckets=3)) == 3
    priced = plan_buckets(sample, curve, max_buckets=None, price_per_bucket=10.0)
    assert allowed_programs(priced) == 8
