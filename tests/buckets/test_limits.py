from __future__ import annotations

import math

import pytest

from edgecompile.buckets.limits import BucketCost, BucketLimits
from edgecompile.errors import PlanError


def test_the_tightest_bound_holds() -> None:
    cost = BucketCost(base_size=100, bucket_size=200, bucket_build_s=20.0)
    limits = BucketLimits(max_size=1000, max_build_s=60.0, cost=cost)
    assert limits.most(None) == 3  # of 4 by size and 3 by time
    assert limits.most(8) == 3
    assert limits.most(2) == 2
    held = BucketCost(base_memory=500, bucket_memory=200)
    assert BucketLimits(cost=held, max_memory=1000).most(8) == 2
    assert BucketLimits(max_memory=1000).most(8) == 8  # nothing is known of its memory
    assert BucketLimits().most(None) is None
    weightless = BucketLimits(max_size=1000, cost=BucketCost(base_size=1000))
    assert weightless.most(None) is None


def test_every_broken_bound_is_named_with_what_it_lacks() -> None:
    cost = BucketCost(base_size=900, bucket_size=200, bucket_build_s=8.0)
    limits = BucketLimits(max_size=1000, max_build_s=10.0, cost=cost)
    with pytest.raises(PlanError) as caught:
        limits.most(1, buckets=2)
    message = caught.value.message
    assert "2 buckets are asked for, `max_buckets` is 1" in message
    assert "`max_size` allows 1.00 kB, but 2 buckets need 1.30 kB" in message
    assert "300 B too much" in message
    assert "`max_build_time` allows 10.0 s, but 2 buckets need 16.0 s" in message
    assert "(0 s without buckets, 8.0 s for each), 6.0 s too much" in message


@pytest.mark.parametrize(("most", "wanted"), [(0, None), (-1, None), (None, 0)])
def test_a_plan_has_a_bucket(most: int | None, wanted: int | None) -> None:
    with pytest.raises(PlanError, match="has one at least"):
        BucketLimits().most(most, wanted)


def test_price_spreads_the_cost_over_the_runs() -> None:
    cost = BucketCost(bucket_size=10, bucket_build_s=20, load_ms=500)
    assert cost.price(1000) == pytest.approx((20_000 + 500) / 1000)


@pytest.mark.parametrize("runs", [0.0, -1.0, math.nan])
def test_a_price_needs_runs(runs: float) -> None:
    with pytest.raises(PlanError, match="not over 0"):
        BucketCost(load_ms=1.0).price(runs)


def test_what_buckets_take_adds_up_and_comes_back_from_json() -> None:
    cost = BucketCost(100, 20, base_build_s=3.0, bucket_build_s=2.0, load_ms=5.0)
    assert cost.size(3) == 160
    assert cost.build_s(3) == 9.0
    assert cost.price(1000) == pytest.approx((2000 + 5) / 1000)
    assert BucketCost.from_json(cost.to_json()) == cost
    assert BucketCost.from_json({"load_ms": 5, "more": "x"}) == BucketCost(load_ms=5)
    for bad in (
        [],
        {"load_ms": -1},
        {"base_size": math.nan},
        {"bucket_size": "3"},
        {"load_ms": 10**400},
        {"bucket_build_s": 1e308},
    ):
        with pytest.raises(PlanError, match="bucket's cost"):
            BucketCost.from_json(bad)
