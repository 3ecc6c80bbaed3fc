"""Latency and goodput over the load, drawn from the records of benchmarks/run goodput, policies and open-load.

benchmarks/run drawings RECORD.json...     draws again what a record holds
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
from pathlib import Path
from typing import Any

from matplotlib.lines import Line2D

from benchmarks.serving.loads.rounds import Panels, interval
from edgecompile.report import canvas
from edgecompile.report.canvas import FAINT, GREY, PAPER
from edgecompile.report.load_plot import COLOURS, MARKERS

TITLES = {"both": "70 % queries, 30 % mixed", "long": "256 tokens each"}
#: Of goodput nothing is above it.
_MOST = 1.1
_DASHES = (0, (4, 2))
#: How far lines of goodput are from each other, of the axis' length.
_ASIDE = 0.008


def draw_record(panels: Panels, stem: Path, slo_ms: float) -> None:
    """Writes STEM-goodput.svg and STEM-latency.svg."""
    names = [*dict.fromkeys(name for lines in panels.values() for name in lines)]
    looks = dict(zip(names, zip(COLOURS, MARKERS, strict=True), strict=False))
    most = max(point.load for lines in panels.values() for line in lines.values() for point in line)
    for kind, words in (
        ("goodput", "in time per second, of the capacity"),
        ("latency", "ms (solid: p99, dotted: p50)"),
    ):
        with canvas.draw(kind, f"{kind} over the load", 3.0, len(panels)) as made:
            for plot, (traffic, lines) in zip(made.plots, panels.items(), strict=True):
                plot.grid(axis="y", color=FAINT, linewidth=0.8)
                plot.set_title(TITLES.get(traffic, traffic), fontsize=9.5)
                plot.set_xlabel("load, of the capacity")
                if kind == "goodput":
                    _draw_goodput(plot, lines, looks, most)
                else:
                    _draw_latency(plot, lines, looks, slo_ms)
            made.plot.set_ylabel(words)
            made.add_legend(
                [
                    Line2D([], [], color=colour, marker=marker, markersize=4, label=name)
                    for name, (colour, marker) in looks.items()
                ]
            )
        # A page may be dark: the drawing is a file of its own and can't follow it. A hundredth of a unit is enough.
        short = re.sub(r"\d+\.\d{3,}", lambda match: f"{float(match.group()):.2f}", made.svg)
        head, sign, rest = short.partition(">")
        paper = f'{head}{sign}<rect width="100%" height="100%" fill="{PAPER}"/>{rest}\n'
        stem.with_name(f"{stem.name}-{kind}.svg").write_text(paper)


def _draw_goodput(plot: Any, lines: Any, looks: Any, most: float) -> None:
    """Means with their 95 % intervals; dashed: all of the load in time."""
    plot.plot([0, most], [0, most], color=GREY, linewidth=0.8, linestyle=_DASHES, zorder=0)
    for i, (name, line) in enumerate(lines.items()):
        colour, marker = looks[name]
        shares = [interval(point.share) for point in line]
        # Beside each other, or intervals would cover intervals.
        aside = (i - (len(lines) - 1) / 2) * _ASIDE * most
        plot.errorbar(
            [point.load + aside for point in line],
            [mean for mean, _ in shares],
            [0.0 if math.isnan(half) else half for _, half in shares],
            color=colour, marker=marker, markersize=4, linewidth=1.4, elinewidth=0.8, capsize=2,
        )  # fmt: skip
    plot.set_ylim(0, most * _MOST)


def _draw_latency(plot: Any, lines: Any, looks: Any, slo_ms: float) -> None:
    """Medians of the rounds; dashed: the deadline."""
    plot.axhline(slo_ms, color=GREY, linewidth=1.0, linestyle=_DASHES)
    for name, line in lines.items():
        colour, marker = looks[name]
        for key, how in (("p99", "-"), ("p50", ":")):
            points = [(point.load, getattr(point, key)) for point in line if getattr(point, key)]
            plot.plot(
                [load for load, _ in points],
                [statistics.median(values) for _, values in points],
                color=colour, marker=marker, markersize=4, linewidth=1.4, linestyle=how,
            )  # fmt: skip
    canvas.set_log_axis(plot)


def main() -> None:
    """See the module."""
    # These draw with this module, where there is matplotlib.
    from benchmarks.serving.loads import goodput_page, policies_page
    from benchmarks.serving.peers import open_page

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("records", nargs="+", type=Path, help="JSON")
    for path in parser.parse_args().records:
        result = json.loads(path.read_text())
        module: Any = goodput_page if "predicted" in result else open_page
        if "saturated" in result:
            module = policies_page
        module.write_drawings(result, path)


if __name__ == "__main__":
    main()
