from __future__ import annotations

import pytest

from edgecompile.bench.timings import Round, compare, median_by_length, stream, summarise
from edgecompile.lengths.distribution import LengthDistribution

MS = 1_000_000


def rounds(*means: int) -> list[Round]:
    return [Round((5, 9), (mean * MS - MS, mean * MS + MS)) for mean in means]


def test_a_stream_stands_for_the_traffic() -> None:
    traffic = LengthDistribution.from_samples([1] * 50 + [10] * 40 + [100] * 10)
    assert stream(traffic, 10) == (1,) * 5 + (10,) * 4 + (100,)
    many = stream(traffic, 1000)
    assert sum(many) / 1000 == pytest.approx(traffic.mean)
    assert list(many) == sorted(many)


def test_figures_are_medians_over_rounds() -> None:
    summary = summarise(rounds(10, 12, 1000))
    assert summary.mean_ms == 12
    assert summary.p50 == 12
    assert summary.p99 == pytest.approx(12.98)
    assert summary.round_means_ms == (10, 12, 1000)


def test_spread_is_half_of_what_most_rounds_span() -> None:
    summary = summarise(rounds(*range(95, 106)))
    assert summary.mean_ms == 100
    assert summary.spread == pytest.approx(0.04)
    assert summarise(rounds(7)).spread == 0


def test_ratios_are_taken_within_rounds() -> None:
    # The machine doubled its pace after two rounds; the ratio of the two never changed.
    fast, slow = rounds(10, 20, 5, 5), rounds(20, 40, 10, 10)
    ratio = compare(fast, slow)
    assert (ratio.median, ratio.p10, ratio.p90) == (0.5, 0.5, 0.5)
    assert compare(slow, fast).median == 2
    with pytest.raises(ValueError):
        compare(fast, slow[:-1])


def test_medians_by_length() -> None:
    items = [Round((9, 5, 5), (90, 50, 70)), Round((5, 9, 5), (60, 80, 1000))]
    assert median_by_length(items) == {5: 65 / 1e6, 9: 85 / 1e6}
    assert list(median_by_length(items)) == [5, 9]
