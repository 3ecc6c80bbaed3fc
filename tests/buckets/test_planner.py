from __future__ import annotations

import functools
import itertools
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgecompile.buckets.costs.grid import CostGrid, CostPoint
from edgecompile.buckets.limits import BucketCost, BucketLimits
from edgecompile.buckets.plan import BucketPlan
from edgecompile.buckets.planner import plan_buckets
from edgecompile.buckets.ranges import AxisRange, Bucket
from edgecompile.buckets.traffic import Traffic
from edgecompile.errors import PlanError
from edgecompile.lengths.distribution import LengthDistribution
from tests.buckets.costs.grids import find
from tests.draws import examples

BATCH = (("batch", AxisRange(1, 1, 1)),)
ms = st.one_of(st.integers(1, 5).map(float), st.floats(0.1, 20))


@st.composite
def curves(draw: Any, top: int = 12, exact_rises: bool = False) -> CostGrid:
    lengths = sorted(draw(st.sets(st.integers(1, top), min_size=1, max_size=5)))
    exact = draw(st.lists(ms, min_size=len(lengths), max_size=len(lengths)))
    padded = draw(st.lists(ms, min_size=len(lengths), max_size=len(lengths)))
    if exact_rises or draw(st.booleans()):
        exact.sort()
    if draw(st.booleans()):
        padded.sort()
    kind = draw(st.sampled_from(["both", "both", "both", "exact", "pad"]))
    points = (
        CostPoint(length, None if kind == "pad" else e, None if kind == "exact" else p)
        for length, e, p in zip(lengths, exact, padded, strict=True)
    )
    return CostGrid(tuple(points), "measured")


samples = st.dictionaries(st.integers(1, 9), st.integers(1, 9), min_size=1, max_size=7).map(
    lambda counts: LengthDistribution.from_counts(counts, "test")
)


def brute_force(
    sample: LengthDistribution, curve: CostGrid, low: int, high: int, count: int
) -> float:
    """Least mean cost of exactly ``count`` buckets, boundaries at any whole number.

    Every bucket but the last must serve samples: an empty one is no way to make up a number.
    """
    sizes = np.arange(low, high + 1)
    tables = {mode: curve.cost(sizes, mode) for mode in curve.modes}
    counts = np.zeros(len(sizes))
    counts[np.array(sample.lengths) - low] = sample.counts

    @functools.cache
    def segment(a: int, b: int) -> float:
        """Total cost of the sizes a..b-1, from 0, in the cheaper mode: the definition."""
        inside = counts[a:b]
        if not inside.any() and b < len(sizes):
            return math.inf
        return min(
            float(inside.sum() * table[b - 1] if mode == "pad" else np.dot(inside, table[a:b]))
            for mode, table in tables.items()
        )

    return (
        min(
            sum(itertools.starmap(segment, itertools.pairwise((0, *cuts, len(sizes)))))
            for cuts in itertools.combinations(range(1, len(sizes)), count - 1)
        )
        / sample.n
    )


@settings(max_examples=examples(200), deadline=None)
@given(samples, curves(), st.sets(st.integers(2, 12), max_size=3), st.integers(0, 3), st.data())
def test_no_other_plan_with_these_cuts_is_cheaper(
    sample: LengthDistribution, curve: CostGrid, chosen: set[int], beyond: int, data: st.DataObject
) -> None:
    high = sample.max + beyond
    cuts = tuple(sorted(cut for cut in chosen if cut <= high))
    starts, ends = (1, *cuts), (*(cut - 1 for cut in cuts), high)
    most = data.draw(st.integers(len(starts), len(starts) + 3))
    price = data.draw(st.sampled_from([0.0, 0.3]))
    plan = plan_buckets(
        sample,
        curve,
        max_buckets=most,
        price_per_bucket=price,
        max_sizes={"length": high},
        cuts=sorted(chosen),
    )
    assert plan.cuts == cuts and plan.max_length == high
    assert {bucket.lo for bucket in plan.buckets} >= set(cuts)
    # The least cost of each range by its number of buckets; an unused range has one, for nothing.
    tables = []
    for lo, hi in zip(starts, ends, strict=True):
        inside = {n: c for n, c in zip(sample.lengths, sample.counts, strict=True) if lo <= n <= hi}
        if not inside:
            tables.append({1: 0.0})
            continue
        part = LengthDistribution.from_counts(inside)
        costs = {
            k: brute_force(part, curve, lo, hi, k) * part.n / sample.n
            for k in range(1, min(most, hi - lo + 1) + 1)
        }
        tables.append({k: ms for k, ms in costs.items() if ms < math.inf})
    best = min(
        sum(table[k] for table, k in zip(tables, counts, strict=True)) + price * sum(counts)
        for counts in itertools.product(*tables)
        if sum(counts) <= most
    )
    own = mean_cost(plan, sample, curve)
    assert own + price * len(plan.buckets) == pytest.approx(best, rel=1e-9)
    assert plan.expected_ms == pytest.approx(own, rel=1e-9)
    assert BucketPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_fewer_buckets_than_cuts_need_are_refused() -> None:
    sample = LengthDistribution.from_samples([3, 30])
    curve = CostGrid((CostPoint(1, 1.0, 1.0),), "measured")
    for bound in ({"max_buckets": 2}, {"buckets": 2}):
        with pytest.raises(PlanError, match="takes 3 ways by the length, and each needs a bucket"):
            plan_buckets(sample, curve, cuts=(10, 20), **bound)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match=r"the bucket 1\.\.30 crosses 10"):
        BucketPlan("length", (Bucket("exact", (("length", AxisRange(1, 30, 30)),)),), cuts=(10,))


def mean_cost(plan: BucketPlan, sample: LengthDistribution, curve: CostGrid) -> float:
    total = 0.0
    for length, n in zip(sample.lengths, sample.counts, strict=True):
        index = find(plan, {name: length for name, _ in plan.buckets[0].axes})
        assert index is not None
        bucket = plan.buckets[index]
        total += n * curve.cost(bucket.run_length(length), bucket.mode)
    return total / sample.n


@settings(max_examples=examples(500), deadline=None)
@given(
    samples,
    curves(),
    st.integers(1, 10),
    st.integers(0, 3),
    st.sampled_from([0.0, 0.1, 1.0, 10.0]),
)
def test_no_other_plan_is_cheaper(
    sample: LengthDistribution, curve: CostGrid, most: int, beyond: int, price: float
) -> None:
    low, high = 1, sample.max + beyond
    plan = plan_buckets(
        sample,
        curve,
        max_buckets=most,
        price_per_bucket=price,
        min_sizes={"length": low},
        max_sizes={"length": high},
    )
    assert plan.expected_ms == pytest.approx(mean_cost(plan, sample, curve), rel=1e-9)
    best = min(
        brute_force(sample, curve, low, high, count) + price * count
        for count in range(1, min(most, high) + 1)
    )
    assert plan.expected_ms + price * len(plan.buckets) == pytest.approx(best, rel=1e-8)


@settings(max_examples=examples(200), deadline=None)
@given(samples, curves(), st.integers(1, 9))
def test_a_forced_number_is_met_optimally(
    sample: LengthDistribution, curve: CostGrid, count: int
) -> None:
    if count > len(sample.lengths):
        with pytest.raises(PlanError, match="are wanted"):
            plan_buckets(sample, curve, buckets=count, max_buckets=None)
        return
    plan = plan_buckets(sample, curve, buckets=count, max_buckets=None)
    assert len(plan.buckets) == count
    best = brute_force(sample, curve, 1, sample.max, count)
    assert plan.expected_ms == pytest.approx(best, rel=1e-8)
    assert plan.expected_by_count[count - 1] == pytest.approx(best, rel=1e-8)


@settings(max_examples=examples(200), deadline=None)
@given(samples, curves(), st.sampled_from([0.05, 0.5, 3.0]))
def test_without_a_bound_the_price_decides(
    sample: LengthDistribution, curve: CostGrid, price: float
) -> None:
    free = plan_buckets(sample, curve, max_buckets=None, price_per_bucket=price)
    bounded = plan_buckets(sample, curve, max_buckets=20, price_per_bucket=price)
    assert free.expected_ms + price * len(free.buckets) == pytest.approx(
        bounded.expected_ms + price * len(bounded.buckets), rel=1e-8
    )


@settings(max_examples=examples(200), deadline=None)
@given(samples, curves(exact_rises=True), st.integers(1, 6))
def test_equals_the_optimum_over_the_pad_up_envelope(
    sample: LengthDistribution, curve: CostGrid, most: int
) -> None:
    """Where exact costs rise, padding further than the bucket's end could gain nothing."""
    plan = plan_buckets(sample, curve, max_buckets=most)
    if "pad" not in curve.modes:
        return
    high = sample.max
    points = tuple(
        CostPoint(
            length,
            curve.cost(length, "exact") if "exact" in curve.modes else None,
            min(curve.cost(size, "pad") for size in range(length, high + 1)),
        )
        for length in range(1, high + 1)
    )
    envelope = CostGrid(points, "measured")
    best = min(
        brute_force(sample, envelope, 1, high, count) for count in range(1, min(most, high) + 1)
    )
    assert plan.expected_ms == pytest.approx(best, rel=1e-8)


@settings(max_examples=examples(200), deadline=None)
@given(samples, curves(), st.integers(1, 6), st.integers(0, 3))
def test_plans_tile_the_served_range_and_go_through_json(
    sample: LengthDistribution, curve: CostGrid, most: int, beyond: int
) -> None:
    high = sample.max + beyond
    plan = plan_buckets(
        Traffic.of(sample, "tokens"),
        curve,
        max_buckets=most,
        max_sizes={"tokens": high},
        other_axes=BATCH,
    )
    served = [n for bucket in plan.buckets for n in range(bucket.lo, bucket.hi + 1)]
    assert served == list(range(1, high + 1))
    assert len(plan.buckets) <= most
    for bucket in plan.buckets:
        assert bucket.lo <= bucket.hint <= bucket.hi
        assert bucket.mode in curve.modes
        assert bucket.mode == "exact" or bucket.hint == bucket.hi
        assert bucket.axes[0][0] == "tokens"
        assert bucket.other_axes == BATCH
    text = json.dumps(plan.to_json())
    assert BucketPlan.from_json(json.loads(text)) == plan
    again = plan_buckets(
        Traffic.of(sample, "tokens"),
        curve,
        max_buckets=most,
        max_sizes={"tokens": high},
        other_axes=BATCH,
    )
    assert json.dumps(again.to_json()) == text


def line(slope: float, kind: Any = "measured", gap: float = 0.0, top: int = 100) -> CostGrid:
    """1 ms and ``slope`` ms an element; static programs are ``gap`` ms faster."""
    points = (CostPoint(n, 1.0 + gap + slope * n, 1.0 + slope * n) for n in (1, top))
    return CostGrid(tuple(points), kind)


UNIFORM = LengthDistribution.from_samples(range(1, 101), "uniform")


def test_one_dynamic_range_is_kept_where_it_costs_the_same() -> None:
    plan = plan_buckets(UNIFORM, line(0.1), max_buckets=8)
    assert [(b.mode, b.lo, b.hi) for b in plan.buckets] == [("exact", 1, 100)]
    assert plan.notes[0].startswith("One dynamic range is best")
    assert plan.notes[1] == "More buckets would save nothing."


def test_notes_say_why_a_saving_is_not_taken() -> None:
    plan = plan_buckets(UNIFORM, line(0.1, gap=0.5), max_buckets=8, price_per_bucket=1.0)
    assert len(plan.buckets) == 1
    assert any("less than the" in note for note in plan.notes)
    plan = plan_buckets(UNIFORM, line(0.1, gap=0.5), max_buckets=2)
    assert len(plan.buckets) == 2
    assert any("2 is the most allowed" in note for note in plan.notes)
    assert any("against the best single bucket" in note for note in plan.notes)


def test_a_model_of_fixed_lengths_gets_padded_buckets() -> None:
    padded = CostGrid((CostPoint(1, None, 1.0), CostPoint(100, None, 100.0)), "measured")
    plan = plan_buckets(UNIFORM, padded, max_buckets=4)
    assert [(b.lo, b.hi, b.mode) for b in plan.buckets] == [
        (1, 25, "pad"),
        (26, 50, "pad"),
        (51, 75, "pad"),
        (76, 100, "pad"),
    ]
    assert any("padded to fixed sizes" in note for note in plan.notes)


def test_static_programs_end_at_a_size_that_is_fast() -> None:
    """48 is slower than 64: a bucket for lengths up to 40 ends at 64 if no length comes before."""
    padded = {32: 3.0, 48: 10.0, 64: 4.0, 128: 8.0}
    curve = CostGrid(tuple(CostPoint(n, 9.0, ms) for n, ms in padded.items()), "measured")
    sample = LengthDistribution.from_counts({40: 10, 64: 1})
    plan = plan_buckets(sample, curve, max_buckets=8)
    assert [(b.lo, b.hi, b.mode) for b in plan.buckets] == [(1, 64, "pad")]
    sample = LengthDistribution.from_counts({40: 10, 70: 1, 90: 1})
    plan = plan_buckets(sample, curve, max_buckets=8)
    assert plan.buckets[0] == Bucket("pad", (("length", AxisRange(1, 64, 64)),))


def test_lengths_between_an_exact_and_a_padded_bucket_run_exact() -> None:
    curve = CostGrid(
        (
            CostPoint(1, 1.0, 9.0),
            CostPoint(10, 1.0, 9.0),
            CostPoint(11, 9.0, 2.0),
            CostPoint(40, 9.0, 2.0),
        ),
        "measured",
    )
    plan = plan_buckets(LengthDistribution.from_counts({5: 1, 30: 1}), curve)
    assert [(b.mode, b.lo, b.hi) for b in plan.buckets] == [("exact", 1, 29), ("pad", 30, 30)]


def test_the_hint_halves_the_time() -> None:
    sample = LengthDistribution.from_counts({1: 100, 50: 10, 100: 10})
    plan = plan_buckets(sample, line(1.0), buckets=1, max_sizes={"length": 200})
    # 100·2 ms, 10·51 ms and 10·101 ms: half of 1720 ms is spent beyond 50.
    assert plan.buckets[0].hint == 100


def test_traffic_over_the_maximum_is_counted_and_told() -> None:
    plan = plan_buckets(UNIFORM, line(0.1), max_sizes={"length": 80})
    assert plan.max_length == 80
    assert any(
        note.startswith("20.0 % of the samples have a length over 80") for note in plan.notes
    )


def test_doubts_are_told() -> None:
    plan = plan_buckets(UNIFORM, line(0.1, "modelled", top=50), max_sizes={"length": 512})
    text = " ".join(plan.notes)
    assert "modelled, not measured" in text
    assert "No sample has a length over 100; those from 101 to 512" in text
    assert "The last cost point on the axis length is at 50" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_buckets": 0}, "`max_buckets` is 0"),
        ({"buckets": 0}, "0 buckets are asked for"),
        ({"buckets": 101}, "101 buckets are wanted, but the sample has only sizes for 100"),
        ({"max_buckets": None}, "every size would get its own"),
        ({"price_per_bucket": -1.0}, "price per bucket is -1.0"),
        ({"price_per_bucket": math.nan}, "price per bucket is nan"),
        ({"min_sizes": {"length": 0}}, "range 0..100 of length"),
        ({"max_sizes": {"length": 0}}, "range 1..0 of length"),
        ({"max_sizes": {"length": 2**31}}, "range 1..2147483648"),
        (
            {"min_sizes": {"length": 5}},
            "4 of 100 samples have a length under the smallest served, 5",
        ),
        ({"modes": ()}, "none allowed"),
        (
            {"limits": BucketLimits(max_size=100, cost=BucketCost(base_size=90, bucket_size=20))},
            "`max_size` allows 100 B, but 1 bucket needs 110 B",
        ),
    ],
)
def test_what_cannot_be_planned_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError) as caught:
        plan_buckets(UNIFORM, line(0.1), **options)
    assert message in caught.value.message


def test_a_mode_without_costs_is_refused() -> None:
    padded = CostGrid((CostPoint(1, None, 1.0),), "measured")
    with pytest.raises(PlanError, match="no costs for the mode exact"):
        plan_buckets(UNIFORM, padded, modes=("exact",))


def test_limits_bound_the_number() -> None:
    limits = BucketLimits(max_size=100, cost=BucketCost(base_size=40, bucket_size=20))
    plan = plan_buckets(UNIFORM, line(0.1, gap=5.0), limits=limits)
    assert len(plan.buckets) == 3


def test_a_single_length() -> None:
    sample = LengthDistribution.from_counts({7: 5})
    plan = plan_buckets(sample, line(0.1, gap=1.0), max_sizes={"length": 9})
    assert plan.min_length == 1
    assert plan.max_length == 9
    assert plan.expected_ms == pytest.approx(1.7)


def test_many_lengths_agree_with_the_array_reckoning() -> None:
    rng = np.random.default_rng(3)
    sample = LengthDistribution.from_samples(rng.lognormal(4, 1, 50_000).astype(int) + 1)
    curve = CostGrid(
        tuple(CostPoint(n, 1.3 + 0.02 * n, 1 + 0.02 * n) for n in (1, 64, 512, 8192)), "measured"
    )
    plan = plan_buckets(sample, curve, max_buckets=6)
    assert plan.expected_ms == pytest.approx(mean_cost(plan, sample, curve), rel=1e-9)
    assert list(plan.expected_by_count) == sorted(plan.expected_by_count, reverse=True)
