"""Results as notebooks show them: the sections of the reports as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from edgecompile.report.page import Drawing, Section, Table
from edgecompile.units import sentence


class NotebookResult:
    """A result that a notebook shows as a section of its report."""

    def _section(self) -> Section:
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return section_html(self._section())


def count_notes(notes: Sequence[str]) -> str:
    """The number of items, for the end of a ``repr``; empty if there are none."""
    return f", {len(notes)} note{'' if len(notes) == 1 else 's'}" if notes else ""


def section_html(section: Section) -> str:
    """A section as HTML without a page around it; everything but drawings is escaped."""
    parts = [f"<h3>{escape(section.title)}</h3>"]
    parts += [f"<p><strong>{escape(section.verdict)}</strong></p>"] if section.verdict else []
    if section.figures:
        cells = (f"{escape(name)}: <b>{escape(value)}</b>" for name, value in section.figures)
        parts.append(f"<p>{' · '.join(cells)}</p>")
    lines = [f"Warning: {warning}" for warning in section.warnings] + [*section.notes]
    parts += [f"<p>{escape(sentence(line))}</p>" for line in lines]
    for part in section.parts:
        parts.append(f"<h4>{escape(part.title)}</h4>")
        parts.append(part.svg if isinstance(part, Drawing) else _table(part))
        parts += [f"<p><small>{escape(part.caption)}</small></p>"] if part.caption else []
    return "\n".join(parts)


def _table(table: Table) -> str:
    def row(cells: tuple[str, ...], tag: str) -> str:
        made = []
        for index, cell in enumerate(cells):
            side = "left" if index < table.words else "right"
            made.append(f'<{tag} style="text-align: {side}">{escape(cell)}</{tag}>')
        return f"<tr>{''.join(made)}</tr>"

    rows = [row(cells, "td") for cells in table.rows]
    return "\n".join(["<table>", row(table.columns, "th"), *rows, "</table>"])
