"""Runs programs under qemu-user, whose processes can lock up when they fork beside other threads."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

#: Seconds without any CPU time after which a program is taken to be locked up.
STALLED_S = 120.0
ATTEMPTS = 3


def run_emulated(
    command: Sequence[str], *, stalled_s: float = STALLED_S, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Runs ``command`` and what it starts; begins anew when it locks up.

    Locked up: no process of its session used CPU time for ``stalled_s``. Such a session is killed as a
    whole, since a child that never came to its program holds its parent's pipes and locks.

    Args:
        command: Program and arguments.
        stalled_s: Seconds without CPU time after which the program is started again.
        options: Arguments of ``subprocess.Popen``.

    Raises:
        AssertionError: the program locked up each time; it carries what was printed.
    """
    printed = ""
    for _ in range(ATTEMPTS):
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            with subprocess.Popen(
                command, stdout=out, stderr=err, stdin=subprocess.DEVNULL,
                start_new_session=True, **options,
            ) as process:  # fmt: skip
                try:
                    ended = _wait(process, stalled_s)
                finally:
                    _kill_session(process.pid)
            out.seek(0)
            err.seek(0)
            printed, errors = out.read(), err.read()
            if ended:
                return subprocess.CompletedProcess(command, process.returncode, printed, errors)
    raise AssertionError(f"{command} locked up {ATTEMPTS} times: {printed[-2000:]}")


def leave_no_core() -> None:
    """For ``preexec_fn``: qemu writes a core of its own, where it was started, if a program dies of a signal."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _wait(process: subprocess.Popen[bytes], stalled_s: float) -> bool:
    """Waits for the end of a session's first process; False if the session locks up before."""
    used = -1
    while True:
        try:
            process.wait(stalled_s)
            return True
        except subprocess.TimeoutExpired:
            before, used = used, sum(ticks for _, ticks in _session(process.pid))
            if used == before:
                return False


def _session(leader: int) -> list[tuple[int, int]]:
    """Each living process of a session: its id, and the clock ticks that it and its ended children used."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended
        if int(fields[3]) == leader and fields[0] != "Z":
            found.append((int(path.parent.name), sum(map(int, fields[11:15]))))
    return found


def _kill_session(leader: int) -> None:
    while processes := _session(leader):
        for pid, _ in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
