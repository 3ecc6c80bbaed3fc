from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgecompile.errors import LengthsError
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.lengths.files import read_lengths

histograms = st.dictionaries(st.integers(1, 5000), st.integers(1, 1000), min_size=1, max_size=30)


def make(histogram: dict[int, int]) -> LengthDistribution:
    return LengthDistribution.from_counts(histogram, "test")


@given(histograms)
def test_summary_agrees_with_the_raw_samples(histogram: dict[int, int]) -> None:
    distribution = make(histogram)
    raw = np.repeat(list(histogram), list(histogram.values()))
    summary = distribution.summary()
    assert summary.n == len(raw)
    assert summary.distinct == len(histogram)
    assert summary.mean == pytest.approx(raw.mean())
    assert (summary.min, summary.max) == (raw.min(), raw.max())
    for q, value in ((0.5, summary.p50), (0.9, summary.p90), (0.99, summary.p99)):
        assert value == np.quantile(raw, q, method="inverted_cdf")
    assert LengthDistribution.from_samples(raw, "test") == distribution


def test_quantile_has_no_rounding_error() -> None:
    ten = LengthDistribution.from_samples(range(1, 11))
    assert [ten.quantile(i / 10) for i in range(1, 11)] == list(range(1, 11))
    assert ten.quantile(0) == 1
    with pytest.raises(ValueError, match="q is"):
        ten.quantile(1.1)


@given(histograms)
def test_json_round_trip(histogram: dict[int, int]) -> None:
    distribution = make(histogram)
    assert LengthDistribution.from_json(json.loads(json.dumps(distribution.to_json()))) == (
        distribution
    )


def test_written_json_reads_back_equal(tmp_path: Path) -> None:
    distribution = make({12: 3, 7: 1})
    path = tmp_path / "lengths"
    path.write_text(json.dumps(distribution.to_json(), indent=2))
    assert read_lengths(path) == distribution


def test_source_of_a_file_is_its_path(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("3\n")
    assert read_lengths(path).source == str(path)


@pytest.mark.parametrize(
    ("lengths", "counts", "message"),
    [
        ((), (), "no lengths"),
        ((1, 2), (1,), "2 lengths but 1 counts"),
        ((2, 1), (1, 1), "ascending"),
        ((1, 1), (1, 1), "ascending"),
        ((0,), (1,), "start at 1"),
        ((1,), (0,), "counts start at 1"),
        ((2**31,), (1,), "over the largest length"),
        ((1.0,), (1,), "isn't an int"),
        ((True,), (1,), "isn't a number"),
        ((1, 2), (2**53, 1), "over 9007199254740992 samples"),
    ],
)
def test_bad_fields_are_refused(
    lengths: tuple[int, ...], counts: tuple[int, ...], message: str
) -> None:
    with pytest.raises(LengthsError, match=message):
        LengthDistribution(lengths, counts)


def test_samples_must_be_integers() -> None:
    with pytest.raises(LengthsError, match="isn't a whole number"):
        LengthDistribution.from_samples([1.5])
    with pytest.raises(LengthsError, match="no lengths"):
        LengthDistribution.from_samples([])


def test_arrays_are_read_only() -> None:
    with pytest.raises(ValueError, match="read-only"):
        make({3: 1}).count_array[0] = 5


@given(histograms, st.integers(1, 6000))
def test_clip(histogram: dict[int, int], limit: int) -> None:
    distribution = make(histogram)
    over = sum(n for length, n in histogram.items() if length > limit)
    clipped, share = distribution.clip(limit)
    assert share == pytest.approx(over / distribution.n)
    assert clipped.n == distribution.n
    assert clipped.max == min(limit, distribution.max)
    if over == distribution.n:
        with pytest.raises(LengthsError, match="are longer than"):
            distribution.clip(limit, "drop")
    else:
        dropped, share = distribution.clip(limit, "drop")
        assert dropped.n == distribution.n - over
        assert share == pytest.approx(over / distribution.n)
        assert dropped.max <= limit


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
        for length, count in zip(part.lengths, part.counts, strict=True):
            total[length] += count
    assert total == histogram
    assert held.n == min(max(round(distribution.n * fraction), 1), distribution.n - 1)
    assert distribution.split(fraction, seed) == (rest, held)


def test_split_of_very_many_samples() -> None:
    rest, held = make({3: 10**12, 9: 10**12}).split(0.25, seed=0)
    assert held.n / (rest.n + held.n) == pytest.approx(0.25, abs=1e-4)


def test_sample_and_resample_follow_the_distribution() -> None:
    distribution = make({3: 900, 10: 100})
    drawn = distribution.sample(20_000, seed=1)
    assert drawn.shape == (20_000,)
    assert set(drawn.tolist()) == {3, 10}
    assert np.mean(drawn == 10) == pytest.approx(0.1, abs=0.01)
    assert np.array_equal(drawn, distribution.sample(20_000, seed=1))
    again = distribution.resample(seed=2)
    assert again.n == 1000
    assert again != distribution
    assert again == distribution.resample(seed=2)


def test_sparkline() -> None:
    assert make({1: 8, 2: 4, 4: 1}).sparkline() == "█▄ ▁"
    assert make({5: 3}).sparkline() == "█"
    assert len(make({1: 1, 1000: 5}).sparkline(20)) == 20
