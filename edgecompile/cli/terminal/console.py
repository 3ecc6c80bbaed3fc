"""The terminal: options, steps and summaries on stderr, tables on stdout; rich draws both.

Without a terminal (a log, a CI job) every step is one plain line. NO_COLOR takes all styling away.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import PurePath
from typing import TextIO

import rich.console
from rich import box
from rich.console import Group, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from edgecompile.progress import StepHandle
from edgecompile.units import format_duration, sentence

__all__ = ["Console", "facts", "heading", "print_data", "stack", "table"]

_TITLE_WIDTH = 30
_TIME_WIDTH = 12
# A log shows life this often while a step runs.
_LOG_SECONDS = 15.0


def _rich_console(stream: TextIO) -> rich.console.Console:
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


class _Elapsed(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{int(task.elapsed or 0)} s".rjust(_TIME_WIDTH - 1), style="dim")


class _Bar(BarColumn):
    """A bar where the end is known; the spinner moves enough where it isn't."""

    def render(self, task: Task) -> ProgressBar | Text:  # type: ignore[override]
        return Text() if task.total is None else super().render(task)


class _Step:
    """A running step; a ``StepHandle``."""

    def __init__(self, console: Console, title: str, live: Progress | None) -> None:
        self._console = console
        self._title = title
        self._live = live
        self._task = (
            live.add_task(title.ljust(_TITLE_WIDTH), total=None, text="", count="")
            if live
            else None
        )
        self._done: float = 0.0
        self._total: float | None = None
        self._text = ""
        self._last_log = time.monotonic()
        self.notes: list[str] = []

    def update(
        self, done: float | None = None, total: float | None = None, text: str | None = None
    ) -> None:
        self._done = self._done if done is None else done
        self._total = self._total if total is None else total
        self._text = self._text if text is None else text
        count = "" if self._total is None else f"{self._done:g}/{self._total:g}"
        if self._live is not None and self._task is not None:
            self._live.update(
                self._task, completed=self._done, total=self._total, text=self._text, count=count
            )
        elif time.monotonic() - self._last_log > _LOG_SECONDS:
            self._last_log = time.monotonic()
            self._console.say(f"  {self._title} … {count} {self._text}".rstrip())

    def note(self, text: str) -> None:
        self.notes.append(text)


class Console:
    """Speaks to people on stderr, and listens to the library as its ``Progress``.

    Args:
        quiet: only warnings and failures are printed.
        stream: stderr unless a test says otherwise.
    """

    def __init__(self, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self._quiet = quiet
        self._rich = _rich_console(sys.stderr if stream is None else stream)
        encoding = (getattr(self._rich.file, "encoding", None) or "ascii").lower()
        self._unicode = encoding.startswith("utf")

    # Progress

    def options(self, mapping: Mapping[str, object]) -> None:
        """Prints the resolved options, aligned."""
        if not self._quiet:
            self._print(facts((key, _option(value)) for key, value in mapping.items()))
            self._print(Text())

    @contextmanager
    def step(self, title: str) -> Iterator[StepHandle]:
        """Times a step; on a terminal it moves while it runs."""
        live = self._live() if self._rich.is_terminal and not self._quiet else None
        begin = time.monotonic()
        with live or nullcontext():
            step = _Step(self, title, live)
            try:
                yield step
            except BaseException:
                ended = False
                raise
            else:
                ended = True
            finally:
                if live is not None:
                    live.stop()
                self._finish(title, ended, time.monotonic() - begin, step.notes)

    # Messages

    def say(self, text: str) -> None:
        """A remark that --quiet silences."""
        if not self._quiet:
            self._print(Text(_printable(text)))

    def say_notes(self, notes: Iterable[str]) -> None:
        """What a stage's result has to say, a remark each."""
        for note in notes:
            self.say(f"  note: {sentence(note)}")

    def warn(self, text: str, hint: str | None = None) -> None:
        """Something to act on that doesn't stop the run."""
        self._labelled("warning", "bold yellow", text, hint)

    def failure(self, message: str, hint: str | None = None) -> None:
        """Why the run ends here, and what can be done about it."""
        self._labelled("error", "bold red", message, hint)

    def show(self, renderable: RenderableType) -> None:
        """A table beside the result, which --quiet silences."""
        if not self._quiet:
            self._print(Text())
            self._print(renderable)

    def summary(self, rows: Iterable[tuple[str, str]]) -> None:
        """The outcome: size, time, hash."""
        if not self._quiet:
            self._print(Text())
            self._print(facts(rows, strong=True))

    def _labelled(self, label: str, style: str, message: str, hint: str | None) -> None:
        lines = _printable(message).rstrip().split("\n")
        text = Text.assemble((f"{label}: ", style), lines[0])
        for line in lines[1:]:
            text.append("\n" + " " * (len(label) + 2) + line)
        self._print(text)
        if hint:
            self._print(Text.assemble(("hint: ", "bold cyan"), _printable(hint)))

    def _finish(self, title: str, ended: bool, seconds: float, notes: Sequence[str]) -> None:
        if self._quiet:
            return
        mark = ("✓" if ended else "✗") if self._unicode else ("ok" if ended else "FAILED")
        line = Text("  ").append(mark, "green" if ended else "bold red").append(" ")
        line.append(title.ljust(_TITLE_WIDTH))
        line.append(_clock(seconds).rjust(_TIME_WIDTH), "dim")
        if notes:
            line.append("  " + notes[0])
        self._print(line)
        indent = " " * (5 + len(mark) + _TITLE_WIDTH + _TIME_WIDTH)
        for note in notes[1:]:
            self._print(Text(indent + note))

    def _live(self) -> Progress:
        return Progress(
            # The same columns as the line that stays when the step has ended.
            TextColumn(" "),
            SpinnerColumn(style="cyan"),
            TextColumn("{task.description}", markup=False),
            _Elapsed(),
            TextColumn(""),
            _Bar(bar_width=20),
            TextColumn("{task.fields[count]}"),
            TextColumn("{task.fields[text]}", style="dim", markup=False),
            console=self._rich,
            transient=True,
        )

    def _print(self, renderable: RenderableType) -> None:
        # soft_wrap: the terminal breaks long lines, so that a path can be copied whole
        self._rich.print(renderable, soft_wrap=True)


def print_data(renderable: RenderableType, stream: TextIO) -> None:
    """Prints a command's result for people, on stdout."""
    console = _rich_console(stream)
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
        self._rows = [(name, Text(_printable(value), style)) for name, value in rows]
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
        columns: headings, each with its unit.
        rows: cells as text, one for each column.
        left: how many columns hold words.
        strong: index of a row to set in bold.
    """
    drawn = Table(box=box.SIMPLE_HEAD, header_style="dim", pad_edge=False, show_edge=False)
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
            *(Text(_printable(cell)) for cell in row), style="bold" if i == strong else None
        )
    return drawn


def stack(*renderables: RenderableType) -> Group:
    """Renderables below each other with an empty line between them."""
    spaced: list[RenderableType] = []
    for i, renderable in enumerate(renderables):
        spaced.extend([Text(), renderable] if i else [renderable])
    return Group(*spaced)


def _printable(text: str) -> str:
    """Texts of bundles, libraries and files: no escape sequence of theirs gets to a terminal.

    A byte of a file's name that isn't UTF-8 is shown as ``\\xe9``.
    """
    return "".join(char if char.isprintable() or char == "\n" else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    # What os.fsdecode makes of the bytes 0x80 to 0xff.
    return f"\\x{ord(char) - 0xDC00:02x}" if "\udc80" <= char <= "\udcff" else "?"


def _clock(seconds: float) -> str:
    # Steps stand below each other: one unit for all that are short.
    return f"{seconds:.1f} s" if seconds < 99.95 else format_duration(seconds)


def _option(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, (list, tuple, set, frozenset)):
        return ", ".join(map(str, value))
    return str(value)
