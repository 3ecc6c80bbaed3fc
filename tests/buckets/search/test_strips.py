from __future__ import annotations

import functools
import itertools
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgecompile.buckets.costs.grid import CostGrid, CostPoint, Mode
from edgecompile.buckets.plan import BucketPlan
from edgecompile.buckets.planner import plan_buckets
from edgecompile.buckets.ranges import AxisRange
from edgecompile.buckets.search.bound import cover_bound
from edgecompile.buckets.search.problem import Problem
from edgecompile.buckets.search.strips import SearchBounds
from edgecompile.buckets.traffic import Traffic
from edgecompile.errors import PlanError
from edgecompile.lengths.joint import JointDistribution
from tests.buckets.costs.grids import find, run_sizes, surface
from tests.draws import examples

AXES = ("length", "batch")
# Few distinct values make ties and plateaus common.
ms = st.one_of(st.integers(1, 5).map(float), st.floats(0.1, 20))


@st.composite
def surfaces(draw: Any, top: int = 5, other_top: int = 4) -> CostGrid:
    """Costs that rise on both axes, or jump about, with points anywhere and a mode missing."""
    lengths = sorted(draw(st.sets(st.integers(1, top), min_size=1, max_size=3)))
    others = sorted(draw(st.sets(st.integers(1, other_top), min_size=1, max_size=3)))
    kind = draw(st.sampled_from(["both", "both", "both", "exact", "pad"]))
    size = len(lengths) * len(others)
    tables = []
    for _ in range(2):
        table = np.array(draw(st.lists(ms, min_size=size, max_size=size)))
        table = table.reshape(len(others), len(lengths))
        if draw(st.booleans()):
            table = np.sort(np.sort(table, axis=0), axis=1)
        tables.append(table.tolist())
    exact, padded = tables
    return surface(
        {
            other: {
                length: (
                    None if kind == "pad" else exact[i][j],
                    None if kind == "exact" else padded[i][j],
                )
                for j, length in enumerate(lengths)
            }
            for i, other in enumerate(others)
        }
    )


def samples(top: int = 5, other_top: int = 4, cells: int = 7) -> st.SearchStrategy[Any]:
    return st.dictionaries(
        st.tuples(st.integers(1, top), st.integers(1, other_top)),
        st.integers(1, 9),
        min_size=1,
        max_size=cells,
    ).map(lambda counts: JointDistribution.from_counts(AXES, counts, "test"))


def table(found: CostGrid, mode: Mode, high: tuple[int, int]) -> np.ndarray:
    """Costs of all whole sizes, shape [lengths, batches], infinite without the mode."""
    if mode not in found.modes:
        return np.full(high, math.inf)
    lengths, batches = (np.arange(1, size + 1) for size in high)
    return found.cost(lengths[:, None], mode, batches[None, :])


def brute_force_strips(
    sample: JointDistribution, found: CostGrid, high: tuple[int, int], most: int, price: float
) -> float:
    """Least cost of all strips in both orders, cut at any whole numbers: the definition."""
    counts = np.zeros(high)
    for (length, batch), n in zip(sample.sizes, sample.counts, strict=True):
        counts[length - 1, batch - 1] = n / sample.n
    exact, padded = (table(found, mode, high) for mode in ("exact", "pad"))
    paid = counts * np.where(counts > 0, exact, 0.0)
    best = math.inf
    for order in (False, True):
        w, e, p = (t.T if order else t for t in (counts, paid, padded))

        @functools.cache
        def box(a: int, b: int, c: int, d: int) -> float:
            weight = w[a:b, c:d].sum()  # noqa: B023
            return min(e[a:b, c:d].sum(), weight * p[b - 1, d - 1] if weight else 0.0)  # noqa: B023

        @functools.cache
        def strip(a: int, b: int, d: int, k: int) -> float:
            """The first d inner sizes of the strip a..b in k boxes."""
            if k == 1:
                return box(a, b, 0, d)
            return min(
                (strip(a, b, c, k - 1) + box(a, b, c, d) for c in range(k - 1, d)),
                default=math.inf,
            )

        @functools.cache
        def cover(b: int, k: int) -> float:
            if b == 0 or k == 0:
                return 0.0 if b == k == 0 else math.inf
            return min(
                cover(a, k - q) + strip(a, b, w.shape[1], q)  # noqa: B023
                for a in range(b)
                for q in range(1, k + 1)
            )

        best = min(
            best,
            *(float(cover(w.shape[0], k)) + price * k for k in range(1, min(most, w.size) + 1)),
        )
    return best


def brute_force_covers(
    sample: JointDistribution, found: CostGrid, high: tuple[int, int], most: int
) -> list[float]:
    """Least cost of covering the sample by any 1, …, ``most`` (3 at most) boxes of either mode."""
    sizes = sample.size_array
    weights = sample.count_array / sample.n
    boxes = []
    for a, c in itertools.product(range(1, high[0] + 1), range(1, high[1] + 1)):
        for b, d in itertools.product(range(a, high[0] + 1), range(c, high[1] + 1)):
            inside = (sizes[:, 0] >= a) & (sizes[:, 0] <= b)
            inside &= (sizes[:, 1] >= c) & (sizes[:, 1] <= d)
            for mode in found.modes:
                at = sizes if mode == "exact" else np.full_like(sizes, [b, d])
                costs = found.at(at, mode)
                boxes.append(np.where(inside, costs, math.inf))
    rows = np.unique(np.array(boxes), axis=0)
    paid = np.full((1, len(sizes)), math.inf)
    best = []
    for _ in range(most):
        paid = np.unique(
            np.minimum(paid[:, None, :], rows[None, :, :]).reshape(-1, len(sizes)), axis=0
        )
        with np.errstate(invalid="ignore"):
            best.append(float((paid @ weights).min()))
    return list(np.minimum.accumulate(best))


@settings(max_examples=examples(300), deadline=None)
@given(
    samples(),
    surfaces(),
    st.integers(1, 5),
    st.tuples(st.integers(0, 2), st.integers(0, 1)),
    st.sampled_from([0.0, 0.1, 1.0, 10.0]),
)
def test_no_other_strips_are_cheaper(
    sample: JointDistribution,
    found: CostGrid,
    most: int,
    beyond: tuple[int, int],
    price: float,
) -> None:
    high = (sample.max("length") + beyond[0], sample.max("batch") + beyond[1])
    plan = plan_buckets(
        sample,
        found,
        max_buckets=most,
        price_per_bucket=price,
        max_sizes=dict(zip(AXES, high, strict=True)),
    )
    assert len(plan.buckets) <= most
    total = (plan.expected_ms or 0) + price * len(plan.buckets)
    assert total == pytest.approx(brute_force_strips(sample, found, high, most, price), rel=1e-8)
    assert plan.expected_ms == pytest.approx(slow_cost(plan, sample, found))
    assert plan.lower_bound_ms is not None and plan.lower_bound_ms <= total
    assert any("This is the best of them" in note for note in plan.notes)


def slow_cost(plan: BucketPlan, sample: JointDistribution, found: CostGrid) -> float:
    """Mean cost by the plan's own words: find the bucket, ask at which sizes it runs."""
    total = 0.0
    for cell, n in zip(sample.sizes, sample.counts, strict=True):
        sizes = dict(zip(AXES, cell, strict=True))
        index = find(plan, sizes)
        assert index is not None
        run = run_sizes(plan.buckets[index], sizes)
        total += n * found.cost(run["length"], plan.buckets[index].mode, run["batch"])
    return total / sample.n


@settings(max_examples=examples(250), deadline=None)
@given(
    samples(3, 3, 6),
    surfaces(3, 3),
    st.integers(1, 3),
    st.tuples(st.integers(0, 1), st.integers(0, 1)),
    st.integers(1, 4),
)
def test_no_cover_of_any_shape_is_below_the_bound(
    sample: JointDistribution,
    found: CostGrid,
    most: int,
    beyond: tuple[int, int],
    groups: int,
) -> None:
    high = tuple(min(3, sample.max(axis) + more) for axis, more in zip(AXES, beyond, strict=True))
    best = brute_force_covers(sample, found, (high[0], high[1]), most)
    whole = Problem(Traffic.of(sample), found, found.modes, (1, 1), high)
    for count in range(1, most + 1):
        for size in (groups, 512):
            bound = cover_bound(replace(whole, most=count), groups=size)
            assert bound <= best[count - 1] * (1 + 1e-9)
            forced = cover_bound(replace(whole, most=count, count=count), groups=size)
            assert forced <= best[count - 1] * (1 + 1e-9)
        for price in (0.3, 2.0):
            totals = [cost + price * k for k, cost in enumerate(best[:count], 1)]
            bound = cover_bound(replace(whole, most=count, price=price))
            assert bound <= min(totals) * (1 + 1e-9)
            assert cover_bound(replace(whole, price=price)) <= min(totals) * (1 + 1e-9)
    plan = plan_buckets(
        sample, found, max_buckets=most, max_sizes=dict(zip(AXES, high, strict=True))
    )
    assert (plan.lower_bound_ms or 0) <= best[most - 1] * (1 + 1e-9)
    if any(note.startswith("Proven optimal") for note in plan.notes):
        assert plan.expected_ms == pytest.approx(best[most - 1], rel=1e-5)


@settings(max_examples=examples(100), deadline=None)
@given(samples(), surfaces())
def test_one_bucket_is_always_proven(sample: JointDistribution, found: CostGrid) -> None:
    """The bound of one box is the lesser of all exact and the cheapest program that holds all."""
    plan = plan_buckets(sample, found, max_buckets=1)
    assert plan.lower_bound_ms == pytest.approx(plan.expected_ms)


@settings(max_examples=examples(150), deadline=None)
@given(
    st.dictionaries(st.integers(1, 9), st.integers(1, 9), min_size=1, max_size=7),
    surfaces(12, 6),
    st.integers(1, 6),
    st.integers(1, 6),
    st.booleans(),
    st.integers(0, 3),
)
def test_one_size_on_an_axis_gives_the_optimum_of_the_other(
    counts: dict[int, int],
    found: CostGrid,
    single: int,
    most: int,
    flipped: bool,
    beyond: int,
) -> None:
    cells = {((single, k) if flipped else (k, single)): n for k, n in counts.items()}
    sample = JointDistribution.from_counts(AXES, cells, "test")
    divided = AXES[int(flipped)]
    high = sample.max(divided) + beyond
    plan = plan_buckets(
        sample,
        found,
        max_buckets=most,
        max_sizes={divided: high},
        bounds=SearchBounds(steps=1, ends=2),
    )

    def cost(size: int, mode: Mode) -> float | None:
        if mode not in found.modes:
            return None
        return found.cost(single, mode, size) if flipped else found.cost(size, mode, single)

    points = (CostPoint(n, cost(n, "exact"), cost(n, "pad")) for n in range(1, high + 1))
    curve = CostGrid(tuple(points), "measured")
    line = plan_buckets(
        sample.marginal(divided), curve, max_buckets=most, max_sizes={"length": high}
    )
    assert plan.expected_ms == pytest.approx(line.expected_ms, rel=1e-9)
    assert len(plan.buckets) == len(line.buckets)
    assert plan.expected_by_count == pytest.approx(line.expected_by_count)
    assert any("This is the best of them" in note for note in plan.notes)


@settings(max_examples=examples(150), deadline=None)
@given(samples(), surfaces(), st.sampled_from([0.05, 0.5, 3.0]))
def test_without_a_bound_the_price_decides(
    sample: JointDistribution, found: CostGrid, price: float
) -> None:
    free = plan_buckets(sample, found, max_buckets=None, price_per_bucket=price)
    bounded = plan_buckets(sample, found, max_buckets=20, price_per_bucket=price)
    total = (free.expected_ms or 0) + price * len(free.buckets)
    assert total == pytest.approx(
        (bounded.expected_ms or 0) + price * len(bounded.buckets), rel=1e-8
    )
    assert (free.lower_bound_ms or 0) <= total


@settings(max_examples=examples(150), deadline=None)
@given(samples(), surfaces(), st.integers(1, 6), st.tuples(st.integers(0, 2), st.integers(0, 2)))
def test_plans_tile_their_hull_and_go_through_json(
    sample: JointDistribution, found: CostGrid, most: int, beyond: tuple[int, int]
) -> None:
    high = (sample.max("length") + beyond[0], sample.max("batch") + beyond[1])
    width = (("width", AxisRange(2, 3, 2)),)
    options: Any = {
        "max_buckets": most,
        "max_sizes": dict(zip(AXES, high, strict=True)),
        "other_axes": width,
    }
    plan = plan_buckets(sample, found, **options)
    for length, batch in itertools.product(range(1, high[0] + 1), range(1, high[1] + 1)):
        sizes = {"length": length, "batch": batch, "width": 2}
        assert sum(bucket.serves(sizes) for bucket in plan.buckets) == 1
    for bucket in plan.buckets:
        assert [name for name, _ in bucket.axes] == ["length", "batch", "width"]
        assert bucket.pad_axes == (AXES if bucket.mode == "pad" else ())
        assert bucket.hi <= high[0] and bucket.range("batch").hi <= high[1]
        if bucket.mode == "pad":
            assert all(bucket.range(axis).hint == bucket.range(axis).hi for axis in AXES)
    text = json.dumps(plan.to_json())
    assert BucketPlan.from_json(json.loads(text)) == plan
    assert json.dumps(plan_buckets(sample, found, **options).to_json()) == text


@settings(max_examples=examples(100), deadline=None)
@given(samples(5, 4, 12), surfaces(), st.integers(1, 5))
def test_fewer_ends_give_a_heuristic_that_says_so(
    sample: JointDistribution, found: CostGrid, most: int
) -> None:
    best = plan_buckets(sample, found, max_buckets=most)
    plan = plan_buckets(sample, found, max_buckets=most, bounds=SearchBounds(ends=2))
    assert (plan.expected_ms or 0) >= (best.expected_ms or 0) * (1 - 1e-9)
    assert (plan.lower_bound_ms or 0) <= (plan.expected_ms or 0)
    assert plan.expected_ms == pytest.approx(slow_cost(plan, sample, found))
    whole = any("This is the best of them" in note for note in plan.notes)
    assert whole != any("this is a heuristic" in note for note in plan.notes)
    if whole:
        assert plan.expected_ms == pytest.approx(best.expected_ms)


@settings(max_examples=examples(100), deadline=None)
@given(samples(), surfaces(), st.integers(1, 6))
def test_a_forced_number_is_met(sample: JointDistribution, found: CostGrid, count: int) -> None:
    try:
        plan = plan_buckets(sample, found, buckets=count, max_buckets=None)
    except PlanError as error:
        assert "are wanted" in error.message
        assert count > max(len(sample.marginal(axis).lengths) for axis in AXES)
        return
    assert len(plan.buckets) == count
    assert plan.expected_ms == pytest.approx(plan.expected_by_count[count - 1], rel=1e-8)
