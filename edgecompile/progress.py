"""Progress reports of the library to its caller.

The library never prints. A function that takes longer than a moment accepts a ``Progress`` and
reports to it; the command line shows the reports on stderr, tests and other programs pass
``NULL_PROGRESS`` or an implementation of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol


class StepHandle(Protocol):
    """The progress reports of a running step."""

    def update(
        self, done: float | None = None, total: float | None = None, text: str | None = None
    ) -> None:
        """Says how far the step is.

        Args:
            done: units finished so far, absolute rather than an increment.
            total: units in all; None leaves the last value, and never having given one means
                that the end isn't known.
            text: the present work ("bucket 3, x86-64-v4"); None leaves it as it was.
        """

    def note(self, text: str) -> None:
        """Records a line worth keeping after the step has ended (a fallback, a choice, a count)."""


class Progress(Protocol):
    """Gets the steps and their outcome. Called from one thread."""

    def step(self, title: str) -> AbstractContextManager[StepHandle]:
        """Opens a step; leaving the context ends it, an exception marks it as failed.

        Steps don't nest: a function that is handed a ``Progress`` opens its steps one by one.
        """


class _NullStep:
    def update(
        self, done: float | None = None, total: float | None = None, text: str | None = None
    ) -> None:
        return None

    def note(self, text: str) -> None:
        return None


#: A step that nobody watches.
NULL_STEP: StepHandle = _NullStep()


class NullProgress:
    """A listener that ignores everything."""

    @contextmanager
    def step(self, title: str) -> Iterator[StepHandle]:
        yield NULL_STEP


NULL_PROGRESS: Progress = NullProgress()
