from __future__ import annotations

import json

import numpy as np
import pytest

from edgecompile.buckets.costs.sources import CostPoint
from edgecompile.buckets.costs.surfaces import CostSurface
from edgecompile.buckets.joint.evaluation import joint_cost
from edgecompile.buckets.joint.evidence import held_out_joint, joint_interval
from edgecompile.buckets.joint.judgement import (
    joint_bucket_columns,
    joint_bucket_rows,
    joint_figures,
    judge_joint,
)
from edgecompile.buckets.joint.plan import plan_joint
from edgecompile.buckets.plan import BucketPlan
from edgecompile.buckets.ranges import AxisRange, Bucket
from edgecompile.lengths.joint import JointDistribution

AXES = ("length", "batch")
SURFACE = CostSurface.from_points(
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


def test_judgement() -> None:
    plan = plan_joint(SAMPLE, SURFACE, max_buckets=5, max_sizes={"length": 100})
    judged = judge_joint(plan, SAMPLE, programs=5, seed=4)
    assert judged.interval.low < (plan.expected_ms or 0) < judged.interval.high
    assert judged.served.max == 100 and judged.traffic.max > 100
    assert judged.served_sizes.max_sizes == {"length": 100, "batch": 8}
    assert judged.held_out is not None and judged.held_out.samples == 120
    document = json.loads(json.dumps(judged.to_json()))
    assert BucketPlan.from_json(document) == plan
    wanted = {"policies", "lengths", "interval", "held_out", "warnings", "lower_bound_ms", "sizes"}
    assert wanted <= set(document)
    assert document["sizes"]["batch"]["max"] == 8
    assert document["cost_model"]["axes"] == ["length", "batch"]
    assert document["policies"]["optimum"]["regret"] == 0
    text = " ".join(judged.sentences())
    assert "Costs are measured, at 3 sizes of length and 3 sizes of batch." in text
    assert (
        "of resampled traffic" in text
        and "Cross-check: a plan made from 80 % of the inputs" in text
    )
    assert json.dumps(judge_joint(plan, SAMPLE, programs=5, seed=4).to_json()) == json.dumps(
        document
    )


def test_small_samples_are_not_split() -> None:
    sample = JointDistribution.from_counts(AXES, {(3, 1): 4, (9, 2): 2})
    judged = judge_joint(plan_joint(sample, SURFACE, max_buckets=2), sample, programs=2)
    assert judged.held_out is None
    assert any("samples are few" in line for line in judged.warnings)


def test_a_plan_without_a_surface_is_not_judged() -> None:
    plan = plan_joint(SAMPLE, SURFACE, max_buckets=2)
    with pytest.raises(ValueError, match="two axes"):
        judge_joint(BucketPlan("length", plan.buckets), SAMPLE, programs=2)


def test_figures_by_hand() -> None:
    def box(mode: str, lo: int, hi: int, low: int, high: int) -> Bucket:
        axes = (("length", AxisRange(lo, hi, hi)), ("batch", AxisRange(low, high, low)))
        return Bucket(mode, axes, AXES if mode == "pad" else ())  # type: ignore[arg-type]

    boxes = (box("exact", 1, 20, 1, 8), box("pad", 21, 32, 1, 4), box("pad", 21, 32, 5, 8))
    plan = BucketPlan("length", boxes, cost_model=SURFACE)
    sample = JointDistribution.from_counts(AXES, {(10, 1): 6, (30, 2): 2, (40, 1): 2})
    view = joint_figures(plan, sample)
    assert [item.share for item in view.buckets] == [0.6, 0.2, 0.0]
    assert view.covered == 0.8
    assert view.buckets[1].padding_waste == pytest.approx(1 - 60 / 128)
    assert view.padding_waste == pytest.approx(1 - (60 + 120) / (60 + 256))
    exact, padded = (float(SURFACE.cost(10, 1, "exact")), float(SURFACE.cost(32, 4, "pad")))
    assert [item.expected_ms for item in view.buckets] == [
        pytest.approx(exact),
        pytest.approx(padded),
        None,
    ]
    assert view.expected_ms == pytest.approx((6 * exact + 2 * padded) / 8)
    rows = joint_bucket_rows(view, AXES)
    assert len(rows[0]) == len(joint_bucket_columns(AXES))
    assert rows[1][1:5] == ("pad", "21–32", "1–4", "32 × 1")


def test_figures_agree_with_the_planner() -> None:
    plan = plan_joint(SAMPLE, SURFACE, max_buckets=6)
    view = joint_figures(plan, SAMPLE)
    assert view.covered == 1
    assert view.expected_ms == pytest.approx(plan.expected_ms)
    assert sum(item.share for item in view.buckets) == pytest.approx(1)


def test_held_out_cost_is_that_of_the_buckets_on_the_rest() -> None:
    found = held_out_joint(SAMPLE, SURFACE, seed=3, max_buckets=4)
    rest, held = SAMPLE.split(0.2, 3)
    plan = plan_joint(rest, SURFACE, max_buckets=4, max_sizes=SAMPLE.max_sizes)
    assert found.planned_ms == plan.expected_ms
    assert found.held_out_ms == pytest.approx(joint_cost(plan.buckets, held, SURFACE))
    assert found.excess >= -1e-9
    assert found == held_out_joint(SAMPLE, SURFACE, seed=3, max_buckets=4)


def test_interval_shrinks_with_the_sample() -> None:
    plan = plan_joint(SAMPLE, SURFACE, max_buckets=4)
    many = JointDistribution(AXES, SAMPLE.sizes, tuple(100 * n for n in SAMPLE.counts))
    small = joint_interval(plan.buckets, SAMPLE, SURFACE, seed=1)
    large = joint_interval(plan.buckets, many, SURFACE, seed=1)
    assert large.high - large.low == pytest.approx((small.high - small.low) / 10, rel=0.2)
    assert small.low < (plan.expected_ms or 0) < small.high
