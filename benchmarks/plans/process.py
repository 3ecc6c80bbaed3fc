"""The process that runs the policies, seen from the driver: a job goes in, rounds come out."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from edgecompile.bench.timings import Round
from edgecompile.bundle.verify import device_environment
from edgecompile.errors import BenchError
from edgecompile.hosts.identity import read_clock
from edgecompile.progress import StepHandle

_WORKER = Path(__file__).resolve().with_name("device.py")


@dataclass(frozen=True)
class Measured:
    """Rounds by policy, what else the machine did meanwhile, and what the process used."""

    rounds: Mapping[str, tuple[Round, ...]]
    load: Mapping[str, float]
    facts: Mapping[str, Any]


def measure_rounds(job: Mapping[str, Any], step: StepHandle) -> Measured:
    """Runs every policy's bundle in one process without torch, interleaved.

    Args:
        job: what device.py reads: ``bundles`` (folder by policy), ``axis``, ``sizes``
            of the other axes, ``lengths`` of a round, ``threads``, ``rounds`` and ``seconds`` at
            least, ``lead_in`` and ``seed``.
        step: told which round it is.

    Raises:
        BenchError: the process fails, or isn't what a device would run.
    """
    first = Path(next(iter(job["bundles"].values())))
    rounds: dict[str, list[Round]] = {name: [] for name in job["bundles"]}
    facts: dict[str, Any] = {}
    load: dict[str, float] = {}
    step.update(text="warming up")
    with _worker(job, first) as (process, complaints):
        assert process.stdin is not None and process.stdout is not None
        before = None
        finished = False
        for line in process.stdout:
            message = json.loads(line)
            if "opened" in message:
                facts = _checked(message["opened"], first)
                before = read_clock([process.pid])
            elif "done" in message:
                after = read_clock([process.pid])
                if before is not None and after is not None:
                    load["foreign_cpus"] = after.foreign_since(before)
                    load["stolen_cpus"] = after.stolen_since(before)
                finished = True
                process.stdin.close()
            else:
                lengths = tuple(message["lengths"])
                for name, ns in message["ns"].items():
                    rounds[name].append(Round(lengths, tuple(ns)))
                step.update(text=f"round {message['round'] + 1}, at least {job['rounds']}")
        if process.wait() != 0 or not finished:
            complaints.seek(0)
            text = complaints.read().decode("utf-8", "replace").strip()[-2000:]
            raise BenchError(f"the device's process ended with {process.returncode}:\n{text}")
    return Measured({name: tuple(items) for name, items in rounds.items()}, load, facts)


@contextmanager
def _worker(
    job: Mapping[str, Any], bundle: Path
) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    """The running process, and what it writes to stderr; it never outlives the context."""
    with (
        tempfile.TemporaryDirectory(prefix="edgecompile-plans-") as folder,
        tempfile.TemporaryFile(prefix="edgecompile-plans-") as complaints,
    ):
        file = Path(folder) / "job.json"
        file.write_text(json.dumps(job), encoding="utf-8")
        with subprocess.Popen(
            [sys.executable, str(bundle.resolve()), str(_WORKER), str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            env=device_environment(bundle),
            cwd=folder,
        ) as process:
            try:
                yield process, complaints
            finally:
                if process.poll() is None:
                    process.kill()


def _checked(opened: Mapping[str, Any], bundle: Path) -> dict[str, Any]:
    """Refuses to measure anything but a bundle's own runtime, with no framework beside it."""
    used = Path(opened["runtime"]).resolve()
    if not used.is_relative_to((bundle / "runtime").resolve()):
        raise BenchError(f"the bundles were run by {used}, not by the runtime in {bundle}")
    if opened["loaded"]:
        raise BenchError(f"the device's process has loaded {', '.join(opened['loaded'])}")
    # Without the path, which is of this machine.
    return {name: value for name, value in opened.items() if name not in ("runtime", "loaded")}
