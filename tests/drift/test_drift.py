from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgecompile.buckets.costs.grid import CostGrid, CostPoint
from edgecompile.buckets.evaluation import expected_cost
from edgecompile.buckets.plan import BucketPlan
from edgecompile.buckets.planner import plan_buckets
from edgecompile.buckets.ranges import AxisRange, Bucket
from edgecompile.buckets.shipped import ShippedPlan
from edgecompile.drift.drift import chance_distance, check_drift, judge_drift, length_distance
from edgecompile.drift.report import MIN_CALLS, Thresholds
from edgecompile.errors import DriftError, LengthsError
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.lengths.served_traffic import BucketTraffic, ServedTraffic
from tests.draws import examples

SHA, OTHER = "ab" * 32, "cd" * 32
PADDED = CostGrid((CostPoint(1, None, 1.0), CostPoint(512, None, 512.0)), "measured")
DYNAMIC = CostGrid((CostPoint(1, 1.0, 1.5), CostPoint(512, 512.0, 768.0)), "measured")
# Static programs are the cheaper ones up to 64, dynamic ones beyond.
MIXED = CostGrid(
    (CostPoint(1, 4.0, 1.0), CostPoint(64, 67.0, 64.0), CostPoint(512, 500.0, 900.0)), "measured"
)


def draw(n: int, seed: int, mean: float = 4.0) -> LengthDistribution:
    values = np.random.default_rng(seed).lognormal(mean, 0.7, n).astype(int) + 1
    return LengthDistribution.from_samples(np.minimum(values, 512))


TRUTH = draw(100_000, 99)


def ship(
    lengths: LengthDistribution = TRUTH, curve: CostGrid = PADDED, **options: Any
) -> ShippedPlan:
    options = {"max_buckets": 6, "max_sizes": {"length": 512}, **options}
    plan = plan_buckets(lengths, curve, **options)
    return ShippedPlan("tiny", SHA, plan, lengths, 1, 512)


def serve(
    lengths: LengthDistribution | Mapping[int, int] | None,
    shipped: ShippedPlan,
    *,
    outside: Mapping[int, int] | None = None,
    **changes: Any,
) -> ServedTraffic:
    if isinstance(lengths, Mapping):
        lengths = LengthDistribution.from_counts(lengths)
    runs = 0 if lengths is None else lengths.n
    first = BucketTraffic(runs, 7.5 if runs else None)
    fields: dict[str, Any] = {
        "bundle": "tiny",
        "manifests": (SHA,),
        "length_axis": "length",
        "length_bin": 1,
        "distribution": lengths,
        "outside": outside or {},
        "refused": sum((outside or {}).values()),
        "since": "2026-11-21T10:00:00Z",
        "until": "2026-11-22T10:00:00Z",
        "buckets": (first, *[BucketTraffic(0, None)] * (len(shipped.plan.buckets) - 1)),
        "sources": ("stats.json",),
    }
    return ServedTraffic(**{**fields, **changes})


def test_the_same_traffic_is_left_alone() -> None:
    shipped = ship(max_buckets=8)
    for seed in range(20):
        report = judge_drift(shipped, serve(draw(MIN_CALLS, seed), shipped))
        assert report.enough and not report.act and report.moved is False, report.verdict
        assert report.cost is not None and 0 <= report.cost.excess < 0.04
        assert report.verdict.startswith("nothing to do: the lengths haven't moved, and")
        check_drift(report)


def test_traffic_that_moved_and_costs() -> None:
    shipped = ship()
    served = draw(20_000, 1, mean=5.0)
    report = judge_drift(shipped, serve(served, shipped))
    assert report.moved and report.act
    assert report.shift is not None and report.cost is not None
    assert report.shift.distance > 0.4 > 20 * report.shift.chance
    best = plan_buckets(served, PADDED, max_buckets=6, max_sizes={"length": 512})
    assert report.cost.optimum.buckets == best.buckets
    current = expected_cost(shipped.plan.buckets, served, PADDED)
    assert report.cost.current_ms == current
    assert best.expected_ms is not None
    assert report.cost.excess == pytest.approx(current / best.expected_ms - 1)
    assert report.cost.planned_excess == pytest.approx(0)
    with pytest.raises(DriftError, match="more than the best for this traffic") as caught:
        check_drift(report)
    assert caught.value.exit_code == 46 and "--from-stats" in str(caught.value)
    assert report.verdict.startswith("plan again: ") and "have moved" in report.verdict
    relaxed = Thresholds(tolerance=report.cost.excess + 0.001)
    assert not judge_drift(shipped, serve(served, shipped), thresholds=relaxed).act


def test_a_move_without_cost_is_told_but_needs_no_action() -> None:
    shipped = ship(curve=DYNAMIC)
    assert [bucket.mode for bucket in shipped.plan.buckets] == ["exact"]
    report = judge_drift(shipped, serve(draw(20_000, 1, mean=5.0), shipped))
    assert report.moved and not report.act
    assert report.verdict == (
        "nothing to do: the lengths have moved, but the buckets cost 0.0 % over the best"
    )


def test_a_small_move_may_cost_much() -> None:
    lengths = LengthDistribution.from_counts({10: 9000, 500: 1000})
    shipped = ship(lengths, max_buckets=2)
    report = judge_drift(shipped, serve({10: 8100, 11: 900, 500: 1000}, shipped))
    assert report.shift is not None
    assert report.shift.distance == pytest.approx(0.09) and report.shift.chance < 0.03
    assert report.moved is False and report.act


def test_a_significant_but_tiny_difference_is_no_move() -> None:
    base = {length: 10**9 for length in range(1, 101)}
    shipped = ship(LengthDistribution.from_counts(base))
    report = judge_drift(shipped, serve({**base, 1: 11 * 10**8}, shipped))
    assert report.shift is not None and report.shift.chance < 1e-5 < report.shift.distance
    assert report.shift.distance < 0.001 and report.moved is False
    assert judge_drift(
        shipped,
        serve({**base, 1: 11 * 10**8}, shipped),
        thresholds=Thresholds(distance=0.0),
    ).moved


def test_a_large_distance_by_chance_is_no_move() -> None:
    shipped = ship(
        LengthDistribution.from_counts({10: 2, 20: 3}), max_buckets=1, max_sizes={"length": 20}
    )
    report = judge_drift(shipped, serve({10: 700, 20: 300}, shipped))
    assert report.shift is not None and report.shift.chance > report.shift.distance > 0.25
    assert report.moved is False


def test_too_little_traffic_tells_nothing() -> None:
    shipped = ship()
    served = draw(999, 1, mean=5.5)
    report = judge_drift(shipped, serve(served, shipped))
    assert not report.enough and report.moved is None and not report.act
    assert report.verdict == "too little traffic to tell: 999 calls, 1000 are needed"
    assert report.cost is not None and report.cost.excess > 0.1  # told, not judged
    check_drift(report)
    few = Thresholds(min_calls=500)
    assert judge_drift(shipped, serve(served, shipped), thresholds=few).act
    nothing = judge_drift(shipped, serve(None, shipped))
    assert nothing.shift is None and nothing.cost is None and not nothing.act
    assert nothing.refused_share == 0 and nothing.to_json()["moved"] is None


def test_refused_calls_are_a_reason() -> None:
    shipped = ship()
    traffic = serve(draw(9800, 1), shipped, outside={600: 150, 2000: 50}, refused=900)
    report = judge_drift(shipped, traffic)
    assert report.refused == 200 and report.refused_share == pytest.approx(0.02)
    assert report.reasons == (
        "2.0 % of the calls were refused for their sizes (1.0 % are tolerated)",
    )
    assert not judge_drift(shipped, traffic, thresholds=Thresholds(max_refused=0.03)).act
    only = judge_drift(shipped, serve(None, shipped, outside={600: 5000}))
    assert only.act and only.cost is None and only.refused_share == 1.0


def test_refusals_that_the_plan_knew_of_are_no_news() -> None:
    lengths = LengthDistribution.from_counts(
        {**dict(zip(TRUTH.lengths, TRUTH.counts, strict=True)), 900: 5000}
    )
    shipped = ship(lengths)
    report = judge_drift(shipped, serve(draw(9500, 1), shipped, outside={900: 500}))
    assert report.planned_refused_share == pytest.approx(5000 / 105_000)
    assert report.refused_share == 0.05 and not report.act
    assert report.moved is False
    # Whoever truncates sends the longest length instead; that is no move either.
    cut = {**dict(zip(TRUTH.lengths, TRUTH.counts, strict=True))}
    cut[512] = cut.get(512, 0) + 5000
    truncated = judge_drift(shipped, serve(cut, shipped))
    assert truncated.shift is not None and truncated.shift.distance == 0.0


def test_stats_of_another_bundle_are_refused() -> None:
    shipped = ship()
    traffic = serve(draw(2000, 1), shipped, manifests=(OTHER,), bundle="old")
    with pytest.raises(LengthsError, match="another bundle") as caught:
        judge_drift(shipped, traffic)
    assert SHA in str(caught.value) and OTHER in str(caught.value)
    assert "--any-bundle" in str(caught.value)
    report = judge_drift(shipped, traffic, any_bundle=True)
    assert not report.act and all(item.observed_ms is None for item in report.buckets)
    with pytest.raises(LengthsError, match="count the axis frames, the plan divides length"):
        judge_drift(shipped, replace(traffic, manifests=(SHA,), length_axis="frames"))
    with pytest.raises(LengthsError, match="1 buckets, the bundle 6"):
        judge_drift(shipped, serve({5: 1}, shipped, buckets=(BucketTraffic(1, 1.0),)))


def test_another_bundles_refusals_are_judged_by_this_ones_range() -> None:
    shipped = ship()
    narrow = serve(
        {50: 900, 100: 80}, shipped, outside={300: 15, 700: 5}, manifests=(OTHER,), buckets=()
    )
    report = judge_drift(shipped, narrow, any_bundle=True)
    assert report.refused == 5
    wide = serve({50: 900, 600: 100}, shipped, manifests=(OTHER,), buckets=())
    assert judge_drift(shipped, wide, any_bundle=True).refused == 100


def test_constraints_are_inferred() -> None:
    served = draw(20_000, 1, mean=5.0)

    def cost(shipped: ShippedPlan, **options: Any) -> Any:
        return judge_drift(shipped, serve(served, shipped), **options).cost

    assert cost(ship(max_buckets=3)).max_buckets == 3
    assert cost(ship(buckets=5)).max_buckets == 5
    assert cost(ship(max_buckets=3), max_buckets=9).max_buckets == 9
    priced = cost(ship(max_buckets=20, price_per_bucket=5.0))
    assert priced.max_buckets == 20 and priced.optimum.price_per_bucket == 5.0
    assert cost(ship(max_buckets=None, price_per_bucket=5.0)).max_buckets is None
    # All costs were open to the one, only padding to the other.
    assert cost(ship(curve=MIXED)).modes == ("exact", "pad")
    bound = cost(ship(curve=MIXED, modes=("pad",)))
    assert bound.modes == ("pad",) and bound.planned_excess == pytest.approx(0)
    forced = cost(ship(curve=MIXED, modes=("pad",)), modes=("exact", "pad"))
    assert forced.modes == ("exact", "pad") and forced.planned_excess > 0


def test_the_price_of_buckets_counts() -> None:
    lengths = LengthDistribution.from_counts({10: 5000, 100: 5000})
    shipped = ship(lengths, max_buckets=None, price_per_bucket=30.0, max_sizes={"length": 100})
    assert len(shipped.plan.buckets) == 2
    report = judge_drift(shipped, serve({100: 10_000}, shipped))
    assert report.cost is not None and len(report.cost.optimum.buckets) == 1
    assert report.cost.excess == pytest.approx(160 / 130 - 1)


def test_plans_that_cannot_be_costed() -> None:
    by_hand = ship()
    by_hand = replace(by_hand, plan=BucketPlan("length", by_hand.plan.buckets))
    report = judge_drift(by_hand, serve(draw(20_000, 1, mean=5.0), by_hand))
    assert report.cost is None and report.moved and not report.act
    assert report.verdict.startswith("the lengths have moved; what the buckets cost can't be told")
    assert report.buckets[0].expected_ms is None and report.buckets[0].served_share is not None

    def slab(batch: tuple[int, int], lo: int, hi: int) -> Bucket:
        batches = AxisRange(*batch, batch[1])
        return Bucket("exact", (("length", AxisRange(lo, hi, hi)), ("batch", batches)))

    joint = BucketPlan(
        "length",
        (slab((1, 1), 1, 512), slab((2, 8), 1, 64), slab((2, 8), 65, 512)),
        None,
        "x",
        DYNAMIC,
    )
    two_axes = replace(by_hand, plan=joint)
    report = judge_drift(two_axes, serve(draw(20_000, 1), two_axes))
    assert report.cost is None and report.moved is False
    assert report.buckets[0].served_share is None and report.buckets[0].observed_ms == 7.5
    json.dumps(report.to_json(), allow_nan=False)


def test_binned_lengths_are_compared_bin_by_bin() -> None:
    lengths = LengthDistribution.from_counts({n: 100 for n in range(1, 512)})
    shipped = ship(lengths)
    last: dict[int, int] = {}
    for length in range(1, 512):
        end = min((length - 1) // 20 * 20 + 20, 512)
        last[end] = last.get(end, 0) + 100
    report = judge_drift(shipped, serve(last, shipped, length_bin=20))
    assert report.shift is not None and report.shift.distance == 0.0


def test_buckets_say_what_they_served() -> None:
    lengths = LengthDistribution.from_counts({10: 50, 100: 50})
    shipped = ship(lengths, max_buckets=2, max_sizes={"length": 100})
    buckets = (BucketTraffic(900, 11.0), BucketTraffic(300, 120.0))
    report = judge_drift(shipped, serve({5: 900, 90: 300}, shipped, buckets=buckets))
    first, second = report.buckets
    assert (first.planned_share, first.served_share) == (0.5, 0.75)
    assert (first.expected_ms, first.observed_ms) == (pytest.approx(10.0), 11.0)
    assert (second.expected_ms, second.observed_ms) == (pytest.approx(100.0), 120.0)
    assert first.to_json()["hi"] == 10 and first.to_json()["observed_ms"] == 11.0


histograms = st.dictionaries(st.integers(1, 512), st.integers(1, 500), min_size=1, max_size=25)


@given(histograms, histograms)
def test_distance_is_the_largest_gap(first: dict[int, int], second: dict[int, int]) -> None:
    a, b = (np.repeat(list(h), list(h.values())) for h in (first, second))
    one, other = map(LengthDistribution.from_counts, (first, second))
    ends = np.array(sorted({*first, *second}))
    gaps = [abs(np.mean(a <= x) - np.mean(b <= x)) for x in ends]
    distance = length_distance(one, other, ends)
    assert distance == pytest.approx(max(gaps), abs=1e-12)
    assert distance == length_distance(other, one, ends)
    assert length_distance(one, one, ends) == 0.0


@pytest.mark.parametrize("top", [4, pytest.param(1_000_000_000, marks=pytest.mark.slow)])
def test_chance_is_seen_as_a_move_in_one_case_of_a_hundred(top: int) -> None:
    """Same distribution twice, with many ties and with none."""
    rng = np.random.default_rng(0)
    over = 0
    for _ in range(1000):
        a, b = (LengthDistribution.from_samples(rng.integers(1, top + 1, n)) for n in (200, 300))
        ends = np.union1d(a.length_array, b.length_array)
        over += length_distance(a, b, ends) > chance_distance(a.n, b.n)
    assert over <= 20  # 10 expected without ties, standard deviation 3.2
    assert (over > 2) == (top > 4)  # and has nearly its power where nothing is tied


@settings(deadline=None, max_examples=examples(60))
@given(
    histograms,
    histograms,
    st.integers(1, 5),
    st.sampled_from([0.0, 3.0]),
    st.sampled_from([PADDED, DYNAMIC, MIXED]),
)
def test_no_plan_beats_the_optimum(
    planned: dict[int, int], served: dict[int, int], k: int, price: float, curve: CostGrid
) -> None:
    shipped = ship(
        LengthDistribution.from_counts(planned), curve, max_buckets=k, price_per_bucket=price
    )
    same = judge_drift(shipped, serve(planned, shipped))
    assert same.cost is not None and same.cost.excess == pytest.approx(0, abs=1e-9)
    assert same.shift is not None and same.shift.distance == 0 and not same.act
    report = judge_drift(shipped, serve(served, shipped))
    assert report.cost is not None
    assert report.cost.excess >= -1e-9
    assert report.cost.planned_excess == pytest.approx(0, abs=1e-9)
    assert sum(item.served_share or 0 for item in report.buckets) == pytest.approx(1)
    json.dumps(report.to_json(), allow_nan=False)
