"""Drawings of an explanation: where the least time goes, and what lives over the program."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from edgecompile.explanation.report import BucketFigures, MemoryPoint, ModuleUse
from edgecompile.explanation.work import Limits
from edgecompile.report import canvas
from edgecompile.report.canvas import BLUE, GREY, INK, MID, ORANGE
from edgecompile.report.plots import bars
from edgecompile.units import format_bytes

__all__ = ["memory_plot", "modules_plot", "roofline_plot"]

_MOST_BARS = 14
_LEAST_BAR = 0.002  # of the whole; less can't be seen


def modules_plot(modules: Sequence[ModuleUse], least_ms: float | None) -> str:
    """Bars: the least milliseconds of each kind of module, or its work where no limit is known."""
    if least_ms is not None and any(use.share for use in modules):
        short = least_ms < 0.1
        scale = 1e3 * least_ms if short else least_ms
        pairs = [(use, (use.share or 0.0) * scale) for use in modules]
        unit = "µs at least" if short else "ms at least"
    else:
        pairs = [(use, use.flops / 1e6) for use in modules]
        unit = "MFLOP"
    pairs = sorted((p for p in pairs if p[1] > 0), key=lambda pair: -pair[1])
    total = sum(value for _, value in pairs)
    large = [pair for pair in pairs if pair[1] >= _LEAST_BAR * total]
    shown, rest = large[:_MOST_BARS], [*large[_MOST_BARS:], *pairs[len(large) :]]
    labels = [use.module or "(model)" for use, _ in shown]
    values = [value for _, value in shown]
    if rest:
        labels.append(f"{len(rest)} others")
        values.append(sum(value for _, value in rest))
    return bars(labels, {"": values}, unit=unit)


def memory_plot(points: Sequence[MemoryPoint]) -> str:
    """Steps: bytes of activations that live while each operator runs."""
    with matplotlib.rc_context(canvas.STYLE):
        figure, axes = canvas.new_figure(2.9)
        edges = [i - 0.5 for i in range(len(points) + 1)]
        axes.stairs([p.live for p in points], edges, color=MID, fill=True, linewidth=0)
        axes.stairs(
            [p.fused for p in points], edges, color=BLUE, fill=True, alpha=0.85, linewidth=0
        )
        top = max(range(len(points)), key=lambda i: points[i].fused)
        peak = points[top]
        high = max(p.live for p in points) or 1
        right = top > len(points) / 2
        name = f"{peak.operator} in {peak.module}" if peak.module else peak.operator
        axes.plot([top], [peak.fused], "o", markersize=5, color=ORANGE)
        axes.annotate(
            f"{format_bytes(peak.fused)}: {name}", (top, peak.fused), color=INK,
            xytext=(-8 if right else 8, 10), textcoords="offset points", va="bottom",
            ha="right" if right else "left",
        )  # fmt: skip
        axes.set_xlim(-0.5, len(points) - 0.5)
        axes.set_ylim(0, high * 1.25)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: format_bytes(max(y, 0.0))))
        axes.grid(axis="y", color=canvas.FAINT, linewidth=0.7)
        canvas.label_axes(axes, "operator of the program", "activations alive")
        canvas.add_legend(
            figure,
            [
                Patch(color=BLUE, alpha=0.85, label="if generated code fuses"),
                Patch(color=MID, label="if every result is stored"),
            ],
        )
        return canvas.to_svg(figure, "memory", "Bytes of activations alive over the program")


def roofline_plot(buckets: Sequence[BucketFigures], limits: Limits) -> str:
    """The target's roofline, with each bucket where its intensity puts it."""
    with matplotlib.rc_context(canvas.STYLE):
        figure, axes = canvas.new_figure(2.9)
        known = [b for b in buckets if b.intensity > 0]
        low = min([limits.ridge, *(b.intensity for b in known)]) / 3
        high = max([limits.ridge, *(b.intensity for b in known)]) * 3
        roof = [
            (x, min(limits.flops, x * limits.bandwidth) / 1e9) for x in (low, limits.ridge, high)
        ]
        axes.plot([x for x, _ in roof], [y for _, y in roof], color=GREY, linewidth=1.4)
        for i, b in enumerate(known):
            y = min(limits.flops, b.intensity * limits.bandwidth) / 1e9
            colour = BLUE if b.limit == "arithmetic" else ORANGE
            axes.plot([b.intensity], [y], "o" if b.limit == "arithmetic" else "s", color=colour)
            axes.annotate(
                "run" if b.hi is None else str(b.hi), (b.intensity, y),
                xytext=(0, 8 if i % 2 else -14),  # buckets may lie close to each other
                textcoords="offset points", ha="center", color=INK, fontsize=8,
            )  # fmt: skip
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlim(low, high)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set_minor_formatter(NullFormatter())
        axes.set_ylim(min(y for _, y in roof) / 3, limits.flops / 1e9 * 2)
        axes.grid(color=canvas.FAINT, linewidth=0.7)
        canvas.label_axes(axes, "flop per byte moved", "GFLOP/s at most")
        canvas.add_legend(
            figure,
            [
                Patch(color=ORANGE, label="memory binds"),
                Patch(color=BLUE, label="arithmetic binds"),
            ],
        )
        return canvas.to_svg(figure, "roofline", "Roofline of the target with the buckets on it")
