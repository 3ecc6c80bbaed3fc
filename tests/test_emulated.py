"""A program that locks up is killed with what it started, and begins anew."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.emulated import ATTEMPTS, _session, run_emulated

#: Writes its process first. The child waits for ever and keeps the pipes, as a locked-up fork does.
LOCKS_UP = (
    'echo $$ >>"$0"; [ "$(wc -l <"$0")" -gt "$1" ] && { echo fine; exit 3; }; sleep infinity & wait'
)


def test_a_program_that_locks_up_is_started_again(tmp_path: Path) -> None:
    started = tmp_path / "started"
    done = run_emulated(["sh", "-c", LOCKS_UP, str(started), "1"], stalled_s=3)
    assert (done.returncode, done.stdout) == (3, "fine\n")
    leaders = [int(line) for line in started.read_text().split()]
    assert len(leaders) == 2
    assert not [pid for leader in leaders for pid in _session(leader)]


def test_one_that_locks_up_each_time_fails(tmp_path: Path) -> None:
    started = tmp_path / "started"
    with pytest.raises(AssertionError, match=f"locked up {ATTEMPTS} times"):
        run_emulated(["sh", "-c", LOCKS_UP, str(started), "9"], stalled_s=1)
    assert len(started.read_text().split()) == ATTEMPTS


def test_a_signal_that_ends_the_program_is_told() -> None:
    assert run_emulated(["sh", "-c", "kill -9 $$"]).returncode == -signal.SIGKILL
