from __future__ import annotations

import math

import pytest

from edgecompile.errors import PlanError
from edgecompile.limits import BucketLimits, price_per_bucket


def test_the_tightest_bound_holds() -> None:
    limits = BucketLimits(
        max_size=1000, base_size=100, bucket_size=200, max_build_s=60.0, bucket_build_s=20.0
    )
    assert limits.most(None) == 3  # of 4 by size and 3 by time
    assert limits.most(8) == 3
    assert limits.most(2) == 2
    assert BucketLimits().most(None) is None
    assert BucketLimits(max_size=1000, base_size=1000).most(None) is None  # buckets weigh nothing


def test_every_broken_bound_is_named_with_what_it_lacks() -> None:
    limits = BucketLimits(
        max_size=1000, base_size=900, bucket_size=200, max_build_s=10.0, bucket_build_s=8.0
    )
    with pytest.raises(PlanError) as caught:
        limits.most(1, wanted=2)
    message = caught.value.message
    assert "2 buckets are asked for, --max-buckets is 1" in message
    assert "--max-size allows 1000 bytes, but 2 buckets need 1300 bytes" in message
    assert "300 bytes too much" in message
    assert "--max-build-time allows 10 s, but 2 buckets need 16 s" in message
    assert "6 s too much" in message


@pytest.mark.parametrize(("most", "wanted"), [(0, None), (-1, None), (None, 0)])
def test_a_plan_has_a_bucket(most: int | None, wanted: int | None) -> None:
    with pytest.raises(PlanError, match="has one at least"):
        BucketLimits().most(most, wanted)


def test_price_spreads_the_cost_over_the_runs() -> None:
    price = price_per_bucket(runs=1000, build_s=20, load_ms=500, size_mb=10, ms_per_mb=50)
    assert price == pytest.approx((20_000 + 500 + 500) / 1000)


@pytest.mark.parametrize(
    "options", [{"runs": 0.0}, {"runs": math.nan}, {"build_s": -1.0}, {"load_ms": math.inf}]
)
def test_bad_prices_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(PlanError):
        price_per_bucket(**{"runs": 1.0, **options})
