"""Maps of the pairs of sizes that occur, with buckets over them, as inline SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap
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
    sizes: Sequence[Sequence[int]],
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
    edges, ends = [], []
    for i, most in enumerate((_MOST_COLUMNS, _MOST_ROWS)):
        high = max(int(cells[:, i].max()), *(box.hi[i] for box in boxes))
        found, where = np.unique(cells[:, i], return_inverse=True)
        totals = np.bincount(where.ravel(), weights=weights).tolist()
        log = canvas.is_skewed(found.tolist(), totals, high, skew=_SKEW, least=_LEAST)
        low = canvas.left_end(found.tolist(), high, min(box.lo[i] for box in boxes), log=log)
        edges.append(canvas.bin_edges(low, high, log=log, most=most))
        ends.append((low, high, log))
    shares, _, _ = np.histogram2d(
        cells[:, 0], cells[:, 1], bins=edges, weights=100 * weights / weights.sum()
    )
    levels = _levels(shares)
    with matplotlib.rc_context(canvas.STYLE):
        height = min(4.6, 2.4 + 0.25 * (len(edges[1]) - 1))
        figure, plot = canvas.new_figure(height)
        shades = ListedColormap(HEAT[-(len(levels) - 1) :])
        mesh = plot.pcolormesh(
            *edges, np.ma.masked_equal(shares, 0).T, cmap=shades,
            norm=BoundaryNorm(levels, shades.N), linewidth=0.3, edgecolors="face",
        )  # fmt: skip
        for which, (low, high, log) in zip("xy", ends, strict=True):
            canvas.set_length_axis(plot, low, high, which=which, log=log)
        for box in boxes:
            _draw_box(plot, box, height)
        canvas.label_axes(plot, *axes)
        key = figure.colorbar(mesh, ticks=levels, spacing="uniform", aspect=30, pad=0.02)
        key.set_ticklabels([canvas.share_text(level) for level in levels])
        key.ax.tick_params(length=0, labelsize=8)
        key.ax.set_title("inputs", fontsize=8, loc="left", pad=9)
        key.outline.set_visible(False)
        modes = [mode for mode in MODE_COLOURS if any(box.mode == mode for box in boxes)]
        canvas.add_legend(
            figure,
            [
                Line2D(
                    [], [], color=MODE_COLOURS[mode], linestyle=_DASHES[mode], linewidth=1.6,
                    label=_NAMES[mode],
                )
                for mode in modes
            ],
        )  # fmt: skip
        text = f"Map of how often sizes of {axes[0]} and {axes[1]} occur, with the buckets"
        return canvas.to_svg(figure, "sizes", text)


def _levels(shares: npt.NDArray[np.float64]) -> list[float]:
    """Bounds of the shades, in per cent, ascending: in equal ratios where shares differ much."""
    found = shares[shares > 0]
    least, most = float(found.min()), float(found.max())
    if most < 1.2 * least:
        return [0.0, most]
    spaced = np.geomspace if most > 8 * least else np.linspace
    levels: list[float] = spaced(least if most > 8 * least else 0, most, len(HEAT) + 1).tolist()
    return levels


def _draw_box(plot: Axes, box: Box, height: float) -> None:
    """The outline of a bucket, within its sizes, so that neighbours don't cover each other."""
    points = np.array([0.84 * canvas.WIDTH, height - 0.8]) * 72  # of the plot, about
    ends = [[size - 0.5 for size in box.lo], [size + 0.5 for size in box.hi]]
    low, high = (plot.transScale + plot.transLimits).transform(ends)
    inset = np.minimum(1.4 / points, (high - low) / 4)
    low, high = low + inset, high - inset
    colour = MODE_COLOURS.get(box.mode, INK)
    # A pale line below sets the outline off from dark cells.
    for style in (
        {"edgecolor": PAPER, "alpha": 0.6, "linewidth": 3.0, "zorder": 2.9},
        {"edgecolor": colour, "linewidth": 1.6, "linestyle": _DASHES.get(box.mode, ":")},
    ):
        plot.add_patch(
            Rectangle(
                low, *(high - low), transform=plot.transAxes, fill=False, clip_on=False,
                **{"zorder": 3, **style},
            )
        )  # fmt: skip
    if box.mode == "pad":
        corner = high - 2.5 / points
        plot.plot(*corner, "s", color=colour, markersize=5, transform=plot.transAxes, zorder=4)
    room = (high - low) * points
    if room[0] > 16 + 5 * len(box.name) and room[1] > 15:
        plot.text(
            *(low[0] + 3.5 / points[0], high[1] - 3.5 / points[1]), box.name,
            transform=plot.transAxes, va="top", ha="left", fontsize=8, color=INK, zorder=5,
            bbox={"facecolor": PAPER, "edgecolor": "none", "alpha": 0.82, "pad": 1.0},
        )  # fmt: skip
