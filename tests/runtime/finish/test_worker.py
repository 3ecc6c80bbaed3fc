"""The progress of a worker: the time left, and a line that terminals overwrite."""

from __future__ import annotations

import io

import pytest

from edgecompile.runtime.finish import worker
from edgecompile.runtime.finish.worker import ProgressLine, estimate_left


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("fraction", "seconds", "predicted", "left"),
    [
        (0.5, 60, None, 60),
        (0.25, 60, 1000, 180),
        (1.0, 60, None, 0),
        (0.0, 5, None, None),
        (0.01, 5, 300, 295),
        (0.01, 400, 300, 0),
    ],
)
def test_time_left(
    fraction: float, seconds: float, predicted: float | None, left: float | None
) -> None:
    assert estimate_left(fraction, seconds, predicted) == left


def test_a_terminal_has_one_line() -> None:
    stream = Terminal()
    line = ProgressLine(None, stream)
    line.show({"phase": "Tactic selection", "fraction": 0.25, "seconds": 75.0})
    line.show({"phase": "Tactic\x1b[2J", "fraction": 0.5, "seconds": 100.0})
    text = stream.getvalue()
    assert text.split("\r") == [
        "",
        "   25 %  1:15  about 3:45 left  Tactic selection\x1b[K",
        "   50 %  1:40  about 1:40 left  Tactic?[2J\x1b[K",
    ]
    line.end()
    line.end()
    assert stream.getvalue() == text + "\r\x1b[K"


def test_elsewhere_there_are_few_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(worker.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    line = ProgressLine(None, stream)
    for second in range(61):
        now[0] = 1000.0 + second
        line.show({"phase": "p", "fraction": second / 100, "seconds": float(second)})
    line.end()
    found = stream.getvalue().splitlines()
    assert [text.split()[2] for text in found] == ["0:03", "0:18", "0:33", "0:48"]
    assert "\x1b" not in stream.getvalue()
