"""Standard output and error: full, closed, interrupted, or printed to by a model."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import termios
import time
from pathlib import Path
from typing import IO

import click
import pytest
from click.testing import CliRunner

from edgecompile.cli import cli
from edgecompile.cli.terminal.session import Command, Session
from edgecompile.errors import DiskFullError
from tests.cli.command import python


def test_a_full_disk_under_stdout(files: Path) -> None:
    with open("/dev/full", "w") as full_disk:
        process = python("-m", "edgecompile", "lengths", "lengths.txt", stdout=full_disk)
        _, stderr = process.communicate()
    assert process.returncode == DiskFullError.exit_code
    assert stderr.startswith("error: standard output: No space left on device\nhint: ")
    assert "Exception ignored" not in stderr


def test_a_reader_that_goes_away_is_no_error(files: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    process = python("-m", "edgecompile", "lengths", "lengths.txt", "--json", stdout=write)
    os.close(write)
    _, stderr = process.communicate()
    assert (process.returncode, stderr) == (141, "")


def unread(pipe: IO[str]) -> int:
    """How many bytes in a pipe nobody has read yet."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_interrupted_leaves_nothing(files: Path, number: int, code: int) -> None:
    # It waits for standard input, which never ends. A signal that this process' own parent chose to
    # ignore (nohup, a job in the background) would be ignored by the child as well.
    process = python(
        *("-m", "edgecompile", "lengths", "-", "-o", "out.json"),
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    )
    assert process.stdin is not None
    process.stdin.write("5\n")
    process.stdin.flush()
    while unread(process.stdin):  # by then its handlers of signals are in place
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    process.wait()
    assert process.stderr is not None and process.stdout is not None
    stderr = process.stderr.read()
    assert process.returncode == code, stderr
    assert process.stdout.read() == ""
    assert "Traceback" not in stderr
    assert not (files / "out.json").exists()
    for stream in (process.stdin, process.stdout, process.stderr):
        stream.close()


def test_what_a_model_prints_does_not_reach_stdout() -> None:
    @click.command(cls=Command)
    def noisy(session: Session) -> None:
        print("noise")
        session.json = True
        session.emit({"a": 1}, lambda: "table")

    @click.group(cls=type(cli))
    def group() -> None: ...

    group.get_command = lambda ctx, name: noisy  # type: ignore[method-assign]
    result = CliRunner().invoke(group, ["build"])
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {"a": 1}
    assert result.stderr == "noise\n"
    assert sys.stdout is not sys.stderr
