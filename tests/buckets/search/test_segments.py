from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgecompile.buckets.search.segments import (
    FloatArray,
    Segmentation,
    best_priced_segmentation,
    best_segmentations,
)
from tests.draws import examples

Problem = tuple[FloatArray, FloatArray | None, FloatArray | None]

# Few distinct values make ties, plateaus and empty positions common.
weight = st.integers(0, 4).map(float)
cost = st.one_of(st.integers(1, 6).map(float), st.floats(0.1, 50))


@st.composite
def problems(draw: Any) -> Problem:
    """Weights and costs that rise, fall or jump about, with one mode missing at times."""
    m = draw(st.integers(1, 9))
    columns = [np.array(draw(st.lists(c, min_size=m, max_size=m))) for c in (weight, cost, cost)]
    for column in columns[1:]:
        if draw(st.booleans()):
            column.sort()
    kinds = draw(st.sampled_from(["both", "both", "exact", "padded"]))
    weights, exact, padded = columns
    paid = None if kinds == "padded" else weights * exact
    return weights, paid, None if kinds == "exact" else padded


def segment_cost(
    weights: FloatArray, exact: FloatArray | None, padded: FloatArray | None, i: int, j: int
) -> dict[bool, float]:
    """Cost of positions i..j-1 (from 0) by whether they are padded: the definition, no tricks."""
    costs = {}
    if exact is not None:
        costs[False] = float(exact[i:j].sum())
    if padded is not None:
        costs[True] = float(weights[i:j].sum() * padded[j - 1])
    return costs


def brute_force(
    weights: FloatArray, exact: FloatArray | None, padded: FloatArray | None, count: int
) -> float:
    m = len(weights)
    return min(
        sum(
            min(segment_cost(weights, exact, padded, i, j).values())
            for i, j in itertools.pairwise((0, *cuts, m))
        )
        for cuts in itertools.combinations(range(1, m), count - 1)
    )


def check(found: Segmentation, problem: Problem) -> None:
    """The segments tile the positions and cost what is claimed."""
    assert found.segments[0].start == 0
    assert found.segments[-1].end == len(problem[0])
    assert all(a.end == b.start for a, b in itertools.pairwise(found.segments))
    assert all(s.start < s.end for s in found.segments)
    total = sum(segment_cost(*problem, s.start, s.end)[s.padded] for s in found.segments)
    assert found.cost == pytest.approx(total, abs=1e-9)


@settings(max_examples=examples(600), deadline=None)
@given(problems())
def test_every_count_is_optimal(problem: Problem) -> None:
    m = len(problem[0])
    best = best_segmentations(*problem, m + 3)
    assert [len(found.segments) for found in best] == list(range(1, m + 1))
    for count, found in enumerate(best, start=1):
        check(found, problem)
        assert found.cost == pytest.approx(brute_force(*problem, count), rel=1e-9, abs=1e-9)


@settings(max_examples=examples(400), deadline=None)
@given(problems(), st.sampled_from([0.0, 0.01, 1.0, 7.5, 1000.0]))
def test_a_price_gives_the_best_number(problem: Problem, price: float) -> None:
    found = best_priced_segmentation(*problem, price)
    check(found, problem)
    totals = [
        brute_force(*problem, count) + price * count for count in range(1, len(problem[0]) + 1)
    ]
    assert found.cost + price * len(found.segments) == pytest.approx(min(totals), abs=1e-8)


def test_matches_the_plain_recurrence_on_a_larger_problem() -> None:
    """O(k·m²) in numpy, on noisy costs of realistic size: the envelope of lines must not drift."""
    rng = np.random.default_rng(5)
    m, most = 400, 7
    weights = rng.integers(0, 50_000, m).astype(float)
    rising = 0.3 + 0.02 * np.arange(1, m + 1) + 1e-5 * np.arange(1, m + 1) ** 2
    exact = weights * rising * rng.uniform(1.0, 1.4, m)
    padded = rising * rng.uniform(0.9, 1.1, m)
    sums = np.concatenate([[0.0], np.cumsum(weights)])
    exact_sums = np.concatenate([[0.0], np.cumsum(exact)])
    best = np.full(m + 1, np.inf)
    best[0] = 0.0
    found = best_segmentations(weights, exact, padded, most)
    for count in range(most):
        layer = np.full(m + 1, np.inf)
        for j in range(1, m + 1):
            one = exact_sums[j] - exact_sums[:j]
            two = padded[j - 1] * (sums[j] - sums[:j])
            layer[j] = (best[:j] + np.minimum(one, two)).min()
        best = layer
        assert found[count].cost == pytest.approx(best[m], rel=1e-12)


def test_the_same_problem_gives_the_same_segments() -> None:
    rng = np.random.default_rng(0)
    problem = (np.ones(50), rng.random(50), rng.random(50))
    assert best_segmentations(*problem, 10) == best_segmentations(*problem, 10)


def test_one_mode_is_needed() -> None:
    with pytest.raises(ValueError, match="neither"):
        best_segmentations(np.ones(3), None, None, 2)
