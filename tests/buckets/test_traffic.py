from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgecompile.buckets.traffic import Traffic
from edgecompile.errors import LengthsError
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.lengths.joint import JointDistribution

histograms = st.dictionaries(st.integers(1, 5000), st.integers(1, 1000), min_size=1, max_size=30)
cells = st.dictionaries(
    st.tuples(st.integers(1, 20), st.integers(1, 6)), st.integers(1, 9), min_size=1, max_size=12
)


def make(histogram: dict[int, int]) -> Traffic:
    return Traffic.of(LengthDistribution.from_counts(histogram, "test"))


@settings(deadline=None)
@given(histograms, st.floats(0.01, 0.99), st.integers(0, 2**32))
def test_split_parts_add_up(histogram: dict[int, int], fraction: float, seed: int) -> None:
    distribution = make(histogram)
    if distribution.n < 2:
        with pytest.raises(LengthsError, match="one sample"):
            distribution.split(fraction, seed)
        return
    rest, held = distribution.split(fraction, seed)
    total = dict.fromkeys(histogram, 0)
    for part in (rest, held):
        for length, count in zip(part.sizes[:, 0].tolist(), part.counts.tolist(), strict=True):
            total[length] += count
    assert total == histogram
    assert held.n == min(max(round(distribution.n * fraction), 1), distribution.n - 1)
    again = distribution.split(fraction, seed)
    assert [part.lengths for part in again] == [rest.lengths, held.lengths]


def test_split_of_very_many_samples() -> None:
    rest, held = make({3: 10**12, 9: 10**12}).split(0.25, seed=0)
    assert held.n / (rest.n + held.n) == pytest.approx(0.25, abs=1e-4)


@settings(deadline=None)
@given(cells, st.integers(0, 99))
def test_parts_of_two_axes_add_up(counts: dict[tuple[int, ...], int], seed: int) -> None:
    traffic = Traffic.of(JointDistribution.from_counts(("length", "batch"), counts, "test"))
    if traffic.n == 1:
        with pytest.raises(LengthsError, match="can't be split"):
            traffic.split(0.2, seed)
        return
    total = dict.fromkeys(counts, 0)
    for part in traffic.split(0.3, seed):
        for cell, count in zip(part.sizes.tolist(), part.counts.tolist(), strict=True):
            total[tuple(cell)] += count
    assert total == counts
