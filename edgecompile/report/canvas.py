"""What all drawings share: style, colours, length axes, and SVG that repeats byte for byte.

Colours are of the palette by Okabe and Ito, which colour-blind readers can tell apart; where two
series share a plot their markers or textures differ as well. In the SVG each colour is a CSS
variable with the colour itself as the fallback, so that a page may restyle drawings for a dark
screen. Text stays text: it takes the page's font and can be searched.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from html import escape
from typing import Any

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

BLUE, ORANGE, GREEN, PURPLE, SKY = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9"
INK, GREY, FAINT, PAPER, MID = "#222222", "#6b6b6b", "#e4e4e4", "#ffffff", "#c4c4c4"
HEAT = ("#eeeeea", "#dcdcd6", "#c3c3bd", "#a5a59f", "#84847f", "#5f5f5b", "#383836")
MODE_COLOURS = {"exact": BLUE, "pad": ORANGE}
WIDTH = 9.2  # inches; the page scales drawings to its own width

#: The CSS variables that drawings use, and their colours on a light page.
VARIABLES = {
    "ink": INK, "grey": GREY, "faint": FAINT, "paper": PAPER, "mid": MID,
    "blue": BLUE, "orange": ORANGE, "green": GREEN, "purple": PURPLE, "sky": SKY,
    **{f"heat-{i}": colour for i, colour in enumerate(HEAT)},
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


def is_skewed(
    sizes: Sequence[int], counts: Sequence[int], high: int, *, skew: float = 12.0, least: int = 128
) -> bool:
    """Whether a logarithmic axis shows a sample better: a linear one would crowd half of it.

    Args:
        sizes: distinct, ascending.
        counts: of each size.
        high: end of the axis.
        skew: half of the sample has to be under this part of ``high``.
        least: shorter axes are linear.
    """
    half = np.searchsorted(np.cumsum(counts), sum(counts) / 2)
    return high >= least and sizes[int(half)] * skew < high


def left_end(sizes: Sequence[int], high: int, served: int, *, log: bool) -> int:
    """Where an axis starts: at the smallest size served, unless the sample would be lost in it.

    Args:
        sizes: distinct, ascending.
        high: end of the axis.
        served: smallest size that buckets serve.
        log: whether the axis is logarithmic.
    """
    if log:
        return max(min(served, sizes[0]), sizes[0] // 2)
    lost = len(sizes) > 1 and 5 * (high - sizes[0]) < high - served
    return sizes[0] if lost else min(served, sizes[0])


def bin_edges(low: int, high: int, *, log: bool, most: int) -> list[float]:
    """Edges of at most about ``most`` bins of whole width, with no size on an edge.

    On a logarithmic axis the bins are about as wide as each other to the eye.
    """
    ratio = (high / low) ** (1 / most) - 1 if log else 0.0
    step = max(1, -(-(high - low + 1) // most))
    edges = [low - 0.5]
    while edges[-1] < high:
        edges.append(edges[-1] + (max(1, round(edges[-1] * ratio)) if log else step))
    return edges


def new_figure(height: float) -> tuple[Figure, Axes]:
    """A figure of the page's width, ``height`` inches high, and its axes."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.add_subplot()


def label_axes(axes: Axes, x: str, y: str) -> None:
    """Names both axes."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def add_legend(figure: Figure, handles: Sequence[Artist]) -> None:
    """A legend outside the axes: whatever the data look like, it covers none of them."""
    figure.legend(handles=handles, loc="outside upper right", ncols=len(handles))


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
    axes: Axes, low: int, high: int, *, which: str = "x", log: bool, most: int = 14
) -> None:
    """Scale, limits and ticks of an axis of whole sizes, half a size wider at both ends."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    if log:
        (axes.set_xscale if which == "x" else axes.set_yscale)("log", base=2)
    (axes.set_xlim if which == "x" else axes.set_ylim)(low - 0.5, high + 0.5)
    axis.set_major_locator(FixedLocator(length_ticks(low, high, log=log, most=most)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    axis.set_minor_locator(NullLocator())


def set_ms_axis(axes: Axes, low: float, high: float, *, log: bool) -> None:
    """The y axis of milliseconds, from zero unless it is logarithmic."""
    if log:
        axes.set_yscale("log")
        axes.set_ylim(low / 1.25, high * 1.25)
        subs = (1.0, 2.0, 5.0) if high / low < 300 else (1.0,)
        axes.yaxis.set_major_locator(LogLocator(subs=subs))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.set_ylim(0, high * 1.12)
    axes.grid(axis="y", color=FAINT, linewidth=0.7)


def share_text(percent: float) -> str:
    """``0.04 %``: a percentage in two digits."""
    if percent <= 0:
        return "0 %"
    digits = max(0, 1 - math.floor(math.log10(percent)))
    text = f"{percent:.{digits}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) + " %"


def to_svg(figure: Figure, salt: str, description: str) -> str:
    """The figure as inline SVG.

    Args:
        figure: the drawing.
        salt: starts its ids, so that several drawings may share a page.
        description: for those who can't see it.
    """
    buffer = io.StringIO()
    # matplotlib's own salt would be random, and its metadata would hold the date
    with matplotlib.rc_context({"svg.hashsalt": salt}):
        figure.savefig(
            buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None}
        )
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # Several drawings share one page, and with it one name space of ids.
    prefix = re.sub(r"\W+", "-", salt)
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}-", text)
    text = re.sub(r'style="[^"]*"', _name_colours, text)
    head = re.match(r"<svg[^>]*>", text)
    assert head is not None
    box = re.search(r'viewBox="[^"]*"', head.group())
    assert box is not None
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'{box.group()} role="img" aria-label="{escape(description, quote=True)}">'
    )
    return opening + text[head.end() :].strip()


_NAMES = {colour: name for name, colour in VARIABLES.items()}


def _name_colours(style: re.Match[str]) -> str:
    """A style attribute with the palette's colours as CSS variables."""

    def named(colour: re.Match[str]) -> str:
        name = _NAMES.get(colour.group().lower())
        return colour.group() if name is None else f"var(--{name}, {colour.group()})"

    return re.sub(r"#[0-9a-fA-F]{6}\b", named, style.group())
