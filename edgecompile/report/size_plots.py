"""Maps of the pairs of sizes that occur, with buckets over them, as inline SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from edgecompile.report import canvas
from edgecompile.report.canvas import HEAT, INK, MODE_COLOURS, PAPER

__all__ = ["Box", "size_map"]

_MOST_COLUMNS, _MOST_ROWS = 96, 40
# Buckets crowd where most inputs are, so that a map is sooner logarithmic than a histogram.
_SKEW, _LEAST = 5.0, 6
_DASHES: dict[str, Any] = {"exact": "-", "pad": (0, (4, 1.6))}
_NAMES = {
    "exact": "bucket, exact (dynamic, no padding)",
    "pad": "bucket, padded; every input runs at ■",
}
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Box:
    """A bucket over two axes: sizes ``lo``..``hi`` inclusive on both, ``exact`` or ``pad``.

    Attributes:
        lo, hi: sizes on the horizontal and the vertical axis.
        mode: ``exact`` or ``pad``.
        name: what to write in it where there is room.
    """

    lo: tuple[int, int]
    hi: tuple[int, int]
    mode: str
    name: str


def size_map(
    sizes: Sequence[tuple[int, ...]],
    counts: Sequence[int],
    boxes: Sequence[Box],
    *,
    axes: tuple[str, str],
) -> str:
    """How often each pair of sizes occurs, as shades, with the buckets drawn over it.

    Args:
        sizes: distinct pairs, the horizontal size first.
        counts: of each pair.
        boxes: the plan's buckets.
        axes: names of the horizontal and the vertical axis.
    """
    cells = np.array(sizes, dtype=np.int64)
    weights = np.array(counts, dtype=np.int64)
    spans = [
        _Span.of(cells[:, i], weights, [b.lo[i] for b in boxes], [b.hi[i] for b in boxes], most)
        for i, most in enumerate((_MOST_COLUMNS, _MOST_ROWS))
    ]
    places = [np.searchsorted(span.edges, cells[:, i]) - 1 for i, span in enumerate(spans)]
    shares = np.zeros([len(span.edges) - 1 for span in spans])
    np.add.at(shares, (places[0], places[1]), 100 * weights / weights.sum())
    with matplotlib.rc_context(canvas.STYLE):
        rows = len(spans[1].edges) - 1
        height = min(4.6, 2.4 + 0.25 * rows)
        figure = Figure(figsize=(canvas.WIDTH, height))
        # The places of the axes are given, so that it's known how large a box is in points.
        left, width, bottom, tall = 0.075, 0.8, 0.52 / height, 1 - 0.86 / height
        plot = figure.add_axes((left, bottom, width, tall))
        points = (width * canvas.WIDTH * 72, tall * height * 72)
        levels = _levels(shares)
        for level, colour in enumerate(HEAT[-(len(levels) - 1) :]):
            chosen = (shares > 0) & (np.digitize(shares, levels[1:-1]) == level)
            corners = [_cell(spans, column, row) for column, row in np.argwhere(chosen).tolist()]
            # An outline of the same colour closes the seams between cells.
            plot.add_collection(
                PolyCollection(corners, facecolors=colour, edgecolors=colour, linewidths=0.3)
            )
        for which, span in zip("xy", spans, strict=True):
            canvas.set_length_axis(plot, span.low, span.high, which=which, log=span.log)
        for box in boxes:
            _draw_box(plot, box, spans, points)
        canvas.label_axes(plot, *axes)
        _draw_key(figure, levels, (left + width + 0.035, bottom, 0.018, tall))
        modes = [mode for mode in MODE_COLOURS if any(box.mode == mode for box in boxes)]
        handles = [
            Line2D(
                [], [], color=MODE_COLOURS[mode], linestyle=_DASHES[mode], linewidth=1.6,
                label=_NAMES[mode],
            )
            for mode in modes
        ]  # fmt: skip
        figure.legend(
            handles=handles, loc="upper right", ncols=len(handles), borderaxespad=0.2,
            bbox_to_anchor=(left + width, 1.0),
        )  # fmt: skip
        text = f"Map of how often sizes of {axes[0]} and {axes[1]} occur, with the buckets"
        return canvas.to_svg(figure, "sizes", text)


@dataclass(frozen=True)
class _Span:
    """One axis of the map: its ends, bins and scale."""

    low: int
    high: int
    log: bool
    edges: FloatArray

    @classmethod
    def of(
        cls,
        sizes: npt.NDArray[np.int64],
        weights: npt.NDArray[np.int64],
        los: Sequence[int],
        his: Sequence[int],
        most: int,
    ) -> _Span:
        high = max(int(sizes.max()), *his)
        found, where = np.unique(sizes, return_inverse=True)
        totals = np.bincount(where.ravel(), weights=weights)
        log = canvas.is_skewed(found.tolist(), totals.tolist(), high, skew=_SKEW, least=_LEAST)
        low = canvas.left_end(found.tolist(), high, min(los), log=log)
        ratio = (high / low) ** (1 / most) - 1 if log else 0.0
        step = max(1, -(-(high - low + 1) // most))
        edges = [low - 0.5]
        while edges[-1] < high:
            edges.append(edges[-1] + (max(1, round(edges[-1] * ratio)) if log else step))
        return cls(low, high, log, np.array(edges))

    def share(self, size: float) -> float:
        """Where a size lies between the ends of the axis, 0 to 1."""
        ends = (self.low - 0.5, self.high + 0.5)
        if size <= ends[0]:
            return 0.0
        if self.log:
            return math.log(size / ends[0]) / math.log(ends[1] / ends[0])
        return (size - ends[0]) / (ends[1] - ends[0])


def _cell(spans: Sequence[_Span], column: int, row: int) -> list[tuple[float, float]]:
    left, right = spans[0].edges[column : column + 2].tolist()
    bottom, top = spans[1].edges[row : row + 2].tolist()
    return [(left, bottom), (right, bottom), (right, top), (left, top)]


def _levels(shares: FloatArray) -> list[float]:
    """Bounds of the shades, in per cent, ascending: in equal ratios where shares differ much."""
    found = shares[shares > 0]
    least, most = float(found.min()), float(found.max())
    if most < 1.2 * least:
        return [0.0, most]
    steps = len(HEAT)
    if most > 8 * least:
        bounds = np.geomspace(least, most, steps + 1)
    else:
        bounds = np.linspace(0, most, steps + 1)
    return [float(bound) for bound in bounds]


def _draw_key(
    figure: Figure, levels: Sequence[float], place: tuple[float, float, float, float]
) -> None:
    """The shades and what they stand for, right of the map."""
    key = figure.add_axes(place)
    shades = HEAT[-(len(levels) - 1) :]
    for i, colour in enumerate(shades):
        key.axhspan(i, i + 1, color=colour, linewidth=0)
    key.set_ylim(0, len(shades))
    key.set_xticks([])
    key.yaxis.tick_right()
    key.set_yticks(range(len(levels)), [canvas.share_text(level) for level in levels])
    key.tick_params(axis="y", length=0, labelsize=8)
    key.spines[:].set_visible(False)
    key.set_title("inputs", fontsize=8, loc="left", pad=9)


def _draw_box(plot: Axes, box: Box, spans: Sequence[_Span], points: tuple[float, float]) -> None:
    """The outline of a bucket, within its sizes, so that neighbours don't cover each other."""
    ends = [
        [span.share(box.lo[i] - 0.5) * points[i], span.share(box.hi[i] + 0.5) * points[i]]
        for i, span in enumerate(spans)
    ]
    size = [high - low for low, high in ends]
    inset = min(1.4, size[0] / 4, size[1] / 4)
    colour = MODE_COLOURS.get(box.mode, INK)

    def at(x: float, y: float) -> tuple[float, float]:
        return x / points[0], y / points[1]

    corner = at(ends[0][0] + inset, ends[1][0] + inset)
    extent = at(size[0] - 2 * inset, size[1] - 2 * inset)
    # A pale line below sets the outline off from dark cells.
    plot.add_patch(
        Rectangle(
            corner, *extent, transform=plot.transAxes, fill=False, edgecolor=PAPER, alpha=0.6,
            linewidth=3.0, zorder=2.9, clip_on=False,
        )
    )  # fmt: skip
    plot.add_patch(
        Rectangle(
            corner, *extent, transform=plot.transAxes, fill=False, edgecolor=colour,
            linewidth=1.6, linestyle=_DASHES.get(box.mode, ":"), zorder=3, clip_on=False,
        )
    )  # fmt: skip
    if box.mode == "pad":
        side = min(5.0, size[0] - 2 * inset, size[1] - 2 * inset)
        place = at(ends[0][1] - inset - side, ends[1][1] - inset - side)
        plot.add_patch(
            Rectangle(
                place, *at(side, side), transform=plot.transAxes, facecolor=colour, linewidth=0,
                zorder=4,
            )
        )  # fmt: skip
    marked = 8 if box.mode == "pad" else 0
    if size[0] > 8 + 5 * len(box.name) + marked and size[1] > 15:
        plot.text(
            *at(ends[0][0] + inset + 3.5, ends[1][1] - inset - 3.5), box.name,
            transform=plot.transAxes, va="top", ha="left", fontsize=8, color=INK, zorder=5,
            bbox={"facecolor": PAPER, "edgecolor": "none", "alpha": 0.82, "pad": 1.0},
        )  # fmt: skip
