"""Progress by a callback: every step of a build as events."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

from edgecompile import checks
from edgecompile.errors import UsageError
from edgecompile.progress import NULL_PROGRESS, Progress
from edgecompile.units import format_duration


@dataclass(frozen=True)
class ProgressEvent:
    """Something that happened in a build.

    Attributes:
        step: the step's title, such as ``"export"``.
        kind: ``"start"``, ``"update"`` (it got further), ``"note"`` (a line worth keeping), ``"end"``
            or ``"fail"``.
        text: the note, or the present work of the step; may be empty.
        done, total: units finished so far and in all; None: not known.
        seconds: since the step began.
    """

    step: str
    kind: str
    text: str = ""
    done: float | None = None
    total: float | None = None
    seconds: float = 0.0

    def __str__(self) -> str:
        count = f" {self.done:g}/{self.total:g}" if self.done is not None and self.total else ""
        if self.kind in ("end", "fail"):
            verb = "done" if self.kind == "end" else "failed"
            return f"{self.step}: {verb} in {format_duration(self.seconds)}"
        return f"{self.step}{count}" + (f": {self.text}" if self.text else "")


class _Step:
    def __init__(self, title: str, callback: Callable[[ProgressEvent], object]) -> None:
        self._title, self._callback = title, callback
        self._began = time.perf_counter()
        self._done: float | None = None
        self._total: float | None = None
        self._text = ""

    def send(self, kind: str, text: str = "") -> None:
        seconds = time.perf_counter() - self._began
        self._callback(
            ProgressEvent(self._title, kind, text, self._done, self._total, round(seconds, 3))
        )

    def update(
        self, done: float | None = None, total: float | None = None, text: str | None = None
    ) -> None:
        self._done = self._done if done is None else done
        self._total = self._total if total is None else total
        self._text = self._text if text is None else text
        self.send("update", self._text)

    def note(self, text: str) -> None:
        self.send("note", text)


class _Callback:
    """Hands every event to a function."""

    def __init__(self, callback: Callable[[ProgressEvent], object]) -> None:
        self._callback = callback

    @contextmanager
    def step(self, title: str) -> Iterator[_Step]:
        step = _Step(title, self._callback)
        step.send("start")
        try:
            yield step
        except BaseException:
            step.send("fail")
            raise
        step.send("end")


def listen(progress: object) -> Progress:
    """A listener made of a callback; None: one that ignores everything.

    Args:
        progress: a function of one :class:`ProgressEvent`, called from the thread that builds; or
            a :class:`edgecompile.progress.Progress`.

    Raises:
        UsageError: it is neither.
    """
    if progress is None:
        return NULL_PROGRESS
    if callable(getattr(progress, "step", None)):
        return cast("Progress", progress)
    if not callable(progress):
        raise UsageError(
            f"`progress` is {checks.describe(progress)}",
            hint="give a function of one argument, such as print",
        )
    return _Callback(progress)
