from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgecompile.drift.kolmogorov import kolmogorov_distance, kolmogorov_p_value, kolmogorov_tail
from edgecompile.lengths.distribution import LengthDistribution

histograms = st.dictionaries(st.integers(1, 60), st.integers(1, 50), min_size=1, max_size=20)


def make(histogram: dict[int, int]) -> LengthDistribution:
    return LengthDistribution.from_counts(histogram)


@given(histograms, histograms)
def test_distance_is_the_largest_gap(first: dict[int, int], second: dict[int, int]) -> None:
    a, b = (np.repeat(list(h), list(h.values())) for h in (first, second))
    gaps = [abs(np.mean(a <= x) - np.mean(b <= x)) for x in range(61)]
    distance = kolmogorov_distance(make(first), make(second))
    assert distance == pytest.approx(max(gaps), abs=1e-12)
    assert distance == kolmogorov_distance(make(second), make(first))
    assert kolmogorov_distance(make(first), make(first)) == 0.0


def test_samples_without_common_lengths_are_one_apart() -> None:
    assert kolmogorov_distance(make({3: 5}), make({4: 1, 9: 7})) == 1.0


@pytest.mark.parametrize(
    ("x", "tail"),
    # Kolmogorov's median, and the critical values of the usual levels.
    [(0.82757, 0.5), (1.2238, 0.1), (1.3581, 0.05), (1.5174, 0.02), (1.6276, 0.01), (1.9495, 1e-3)],
)
def test_tail_has_the_known_critical_values(x: float, tail: float) -> None:
    assert kolmogorov_tail(x) == pytest.approx(tail, rel=3e-4)


def test_tail_agrees_with_scipy() -> None:
    special = pytest.importorskip("scipy.special")
    x = np.concatenate([np.linspace(0.05, 4, 400), [1.18, np.nextafter(1.18, 0)]])
    ours = np.array([kolmogorov_tail(value) for value in x])
    assert ours == pytest.approx(special.kolmogorov(x), rel=1e-9, abs=1e-15)


def test_tail_at_the_ends() -> None:
    assert kolmogorov_tail(0.0) == kolmogorov_tail(1e-9) == kolmogorov_tail(0.01) == 1.0
    assert kolmogorov_tail(1e6) == 0.0
    values = [kolmogorov_tail(x) for x in np.linspace(0, 6, 600)]
    assert all(0 <= after <= before <= 1 for before, after in pairwise(values))


@pytest.mark.parametrize("top", [4, 1_000_000_000])
def test_rejects_no_more_often_than_the_level(top: int) -> None:
    """Same distribution twice, with many ties and with none: the test at 5 % holds its level."""
    rng = np.random.default_rng(0)
    rejected = 0
    for _ in range(600):
        a, b = (LengthDistribution.from_samples(rng.integers(1, top + 1, n)) for n in (200, 300))
        rejected += kolmogorov_p_value(kolmogorov_distance(a, b), a.n, b.n) < 0.05
    assert rejected <= 45  # 30 expected without ties, standard deviation 5.3
    assert (rejected > 12) == (top > 4)  # and has nearly its power where nothing is tied


def test_sees_a_shift_and_more_of_it_with_more_samples() -> None:
    assert kolmogorov_p_value(0.2, 1000, 1000) < 1e-10
    assert kolmogorov_p_value(0.02, 100, 100) > 0.99
    assert kolmogorov_p_value(0.02, 10**7, 10**7) < 1e-100
