"""The console: steps, warnings, tables."""

from __future__ import annotations

import io
import re
import sys
import time

import pytest

from edgecompile.cli.terminal.console import Console
from edgecompile.cli.terminal.tables import print_data, table
from edgecompile.errors import PlanError


class Terminal(io.StringIO):
    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


def test_steps_are_lines_in_a_log() -> None:
    stream = io.StringIO()
    stream.encoding  # noqa: B018 (StringIO has none: the ASCII marks are used)
    console = Console(stream=stream)
    console.options({"model": "m [x]", "batch": (1, 8), "jobs": None, "keep": True})
    with console.step("compile") as step:
        step.update(1, 2, "bucket 1")
        step.note("two variants")
        step.note("cached")
    with pytest.raises(PlanError), console.step("plan"):
        raise PlanError("no")
    console.warn("thin tail", hint="more data")
    console.summary([("size", "1 MB")])
    lines = stream.getvalue().splitlines()
    assert lines[:4] == ["  model  m [x]", "  batch  1, 8", "  jobs   –", "  keep   yes"]
    compiled = next(line for line in lines if "compile" in line)
    assert re.fullmatch(r"  ok compile +\d+\.\d s  two variants", compiled)
    following = lines[lines.index(compiled) + 1]
    assert following.strip() == "cached"
    assert following.index("cached") == compiled.index("two variants")
    assert any(re.fullmatch(r"  FAILED plan +\d+\.\d s", line) for line in lines)
    assert lines[-4:] == ["warning: thin tail", "hint: more data", "", "  size  1 MB"]
    assert "\x1b" not in stream.getvalue()


def test_quiet_leaves_warnings_and_errors() -> None:
    stream = io.StringIO()
    console = Console(quiet=True, stream=stream)
    console.options({"a": 1})
    console.say("hello")
    with console.step("x") as step:
        step.note("y")
    console.summary([("a", "b")])
    assert stream.getvalue() == ""
    console.failure("bad\nvery bad", hint="cure")
    assert stream.getvalue() == "error: bad\n       very bad\nhint: cure\n"


@pytest.mark.parametrize("no_color", ["1", ""])
def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch, no_color: str) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    stream = Terminal()
    Console(stream=stream).failure("bad", hint="cure")
    print_data(table(("a", "b"), [("x", "1")], strong=0), stream)
    assert ("\x1b[" in stream.getvalue()) == (no_color == "")


def test_a_terminal_shows_the_running_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    with Console(stream=stream).step("compile [all]") as step:
        step.update(1, 4, "bucket 1 [x]")
        while "1/4" not in stream.getvalue():
            time.sleep(0.01)
    text = stream.getvalue()
    assert "1/4" in text and "bucket 1 [x]" in text and "━" in text
    assert re.search(r"✓ compile \[all\] +\d+\.\d s\n$", text)


def test_tables_are_plain_in_a_file() -> None:
    stream = io.StringIO()
    print_data(table(("name", "ms"), [("a", "1.5"), ("long name", "10.25")]), stream)
    assert stream.getvalue().splitlines() == [
        "name           ms",
        "─────────────────",
        "a             1.5",
        "long name   10.25",
    ]


def test_what_is_copied_is_folded_not_cut(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgecompile.cli.terminal.tables import facts, print_data, stack, table

    monkeypatch.setenv("COLUMNS", "24")
    rows = [("input", "attention_mask", "int64")]
    print_data(
        stack(
            facts([("sha256", "abcdefghijklmn0123456789")]),
            table(("", "name", "type"), rows, left=3),
        ),
        sys.stdout,
    )
    first, second, _, heading, _, *cells = capsys.readouterr().out.splitlines()
    assert (first, second) == ("  sha256  abcdefghijklmn", "          0123456789")
    assert "".join(line[heading.index("name") :].split()[0] for line in cells) == "attention_mask"


def test_texts_of_a_bundle_bring_no_escape_sequences(capsys: pytest.CaptureFixture[str]) -> None:
    from edgecompile.cli.terminal.tables import facts, print_data, stack, table

    evil = "\x1b[31mred\x07\x9b2J"
    print_data(stack(facts([("built by", evil)]), table(("library",), [(evil,)])), sys.stdout)
    assert capsys.readouterr().out.count("?[31mred??2J") == 2


def test_a_step_tells_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    lines = []
    with Console(stream=stream).step("round") as step:
        for seconds, done, total, text in (
            (0, 0, 12, "calibrating"),
            (20, 4, 12, None),
            (40, 12, 12, None),
            (60, 0, 100, "rounding"),
            (80, 1, 100, None),
            (100, 50, 100, None),
            (120, 100, 100, None),
            (140, None, None, "running eager"),
        ):
            now[0] = float(seconds)
            step.update(done, total, text)
            lines.append(stream.getvalue().splitlines()[-1:])
    assert [line[0].strip() for line in lines[1:]] == [
        "round … 4/12, 40.0 s left calibrating",
        "round … 12/12 calibrating",
        "round … 0/100 rounding",
        "round … 1/100, 33 min 00 s left rounding",
        "round … 50/100, 40.0 s left rounding",
        "round … 100/100 rounding",
        "round …  running eager",
    ]
