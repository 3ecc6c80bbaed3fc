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

__all__ = ["CostLine", "cost_plot"]

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


def cost_plot(
    panels: Sequence[Sequence[tuple[str, CostLine]]],
    *,
    axis: str,
    kind: str,
    edges: Sequence[int] = (),
    log: bool = False,
) -> str:
    """Milliseconds per run against one axis, in one panel or in one for each mode.

    Args:
        panels: names and lines: of each mode, unnamed, in a single panel, or of each size of
            another axis, ascending, in a panel for each mode.
        axis: name of the horizontal axis.
        kind: ``measured``, ``calibrated`` or ``modelled``; named in the legend.
        edges: upper edges of the plan's buckets on the horizontal axis, drawn as thin lines.
        log: whether the axis of lengths is logarithmic; that of milliseconds then is, too, if the
            costs differ by an order of magnitude. Of named lines both are where costs differ very
            much.
    """
    lines = [line for panel in panels for _, line in panel]
    named = any(name for panel in panels for name, _ in panel)
    low = min(line.lengths[0] for line in lines)
    high = max(line.lengths[-1] for line in lines)
    values = [ms for line in lines for ms in line.ms]
    marks = [ms + spread / 2 for line in lines for _, ms, spread in line.measured]
    ratio = max(values) / min(values)
    log = log or (named and ratio > _WIDE)
    with matplotlib.rc_context(canvas.STYLE):
        figure = Figure(figsize=(canvas.WIDTH, 3.3 if named else 2.9), layout="constrained")
        plots = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for plot, panel in zip(plots, panels, strict=True):
            for edge in edges:
                plot.axvline(edge, color=FAINT, linewidth=1.2, zorder=0)
            for i, (name, line) in enumerate(panel):
                fading = 0.6 * i / max(1, len(panel) - 1) if name else 0.0
                _draw_line(plot, line, alpha=1 - fading)
            canvas.set_length_axis(plot, low, high, log=log, most=14 // len(panels) + 1)
            highest, log_ms = max([*marks, *values]), log and ratio > _DECADE
            canvas.set_ms_axis(plot, min(values), highest, log=log_ms)
            _name_lines(plot, panel)
            canvas.label_axes(plot, axis, "ms per run" if plot is plots[0] else "")
        handles = [
            Line2D(
                [], [], color=MODE_COLOURS[line.mode], linestyle=_DASHES[line.mode], linewidth=1.4,
                label=f"{line.mode}, {kind}", **(_marker(line.mode) if line.measured else {}),
            )
            for line in {line.mode: line for line in lines}.values()
        ]  # fmt: skip
        if edges:
            handles.append(Line2D([], [], color=MID, linewidth=1.2, label="bucket edge"))
        canvas.add_legend(figure, handles)
        return canvas.to_svg(figure, "cost", f"Milliseconds per run against {axis}")


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


def _name_lines(plot: Axes, panel: Sequence[tuple[str, CostLine]]) -> None:
    """Names lines at their right ends; of names that would touch the upper line's stays."""
    taken = math.inf
    for name, line in sorted(panel, key=lambda item: -item[1].ms[-1]):
        end = (line.lengths[-1], line.ms[-1])
        height = _POINTS * (plot.transScale + plot.transLimits).transform(end)[1]
        if not name or taken - height < 10:
            continue
        taken = height
        plot.annotate(
            name, end, xytext=(5, 0), textcoords="offset points", va="center", fontsize=8,
            color=INK, annotation_clip=False,
        )  # fmt: skip
