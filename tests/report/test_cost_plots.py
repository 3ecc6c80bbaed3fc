"""Drawings of costs: marks only where something was run, and names that don't touch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from edgecompile.buckets.costs.grid import CostGrid, CostKind, CostPoint, Mode
from edgecompile.buckets.plan import BucketPlan
from edgecompile.buckets.ranges import AxisRange, Bucket
from edgecompile.buckets.traffic import Traffic
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.report.plots import cost_lines
from tests.report.svg import count_uses, read_words

EVEN = range(1, 81)


def draw(
    costs: CostGrid,
    lengths: Sequence[int] = EVEN,
    served: tuple[int, int] = (1, 80),
    axis: str = "length (tokens)",
) -> str:
    plan = BucketPlan("length", (Bucket("pad", (("length", AxisRange(*served, served[1])),)),))
    traffic = Traffic.of(LengthDistribution.from_samples(lengths))
    return cost_lines(plan, costs, traffic, axis)


def costs(
    mode: Mode,
    points: Mapping[int, float],
    spread: float = 0.0,
    kind: CostKind = "measured",
) -> CostGrid:
    exact = mode == "exact"
    made = [
        CostPoint(n, ms, None, spread) if exact else CostPoint(n, None, ms, pad_spread_ms=spread)
        for n, ms in points.items()
    ]
    return CostGrid(tuple(made), kind)


LINE = {16: 3.0, 64: 9.0}


def test_marks_stand_where_something_was_run() -> None:
    bare = count_uses(draw(costs("exact", LINE, kind="modelled")))
    marked = count_uses(draw(costs("exact", LINE)))
    assert marked - bare == 3  # and one in the legend
    spread = count_uses(draw(costs("exact", LINE, 0.4)))
    assert spread - marked == 4  # the two ends of both bars
    outside = count_uses(draw(costs("exact", {**LINE, 128: 17.0}, 0.4)))
    assert outside == spread


def test_the_kind_is_named() -> None:
    text = read_words(draw(costs("pad", LINE, kind="modelled")))
    assert {"pad, modelled", "bucket edge"} <= set(text)
    assert not any(word.startswith("exact") for word in text)


def test_a_curve_of_one_length_shows_something() -> None:
    one = costs("pad", {64: 3.0}, kind="modelled")
    bare = count_uses(draw(one, [60, 64], (60, 64)))
    svg = draw(one, [64], (64, 64))
    assert count_uses(svg) > bare - len(range(60, 65))
    assert "64" in read_words(svg)


def test_every_size_is_named_once_a_mode() -> None:
    lines = {b: CostGrid((CostPoint(16, 3.0 * b, 2.0 * b),), "measured") for b in (1, 4, 8)}
    text = read_words(draw(CostGrid.join(("frames", "batch"), lines, {}), axis="frames"))
    assert [text.count(f"batch {b}") for b in (1, 4, 8)] == [2, 2, 2]
    assert text.count("frames") == 2 and text.count("ms per run") == 1
    assert {"exact, measured", "pad, measured"} <= set(text)


def test_axes_have_numbers_however_the_costs_run() -> None:
    flat = costs("pad", {1: 21.0, 8192: 46.0})
    assert {"10", "30", "50"} <= set(read_words(draw(flat, [1, 1, 1, 8192], (1, 8192))))
    ends = {b: costs("pad", {37: ms}) for b, ms in ((1, 1.0), (2, 500.0))}
    text = read_words(draw(CostGrid.join(("length", "batch"), ends, {}), [37], (37, 37)))
    assert {"37", "100"} <= set(text)


def test_of_names_that_would_touch_the_uppers_stays() -> None:
    line = costs("pad", LINE)
    near = replace(
        line, points=tuple(replace(p, pad_ms=1.001 * (p.pad_ms or 0)) for p in line.points)
    )
    text = read_words(draw(CostGrid.join(("length", "batch"), {1: line, 2: near}, {})))
    assert "batch 2" in text and "batch 1" not in text
