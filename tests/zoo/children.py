"""Runs each of the zoo's architectures in a child process: what crashes or eats memory takes only itself.

Children are forks of one process that has the frameworks imported, which saves seconds for each. On the
machines of a Ray cluster each is a zoo of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgecompile.hosts.cluster import open_cluster

__all__ = ["Child", "Limits", "run_children", "run_there"]

_REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Limits:
    """Limits of a child: bytes of address space, seconds of its CPU time (not of the clock:
    a machine may be busy or a process paused)."""

    memory: int = 16 << 30
    cpu_s: int = 1200


@dataclass(frozen=True)
class Child:
    """A child that ended.

    Attributes:
        name: what it ran.
        result: what its function returned; None if it died.
        death: how it died, in words.
        seconds: wall time.
    """

    name: str
    result: dict[str, Any] | None
    death: str
    seconds: float


def run_children(
    names: Sequence[str],
    action: Callable[[str], dict[str, Any]],
    log_folder: Path,
    *,
    jobs: int = 1,
    limits: Limits | None = None,
) -> Iterator[Child]:
    """Runs ``action(name)`` for every name, ``jobs`` at a time; yields in the order of ending.

    Args:
        names: what to run.
        action: returns JSON values; runs in the child.
        log_folder: gets NAME.log with what the child printed.
        jobs: children at a time.
        limits: of each child.
    """
    log_folder.mkdir(parents=True, exist_ok=True)
    waiting = list(names)
    running: dict[int, tuple[str, float, Path]] = {}
    # Asked to end, the process has to take its children along: as if it had been interrupted.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                name = waiting.pop(0)
                answer = log_folder / f"{name}.answer.json"
                answer.unlink(missing_ok=True)
                pid = _fork(name, action, log_folder / f"{name}.log", answer, limits or Limits())
                running[pid] = (name, time.perf_counter(), answer)
            pid, status = os.wait()
            if pid not in running:
                continue
            name, started, answer = running.pop(pid)
            yield _ended(name, status, answer, time.perf_counter() - started)
    finally:
        signal.signal(signal.SIGTERM, before)
        # An interrupt must leave no process behind; each child leads a group with its compilers.
        for pid in running:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _fork(
    name: str,
    action: Callable[[str], dict[str, Any]],
    log: Path,
    answer: Path,
    limits: Limits,
) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        # What the kernel must kill first where memory runs out.
        Path("/proc/self/oom_score_adj").write_text("900")
        resource.setrlimit(resource.RLIMIT_AS, (limits.memory, limits.memory))
        resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu_s, limits.cpu_s + 5))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(output, 1)
        os.dup2(output, 2)
        # Whoever replaced Python's own streams (a test runner, say) did so for the parent.
        sys.stdout = sys.stderr = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
        result = action(name)
        result["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        partial = answer.with_suffix(".partial")
        partial.write_text(json.dumps(result))
        os.replace(partial, answer)
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _ended(name: str, status: int, answer: Path, seconds: float) -> Child:
    if status == 0 and answer.is_file():
        result = json.loads(answer.read_text())
        answer.unlink()
        return Child(name, result, "", seconds)
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGXCPU:
        death = "took more CPU time than it may"
    elif code < 0:
        death = f"was killed by {signal.Signals(-code).name}"
    else:
        death = f"ended with exit code {code}"
    return Child(name, None, death, seconds)


def run_there(
    todo: Sequence[str], options: argparse.Namespace
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names and what became of them, in their order; with the machine, and the key of what it ran."""
    asked = [(name, options.upto, options.memory) for name in todo]
    with open_cluster() as cluster, closing(cluster.map(_run, asked, options.jobs)) as results:
        yield from zip(todo, results, strict=True)


def _run(asked: tuple[str, str, int]) -> dict[str, Any]:
    """On a machine: the zoo with this name alone, and its result."""
    name, upto, memory = asked
    with tempfile.TemporaryDirectory(prefix="edgecompile-zoo-") as folder:
        command = [sys.executable, "-m", "tests.zoo.zoo", "--only", name, "--upto", upto]
        command += ["--memory", str(memory), "--work", folder]
        done = subprocess.run(command, cwd=_REPOSITORY, capture_output=True, text=True, check=False)
        result = Path(folder) / "results" / f"{name}.json"
        if result.is_file():
            return {**json.loads(result.read_text()), "machine": platform.node()}
    return {"status": "crashed", "reason": done.stderr[-2000:], "machine": platform.node()}
