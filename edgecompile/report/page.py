"""One self-contained HTML page: no scripts, no fonts or images from elsewhere, nothing to fetch.

A page is a title and sections; a section holds key figures, notes, drawings and tables. The same
values give the same bytes, so that a report can be compared with the one before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import jinja2
from markupsafe import Markup

from edgecompile.units import sentence


@dataclass(frozen=True)
class Drawing:
    """An inline SVG, of :func:`edgecompile.report.canvas.to_svg`, which is trusted as markup."""

    title: str
    svg: str
    caption: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of text.

    Attributes:
        title: above it.
        columns: headings, with units.
        rows: cells as text.
        words: the number of columns, from the left, that hold words and are set flush left.
        strong, bad: indices of rows to stress, and of rows that report a failure.
        caption: below it.
        wrap: whether columns of words may break their lines, as sentences do.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int = 1
    strong: tuple[int, ...] = ()
    bad: tuple[int, ...] = ()
    caption: str = ""
    wrap: bool = False


@dataclass(frozen=True)
class Section:
    """A part of the page under a heading of its own.

    Attributes:
        title: the heading.
        verdict: the conclusion of the section, in one sentence, set large.
        figures: (name, value) pairs set large.
        notes: sentences.
        warnings: sentences on what to doubt, set apart above the notes.
        parts: drawings and tables, in order.
    """

    title: str
    figures: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    parts: tuple[Drawing | Table, ...] = ()
    verdict: str = ""
    warnings: tuple[str, ...] = ()


def render_page(
    title: str,
    sections: Sequence[Section],
    *,
    lead: str = "",
    header: Sequence[tuple[str, str]] = (),
    facts: Sequence[tuple[str, str]] = (),
) -> str:
    """The page as text, to be written as UTF-8.

    Args:
        title: heading of the page.
        sections: in order.
        lead: a sentence below the title.
        header: (name, value) pairs below it, on what the page is about.
        facts: (name, value) pairs on what made the page: versions, machine, source of the data.
    """
    shown = [
        {
            "title": section.title,
            "verdict": section.verdict,
            "figures": section.figures,
            "warnings": [sentence(warning) for warning in section.warnings],
            "notes": [sentence(note) for note in section.notes],
            "parts": [
                {"title": part.title, "svg": Markup(part.svg), "caption": part.caption}
                if isinstance(part, Drawing)
                else part
                for part in section.parts
            ],
        }
        for section in sections
    ]
    return _template().render(title=title, lead=lead, header=header, sections=shown, facts=facts)


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("edgecompile.report", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2")
