"""A plan's buckets: found by sizes, without holes, written as JSON and read again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edgecompile.buckets.plan import BucketPlan
from edgecompile.buckets.ranges import AxisRange, Bucket
from edgecompile.errors import CostError, PlanError
from tests.buckets.costs.grids import find


def bucket(lo: int, hi: int, mode: Any = "exact", **others: tuple[int, int]) -> Bucket:
    ranges = tuple((name, AxisRange(a, b, b)) for name, (a, b) in others.items())
    return Bucket(mode, (("length", AxisRange(lo, hi, hi)), *ranges))


def test_product_buckets_of_two_axes() -> None:
    plan = BucketPlan(
        "length",
        (
            bucket(1, 64, batch=(1, 1)),
            bucket(65, 128, batch=(1, 1)),
            bucket(1, 128, "pad", batch=(2, 8)),
        ),
    )
    assert find(plan, {"length": 100, "batch": 1}) == 1
    assert find(plan, {"length": 100, "batch": 4}) == 2
    assert find(plan, {"length": 100, "batch": 9}) is None
    assert plan.buckets[2].range("batch") == AxisRange(2, 8, 8)
    assert BucketPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


@pytest.mark.parametrize(
    ("buckets", "message"),
    [
        ((), "needs a bucket"),
        ((bucket(1, 5), bucket(7, 9)), "doesn't start at 6"),
        ((bucket(1, 5), bucket(5, 9)), "doesn't start at 6"),
        ((bucket(6, 9), bucket(1, 5)), "doesn't start at 10"),
        ((bucket(1, 5), bucket(6, 9, batch=(1, 1))), "has the axes length, batch, not length"),
    ],
)
def test_plans_with_holes_are_refused(buckets: tuple[Bucket, ...], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        BucketPlan("length", buckets)


def test_buckets_of_another_axis_are_refused() -> None:
    with pytest.raises(PlanError, match="length"):
        BucketPlan("frames", (bucket(1, 5),))


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        {"buckets": []},
        {"buckets": [3]},
        {"buckets": [{"lo": 1}]},
        {"buckets": [{"lo": 1, "hi": "5"}]},
        {"buckets": [{"lo": 5, "hi": 1}]},
        {"buckets": [{"lo": 1, "hi": 5, "hint": 9}]},
        {"buckets": [{"lo": 1, "hi": True}]},
        {"buckets": [{"lo": 1, "hi": 5, "mode": "fast"}]},
        {"buckets": [{"lo": 1, "hi": 5, "axes": 3}]},
        {"buckets": [{"lo": 1, "hi": 5, "axes": {"batch": 3}}]},
        {"buckets": [{"lo": 1, "hi": 5, "axes": {"length": {"lo": 1, "hi": 1}}}]},
        {"buckets": [{"lo": 1, "hi": 5}], "length_axis": 3},
        {"buckets": [{"lo": 1, "hi": 5}], "expected_ms": "1"},
        {"buckets": [{"lo": 1, "hi": 5}], "expected_by_count": 3},
        {"buckets": [{"lo": 1, "hi": 5}], "notes": "x"},
        {"buckets": [{"lo": 1, "hi": 5}], "padding": "surely"},
        {"buckets": [{"lo": 1, "hi": 5}], "padding": None},
        {"buckets": [{"lo": 1, "hi": 5}], "cost_model": 3},
    ],
)
def test_bad_json_is_refused(value: object) -> None:
    with pytest.raises((PlanError, CostError)):
        BucketPlan.from_json(value)


def test_json_of_buckets_alone_is_enough() -> None:
    plan = BucketPlan.from_json({"buckets": [{"lo": 1, "hi": 5}, {"lo": 6, "hi": 9}]})
    assert plan.length_axis == "length"
    assert plan.policy == "manual"
    assert [b.hint for b in plan.buckets] == [5, 9]


def test_plans_of_earlier_versions_name_the_backend_as_it_was_called() -> None:
    def read(made_for: dict[str, str]) -> dict[str, str]:
        plan = BucketPlan("length", (bucket(1, 9),)).to_json()
        return dict(BucketPlan.from_json({**plan, "made_for": made_for}).made_for)

    assert read({"target": "a", "runtime": "native"}) == {"target": "a", "backend": "cpu"}
    assert read({"runtime": "torch"}) == read({"backend": "torch"}) == {"backend": "torch"}
