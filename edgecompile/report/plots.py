"""Drawings as inline SVG; the same values give the same bytes."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from edgecompile.buckets.costs.grid import CostGrid, CostPoint, Mode
from edgecompile.buckets.plan import BucketPlan
from edgecompile.buckets.ranges import Bucket
from edgecompile.buckets.traffic import Traffic
from edgecompile.report import canvas
from edgecompile.report.canvas import FAINT, HEAT, INK, MID, MODE_COLOURS, PAPER
from edgecompile.units import format_ms

_MODE_NAMES = {"exact": "exact (dynamic, no padding)", "pad": "padded to its upper edge"}
_DASHES: dict[str, Any] = {"exact": "-", "pad": (0, (4, 1.6))}
_SOLID: Any = {"dash_offset": 0, "dash_list": None}
_SERIES = (canvas.BLUE, canvas.ORANGE)
_MOST_BINS, _MOST_COLUMNS, _MOST_ROWS = 120, 96, 40
_MOST_LETTERS = 44  # of a bar's label; the bars need room as well
# Ratios of the highest cost to the lowest: below the first a logarithmic axis may have no round
# number to name, above the second a linear one presses the lower curves together.
_DECADE, _WIDE = 10, 40
_SHORT_NAME = 9  # letters of an axis' name


def length_histogram(traffic: Traffic, buckets: Sequence[Bucket], unit: str = "tokens") -> str:
    """The count of each length, with the buckets behind it.

    The axis is logarithmic where a linear one would press most of the sample into its first few
    per cent; areas, not heights, are then the shares.

    Args:
        traffic: over one axis; no length is over the buckets'.
        buckets: the buckets of a plan, ascending; their upper edges are labelled.
        unit: the unit of a length.
    """
    lengths, counts = traffic.sizes[:, 0].tolist(), traffic.counts
    high, text = buckets[-1].hi, "Histogram of input lengths with the edges of the buckets"
    log = canvas.is_skewed(lengths, counts.tolist(), high)
    low = canvas.left_end(lengths[0], buckets[0].lo)
    edges = canvas.bin_edges(low, high, log=log, most=_MOST_BINS)
    shares, _ = np.histogram(lengths, edges, weights=100 * counts / traffic.n)
    heights = shares / np.diff(np.log2(edges)) if log else shares
    with canvas.draw("lengths", text, 2.9) as drawing:
        plot = drawing.plot
        for i, bucket in enumerate(buckets):
            colour, span = MODE_COLOURS[bucket.mode], (max(low, bucket.lo) - 0.5, bucket.hi + 0.5)
            plot.axvspan(*span, linewidth=0, color=colour, alpha=0.16 if i % 2 else 0.07)
            if bucket.mode == "pad":
                style: Any = {"facecolor": "none", "edgecolor": colour, "hatch": "///"}
                plot.axvspan(*span, alpha=0.3, linewidth=0, **style)
            plot.axvline(span[1], color=colour, linewidth=0.9, alpha=0.8)
        plot.stairs(heights, edges, fill=True, color=INK, alpha=0.78, linewidth=0)
        canvas.set_length_axis(plot, low, high, log=log)
        if log:
            share = "share of inputs, by area"
            plot.yaxis.set_major_locator(NullLocator())
        else:
            width = edges[1] - edges[0]
            share = "share of inputs" if width == 1 else f"share of inputs, bins of {width:.0f}"
            plot.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g} %"))
        plot.set(xlabel=f"length ({unit})", ylabel=share, ylim=(0, max(heights) * 1.05))
        _name_edges(plot, [bucket.hi for bucket in buckets], log=log)
        drawing.add_legend(
            [
                Patch(
                    facecolor=(colour, 0.22), edgecolor=(colour, 0.7), linewidth=0,
                    hatch="///" if mode == "pad" else None, label=f"bucket, {_MODE_NAMES[mode]}",
                )
                for mode, colour in _modes(buckets).items()
            ]
        )  # fmt: skip
    return drawing.svg


def size_map(traffic: Traffic, buckets: Sequence[Bucket]) -> str:
    """The count of each pair of sizes, as shades, with the outlines of the buckets over it.

    Args:
        traffic: over two axes.
        buckets: the buckets of a plan; each is named by its number where there is room.
    """
    names, shares = traffic.axes, 100 * traffic.counts / traffic.n
    edges: list[Any] = []
    ends = []
    for i, most in enumerate((_MOST_COLUMNS, _MOST_ROWS)):
        own, spans = traffic.marginal(i), [bucket.range(names[i]) for bucket in buckets]
        high = max(own.max, *(span.hi for span in spans))
        # Buckets crowd where most inputs are, so that a map is sooner logarithmic than a histogram.
        log = canvas.is_skewed(own.lengths, own.counts, high, skew=5.0, least=6)
        low = canvas.left_end(own.min, min(span.lo for span in spans))
        edges.append(canvas.bin_edges(low, high, log=log, most=most))
        ends.append((low, high, log))
    cells, _, _ = np.histogram2d(traffic.sizes[:, 0], traffic.sizes[:, 1], edges, weights=shares)
    least, largest = cells[cells > 0].min(), cells.max()
    levels = np.geomspace(min(least, largest / 2), largest, len(HEAT) + 1)
    text = f"Map of how often sizes of {names[0]} and {names[1]} occur, with the buckets"
    with canvas.draw("sizes", text, min(4.6, 2.4 + 0.25 * (len(edges[1]) - 1))) as drawing:
        plot = drawing.plot
        mesh = plot.pcolormesh(
            *edges, np.ma.masked_equal(cells, 0).T, cmap=ListedColormap(HEAT),
            norm=BoundaryNorm(levels, len(HEAT)), linewidth=0.3, edgecolors="face",
        )  # fmt: skip
        for which, (low, high, log) in zip("xy", ends, strict=True):
            canvas.set_length_axis(plot, low, high, which=which, log=log)
        for index, bucket in enumerate(buckets):
            _outline(plot, [bucket.range(name) for name in names], bucket.mode, str(index))
        plot.set(xlabel=names[0], ylabel=names[1])
        key = drawing.figure.colorbar(mesh, ticks=levels, spacing="uniform", aspect=30, pad=0.02)
        key.set_ticklabels([f"{level:.3g} %" for level in levels])
        key.ax.tick_params(length=0, labelsize=8)
        key.ax.set_title("inputs", fontsize=8, loc="left", pad=9)
        key.outline.set_visible(False)
        drawing.add_legend(
            [
                Line2D([], [], color=c, linestyle=_DASHES[m], label=f"bucket, {_MODE_NAMES[m]}")
                for m, c in _modes(buckets).items()
            ]
        )
    return drawing.svg


def _outline(plot: Axes, ranges: Sequence[Any], mode: str, name: str) -> None:
    """A bucket's outline, a little within its sizes, so that neighbours don't cover each other."""
    corners = [[own.lo - 0.5 for own in ranges], [own.hi + 0.5 for own in ranges]]
    low, high = (plot.transScale + plot.transLimits).transform(corners)
    inset = np.minimum((0.002, 0.006), (high - low) / 4)
    size, pale = (
        high - low - 2 * inset,
        withStroke(linewidth=3.0, foreground=PAPER, alpha=0.6, dashes=_SOLID),
    )
    style: Any = {"transform": plot.transAxes, "clip_on": False, "zorder": 3}
    plot.add_patch(
        Rectangle(
            low + inset, *size, fill=False, edgecolor=MODE_COLOURS[mode], linewidth=1.6,
            linestyle=_DASHES[mode], path_effects=[pale], **style,
        )
    )  # fmt: skip
    if size[0] > 0.025 + 0.008 * len(name) and size[1] > 0.08:
        box = {"facecolor": PAPER, "edgecolor": "none", "alpha": 0.82, "pad": 1.0}
        place = (low[0] + 0.008, high[1] - 0.02)
        plot.text(*place, name, va="top", fontsize=8, color=INK, bbox=box, **style)


def cost_lines(plan: BucketPlan, costs: CostGrid, traffic: Traffic, axis: str) -> str:
    """Milliseconds per run against the length over the lengths served.

    Costs over one axis are in one plot with a line for each mode; those over two in a plot for each
    mode with a line for each size of the other axis. Marks are what was run, with the distance of the
    quartiles; beyond the points of the costs lines are dotted. Thin lines are the buckets' edges.

    Args:
        plan: its extent and the upper ends of its buckets are drawn.
        costs: over one axis or two.
        traffic: the traffic, drawn with a logarithmic axis where its lengths need one.
        axis: name of the horizontal axis.
    """
    lengths, high = traffic.lengths, plan.max_length
    low = canvas.left_end(lengths.min, plan.min_length)
    corners = np.array(sorted({low, *(n for n in costs.lengths if low < n < high), high}))
    families: list[Sequence[Mode]] = [costs.modes]
    if len(costs.axes) > 1:
        families = [(mode,) for mode in costs.modes]
    lines, styles = costs.lines(), {"exact": "o", "pad": "s"}
    drawn = [costs.cost(corners, mode, size) for mode in costs.modes for size in lines]
    least, most = float(np.min(drawn)), float(np.max(drawn))
    log = canvas.is_skewed(lengths.lengths, lengths.counts, high) or most / least > _WIDE
    text = f"Milliseconds per run against {axis}"
    with canvas.draw("cost", text, 2.9, len(families)) as drawing:
        for plot, modes in zip(drawing.plots, families, strict=True):
            for edge in {bucket.hi for bucket in plan.buckets}:
                plot.axvline(edge, color=FAINT, linewidth=1.2, zorder=0)
            canvas.set_length_axis(plot, low, high, log=log, most=14 // len(families) + 1)
            if log and most / least > _DECADE:
                plot.set(yscale="log", ylim=(least / 1.25, most * 1.25))
                subs = (1.0, 2.0, 5.0) if most / least < 300 else (1.0,)
                plot.yaxis.set_major_locator(LogLocator(subs=subs))
                plot.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
                plot.yaxis.set_minor_locator(NullLocator())
            else:
                plot.set_ylim(0, most * 1.12)
            plot.grid(axis="y", color=FAINT, linewidth=0.7)
            for mode in modes:
                for i, line in enumerate(lines.values()):
                    fading = 0.6 * i / max(1, len(lines) - 1)
                    style: Any = {"color": MODE_COLOURS[mode], "alpha": 1 - fading}
                    _draw_costs(plot, line, mode, corners, style, styles[mode])
            if len(costs.axes) > 1:
                _name_lines(plot, costs, modes[0], high)
            plot.set_xlabel(axis)
        drawing.plot.set_ylabel("ms per run")
        handles = [
            Line2D(
                [], [], color=MODE_COLOURS[mode], linestyle=_DASHES[mode], linewidth=1.4,
                marker=styles[mode] if costs.kind != "modelled" else None, markersize=4.5,
                label=f"{mode}, {costs.kind}",
            )
            for mode in costs.modes
        ]  # fmt: skip
        handles.append(Line2D([], [], color=MID, linewidth=1.2, label="bucket edge"))
        drawing.add_legend(handles)
    return drawing.svg


def _draw_costs(
    plot: Axes, line: CostGrid, mode: Mode, corners: Any, style: dict[str, Any], marker: str
) -> None:
    """The costs of one mode, dotted beyond their points, with marks where they were measured."""
    first, last = line.lengths[0], line.lengths[-1]
    ms = line.cost(corners, mode)
    inside = (corners >= first) & (corners <= last)
    for part, dashes in ((corners <= first, ":"), (inside, _DASHES[mode]), (corners >= last, ":")):
        plot.plot(corners[part], ms[part], linestyle=dashes, linewidth=1.4, **style)
    low, high = corners[0], corners[-1]
    marks = [p for p in line.points if low <= p.length <= high and was_measured(line, p, mode)]
    if marks or low == high:  # a line of one point would be nothing to see
        xs = [p.length for p in marks] or [low]
        spreads = [p.spread(mode) / 2 for p in marks]
        plot.errorbar(
            xs, line.cost(np.array(xs), mode), yerr=spreads if any(spreads) else None,
            linestyle="none", marker=marker if marks else "_", capsize=2.5, elinewidth=1.0,
            markersize=4.5 if marks else 14, zorder=3, **style,
        )  # fmt: skip


def was_measured(costs: CostGrid, point: CostPoint, mode: Mode) -> bool:
    """Whether a mode was really run at a point; where modes were merged, filled costs have no spread."""
    merged = any(f"{item}_measured_at" in costs.provenance for item in costs.modes)
    return costs.kind != "modelled" and (not merged or point.spread(mode) > 0)


def _name_lines(plot: Axes, costs: CostGrid, mode: Mode, high: int) -> None:
    """Names lines at their right ends; of names that would touch the upper line's stays."""
    # A long name has no room there; the title has it as well.
    prefix = f"{costs.axes[1]} " if len(costs.axes[1]) <= _SHORT_NAME else ""
    taken = math.inf
    ends = [(line.cost(high, mode), size) for size, line in costs.lines().items()]
    for ms, size in sorted(ends, reverse=True):
        height = (plot.transScale + plot.transLimits).transform((high, ms))[1]
        if taken - height < 0.06:
            continue
        taken = height
        plot.annotate(
            f"{prefix}{size}", (high, ms), xytext=(5, 0), textcoords="offset points", va="center",
            fontsize=8, color=INK, annotation_clip=False,
        )  # fmt: skip


def bars(
    labels: Sequence[str],
    series: Mapping[str, Sequence[float]],
    *,
    unit: str = "ms",
    strong: Collection[int] | None = None,
) -> str:
    """Horizontal bars, grouped by label, each with its value at its end.

    Args:
        labels: the labels of the groups, top down; long ones lose their middle.
        series: name -> one value for each label; one series or two.
        unit: the unit of the values; the axis starts at zero.
        strong: indices of groups to stress, the others are grey; None: all alike.
    """
    height = 0.75 + (0.21 * len(series) + 0.1) * len(labels)
    with canvas.draw("bars-" + "-".join(series), f"Bars, in {unit}", height) as drawing:
        plot, thick = drawing.plot, 0.8 / len(series)
        stressed = set(range(len(labels)) if strong is None else strong)
        for i, (name, values) in enumerate(series.items()):
            drawn = plot.barh(
                np.arange(len(labels)) + (i - (len(series) - 1) / 2) * thick, values,
                height=thick * 0.88, label=name,
                color=[_SERIES[i] if row in stressed else MID for row in range(len(labels))],
            )  # fmt: skip
            texts = plot.bar_label(drawn, list(map(format_ms, values)), padding=3, fontsize=8)
            if strong is not None:
                for row in stressed:
                    texts[row].set_fontweight("bold")
        plot.set_yticks(range(len(labels)), [_shorten(label) for label in labels])
        if strong is not None:
            for row in stressed:
                plot.get_yticklabels()[row].set_fontweight("bold")
        plot.tick_params(axis="y", length=0)
        plot.set(ylim=(len(labels) - 0.5, -0.5), xlabel=unit)
        plot.margins(x=0.1)
        plot.spines["left"].set_visible(False)
        plot.grid(axis="x", color=FAINT, linewidth=0.7)
        if len(series) > 1:
            drawing.add_legend(plot.get_legend_handles_labels()[0])
    return drawing.svg


def _shorten(label: str) -> str:
    """A label without its middle if it is too long: names often differ only at their ends."""
    half = _MOST_LETTERS // 2
    return label if len(label) <= _MOST_LETTERS else f"{label[:half]}…{label[-half + 1 :]}"


def _modes(buckets: Sequence[Bucket]) -> dict[str, str]:
    """The colours of the modes that occur."""
    present = {bucket.mode for bucket in buckets}
    return {mode: colour for mode, colour in MODE_COLOURS.items() if mode in present}


def _name_edges(plot: Axes, edges: Sequence[int], *, log: bool) -> None:
    """Names upper edges above the plot; of two that would touch only the longer length's stays."""
    scale = np.log2 if log else float
    low, high = map(scale, plot.get_xlim())
    shown: list[int] = []
    for edge in reversed(edges):
        room = (0.006 + 0.0047 * len(f"{edge}{shown[-1]}")) * (high - low) if shown else 0.0
        if not shown or scale(shown[-1]) - scale(edge) >= room:
            shown.append(edge)
    above = plot.secondary_xaxis("top")
    above.set_xticks([edge + 0.5 for edge in shown], list(map(str, shown)))
    above.xaxis.set_minor_locator(NullLocator())
    above.tick_params(length=0, pad=2)
    above.spines["top"].set_visible(False)
