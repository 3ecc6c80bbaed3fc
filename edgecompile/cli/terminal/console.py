"""The terminal: options, steps and summaries on stderr.

Without a terminal (a log, a CI job) every step is one plain line. NO_COLOR takes all styling away.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TextIO

from rich.console import RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.progress_bar import ProgressBar
from rich.text import Text

from edgecompile.cli.terminal.tables import console_on, facts, printable
from edgecompile.progress import StepHandle
from edgecompile.units import format_duration, sentence

_TITLE_WIDTH = 30
_TIME_WIDTH = 12
# A log shows life this often while a step runs.
_LOG_SECONDS = 15.0
# Over less time neither a pace nor the rest is told.
_LEAST_SECONDS = 3.0


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
        self._last_log = self._begin = time.monotonic()
        self._first: float = 0.0  # units that were done when the present total was given
        self.notes: list[str] = []

    def update(
        self, done: float | None = None, total: float | None = None, text: str | None = None
    ) -> None:
        restarted = (total is not None and total != self._total) or (done or 0) < self._done
        if done is not None and restarted:
            self._begin, self._first = time.monotonic(), done
        if done is None and self._total is not None and self._done >= self._total:
            self._done, self._total = 0.0, None  # other work follows, of which no end is known
        self._done = self._done if done is None else done
        self._total = self._total if total is None else total
        self._text = self._text if text is None else text
        count = "" if self._total is None else f"{self._done:g}/{self._total:g}{self._left()}"
        if self._live is not None and self._task is not None:
            self._live.update(
                self._task, completed=self._done, total=self._total, text=self._text, count=count
            )
        elif time.monotonic() - self._last_log > _LOG_SECONDS:
            self._last_log = time.monotonic()
            self._console.say(f"  {self._title} … {count} {self._text}".rstrip())

    def _left(self) -> str:
        """The time that the rest takes at the pace so far; "" where it is short or not known."""
        passed, made = time.monotonic() - self._begin, self._done - self._first
        if self._total is None or made <= 0 or passed < _LEAST_SECONDS:
            return ""
        left = passed / made * (self._total - self._done)
        if left < _LEAST_SECONDS:
            return ""
        return f", {format_duration(left if left < 60 else 60 * round(left / 60))} left"

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
        self._options: Mapping[str, object] = {}
        self._rich = console_on(sys.stderr if stream is None else stream)
        encoding = (getattr(self._rich.file, "encoding", None) or "ascii").lower()
        self._unicode = encoding.startswith("utf")

    # Progress

    def options(self, mapping: Mapping[str, object]) -> None:
        """Prints options, aligned, before the first step: nothing where the run fails earlier."""
        self._options = mapping

    @contextmanager
    def step(self, title: str) -> Iterator[StepHandle]:
        """Times a step; on a terminal it moves while it runs."""
        if self._options and not self._quiet:
            self._print(facts((key, _option(value)) for key, value in self._options.items()))
            self._print(Text())
        self._options = {}
        live = self._live() if self._rich.is_terminal and not self._quiet else None
        begin = time.monotonic()
        with live or nullcontext():
            step = _Step(self, title, live)
            ended = False
            try:
                yield step
                ended = True
            finally:
                if live is not None:
                    live.stop()
                self._finish(title, ended, time.monotonic() - begin, step.notes)

    # Messages

    def say(self, text: str) -> None:
        """A remark that --quiet silences."""
        if not self._quiet:
            self._print(Text(printable(text)))

    def say_notes(self, notes: Iterable[str]) -> None:
        """Shows the notes of a stage's result, a remark each."""
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
        self.show(facts(rows, strong=True))

    def _labelled(self, label: str, style: str, message: str, hint: str | None) -> None:
        lines = printable(message).rstrip().split("\n")
        text = Text.assemble((f"{label}: ", style), lines[0])
        for line in lines[1:]:
            text.append("\n" + " " * (len(label) + 2) + line)
        self._print(text)
        if hint:
            self._print(Text.assemble(("hint: ", "bold cyan"), printable(hint)))

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


def _clock(seconds: float) -> str:
    # Steps stand below each other: one unit for all that are short.
    return f"{seconds:.1f} s" if seconds < 99.95 else format_duration(seconds)


def _option(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    # A range prints itself.
    if isinstance(value, (list, tuple, set, frozenset)) and not hasattr(value, "_fields"):
        return ", ".join(map(str, value))
    return str(value)
