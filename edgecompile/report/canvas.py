"""The base of all drawings: style, colours, length axes, and SVG that repeats byte for byte.

Colours are of the palette by Okabe and Ito, which colour-blind readers can tell apart; where two
series share a plot their markers or textures differ as well. In the SVG each colour is a CSS
variable with the colour itself as the fallback, so that a page may restyle drawings for a dark
screen. Text stays text: it takes the page's font and can be searched.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

BLUE, ORANGE = "#0072b2", "#d55e00"
INK, GREY, FAINT, PAPER, MID = "#222222", "#6b6b6b", "#e4e4e4", "#ffffff", "#c4c4c4"
HEAT = ("#eeeeea", "#dcdcd6", "#c3c3bd", "#a5a59f", "#84847f", "#5f5f5b", "#383836")
MODE_COLOURS = {"exact": BLUE, "pad": ORANGE}
WIDTH = 9.2  # inches; the page scales drawings to its own width

#: The CSS variables that drawings use, and their colours on a light page.
VARIABLES = {
    "ink": INK, "grey": GREY, "faint": FAINT, "paper": PAPER, "mid": MID,
    "blue": BLUE, "orange": ORANGE, **{f"heat-{i}": colour for i, colour in enumerate(HEAT)},
}  # fmt: skip

STYLE: Any = {  # matplotlib 3.11 types the keys as a long list of literals, 3.8 doesn't
    "svg.fonttype": "none",
    "text.parse_math": False,  # names of axes and baselines come from files; a $ is a $
    "font.size": 9.0,
    "text.color": INK,
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
    "hatch.linewidth": 0.9,
}


class Canvas:
    """A drawing as it is made.

    Attributes:
        figure, plots: matplotlib's; plots stand side by side and share the vertical axis.
        svg: the drawing as inline SVG, once the context of :func:`draw` has ended.
    """

    def __init__(self, height: float, plots: int) -> None:
        self.figure = Figure(figsize=(WIDTH, height), layout="constrained")
        self.plots: list[Axes] = list(self.figure.subplots(1, plots, sharey=True, squeeze=False)[0])
        self.svg = ""

    @property
    def plot(self) -> Axes:
        """The first of the plots."""
        return self.plots[0]

    def add_legend(self, handles: Sequence[Any]) -> None:
        """A legend outside the plots: whatever the data look like, it covers none of them."""
        self.figure.legend(handles=handles, loc="outside upper right", ncols=len(handles))


@contextmanager
def draw(salt: str, description: str, height: float, plots: int = 1) -> Iterator[Canvas]:
    """A canvas of the page's width; its SVG is made when the context ends.

    Args:
        salt: starts the ids in the SVG, so that several drawings may share a page.
        description: a description for those who can't see it.
        height: the height in inches.
        plots: the number of plots side by side.
    """
    # matplotlib's own salt would be random
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": salt}):
        canvas = Canvas(height, plots)
        yield canvas
        canvas.svg = _to_svg(canvas.figure, salt, description)


def is_skewed(
    sizes: Sequence[int], counts: Sequence[int], high: int, *, skew: float = 12.0, least: int = 128
) -> bool:
    """Whether a logarithmic axis shows a sample better: a linear one would crowd half of it.

    Args:
        sizes: distinct, ascending.
        counts: the count of each size.
        high: end of the axis.
        skew: half of the sample has to be under this part of ``high``.
        least: shorter axes are linear.
    """
    half = np.searchsorted(np.cumsum(counts), sum(counts) / 2)
    return high >= least and sizes[int(half)] * skew < high


def left_end(smallest: int, served: int) -> int:
    """Start of an axis: the smallest size served, but no less than half the smallest sample's."""
    return max(min(served, smallest), smallest // 2)


def bin_edges(low: int, high: int, *, log: bool, most: int) -> npt.NDArray[np.float64]:
    """Edges of at most about ``most`` bins of whole width, with no size on an edge.

    On a logarithmic axis the bins are about as wide as each other to the eye.
    """
    ratio = (high / low) ** (1 / most) - 1 if log else 0.0
    step = max(1, -(-(high - low + 1) // most))
    edges = [low - 0.5]
    while edges[-1] < high:
        edges.append(edges[-1] + (max(1, round(edges[-1] * ratio)) if log else step))
    return np.array(edges)


def length_ticks(low: int, high: int, *, log: bool = False, most: int = 14) -> list[int]:
    """At most so many round sizes from ``low`` to ``high``: powers of two, or multiples of one."""
    powers = [2**i for i in range(low.bit_length() - 1, high.bit_length()) if 2**i >= low]
    if log and len(powers) > 1:
        return powers[:: -(-len(powers) // most)]
    step = 1
    while (high - low) / step > min(most, 10) - 1:
        step *= 2
    return [*range(-(-low // step) * step, high + 1, step)]


def set_length_axis(
    plot: Axes, low: int, high: int, *, which: str = "x", log: bool, most: int = 14
) -> None:
    """Scale, limits and ticks of an axis of whole sizes, half a size wider at both ends."""
    axis = plot.xaxis if which == "x" else plot.yaxis
    if log:
        (plot.set_xscale if which == "x" else plot.set_yscale)("log", base=2)
    (plot.set_xlim if which == "x" else plot.set_ylim)(low - 0.5, high + 0.5)
    axis.set_major_locator(FixedLocator(length_ticks(low, high, log=log, most=most)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    axis.set_minor_locator(NullLocator())


def set_log_axis(plot: Axes) -> None:
    """A logarithmic vertical axis with plain numbers: matplotlib's own labels are formulas, which aren't set here."""
    plot.set_yscale("log")
    plot.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    plot.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    plot.yaxis.set_minor_locator(NullLocator())


def _to_svg(figure: Figure, salt: str, description: str) -> str:
    buffer = io.StringIO()
    # matplotlib's metadata would hold the date
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # Several drawings share one page, and with it one name space of ids.
    prefix = re.sub(r"\W+", "-", salt)
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}-", text)
    text = re.sub(r'style="[^"]*"', _name_colours, text)
    head, _, body = text.partition(">")
    box = re.search(r'viewBox="[^"]*"', head)
    assert box is not None
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'{box.group()} role="img" aria-label="{escape(description)}">{body.strip()}'
    )


def _name_colours(style: re.Match[str]) -> str:
    """A style attribute with the palette's colours as CSS variables."""
    text = style.group()
    for name, colour in VARIABLES.items():
        text = re.sub(colour, f"var(--{name}, {colour})", text, flags=re.IGNORECASE)
    return text
