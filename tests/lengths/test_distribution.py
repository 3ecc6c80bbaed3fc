from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgecompile.errors import LengthsError
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.lengths.files import read_sizes

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
    assert read_sizes(path) == distribution


def test_source_of_a_file_is_its_path(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("3\n")
    assert read_sizes(path).source == str(path)


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
    assert distribution.share_over(limit) == share


@given(histograms, st.lists(st.integers(1, 6000), min_size=1))
def test_shares_up_to_lengths(histogram: dict[int, int], lengths: list[int]) -> None:
    shares = make(histogram).shares_up_to(np.array(lengths))
    total = sum(histogram.values())
    for length, share in zip(lengths, shares, strict=True):
        assert share == sum(n for size, n in histogram.items() if size <= length) / total


def test_sparkline() -> None:
    assert make({1: 8, 2: 4, 4: 1}).sparkline() == "█▄ ▁"
    assert make({5: 3}).sparkline() == "█"
    assert len(make({1: 1, 1000: 5}).sparkline(20)) == 20
