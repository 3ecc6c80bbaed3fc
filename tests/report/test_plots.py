"""Drawings of lengths and times: what they name, what they leave out, and that no input is lost."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from edgecompile.buckets.costs.grid import Mode
from edgecompile.buckets.ranges import AxisRange, Bucket
from edgecompile.buckets.traffic import Traffic
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.report import canvas, plots
from tests.report.svg import parse_drawing, read_words

LENGTHS = sorted({2 + i * i % 120 for i in range(400)})
COUNTS = [1 + length % 7 for length in LENGTHS]


def band(lo: int, hi: int, mode: Mode) -> Bucket:
    return Bucket(mode, (("length", AxisRange(lo, hi, hi)),))


def histogram(
    lengths: Sequence[int],
    counts: Sequence[int],
    bands: Sequence[Bucket] = (),
    unit: str = "tokens",
) -> str:
    sample = LengthDistribution(tuple(lengths), tuple(counts))
    bands = bands or [band(lengths[0], lengths[-1], "exact")]
    return plots.length_histogram(Traffic.of(sample), bands, unit)


def test_the_histogram_names_upper_edges_that_have_room() -> None:
    bands = [band(2, 8, "pad"), band(9, 10, "pad"), band(11, 64, "exact"), band(65, 121, "exact")]
    text = read_words(histogram(LENGTHS, COUNTS, bands, unit="frames"))
    assert {"10", "64", "121", "length (frames)"} <= set(text)
    assert "8" not in text  # it would touch the 10
    assert {"bucket, padded to its upper edge", "bucket, exact (dynamic, no padding)"} <= set(text)


@pytest.mark.parametrize(
    ("lengths", "counts"),
    [([7], [3]), ([1, 2], [1, 1]), ([1, 5000], [10**9, 1]), (range(1, 600), [1] * 599)],
)
@pytest.mark.parametrize("log", [False, True])
def test_bins_hold_every_input(log: bool, lengths: list[int], counts: list[int]) -> None:
    edges = canvas.bin_edges(lengths[0], lengths[-1], log=log, most=120)
    assert len(edges) <= 122
    assert edges[0] < lengths[0] and lengths[-1] < edges[-1]
    assert all(edge % 1 == 0.5 for edge in edges)
    parse_drawing(histogram(lengths, counts))


def test_a_skewed_sample_gets_a_logarithmic_axis() -> None:
    text = read_words(histogram([40, 50, 8192], [50, 50, 1], [band(1, 8192, "pad")]))
    assert {"32", "1024", "8192", "share of inputs, by area"} <= set(text) and "1" not in text
    even = read_words(histogram([40, 8192], [1, 3], [band(1, 8192, "pad")]))
    assert {"1024", "2048", "share of inputs, bins of 69"} <= set(even)


@pytest.mark.parametrize(
    ("low", "high", "log", "ticks"),
    [
        (1, 5, False, [1, 2, 3, 4, 5]),
        (37, 37, False, [37]),
        (1, 211, False, [32, 64, 96, 128, 160, 192]),
        (1, 8192, False, [1024 * i for i in range(1, 9)]),
        (4, 300, True, [4, 8, 16, 32, 64, 128, 256]),
        (3, 9, True, [4, 8]),
        (37, 37, True, [37]),
        (1100, 1140, True, [1104, 1112, 1120, 1128, 1136]),
    ],
)
def test_ticks_are_round(low: int, high: int, log: bool, ticks: list[int]) -> None:
    assert canvas.length_ticks(low, high, log=log) == ticks


def test_ticks_are_few() -> None:
    for high in (1, 9, 10, 11, 1000, 2**31 - 1):
        assert 1 <= len(canvas.length_ticks(1, high)) <= 10
        assert 1 <= len(canvas.length_ticks(1, high, log=True, most=8)) <= 8


def test_the_axis_starts_where_something_is_to_see() -> None:
    assert canvas.left_end(1, 1) == 1
    assert canvas.left_end(30, 20) == 20
    assert canvas.left_end(190, 1) == 95  # else the sample would be a line
    assert canvas.left_end(37, 40) == 37


def test_names_are_shown_as_they_are() -> None:
    name = r"$\alpha_1$ & <b>"
    assert {name, "$unit$"} <= set(read_words(plots.bars([name], {"x": [1.0]}, unit="$unit$")))
    assert "length ($k$)" in read_words(histogram([3], [1], unit="$k$"))


def test_long_names_lose_their_middle() -> None:
    text = read_words(plots.bars(["a" * 200 + "1", "a" * 200 + "2"], {"x": [1.0, 2.0]}))
    cut = [word for word in text if "…" in word]
    assert [word[-1] for word in cut] == ["1", "2"] and max(map(len, cut)) == 44


def test_bars_carry_their_values() -> None:
    text = read_words(plots.bars(["a", "b"], {"x": [1.234, 20.0], "y": [3.0, 4.0]}, unit="MB"))
    assert {"a", "b", "x", "y", "1.23", "20.0", "3.00", "4.00", "MB"} <= set(text)


def test_bars_are_stressed() -> None:
    svg = plots.bars(["a", "b"], {"x": [1.0, 90.0]}, strong=[0])
    assert {"1.00", "90.0"} <= set(read_words(svg))
    assert len(re.findall(r"<text style=\"[^\"]*\b(?:bold|700)\b", svg)) == 2  # a label and a value
