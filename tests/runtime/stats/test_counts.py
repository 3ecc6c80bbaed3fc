"""counts: exact while they fit, coarser beyond, never too small a size."""

from __future__ import annotations

import random

from edgecompile.runtime.format.manifest.schema import Extent
from edgecompile.runtime.stats.counters import MAX_CELLS, MAX_OUTSIDE, JointCounts, OutsideCounts


def joint(first: Extent, second: Extent) -> JointCounts:
    return JointCounts(("length", "batch"), (first, second))


def test_few_pairs_are_exact_however_far_apart() -> None:
    counts = joint(Extent(3, 2**31 - 1), Extent(1, 1000))
    for pair in ((3, 1), (2**31 - 1, 1000), (3, 1000), (3, 1)):
        counts.add(*pair, 2)
    assert counts.snapshot() == {
        "axes": ["length", "batch"],
        "bins": [1, 1],
        "cells": [[3, 1, 4], [3, 1000, 2], [2**31 - 1, 1000, 2]],
    }


def test_many_pairs_are_coarse_and_never_too_small() -> None:
    rng = random.Random(0)
    first, second = Extent(5, 3000), Extent(2, 40)
    counts = joint(first, second)
    pairs = [(rng.randint(5, 3000), rng.randint(2, 40)) for _ in range(20_000)]
    for index, pair in enumerate(pairs):
        counts.add(*pair, 1)
        if index % 1000 == 0:
            assert len(counts._counts) <= MAX_CELLS
    seen = counts.snapshot()
    widths = seen["bins"]
    assert widths[0] > 1 and all(width & (width - 1) == 0 for width in widths)
    assert 100 < len(seen["cells"]) <= MAX_CELLS
    expected: dict[tuple[int, int], int] = {}
    for pair in pairs:
        ends = []
        for size, extent, width in zip(pair, (first, second), widths):  # noqa: B905 (Python 3.8)
            ends.append(min(extent.lo + ((size - extent.lo) // width + 1) * width - 1, extent.hi))
            assert size <= ends[-1] <= extent.hi and ends[-1] - size < width
        key = (ends[0], ends[1])
        expected[key] = expected.get(key, 0) + 1
    assert {(a, b): n for a, b, n in seen["cells"]} == expected


def test_the_axis_with_more_bins_grows_coarse() -> None:
    counts = joint(Extent(1, 8), Extent(1, 4096))
    for batch in range(1, 9):
        for length in range(1, 4097, 4):
            counts.add(batch, length, 1)
    assert counts.snapshot()["bins"] == [1, 8]
    assert sum(n for _, _, n in counts.snapshot()["cells"]) == 8 * 1024


def test_lengths_outside_are_bounded_and_never_too_short() -> None:
    counts = OutsideCounts()
    for length in range(1000, 1000 + MAX_OUTSIDE):
        counts.add(length)
    for length in (1000, 10_000, 16_384, 16_385, 2**62 + 1):
        counts.add(length)
    seen = counts.snapshot()
    assert seen["1000"] == 2 and seen["1001"] == 1
    assert "10000" not in seen
    assert (seen["16384"], seen["32768"], seen[str(2**63)]) == (2, 1, 1)
    for length in range(1, 200_000, 7):
        counts.add(length)
    assert len(counts.snapshot()) <= MAX_OUTSIDE + 64
    assert list(seen) == sorted(seen, key=int)


def test_no_length_is_not_counted() -> None:
    counts = OutsideCounts()
    counts.add(0)
    assert counts.snapshot() == {}
