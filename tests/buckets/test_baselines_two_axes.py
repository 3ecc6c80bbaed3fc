from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgecompile.buckets.baselines import (
    BASELINES,
    ONE_RANGE,
    OPTIMUM,
    baseline_buckets,
    compare_baselines,
)
from edgecompile.buckets.costs.grid import CostGrid, CostPoint
from edgecompile.buckets.evaluation import expected_cost
from edgecompile.buckets.plan import BucketPlan
from edgecompile.buckets.planner import plan_buckets
from edgecompile.buckets.ranges import AxisRange
from edgecompile.lengths.joint import JointDistribution
from tests.buckets.costs.grids import find, two_axes
from tests.draws import examples

AXES = ("length", "batch")
SIZES = {"length": 128, "batch": 8}


def surface(exact: float | None = 1.3, pad: float | None = 1.0) -> CostGrid:
    points = [
        (
            b,
            CostPoint(
                n,
                None if exact is None else exact * (1 + 0.1 * n * b),
                None if pad is None else pad * (1 + 0.1 * n * b),
            ),
        )
        for b in (1, 8)
        for n in (1, 128)
    ]
    return two_axes(AXES, points, "measured")


SAMPLE = JointDistribution.from_counts(
    AXES, {(n, b): 1 + 500 // (n * b) for n in range(3, 120, 4) for b in (1, 2, 5, 8)}, "s"
)
samples = st.dictionaries(
    st.tuples(st.integers(2, 40), st.integers(1, 9)), st.integers(1, 9), min_size=1, max_size=12
).map(lambda counts: JointDistribution.from_counts(AXES, counts, "test"))


@settings(max_examples=examples(60), deadline=None)
@given(samples, st.integers(1, 12), st.sampled_from([(1.3, 1.0), (1.0, 1.0), (None, 1), (1, None)]))
def test_baselines_serve_everything_and_never_beat_the_optimum(
    sample: JointDistribution, programs: int, costs: tuple[float | None, float | None]
) -> None:
    found = surface(*costs)
    plan = plan_buckets(sample, found, max_buckets=programs)
    results = compare_baselines(plan, sample, found, programs=programs)
    names = [OPTIMUM]
    names += list(BASELINES) if "pad" in found.modes else []
    names += [ONE_RANGE] if "exact" in found.modes else []
    assert list(results) == names
    for name, result in results.items():
        assert result.evaluation.programs == len(result.buckets) <= programs
        for length, batch in itertools.product((1, sample.max("length")), (1, sample.max("batch"))):
            assert (
                find(BucketPlan(AXES[0], result.buckets), {"length": length, "batch": batch})
                is not None
            )
        value = result.to_json()
        assert all(set(sizes) == set(AXES) for sizes in value["sizes"])
        if name == OPTIMUM:
            assert result.regret == 0 and result.buckets is plan.buckets
            assert result.evaluation.expected_ms == pytest.approx(plan.expected_ms)
        # Products of rules are strips, too, so they can't be cheaper.
        assert result.regret >= -1e-9


def test_pad_to_max_is_one_static_program() -> None:
    whole = plan_buckets(SAMPLE, surface(), max_sizes=SIZES)
    rules = baseline_buckets(whole, SAMPLE, surface(), programs=8)
    (one,) = rules["pad_to_max"]
    assert (one.mode, one.hi, one.range("batch").hi, one.pad_axes) == ("pad", 128, 8, AXES)
    (one,) = rules[ONE_RANGE]
    assert (one.mode, one.lo, one.hi, one.range("batch")) == ("exact", 1, 128, AxisRange(1, 8, 1))


def test_the_budget_is_shared_out_at_its_best() -> None:
    """Powers of two with 8 programs: 8 × 1, 4 × 2, 2 × 4 (and 1 × 4) sizes are compared."""
    found = surface()
    whole = plan_buckets(SAMPLE, found, max_sizes=SIZES)
    rules = baseline_buckets(whole, SAMPLE, found, programs=8)
    buckets = rules["powers_of_two"]
    best = min(
        expected_cost(
            baseline_buckets(whole, SAMPLE, found, programs=n)["powers_of_two"], SAMPLE, found
        )
        for n in range(1, 9)
    )
    cost = expected_cost(buckets, SAMPLE, found)
    assert cost == pytest.approx(best)
    lengths = {b.hi for b in buckets}
    batches = {b.range("batch").hi for b in buckets}
    assert len(buckets) == len(lengths) * len(batches) <= 8
    assert len(batches) > 1 and lengths <= {1 << k for k in range(8)}
    assert {b.range("batch").hi for b in rules["exponential"]} > {8}


def test_other_axes_and_prices_are_kept() -> None:
    width = (("width", AxisRange(3, 3, 3)),)
    plan = plan_buckets(SAMPLE, surface(), max_buckets=4, price_per_bucket=0.2, other_axes=width)
    results = compare_baselines(plan, SAMPLE, surface(), programs=4)
    least = (plan.expected_ms or 0) + 0.2 * len(plan.buckets)
    for result in results.values():
        assert all(bucket.axes[2] == width[0] for bucket in result.buckets)
        total = result.evaluation.expected_ms + 0.2 * result.evaluation.programs
        assert result.regret == pytest.approx(total / least - 1)
