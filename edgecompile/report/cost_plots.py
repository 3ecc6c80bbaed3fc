"""Drawings of what runs cost by length, as inline SVG: a curve for each mode, or for each size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from edgecompile.report import canvas
from edgecompile.report.canvas import FAINT, INK, MID, MODE_COLOURS, PAPER

__all__ = ["CostLine", "cost_curve", "cost_family"]

_MARKERS = {"exact": "o", "pad": "s"}
_DASHES: dict[str, Any] = {"exact": "-", "pad": "--"}
# Ratios of the highest cost to the lowest: below the first a logarithmic axis may have no round
# number to name, above the second a linear one presses the lower curves together.
_DECADE, _WIDE = 10, 40
_POINTS = 170  # height of a panel, about


@dataclass(frozen=True)
class CostLine:
    """The costs of one mode as a plot shows them.

    Attributes:
        mode: ``exact`` or ``pad``.
        lengths, ms: corners of the line, ascending.
        measured: (length, ms, distance of the quartiles or 0) of what was really run.
        known: first and last length with a point; beyond them the line is dotted.
    """

    mode: str
    lengths: tuple[int, ...]
    ms: tuple[float, ...]
    measured: tuple[tuple[int, float, float], ...] = ()
    known: tuple[int, int] = (1, 1 << 31)


def cost_curve(
    lines: Sequence[CostLine],
    *,
    edges: Sequence[int] = (),
    kind: str = "measured",
    unit: str = "tokens",
    log: bool = False,
) -> str:
    """Milliseconds per run against length, for each mode.

    Args:
        lines: of each mode, one at least.
        edges: upper edges of the plan's buckets, drawn as thin lines.
        kind: ``measured``, ``calibrated`` or ``modelled``; named in the legend.
        unit: what a length counts.
        log: whether the axis of lengths is logarithmic; that of milliseconds then is, too, if the
            costs differ by an order of magnitude.
    """
    with matplotlib.rc_context(canvas.STYLE):
        figure, axes = canvas.new_figure(2.9)
        _draw_panel(axes, lines, lines, edges, log=(log, log and _ratio(lines) > _DECADE))
        handles = [
            Line2D(
                [], [], color=MODE_COLOURS[line.mode], linestyle=_DASHES[line.mode], linewidth=1.4,
                label=f"{line.mode}, {kind}", **(_marker(line.mode) if line.measured else {}),
            )
            for line in lines
        ]  # fmt: skip
        if edges:
            handles.append(Line2D([], [], color=MID, linewidth=1.2, label="bucket edge"))
        canvas.label_axes(axes, f"length ({unit})", "ms per run")
        canvas.add_legend(figure, handles)
        return canvas.to_svg(figure, "cost", "Milliseconds per run against input length")


def cost_family(
    families: Sequence[Sequence[tuple[str, CostLine]]],
    *,
    axis: str,
    kind: str,
    edges: Sequence[int] = (),
    log: bool = False,
) -> str:
    """Milliseconds per run against one axis, a panel for each mode, a line for each other size.

    Args:
        families: for each mode the names and lines of the other axis's sizes, ascending.
        axis: name of the horizontal axis.
        kind: ``measured``, ``calibrated`` or ``modelled``; named above each panel.
        edges: upper edges of the plan's buckets on the horizontal axis, drawn as thin lines.
        log: as in :func:`cost_curve`; both axes are logarithmic, too, where costs differ very much.
    """
    lines = [line for family in families for _, line in family]
    ratio = _ratio(lines)
    logs = (log or ratio > _WIDE, (log and ratio > _DECADE) or ratio > _WIDE)
    with matplotlib.rc_context(canvas.STYLE):
        figure = Figure(figsize=(canvas.WIDTH, 3.3), layout="constrained")
        panels = figure.subplots(1, len(families), sharey=True, squeeze=False)[0]
        for plot, family in zip(panels, families, strict=True):
            _draw_panel(plot, [line for _, line in family], lines, edges, log=logs, most=8)
            _name_lines(plot, family)
            mode = family[0][1].mode
            plot.set_title(f"{mode}, {kind}", loc="left", fontsize=9, color=MODE_COLOURS[mode])
            canvas.label_axes(plot, axis, "ms per run" if plot is panels[0] else "")
        text = f"Milliseconds per run against {axis}, at each size of the other axis"
        return canvas.to_svg(figure, "costs", text)


def _draw_panel(
    axes: Axes,
    lines: Sequence[CostLine],
    scale: Sequence[CostLine],
    edges: Sequence[int],
    *,
    log: tuple[bool, bool],
    most: int = 14,
) -> None:
    """Lines, paler from the first to the last of one mode, on axes that have room for ``scale``.

    Args:
        axes: to draw on.
        lines: to draw.
        scale: decide on the ends of both axes.
        edges: upper edges of buckets.
        log: whether the axes of sizes and of milliseconds are logarithmic.
        most: number of ticks.
    """
    for edge in edges:
        axes.axvline(edge, color=FAINT, linewidth=1.2, zorder=0)
    named = len({line.mode for line in lines}) == 1
    for i, line in enumerate(lines):
        _draw_line(axes, line, alpha=1 - 0.6 * i / max(1, len(lines) - 1) if named else 1.0)
    low = min(line.lengths[0] for line in scale)
    high = max(line.lengths[-1] for line in scale)
    canvas.set_length_axis(axes, low, high, log=log[0], most=most)
    marks = [ms + spread / 2 for line in scale for _, ms, spread in line.measured]
    values = [ms for line in scale for ms in line.ms]
    canvas.set_ms_axis(axes, min(values), max([*marks, *values]), log=log[1])


def _ratio(lines: Sequence[CostLine]) -> float:
    """The highest cost by the lowest."""
    values = [ms for line in lines for ms in line.ms]
    return max(values) / min(values)


def _draw_line(axes: Axes, line: CostLine, *, alpha: float = 1.0) -> None:
    """A line, dotted beyond its points, with marks where it was measured."""
    colour = MODE_COLOURS[line.mode]
    first, last = line.known
    points = list(zip(line.lengths, line.ms, strict=True))
    parts = (
        (":", [p for p in points if p[0] <= first]),
        (_DASHES[line.mode], [p for p in points if first <= p[0] <= last]),
        (":", [p for p in points if p[0] >= last]),
    )
    for dashes, part in parts:
        if len(part) > 1:
            xs, ys = zip(*part, strict=True)
            axes.plot(xs, ys, color=colour, linestyle=dashes, linewidth=1.4, alpha=alpha)
    if len(points) == 1:  # a line of one point is nothing to see
        axes.plot(*points[0], color=colour, marker="_", markersize=14, alpha=alpha)
    if line.measured:
        xs, ys, spreads = zip(*line.measured, strict=True)
        axes.errorbar(
            xs, ys, yerr=[spread / 2 for spread in spreads] if any(spreads) else None,
            linestyle="none", capsize=2.5, elinewidth=1.0, ecolor=colour, alpha=alpha,
            color=colour, zorder=3, **_marker(line.mode),
        )  # fmt: skip


def _marker(mode: str) -> dict[str, Any]:
    face = PAPER if mode == "pad" else MODE_COLOURS[mode]
    return {"marker": _MARKERS[mode], "markersize": 4.5, "markerfacecolor": face}


def _name_lines(plot: Axes, family: Sequence[tuple[str, CostLine]]) -> None:
    """Names lines at their right ends; of names that would touch the upper line's stays."""
    taken = math.inf
    for name, line in sorted(family, key=lambda item: -item[1].ms[-1]):
        end = (line.lengths[-1], line.ms[-1])
        height = _POINTS * (plot.transScale + plot.transLimits).transform(end)[1]
        if taken - height < 10:
            continue
        taken = height
        plot.annotate(
            name, end, xytext=(5, 0), textcoords="offset points", va="center", fontsize=8,
            color=INK, annotation_clip=False,
        )  # fmt: skip
