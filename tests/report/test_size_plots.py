"""Maps of sizes: every input has a cell, every bucket an outline that shows its mode by form."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest

from edgecompile.buckets.costs.grid import Mode
from edgecompile.buckets.ranges import AxisRange, Bucket
from edgecompile.buckets.traffic import Traffic
from edgecompile.lengths.joint import JointDistribution
from edgecompile.report import canvas, plots
from tests.report.svg import parse_drawing, read_words

AXES = ("length", "batch")
SIZES = [(length, batch) for length in range(1, 65) for batch in (1, 2, 4)]
COUNTS = [1 + 64 // length for length, _ in SIZES]


def box(low: tuple[int, int], high: tuple[int, int], mode: Mode) -> Bucket:
    ranges = (AxisRange(lo, hi, hi) for lo, hi in zip(low, high, strict=True))
    return Bucket(mode, tuple(zip(AXES, ranges, strict=True)), AXES if mode == "pad" else ())


def size_map(
    sizes: Sequence[tuple[int, int]], counts: Sequence[int], boxes: Sequence[Bucket]
) -> str:
    cells = JointDistribution.from_counts(AXES, dict(zip(sizes, counts, strict=True)))
    return plots.size_map(Traffic.of(cells), boxes)


def test_boxes_are_named_and_told_apart_by_form() -> None:
    boxes = [box((1, 1), (64, 1), "pad"), box((1, 2), (64, 4), "exact")]
    svg = size_map(SIZES, COUNTS, boxes)
    text = read_words(svg)
    assert {"0", "1", "length", "batch", "inputs"} <= set(text)
    assert "bucket, exact (dynamic, no padding)" in text
    assert "bucket, padded to its upper edge" in text
    outlines = re.findall(r"style=\"fill: none;[^\"]*var\(--(blue|orange)[^\"]*", svg)
    assert {"blue", "orange"} <= set(outlines)
    dashed = re.findall(r"style=\"[^\"]*stroke-dasharray: (?!none)[^\"]*\"", svg)
    assert dashed and all("--orange" in style for style in dashed)


def test_a_box_without_room_has_no_name() -> None:
    boxes = [box((1, 1), (1, 4), "exact"), box((2, 1), (512, 4), "exact")]
    text = read_words(size_map([(400, 1), (512, 4)], [1, 1], boxes))
    assert "1" in text and "0" not in text


@pytest.mark.parametrize(
    ("sizes", "counts"),
    [
        ([(37, 1)], [5]),
        ([(3, 1), (3, 2)], [1, 1]),
        ([(1, 1), (8192, 512)], [10**9, 1]),
        ([(2**31 - 1, 2**31 - 1), (1, 1)][::-1], [1, 10**6]),
    ],
)
def test_any_sizes_can_be_drawn(sizes: list[tuple[int, int]], counts: list[int]) -> None:
    high = (max(a for a, _ in sizes), max(b for _, b in sizes))
    svg = size_map(sizes, counts, [box((1, 1), high, "exact")])
    parse_drawing(svg)
    assert "nan" not in svg and "inf" not in svg


def test_bins_hold_every_size() -> None:
    rng = np.random.default_rng(3)
    for most in (40, 96):
        for scale in (0.3, 1.0, 2.0):
            sizes = np.maximum(1, rng.lognormal(4, scale, 300).astype(np.int64))
            for log in (False, True):
                edges = canvas.bin_edges(1, int(sizes.max()), log=log, most=most)
                assert edges[0] < sizes.min() and sizes.max() < edges[-1]
                assert len(edges) <= 1.3 * most
