"""The process of a baseline, seen from the driver; :mod:`edgecompile.bench.worker` has the requests."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from edgecompile.bench.worker import read_memory
from edgecompile.errors import BenchError

# What would make one process' threads, precision or modules other than those of the rest.
_SCRUBBED = (
    *("PYTHON", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "DNNL_", "ONEDNN_", "ATEN_", "TORCH"),
    *("PYTORCH", "ORT_", "OV_", "OPENVINO", "MALLOC_", "LD_PRELOAD", "EDGECOMPILE_VARIANT"),
)
_TAIL = 2000


@dataclass(frozen=True)
class Baseline:
    """A way to run the model, ready to be started.

    Attributes:
        name: the name in reports.
        command: starts its process, which speaks as :mod:`edgecompile.bench.worker` says.
        settings: the settings for its request ``open``; plain JSON values.
        precision: the data type that weights are multiplied in: ``fp32``, ``bf16``, ``int8``, or a
            bundle's label.
        path: folders for its PYTHONPATH.
        environment: further variables.
        bundle: the bundle, whose own runtime must run; None: it isn't a bundle.
        measure_size: bytes that a device needs beside Python and numpy, by kind, from the facts that its
            process reported.
        versions, notes: the versions and remarks for the report.
    """

    name: str
    command: tuple[str, ...]
    settings: Mapping[str, Any]
    precision: str = "fp32"
    path: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    bundle: Path | None = None
    measure_size: Callable[[Mapping[str, Any]], Mapping[str, int]] = lambda facts: {}
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def clean_environment(baseline: Baseline, threads: int) -> dict[str, str]:
    """The environment of a baseline's process: the same for all but for what it asks for."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(_SCRUBBED)}
    count = str(threads)
    environment |= {
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        **baseline.environment,
    }
    if baseline.path:
        environment["PYTHONPATH"] = os.pathsep.join(baseline.path)
    return environment


class WorkerProcess:
    """A running process; a context manager that ends it.

    Args:
        baseline: the baseline to start.
        threads: the value of the thread variables of its environment.

    Raises:
        BenchError: it can't be started.
    """

    def __init__(self, baseline: Baseline, threads: int) -> None:
        self.name = baseline.name
        self._settings = dict(baseline.settings)
        self._buffer = b""
        self._complaints = tempfile.TemporaryFile(prefix="edgecompile-bench-")  # noqa: SIM115
        self.spawned_ns = time.monotonic_ns()
        try:
            self._process = subprocess.Popen(
                list(baseline.command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._complaints,
                env=clean_environment(baseline, threads),
                # A folder that holds no package by a name that someone imports.
                cwd=tempfile.gettempdir(),
                bufsize=0,
            )
        except OSError as error:
            self._complaints.close()
            raise BenchError(f"the process of {self.name} can't be started: {error}") from error

    @property
    def pid(self) -> int:
        """The process' id."""
        return self._process.pid

    def open(self, workload: Mapping[str, Any], *, timeout: float) -> dict[str, Any]:
        """Loads the model; see the worker's ``open`` for the answer.

        Args:
            workload: ``specs``, ``sizes`` and ``length_axis`` of the inputs.
            timeout: seconds to wait.
        """
        opened = self.ask({"op": "open", "settings": self._settings, **workload}, timeout=timeout)
        # A command of the user's may leave out what only refines the figures.
        now = time.monotonic_ns()
        return {"facts": {}, "memory": {}, "begun_ns": self.spawned_ns, "opened_ns": now, **opened}

    def run(self, lengths: Sequence[int], *, seed: int, timeout: float) -> dict[str, Any]:
        """Runs the lengths in order; ``ns`` of the answer has the nanoseconds of each."""
        answer = self.ask({"op": "run", "lengths": list(lengths), "seed": seed}, timeout=timeout)
        return {"done_ns": time.monotonic_ns(), **answer}

    def save(self, lengths: Sequence[int], path: Path, *, seed: int, timeout: float) -> None:
        """Writes the outputs for each length to an .npz, as ``<length>.<output>``."""
        request = {"op": "save", "lengths": list(lengths), "seed": seed, "path": str(path)}
        self.ask(request, timeout=timeout)

    def memory(self) -> dict[str, int]:
        """Resident bytes now; see :func:`edgecompile.bench.worker.read_memory`."""
        return read_memory(self.pid)

    def ask(self, request: Mapping[str, Any], *, timeout: float) -> dict[str, Any]:
        """Sends a request and waits for its answer.

        Raises:
            BenchError: the process reports an error, ends, or doesn't answer in time.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write((json.dumps(request) + "\n").encode())
        except OSError:
            raise self._ended(str(request["op"])) from None
        answer = self._read(str(request["op"]), timeout)
        if "error" in answer:
            raise BenchError(f"{self.name} failed to {request['op']}: {answer['error']}")
        return answer

    def _read(self, what: str, timeout: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        handle = self._process.stdout.fileno()
        limit = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(handle, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, limit - time.monotonic())):
                    self.kill()
                    raise BenchError(
                        f"{self.name} didn't {what} within {timeout:g} seconds{self._said()}"
                    )
                chunk = os.read(handle, 1 << 16)
                if not chunk:
                    raise self._ended(what)
                self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _ended(self, what: str) -> BenchError:
        code = self._process.wait()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return BenchError(f"the process of {self.name} ended with {how} on {what}{self._said()}")

    def _said(self) -> str:
        self._complaints.seek(0, os.SEEK_END)
        self._complaints.seek(max(0, self._complaints.tell() - _TAIL))
        text = self._complaints.read().decode("utf-8", "replace").strip()
        return f":\n{text}" if text else ""

    def close(self) -> None:
        """Ends the process, gently if it listens."""
        assert self._process.stdin is not None and self._process.stdout is not None
        if self._process.poll() is None:
            try:
                self._process.stdin.write(b'{"op": "close"}\n')
                self._process.stdin.close()
                self._process.wait(timeout=10)
            except (OSError, subprocess.TimeoutExpired):
                self.kill()
        self._process.stdout.close()
        if not self._process.stdin.closed:
            self._process.stdin.close()
        self._complaints.close()

    def kill(self) -> None:
        """Ends the process at once."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None and self._process.poll() is None:
            self.kill()
        self.close()
