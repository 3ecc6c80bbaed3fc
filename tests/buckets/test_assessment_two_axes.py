from __future__ import annotations

import json

import numpy as np
import pytest

from edgecompile.buckets.assessment import assess_plan
from edgecompile.buckets.confidence import bootstrap_interval, held_out_cost
from edgecompile.buckets.costs.grid import CostGrid, CostPoint
from edgecompile.buckets.evaluation import expected_cost
from edgecompile.buckets.figures import bucket_figures, bucket_table
from edgecompile.buckets.plan import BucketPlan
from edgecompile.buckets.planner import plan_buckets
from edgecompile.buckets.ranges import AxisRange, Bucket
from edgecompile.buckets.traffic import Traffic
from edgecompile.lengths.joint import JointDistribution
from tests.buckets.costs.grids import two_axes

AXES = ("length", "batch")
SURFACE = two_axes(
    AXES,
    [
        (b, CostPoint(n, 1.3 + 0.12 * n * b, 1 + 0.1 * n * b))
        for b in (1, 4, 8)
        for n in (1, 32, 128)
    ],
    "measured",
)
RNG = np.random.default_rng(1)
LENGTHS = np.minimum(RNG.lognormal(3, 0.7, 600).astype(int) + 1, 200).tolist()
BATCHES = RNG.choice([1, 2, 8], 600, p=[0.6, 0.3, 0.1]).tolist()
CELLS: dict[tuple[int, ...], int] = {}
for cell in zip(LENGTHS, BATCHES, strict=True):
    CELLS[cell] = CELLS.get(cell, 0) + 1
SAMPLE = JointDistribution.from_counts(AXES, CELLS, "traffic")


def test_assessment() -> None:
    plan = plan_buckets(SAMPLE, SURFACE, max_buckets=5, max_sizes={"length": 100})
    judged = assess_plan(plan, SAMPLE, programs=5, seed=4)
    assert judged.interval.low < (plan.expected_ms or 0) < judged.interval.high
    assert judged.served.lengths.max == 100 and judged.traffic.lengths.max > 100
    assert judged.served.most == (100, 8)
    assert judged.held_out is not None and judged.held_out.samples == 120
    document = json.loads(json.dumps(judged.to_json()))
    assert BucketPlan.from_json(document) == plan
    wanted = {"policies", "lengths", "interval", "held_out", "warnings", "lower_bound_ms", "sizes"}
    assert wanted <= set(document)
    assert document["sizes"]["batch"]["max"] == 8
    assert document["cost_model"]["axes"] == ["length", "batch"]
    assert document["policies"]["optimum"]["regret"] == 0
    text = " ".join(judged.sentences())
    assert "Costs are measured, at 3 × 3 points." in text
    assert (
        "of resampled traffic" in text
        and "Cross-check: a plan made from 80 % of the inputs" in text
    )
    assert json.dumps(assess_plan(plan, SAMPLE, programs=5, seed=4).to_json()) == json.dumps(
        document
    )


def test_small_samples_are_not_split() -> None:
    sample = JointDistribution.from_counts(AXES, {(3, 1): 4, (9, 2): 2})
    judged = assess_plan(plan_buckets(sample, SURFACE, max_buckets=2), sample, programs=2)
    assert judged.held_out is None
    assert any("samples are few" in line for line in judged.warnings)


def test_a_plan_without_costs_or_over_other_axes_is_not_assessed() -> None:
    plan = plan_buckets(SAMPLE, SURFACE, max_buckets=2)
    with pytest.raises(ValueError, match="without costs"):
        assess_plan(BucketPlan("length", plan.buckets), SAMPLE, programs=2)
    with pytest.raises(ValueError, match="the traffic over"):
        assess_plan(plan, SAMPLE.marginal("length"), programs=2)


def test_of_two_axes_the_lengths_alone_count_where_costs_are_over_one() -> None:
    lengths = SAMPLE.marginal("length")
    curve = CostGrid((CostPoint(1, 1.0, 1.5), CostPoint(200, 20.0, 19.0)), "measured")
    plan = plan_buckets(lengths, curve, max_buckets=3)
    assert (
        assess_plan(plan, SAMPLE, seed=1).to_json() == assess_plan(plan, lengths, seed=1).to_json()
    )


def test_figures_by_hand() -> None:
    def box(mode: str, lo: int, hi: int, low: int, high: int) -> Bucket:
        axes = (("length", AxisRange(lo, hi, hi)), ("batch", AxisRange(low, high, low)))
        return Bucket(mode, axes, AXES if mode == "pad" else ())  # type: ignore[arg-type]

    boxes = (box("exact", 1, 20, 1, 8), box("pad", 21, 32, 1, 4), box("pad", 21, 32, 5, 8))
    plan = BucketPlan("length", boxes, cost_model=SURFACE)
    sample = JointDistribution.from_counts(AXES, {(10, 1): 6, (30, 2): 2, (40, 1): 2})
    figures = bucket_figures(plan, sample)
    assert [item.share for item in figures] == [0.6, 0.2, 0.0]
    assert figures[1].padding_waste == pytest.approx(1 - 60 / 128)
    exact, padded = (SURFACE.cost(10, "exact", 1), SURFACE.cost(32, "pad", 4))
    assert [item.expected_ms for item in figures] == [
        pytest.approx(exact),
        pytest.approx(padded),
        None,
    ]
    columns, rows = bucket_table(plan, sample)
    assert len(rows[0]) == len(columns)
    assert rows[1][1:5] == ("pad", "21–32", "1–4", "32 × 1")


def test_figures_agree_with_the_planner() -> None:
    plan = plan_buckets(SAMPLE, SURFACE, max_buckets=6)
    figures = bucket_figures(plan, SAMPLE)
    mean = sum(item.share * (item.expected_ms or 0) for item in figures)
    assert mean == pytest.approx(plan.expected_ms)
    assert sum(item.share for item in figures) == pytest.approx(1)


def test_held_out_cost_is_that_of_the_buckets_on_the_rest() -> None:
    found = held_out_cost(SAMPLE, SURFACE, seed=3, max_buckets=4)
    rest, held = Traffic.of(SAMPLE).split(0.2, 3)
    most = Traffic.of(SAMPLE).most
    plan = plan_buckets(rest, SURFACE, max_buckets=4, max_sizes=dict(zip(AXES, most, strict=True)))
    assert found.planned_ms == plan.expected_ms
    assert found.held_out_ms == pytest.approx(expected_cost(plan.buckets, held, SURFACE))
    assert found.excess >= -1e-9
    assert found == held_out_cost(SAMPLE, SURFACE, seed=3, max_buckets=4)


def test_interval_shrinks_with_the_sample() -> None:
    plan = plan_buckets(SAMPLE, SURFACE, max_buckets=4)
    many = JointDistribution(AXES, SAMPLE.sizes, tuple(100 * n for n in SAMPLE.counts))
    small = bootstrap_interval(plan.buckets, SAMPLE, SURFACE, seed=1)
    large = bootstrap_interval(plan.buckets, many, SURFACE, seed=1)
    assert large.high - large.low == pytest.approx((small.high - small.low) / 10, rel=0.2)
    assert small.low < (plan.expected_ms or 0) < small.high
