from __future__ import annotations

import numpy as np
import pytest

from edgecompile.buckets.confidence import bootstrap_interval, held_out_cost, tail_warnings
from edgecompile.buckets.costs.grid import CostGrid, CostPoint
from edgecompile.buckets.evaluation import expected_cost
from edgecompile.buckets.planner import plan_buckets
from edgecompile.errors import LengthsError
from edgecompile.lengths.distribution import LengthDistribution

CURVE = CostGrid((CostPoint(1, None, 1.0), CostPoint(512, None, 512.0)), "measured")


def draw(n: int, seed: int) -> LengthDistribution:
    values = np.random.default_rng(seed).lognormal(4, 0.7, n).astype(int) + 1
    return LengthDistribution.from_samples(np.minimum(values, 512))


def test_plans_cost_more_on_samples_they_were_not_made_from() -> None:
    costs = [held_out_cost(draw(60, seed), CURVE, fraction=0.5, seed=seed) for seed in range(20)]
    assert all(cost.excess >= -1e-12 for cost in costs)  # nothing beats the best for the part
    assert np.mean([cost.excess for cost in costs]) > 0.01
    assert np.mean([cost.held_out_ms - cost.planned_ms for cost in costs]) > 0
    large = held_out_cost(draw(100_000, 0), CURVE, fraction=0.5, seed=0)
    assert 0 <= large.excess < 0.01
    assert large.samples == 50_000


def test_held_out_lengths_beyond_the_rest_are_served() -> None:
    sample = LengthDistribution.from_counts({1: 1, 500: 1})
    cost = held_out_cost(sample, CURVE, fraction=0.5, seed=0, max_buckets=2)
    assert cost.held_out_ms in (pytest.approx(500.0), pytest.approx(1.0))
    with pytest.raises(LengthsError):
        held_out_cost(LengthDistribution.from_counts({3: 1}), CURVE)


def test_held_out_options_reach_the_planner() -> None:
    sample = draw(1000, 1)
    one = held_out_cost(sample, CURVE, seed=3, max_buckets=1, max_sizes={"length": 300})
    assert one.planned_ms == pytest.approx(300.0)
    assert one.excess == pytest.approx(0.0)
    assert one == held_out_cost(sample, CURVE, seed=3, max_buckets=1, max_sizes={"length": 300})


def test_the_interval_holds_the_true_mean_as_often_as_it_says() -> None:
    """Fixed buckets, 200 samples of known traffic: 95 % intervals should miss about 10 times."""
    truth = draw(500_000, 99)
    buckets = plan_buckets(truth, CURVE, max_buckets=6, max_sizes={"length": 512}).buckets
    mean = expected_cost(buckets, truth, CURVE)
    missed, shares = 0, truth.count_array / truth.n
    for seed in range(200):
        drawn = np.random.default_rng(seed).choice(truth.length_array, size=300, p=shares)
        sample = LengthDistribution.from_samples(drawn)
        interval = bootstrap_interval(buckets, sample, CURVE, resamples=300, seed=seed)
        missed += not interval.low <= mean <= interval.high
    assert 2 <= missed <= 25


def test_the_interval_is_seeded_and_narrows() -> None:
    buckets = plan_buckets(draw(1000, 1), CURVE, max_sizes={"length": 512}).buckets
    small, large = (bootstrap_interval(buckets, draw(n, 1), CURVE, seed=4) for n in (100, 10_000))
    assert large.high - large.low < (small.high - small.low) / 5
    assert small == bootstrap_interval(buckets, draw(100, 1), CURVE, seed=4)
    assert small != bootstrap_interval(buckets, draw(100, 1), CURVE, seed=5)


def test_thin_tails_are_told() -> None:
    assert tail_warnings(draw(20_000, 0)) == ()
    (warning,) = tail_warnings(draw(500, 0))
    assert "500 samples are few" in warning
    assert "only about 5 lie beyond the 99 % quantile" in warning
    assert "0.6 %" in warning  # the rule of three: about 3 / 500
    assert "90 %" in tail_warnings(draw(50, 0))[0]


def test_a_single_length_is_suspicious() -> None:
    warnings = tail_warnings(LengthDistribution.from_counts({128: 50_000}))
    assert len(warnings) == 1
    assert "length after padding" in warnings[0]
