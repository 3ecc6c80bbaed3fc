"""Drawings as inline SVG: plain numbers in, text out; the same numbers give the same bytes.

Colours are of the palette by Okabe and Ito, which colour-blind readers can tell apart; where two
series share a plot their markers or textures differ as well. Text stays text, so that it takes
the page's font and can be searched.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from edgecompile.units import format_ms

__all__ = ["Band", "bars", "cost_by_count", "cost_curve", "length_histogram"]

BLUE, ORANGE, GREEN, PURPLE, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9"
INK, GREY, FAINT = "#222222", "#6b6b6b", "#e4e4e4"
_MODE_COLOURS = {"exact": BLUE, "pad": ORANGE}
_MODE_NAMES = {"exact": "exact (no padding)", "pad": "padded to its upper edge"}
_SERIES = (BLUE, ORANGE, GREEN, PURPLE, SKY, GREY)

_WIDTH = 9.2  # inches; the page scales drawings to its own width
_STYLE: Any = {  # matplotlib 3.11 types the keys as a long list of literals, 3.8 doesn't
    "svg.fonttype": "none",
    "font.size": 9.0,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "legend.fontsize": 9.0,
}


@dataclass(frozen=True)
class Band:
    """A bucket as a plot shows it: lengths ``lo``..``hi`` inclusive, ``exact`` or ``pad``."""

    lo: int
    hi: int
    mode: str


def length_histogram(
    lengths: Sequence[int],
    counts: Sequence[int],
    bands: Sequence[Band] = (),
    *,
    unit: str = "tokens",
) -> str:
    """How often each length occurs, with the buckets behind it.

    Args:
        lengths: distinct, ascending.
        counts: of each length.
        bands: the plan's buckets, ascending; their upper edges are labelled.
        unit: what a length counts.
    """
    with matplotlib.rc_context(_STYLE):
        figure, axes = _figure(2.9)
        low, high = lengths[0], max(lengths[-1], bands[-1].hi if bands else 0)
        edges, heights = _bins(lengths, counts, low, high)
        for i, band in enumerate(bands):
            colour = _MODE_COLOURS.get(band.mode, GREY)
            left = low if i == 0 else band.lo
            axes.axvspan(
                left - 0.5, band.hi + 0.5, color=colour, alpha=0.16 if i % 2 else 0.07, linewidth=0
            )
            axes.axvline(band.hi + 0.5, color=colour, linewidth=0.9, alpha=0.8)
        axes.stairs(heights, edges, fill=True, color=INK, alpha=0.78, linewidth=0)
        axes.set_xlim(low - 0.5, high + 0.5)
        axes.set_ylim(0, max(heights) * 1.05)
        width = edges[1] - edges[0]
        share = "share of inputs" if width == 1 else f"share of inputs, bins of {width:.0f}"
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g} %"))
        _label(axes, f"length ({unit})", share)
        _edge_labels(axes, [band.hi for band in bands])
        modes = [mode for mode in _MODE_COLOURS if any(b.mode == mode for b in bands)]
        handles = [
            Patch(color=_MODE_COLOURS[mode], alpha=0.35, label=f"bucket, {_MODE_NAMES[mode]}")
            for mode in modes
        ]
        if handles:
            _legend(figure, handles)
        return _svg(figure, "lengths", "Histogram of input lengths with the edges of the buckets")


def cost_curve(
    lengths: Sequence[int],
    exact_ms: Sequence[float | None],
    pad_ms: Sequence[float | None],
    *,
    edges: Sequence[int] = (),
    kind: str = "measured",
    unit: str = "tokens",
) -> str:
    """Milliseconds per run against length, for both modes; None where a mode has no point.

    Args:
        lengths: of the points, ascending.
        exact_ms: of the program whose length is dynamic.
        pad_ms: of the program whose length is fixed.
        edges: upper edges of the plan's buckets, drawn as thin lines.
        kind: ``measured``, ``calibrated`` or ``modelled``; named in the legend.
        unit: what a length counts.
    """
    with matplotlib.rc_context(_STYLE):
        figure, axes = _figure(2.9)
        for edge in edges:
            axes.axvline(edge, color=FAINT, linewidth=1.2, zorder=0)
        top = 0.0
        for name, marker, values in (("exact", "o", exact_ms), ("pad", "s", pad_ms)):
            points = [(x, y) for x, y in zip(lengths, values, strict=True) if y is not None]
            if not points:
                continue
            top = max(top, *(y for _, y in points))
            axes.plot(
                [x for x, _ in points],
                [y for _, y in points],
                color=_MODE_COLOURS[name],
                linestyle="-" if name == "exact" else "--",
                linewidth=1.4,
                marker=marker,
                markersize=4.5,
                markerfacecolor="white" if name == "pad" else _MODE_COLOURS[name],
                label=f"{name}, {kind}",
            )
        axes.set_xlim(0, max(lengths) * 1.02)
        axes.set_ylim(0, top * 1.12)
        axes.grid(axis="y", color=FAINT, linewidth=0.7)
        _label(axes, f"length ({unit})", "ms per run")
        handles, _ = axes.get_legend_handles_labels()
        if edges:
            handles.append(Line2D([], [], color="#c4c4c4", linewidth=1.2, label="bucket edge"))
        _legend(figure, handles)
        return _svg(figure, "cost", "Milliseconds per run against input length")


def cost_by_count(counts: Sequence[int], expected_ms: Sequence[float], chosen: int) -> str:
    """The expected milliseconds of the best plan with each number of buckets.

    Args:
        counts: numbers of buckets, ascending.
        expected_ms: of the best plan with that many.
        chosen: the number that the plan has; marked.
    """
    with matplotlib.rc_context(_STYLE):
        figure, axes = _figure(2.6)
        axes.plot(counts, expected_ms, color=BLUE, linewidth=1.4, marker="o", markersize=4.0)
        if chosen in counts:
            value = expected_ms[list(counts).index(chosen)]
            axes.plot(
                [chosen], [value], "o", markersize=11, markerfacecolor="none",
                markeredgecolor=ORANGE, markeredgewidth=1.8,
            )  # fmt: skip
            right = chosen > (counts[0] + counts[-1]) / 2
            axes.annotate(
                f"{chosen} chosen: {format_ms(value)} ms", (chosen, value), color=INK,
                xytext=(-8 if right else 8, 14), textcoords="offset points",
                ha="right" if right else "left",
            )  # fmt: skip
        axes.set_ylim(0, max(expected_ms) * 1.15)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.grid(axis="y", color=FAINT, linewidth=0.7)
        _label(axes, "number of buckets", "expected ms per run")
        return _svg(figure, "count", "Expected milliseconds against the number of buckets")


def bars(labels: Sequence[str], series: Mapping[str, Sequence[float]], *, unit: str = "ms") -> str:
    """Horizontal bars, grouped by label, each with its value at its end.

    Args:
        labels: of the groups, top down.
        series: name -> one value for each label; at most six series.
        unit: of the values; the axis starts at zero.
    """
    if len(series) > len(_SERIES):
        raise ValueError(f"{len(series)} series; colours for {len(_SERIES)}")
    with matplotlib.rc_context(_STYLE):
        rows = len(labels) * len(series)
        figure, axes = _figure(0.75 + 0.21 * rows + 0.1 * len(labels))
        thick = 0.8 / len(series)
        top = max(max(values) for values in series.values())
        for i, (name, values) in enumerate(series.items()):
            places = [row + (i - (len(series) - 1) / 2) * thick for row in range(len(labels))]
            axes.barh(places, values, height=thick * 0.88, color=_SERIES[i], label=name)
            for place, value in zip(places, values, strict=True):
                axes.text(
                    value + top * 0.006, place, format_ms(value), va="center", fontsize=8, color=INK
                )
        axes.set_yticks(range(len(labels)), labels)
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(len(labels) - 0.5, -0.5)
        axes.set_xlim(0, top * 1.1)
        axes.spines["left"].set_visible(False)
        axes.grid(axis="x", color=FAINT, linewidth=0.7)
        axes.set_xlabel(unit)
        if len(series) > 1:
            _legend(figure, axes.get_legend_handles_labels()[0])
        return _svg(figure, "bars-" + "-".join(series), f"Bars, in {unit}")


def _figure(height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    axes = figure.add_subplot()
    return figure, axes


def _label(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def _legend(figure: Figure, handles: Sequence[Artist]) -> None:
    # Outside the axes: whatever the data look like, the legend covers none of them.
    figure.legend(handles=handles, loc="outside upper right", ncols=len(handles))


def _bins(
    lengths: Sequence[int], counts: Sequence[int], low: int, high: int
) -> tuple[list[float], list[float]]:
    """At most 120 bins of whole width, with no length on an edge, and their percentages."""
    width = max(1, -(-(high - low + 1) // 120))
    number = (high - low) // width + 1
    heights = [0] * number
    for length, count in zip(lengths, counts, strict=True):
        heights[(length - low) // width] += count
    total = sum(counts)
    edges = [low - 0.5 + i * width for i in range(number + 1)]
    return edges, [100 * height / total for height in heights]


def _edge_labels(axes: Axes, edges: Sequence[int]) -> None:
    """Names upper edges above the plot; of two that would touch only the longer length's stays."""
    low, high = axes.get_xlim()
    apart = (high - low) * 0.034
    kept: list[int] = []
    for edge in reversed(edges):
        if not kept or kept[-1] - edge >= apart:
            kept.append(edge)
    above = axes.secondary_xaxis("top")
    above.set_xticks([edge + 0.5 for edge in kept], [str(edge) for edge in kept])
    above.xaxis.set_minor_locator(NullLocator())
    above.tick_params(length=0, pad=2)
    above.spines["top"].set_visible(False)


def _svg(figure: Figure, salt: str, description: str) -> str:
    buffer = io.StringIO()
    # matplotlib's own salt would be random, and its metadata would hold the date
    with matplotlib.rc_context({"svg.hashsalt": salt}):
        figure.savefig(
            buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None}
        )
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # Several drawings share one page, and with it one name space of ids.
    prefix = re.sub(r"\W+", "-", salt)
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}-", text)
    head = re.match(r"<svg[^>]*>", text)
    assert head is not None
    box = re.search(r'viewBox="[^"]*"', head.group())
    assert box is not None
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'{box.group()} role="img" aria-label="{escape(description, quote=True)}">'
    )
    return opening + text[head.end() :].strip()
