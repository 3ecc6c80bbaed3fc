"""Tables, headings and names with values, drawn by rich; and results for people on stdout."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TextIO

import rich.console
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text


def console_on(stream: TextIO) -> rich.console.Console:
    """rich's console on a stream: without styles where that is no terminal or NO_COLOR is set."""
    terminal = stream.isatty()
    return rich.console.Console(
        file=stream,
        highlight=False,
        markup=False,
        emoji=False,
        # rich drops only colours for NO_COLOR; bold and dim are escape codes as well
        color_system=None if os.environ.get("NO_COLOR") or not terminal else "auto",
        # Nothing is wrapped at 80 columns in a file that has no width.
        width=None if terminal or "COLUMNS" in os.environ else 160,
    )


def print_data(renderable: RenderableType, stream: TextIO) -> None:
    """Prints a command's result for people, on stdout."""
    console = console_on(stream)
    if console.is_terminal:
        console.print(renderable)
        return
    with console.capture() as capture:
        console.print(renderable)
    # rich fills lines up to the width of the table, which nobody wants in a file
    stream.write("".join(line.rstrip() + "\n" for line in capture.get().splitlines()))


class _Facts:
    """See :func:`facts`."""

    def __init__(self, rows: Iterable[tuple[str, str]], style: str) -> None:
        self._rows = [(name, Text(printable(value), style)) for name, value in rows]
        self._width = max((len(name) for name, _ in self._rows), default=0)

    def __rich_console__(
        self, console: rich.console.Console, options: rich.console.ConsoleOptions
    ) -> Iterator[Text]:
        begin = self._width + 4
        room = options.max_width - begin
        for name, value in self._rows:
            # Where lines aren't wrapped, the terminal breaks them, so that they can be copied whole.
            whole = options.no_wrap or room < 1
            for line in [value] if whole else value.wrap(console, room, overflow="fold"):
                yield Text.assemble("  ", (name.ljust(self._width), "dim"), "  ", line)
                name = ""


def facts(rows: Iterable[tuple[str, str]], *, strong: bool = False) -> _Facts:
    """Names and values in two aligned columns, two spaces in; long values keep to their column."""
    return _Facts(rows, "bold" if strong else "")


def heading(text: str) -> Text:
    """A line above a table."""
    return Text(text, "bold")


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    left: int = 1,
    strong: int | None = None,
) -> Table:
    """A table without verticals: the first ``left`` columns flush left, the others flush right.

    Args:
        columns: headings, each with its unit; without any text they aren't shown.
        rows: cells as text, one for each column.
        left: number of columns with words, which are left-aligned.
        strong: index of a row to set in bold.
    """
    drawn = Table(
        box=box.SIMPLE_HEAD,
        header_style="dim",
        pad_edge=False,
        show_edge=False,
        show_header=any(columns),
    )
    for i, column in enumerate(columns):
        # Names are folded where a terminal is narrow: what is copied must never be cut.
        drawn.add_column(
            Text(column),
            justify="left" if i < left else "right",
            no_wrap=i >= left,
            overflow="fold",
        )
    for i, row in enumerate(rows):
        drawn.add_row(
            *(Text(printable(cell)) for cell in row), style="bold" if i == strong else None
        )
    return drawn


def stack(*renderables: RenderableType) -> Group:
    """Renderables below each other with an empty line between them."""
    spaced: list[RenderableType] = []
    for i, renderable in enumerate(renderables):
        spaced.extend([Text(), renderable] if i else [renderable])
    return Group(*spaced)


def printable(text: str) -> str:
    """Texts of bundles, libraries and files: no escape sequence of theirs gets to a terminal.

    A byte of a file's name that isn't UTF-8 is shown as ``\\xe9``.
    """
    return "".join(char if char.isprintable() or char == "\n" else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    # What os.fsdecode makes of the bytes 0x80 to 0xff.
    return f"\\x{ord(char) - 0xDC00:02x}" if "\udc80" <= char <= "\udcff" else "?"
