"""Drawings of costs: marks only where something was run, and names that don't touch."""

from __future__ import annotations

from typing import Any

from edgecompile.report.cost_plots import CostLine, cost_plot
from tests.svg import count_uses, read_words


def cost_curve(lines: list[CostLine], **options: Any) -> str:
    options = {"axis": "length (tokens)", "kind": "measured", **options}
    return cost_plot([[("", line) for line in lines]], **options)


def line(mode: str, *measured: tuple[int, float, float], scale: float = 1.0) -> CostLine:
    return CostLine(
        mode, (1, 16, 64, 80), (2.0, scale * 3, scale * 9, scale * 11), measured, (1, 64)
    )


def test_marks_stand_where_something_was_run() -> None:
    bare = count_uses(cost_curve([line("exact")]))
    marked = count_uses(cost_curve([line("exact", (16, 3.0, 0.0), (64, 9.0, 0.0))]))
    assert marked - bare == 3  # and one in the legend
    spread = count_uses(cost_curve([line("exact", (16, 3.0, 0.4), (64, 9.0, 0.2))]))
    assert spread - marked == 4  # the two ends of both bars


def test_the_kind_is_named() -> None:
    text = read_words(cost_curve([line("pad")], edges=[64], kind="modelled"))
    assert {"pad, modelled", "bucket edge"} <= set(text)
    assert not any(word.startswith("exact") for word in text)


def test_a_curve_of_one_length_shows_something() -> None:
    one = CostLine("pad", (64,), (3.0,), (), (64, 64))
    assert count_uses(cost_curve([one])) > 0
    assert "64" in read_words(cost_curve([one]))


def test_every_size_is_named_once_a_mode() -> None:
    families = [
        [(f"batch {b}", line(mode, (16, 3.0 * b, 0.1), scale=b)) for b in (1, 4, 8)]
        for mode in ("exact", "pad")
    ]
    text = read_words(cost_plot(families, axis="frames", kind="measured"))
    assert [text.count(f"batch {b}") for b in (1, 4, 8)] == [2, 2, 2]
    assert text.count("frames") == 2 and text.count("ms per run") == 1
    assert {"exact, measured", "pad, measured"} <= set(text)


def test_axes_have_numbers_however_the_costs_run() -> None:
    flat = CostLine("pad", (1, 8192), (21.0, 46.0))
    assert {"10", "30", "50"} <= set(read_words(cost_curve([flat], log=True)))
    steep = CostLine("pad", (37,), (500.0,))
    cheap = CostLine("pad", (37,), (1.0,))
    text = read_words(cost_plot([[("a", cheap), ("b", steep)]], axis="length", kind="measured"))
    assert {"37", "100"} <= set(text)


def test_of_names_that_would_touch_the_uppers_stays() -> None:
    family = [[(name, line("pad", scale=scale)) for name, scale in (("a", 1.0), ("b", 1.001))]]
    text = read_words(cost_plot(family, axis="length", kind="measured"))
    assert "b" in text and "a" not in text
