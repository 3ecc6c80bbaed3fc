from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgecompile.buckets.baselines import (
    BASELINES,
    baseline_buckets,
    compare_baselines,
    exponential,
    linear,
    pad_to_max,
    powers_of_two,
    quantiles,
)
from edgecompile.buckets.costs.grid import CostGrid, CostPoint
from edgecompile.buckets.evaluation import evaluate_buckets
from edgecompile.buckets.planner import plan_buckets
from edgecompile.buckets.ranges import AxisRange
from edgecompile.buckets.traffic import Traffic
from edgecompile.errors import PlanError
from edgecompile.lengths.distribution import LengthDistribution
from tests.draws import examples

SAMPLE = LengthDistribution.from_samples(range(1, 101), "uniform")
CURVE = CostGrid((CostPoint(1, 2.0, 1.0), CostPoint(100, 101.0, 100.0)), "measured")

samples = st.dictionaries(st.integers(1, 300), st.integers(1, 50), min_size=1, max_size=20).map(
    lambda counts: LengthDistribution.from_counts(counts, "test")
)


def test_sizes_of_the_rules() -> None:
    assert pad_to_max(SAMPLE, 100, 4) == [100]
    assert powers_of_two(SAMPLE, 100, 4) == [16, 32, 64, 100]
    assert powers_of_two(SAMPLE, 128, 3) == [32, 64, 128]
    assert powers_of_two(LengthDistribution.from_counts({40: 1}), 100, 4) == [64, 100]
    assert linear(SAMPLE, 100, 4) == [25, 50, 75, 100]
    assert linear(SAMPLE, 10, 3) == [4, 7, 10]
    assert quantiles(SAMPLE, 100, 4) == [25, 50, 75, 100]
    assert quantiles(LengthDistribution.from_counts({5: 90, 50: 10}), 60, 4) == [5, 60]


def test_the_exponential_rule_is_the_published_one() -> None:
    """The example in the documentation of vLLM's bucketing on Gaudi: 128 to 2048 by 128, of 10."""
    expected = [128, 256, 384, 512, 640, 896, 1152, 1536, 2048]
    assert exponential(SAMPLE, 2048, 10, step=128) == expected
    assert exponential(SAMPLE, 250, 3) == [8, 48, 250]
    assert exponential(SAMPLE, 5, 3) == [5]
    assert exponential(SAMPLE, 512, 4) == [8, 32, 128, 512]


@pytest.mark.parametrize("name", BASELINES)
@settings(max_examples=examples(100), deadline=None)
@given(samples, st.integers(1, 12), st.integers(0, 100))
def test_rules_cover_the_range_within_their_number(
    name: str, sample: LengthDistribution, programs: int, beyond: int
) -> None:
    top = sample.max + beyond
    sizes = BASELINES[name](sample, top, programs)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == top
    assert sizes[0] >= 1
    assert len(sizes) <= programs


def test_evaluation_of_known_buckets() -> None:
    whole = plan_buckets(SAMPLE, CURVE, max_buckets=1)
    rules = baseline_buckets(whole, SAMPLE, CURVE, programs=2)
    halves = evaluate_buckets(rules["linear"], SAMPLE, CURVE)
    assert halves.expected_ms == pytest.approx(75.0)
    assert halves.p50_ms == pytest.approx(50.0)
    assert halves.p99_ms == pytest.approx(100.0)
    assert halves.padding_waste == pytest.approx(1 - 5050 / 7500)
    assert halves.programs == 2
    one = evaluate_buckets(rules["one_range"], SAMPLE, CURVE)
    assert one.expected_ms == pytest.approx(51.5)
    assert one.p99_ms == pytest.approx(100.0)
    assert one.padding_waste == 0.0


def test_lengths_outside_the_buckets_are_named() -> None:
    plan = plan_buckets(SAMPLE, CURVE, max_buckets=2, max_sizes={"length": 90})
    with pytest.raises(PlanError, match="no bucket serves length 91; length 92; length 93"):
        evaluate_buckets(plan.buckets, SAMPLE, CURVE)


@settings(max_examples=examples(150), deadline=None)
@given(
    samples,
    st.integers(1, 8),
    st.integers(1, 400),
    st.sampled_from([0.0, 0.5]),
    st.lists(st.floats(0.1, 30), min_size=8, max_size=8),
)
def test_the_optimum_is_never_beaten(
    sample: LengthDistribution, programs: int, top: int, price: float, ms: list[float]
) -> None:
    points = (CostPoint(n, ms[2 * i], ms[2 * i + 1]) for i, n in enumerate((1, 50, 120, 350)))
    curve = CostGrid(tuple(points), "measured")
    plan = plan_buckets(
        sample, curve, max_buckets=programs, max_sizes={"length": top}, price_per_bucket=price
    )
    results = compare_baselines(plan, sample, curve, programs=programs)
    assert list(results) == ["optimum", *BASELINES, "one_range"]
    assert results["optimum"].regret == 0.0
    assert results["optimum"].buckets is plan.buckets
    assert results["optimum"].evaluation.expected_ms == pytest.approx(plan.expected_ms)
    for result in results.values():
        assert result.regret >= -1e-9
        assert result.buckets[-1].hi == top
        assert result.evaluation.programs <= programs
        json.dumps(result.to_json(), allow_nan=False)


def test_rules_without_costs_are_left_out() -> None:
    padded = CostGrid((CostPoint(1, None, 1.0), CostPoint(100, None, 100.0)), "measured")
    plan = plan_buckets(SAMPLE, padded, max_buckets=4)
    results = compare_baselines(plan, SAMPLE, padded, programs=4)
    assert "one_range" not in results
    assert results["linear"].regret == pytest.approx(0.0)
    assert results["pad_to_max"].regret == pytest.approx(100.0 / 62.5 - 1)


def test_baselines_keep_axes_and_the_shortest_length() -> None:
    batch: Any = (("batch", AxisRange(8, 8, 8)),)
    sample = LengthDistribution.from_counts({20: 3, 90: 1})
    whole = plan_buckets(
        Traffic.of(sample, "tokens"), CURVE, min_sizes={"tokens": 10}, other_axes=batch
    )
    rules = baseline_buckets(whole, sample, CURVE, programs=4)
    assert len(rules) == 6
    for buckets in rules.values():
        assert buckets[0].lo == 10
        assert buckets[-1].hi == 90
        assert all(bucket.other_axes == batch for bucket in buckets)
        assert all(bucket.length_axis == "tokens" for bucket in buckets)
