"""Latency and goodput of a server over its load, one line for each rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edgecompile.report import canvas
from edgecompile.report.canvas import BLUE, GREY, ORANGE
from edgecompile.server.schedule.simulate import Outcome

COLOURS = (BLUE, ORANGE, "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
MARKERS = ("o", "s", "^", "D", "v", "P")

#: By name of a rule: offered requests per second, and what was measured of them.
Lines = Mapping[str, Sequence[tuple[float, float]]]


def load_page(outcomes: Sequence[Outcome], slo_ms: float | None) -> str:
    """A page with both drawings; rates at which nothing was answered are left out of the first."""
    latencies: dict[str, list[tuple[float, float]]] = {}
    goodputs: dict[str, list[tuple[float, float]]] = {}
    for outcome in outcomes:
        rate, p99 = outcome.offered, outcome.percentile(99)
        if rate == float("inf"):
            continue
        goodputs.setdefault(outcome.policy, []).append((rate, outcome.goodput))
        if p99 is not None:
            latencies.setdefault(outcome.policy, []).append((rate, p99 * 1e3))
    plots = [latency_plot(latencies, slo_ms), goodput_plot(goodputs)] if latencies else []
    return (
        '<!doctype html>\n<meta charset="utf-8">\n<title>Load</title>\n'
        '<body style="font: 15px sans-serif; max-width: 60em; margin: 2em auto">\n'
        + "\n".join(plots or ["<p>All requests came at once.</p>"])
        + "\n"
    )


def latency_plot(lines: Lines, slo_ms: float | None) -> str:
    """The latency that one answer in a hundred exceeds, in milliseconds, over the load; as SVG."""
    with canvas.draw("latency", "Latency of the slowest hundredth over the load", 3.2) as drawing:
        plot = drawing.plot
        _draw(drawing, lines)
        canvas.set_log_axis(plot)
        if slo_ms is not None:
            plot.axhline(slo_ms, color=GREY, linewidth=0.9, linestyle=(0, (4, 2)))
        plot.set(xlabel="requests per second", ylabel="99th percentile, ms")
    return drawing.svg


def goodput_plot(lines: Lines) -> str:
    """Answers in time per second over the load; as SVG."""
    with canvas.draw("goodput", "Answers in time over the load", 3.2) as drawing:
        plot = drawing.plot
        _draw(drawing, lines)
        most = max(rate for line in lines.values() for rate, _ in line)
        plot.plot([0, most], [0, most], color=GREY, linewidth=0.9, linestyle=(0, (4, 2)))
        plot.set(xlabel="requests per second", ylabel="answers in time per second", ylim=(0, None))
    return drawing.svg


def _draw(drawing: canvas.Canvas, lines: Lines) -> None:
    for i, (name, line) in enumerate(lines.items()):
        x, y = [rate for rate, _ in line], [value for _, value in line]
        drawing.plot.plot(
            x,
            y,
            color=COLOURS[i % len(COLOURS)],
            marker=MARKERS[i % len(MARKERS)],
            markersize=4,
            linewidth=1.4,
            label=name,
        )
    drawing.plot.legend(loc="best")
