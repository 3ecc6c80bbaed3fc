"""Drawings as inline SVG: plain numbers in, text out; the same numbers give the same bytes.

Costs by length are drawn in :mod:`edgecompile.report.cost_plots`, pairs of sizes in
:mod:`edgecompile.report.size_plots`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from edgecompile.report import canvas
from edgecompile.report.canvas import (
    BLUE,
    FAINT,
    GREEN,
    GREY,
    INK,
    MID,
    MODE_COLOURS,
    ORANGE,
    PAPER,
)
from edgecompile.units import format_ms

__all__ = ["Band", "bars", "cost_by_count", "length_histogram"]

_MODE_NAMES = {"exact": "exact (dynamic, no padding)", "pad": "padded to its upper edge"}
_SERIES = (BLUE, ORANGE, GREEN, canvas.PURPLE, canvas.SKY, GREY)
_MOST_BINS = 120
_MOST_LETTERS = 44  # of a bar's label; the bars need room as well
# Of the highest cost, what an axis that doesn't start at zero shows at least: less would make
# much of differences that are none.
_LEAST_SHOWN = 0.1


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

    The axis is logarithmic where a linear one would press most of the sample into its first few
    per cent; areas, not heights, are then the shares.

    Args:
        lengths: distinct, ascending.
        counts: of each length.
        bands: the plan's buckets, ascending; their upper edges are labelled.
        unit: what a length counts.
    """
    with matplotlib.rc_context(canvas.STYLE):
        figure, axes = canvas.new_figure(2.9)
        high = max(lengths[-1], bands[-1].hi if bands else 0)
        log = canvas.is_skewed(lengths, counts, high)
        low = canvas.left_end(lengths, high, bands[0].lo if bands else lengths[0], log=log)
        edges = np.array(canvas.bin_edges(low, high, log=log, most=_MOST_BINS))
        shares, _ = np.histogram(lengths, edges, weights=np.array(counts) / sum(counts) * 100)
        heights = shares / np.diff(np.log2(edges)) if log else shares
        for i, band in enumerate(bands):
            colour = MODE_COLOURS.get(band.mode, GREY)
            left = low if i == 0 else band.lo
            style: dict[str, Any] = {"color": colour, "alpha": 0.16 if i % 2 else 0.07}
            axes.axvspan(left - 0.5, band.hi + 0.5, linewidth=0, **style)
            if band.mode == "pad":
                axes.axvspan(
                    left - 0.5, band.hi + 0.5, facecolor="none", edgecolor=colour, alpha=0.3,
                    hatch="///", linewidth=0,
                )  # fmt: skip
            axes.axvline(band.hi + 0.5, color=colour, linewidth=0.9, alpha=0.8)
        axes.stairs(heights, edges, fill=True, color=INK, alpha=0.78, linewidth=0)
        canvas.set_length_axis(axes, low, high, log=log)
        axes.set_ylim(0, max(heights) * 1.05)
        if log:
            share = "share of inputs, by area"
            axes.yaxis.set_major_locator(NullLocator())
        else:
            width = edges[1] - edges[0]
            share = "share of inputs" if width == 1 else f"share of inputs, bins of {width:.0f}"
            axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g} %"))
        canvas.label_axes(axes, f"length ({unit})", share)
        _edge_labels(axes, [band.hi for band in bands], log=log)
        modes = [mode for mode in MODE_COLOURS if any(b.mode == mode for b in bands)]
        handles = [
            Patch(
                facecolor=(MODE_COLOURS[mode], 0.22), edgecolor=(MODE_COLOURS[mode], 0.7),
                hatch="///" if mode == "pad" else None, linewidth=0,
                label=f"bucket, {_MODE_NAMES[mode]}",
            )
            for mode in modes
        ]  # fmt: skip
        if handles:
            canvas.add_legend(figure, handles)
        text = "Histogram of input lengths with the edges of the buckets"
        return canvas.to_svg(figure, "lengths", text)


def cost_by_count(
    counts: Sequence[int], expected_ms: Sequence[float], chosen: int, *, price: float = 0.0
) -> str:
    """The expected milliseconds of the best plan with each number of buckets.

    Where it changes little with the number, the axis of milliseconds doesn't start at zero.

    Args:
        counts: numbers of buckets, ascending.
        expected_ms: of the best plan with that many.
        chosen: the number that the plan has; marked.
        price: what a bucket has to save, in milliseconds; if it isn't 0 there is a second line
            with the price of all buckets added.
    """
    with matplotlib.rc_context(canvas.STYLE):
        figure, axes = canvas.new_figure(2.6)
        axes.plot(
            counts, expected_ms, color=BLUE, linewidth=1.4, marker="o", markersize=4.0,
            label="mean run",
        )  # fmt: skip
        totals = [ms + price * n for n, ms in zip(counts, expected_ms, strict=True)]
        if price > 0:
            axes.plot(
                counts, totals, color=GREY, linewidth=1.1, linestyle="--",
                label="with what each bucket has to save",
            )  # fmt: skip
            canvas.add_legend(figure, axes.get_legend_handles_labels()[0])
        if chosen in counts:
            value = expected_ms[list(counts).index(chosen)]
            axes.plot(
                [chosen], [value], "o", markersize=11, markerfacecolor="none",
                markeredgecolor=ORANGE, markeredgewidth=1.8,
            )  # fmt: skip
            # Below the line, which falls: whatever its slope there is room.
            right = chosen > (counts[0] + counts[-1]) / 2
            axes.annotate(
                f"{chosen} chosen: {format_ms(value)} ms", (chosen, value), color=INK,
                xytext=(0, -12), textcoords="offset points", va="top",
                ha="right" if right else "left",
            )  # fmt: skip
        axes.set_ylim(*_ms_limits(min(expected_ms), max(totals)))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.grid(axis="y", color=FAINT, linewidth=0.7)
        canvas.label_axes(axes, "number of buckets", "expected ms per run")
        text = "Expected milliseconds against the number of buckets"
        return canvas.to_svg(figure, "count", text)


def bars(
    labels: Sequence[str],
    series: Mapping[str, Sequence[float]],
    *,
    unit: str = "ms",
    strong: Collection[int] | None = None,
    remarks: Sequence[str] = (),
    limit: float | None = None,
) -> str:
    """Horizontal bars, grouped by label, each with its value at its end.

    Args:
        labels: of the groups, top down; long ones lose their middle.
        series: name -> one value for each label; at most six series.
        unit: of the values; the axis starts at zero.
        strong: indices of groups to stress, the others are grey; None: all alike. With one series.
        remarks: what to add to the value of each group; none if empty. With one series.
        limit: longer bars are cut here, with a gap before their end to show it; None: none is.
    """
    if len(series) > len(_SERIES):
        raise ValueError(f"{len(series)} series; colours for {len(_SERIES)}")
    if len(series) != 1 and (strong is not None or remarks):
        raise ValueError("only a single series has groups to stress or remarks")
    with matplotlib.rc_context(canvas.STYLE):
        rows = len(labels) * len(series)
        figure, axes = canvas.new_figure(0.75 + 0.21 * rows + 0.1 * len(labels))
        thick = 0.8 / len(series)
        top = max(max(values) for values in series.values())
        top = top if limit is None else min(top, limit)
        for i, (name, values) in enumerate(series.items()):
            places = [row + (i - (len(series) - 1) / 2) * thick for row in range(len(labels))]
            colours = [
                _SERIES[i] if strong is None or row in strong else MID for row in range(len(labels))
            ]
            shown = [min(value, top) for value in values]
            axes.barh(places, shown, height=thick * 0.88, color=colours, label=name)
            for row, (place, value) in enumerate(zip(places, values, strict=True)):
                text = " ".join([format_ms(value), *remarks[row : row + 1]]).strip()
                if value > top:
                    _cut_bar(axes, place, thick, top)
                axes.text(
                    min(value, top) + top * 0.006, place, text, va="center", fontsize=8, color=INK,
                    fontweight="bold" if strong is not None and row in strong else "normal",
                )  # fmt: skip
        axes.set_yticks(range(len(labels)), [_shorten(label) for label in labels])
        for row, label in enumerate(axes.get_yticklabels()):
            label.set_fontweight("bold" if strong is not None and row in strong else "normal")
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(len(labels) - 0.5, -0.5)
        axes.set_xlim(0, top * (1.18 if remarks else 1.1))
        axes.spines["left"].set_visible(False)
        axes.grid(axis="x", color=FAINT, linewidth=0.7)
        axes.set_xlabel(unit)
        if len(series) > 1:
            canvas.add_legend(figure, axes.get_legend_handles_labels()[0])
        return canvas.to_svg(figure, "bars-" + "-".join(series), f"Bars, in {unit}")


def _ms_limits(low: float, high: float) -> tuple[float, float]:
    """Ends of an axis that shows how costs differ: from zero where they differ by half or more."""
    if high >= 1.5 * low:
        return 0.0, high * 1.15
    span = max(high - low, _LEAST_SHOWN * high)
    # Room below for the label of the chosen number.
    return max(0.0, high - 1.6 * span), high + 0.2 * span


def _shorten(label: str) -> str:
    """A label without its middle if it is too long: names often differ only at their ends."""
    if len(label) <= _MOST_LETTERS:
        return label
    half = _MOST_LETTERS // 2
    return f"{label[:half]}…{label[-half + 1 :]}"


def _cut_bar(axes: Axes, place: float, thick: float, top: float) -> None:
    """A slanted gap shortly before the end of a bar."""
    low, high = place - thick / 2, place + thick / 2
    corners = [(0.955, high), (0.965, high), (0.977, low), (0.967, low)]
    axes.fill(
        [top * x for x, _ in corners], [y for _, y in corners], color=PAPER, linewidth=0, zorder=3
    )


def _edge_labels(axes: Axes, edges: Sequence[int], *, log: bool) -> None:
    """Names upper edges above the plot; of two that would touch only the longer length's stays."""

    def place(value: float) -> float:
        return float(np.log2(value)) if log else value

    low, high = (place(end) for end in axes.get_xlim())
    kept: list[int] = []
    for edge in reversed(edges):
        if kept:
            letters = len(str(edge)) + len(str(kept[-1]))
            if place(kept[-1]) - place(edge) < (high - low) * (0.006 + 0.0047 * letters):
                continue
        kept.append(edge)
    above = axes.secondary_xaxis("top")
    above.set_xticks([edge + 0.5 for edge in kept], [str(edge) for edge in kept])
    above.xaxis.set_minor_locator(NullLocator())
    above.tick_params(length=0, pad=2)
    above.spines["top"].set_visible(False)
