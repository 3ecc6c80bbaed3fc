"""The loaders under test, each in a process of its own that is started again when it dies."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.agreement import named_rules

REPOSITORY = Path(__file__).resolve().parents[2]
#: Codes of EdgecompileErrors and of edgecompile_runtime.h that opening may end with; 0 is success.
KNOWN_CODES = frozenset({0, 20, 21, 22, 23, 24, 26, 73})


@dataclass
class Answer:
    """The result of a loader on one bundle. ``crashes`` is empty if it did as it should."""

    code: int
    rules: frozenset[str]
    text: str
    crashes: list[str]
    seconds: float = 0.0
    kib: int = 0
    loaded: int = 0
    descriptors: int = 0


class Loader:
    """A process that reads paths of bundles and answers with a line each."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        wall_seconds: float,
        variables: dict[str, str],
        memory_mib: int | None = None,
    ) -> None:
        self.name = name
        self._command = list(command)
        self._wall_seconds = wall_seconds
        self._variables = variables
        self._memory_mib = memory_mib
        self._process: subprocess.Popen[bytes] | None = None
        self.restarts = -1

    def _start(self) -> subprocess.Popen[bytes]:
        self.restarts += 1

        def limit() -> None:
            if self._memory_mib is not None:
                most = self._memory_mib << 20
                resource.setrlimit(resource.RLIMIT_AS, (most, most))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

        return subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **self._variables},
            cwd=REPOSITORY,
            preexec_fn=limit,  # there are no threads here
        )

    def ask(self, path: Path) -> Answer:
        """Opens a bundle; that the process died or took too long is told as a crash."""
        if self._process is None:
            self._process = self._start()
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        started = time.perf_counter()
        line = b""
        problem = ""
        try:
            process.stdin.write(os.fsencode(path) + b"\n")
            process.stdin.flush()
            line, problem = self._read_line(process.stdout.fileno())
        except BrokenPipeError:
            problem = "died"
        seconds = time.perf_counter() - started
        if problem:
            text = f"{problem}: {self._end(kill=True)}"
            return Answer(-1, frozenset(), text, [f"{self.name}: {text}"], seconds)
        answer = self._parse(line)
        answer.seconds = answer.seconds or seconds
        return answer

    def _read_line(self, fd: int) -> tuple[bytes, str]:
        until = time.monotonic() + self._wall_seconds
        line = b""
        while not line.endswith(b"\n"):
            if not select.select([fd], [], [], max(until - time.monotonic(), 0))[0]:
                return b"", f"took more than {self._wall_seconds:.0f} s"
            piece = os.read(fd, 1 << 16)
            if not piece:
                return b"", "died"
            line += piece
        return line, ""

    def _end(self, kill: bool) -> str:
        process, self._process = self._process, None
        if process is None:
            return ""
        if kill:
            process.kill()
        _, errors = process.communicate()
        code = process.returncode
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return f"{how} {errors.decode(errors='replace')[-3000:]}".strip()

    def close(self) -> list[str]:
        """Ends the process; what it complained of at its end (a leak, say)."""
        if self._process is None:
            return []
        process = self._process
        text = self._end(kill=False)
        return [] if process.returncode == 0 else [f"{self.name}: at its end: {text}"]

    def _parse(self, line: bytes) -> Answer:
        raise NotImplementedError


class PythonLoader(Loader):
    """edgecompile.runtime, in worker.py, with that program's last arguments."""

    def __init__(
        self, *options: str, memory_mib: int, cpu_seconds: int, variables: dict[str, str]
    ) -> None:
        worker = "tests.hostile.worker"
        super().__init__(
            "python",
            [sys.executable, "-m", worker, str(memory_mib), str(cpu_seconds), *options],
            wall_seconds=10 * cpu_seconds,
            variables={"PYTHONPATH": str(REPOSITORY), **variables},
        )

    def _parse(self, line: bytes) -> Answer:
        document = json.loads(line)
        answer = Answer(**{**document, "rules": frozenset(document["rules"])})
        answer.crashes = [f"{self.name}: {text}" for text in answer.crashes]
        if answer.code not in KNOWN_CODES:
            answer.crashes.append(f"{self.name}: ended with the code {answer.code}: {answer.text}")
        return answer


class NativeLoader(Loader):
    """libedgecompile_runtime in host_cases.c, which opens, describes, runs with nonsense, closes."""

    def __init__(
        self,
        name: str,
        program: Path,
        *,
        wall_seconds: float,
        variables: dict[str, str],
        memory_mib: int | None = None,
    ) -> None:
        super().__init__(
            name,
            [str(program), "2"],  # ECR_VERIFY_FULL
            wall_seconds=wall_seconds,
            variables=variables,
            memory_mib=memory_mib,
        )

    def _parse(self, line: bytes) -> Answer:
        status, _, text = line.decode("utf-8", "replace").rstrip("\n").partition("\t")
        code = int(status)
        rules = frozenset() if code == 0 else named_rules(text)
        answer = Answer(code, rules, text[:2000], [])
        if code not in KNOWN_CODES:
            answer.crashes.append(f"{self.name}: ended with the code {code}: {text[:300]}")
        return answer


class Canary:
    """Notices whatever touches a folder: opening, reading, writing, renaming, attributes."""

    _ALL = 0xFFF

    def __init__(self, folder: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        for place, _, _ in os.walk(folder):
            if libc.inotify_add_watch(self._fd, os.fsencode(place), self._ALL) < 0:
                raise OSError(ctypes.get_errno(), f"inotify_add_watch {place}")
        self.events()

    def events(self) -> int:
        """How many events there were since the last call."""
        count = 0
        while True:
            try:
                data = os.read(self._fd, 1 << 16)
            except BlockingIOError:
                return count
            at = 0
            while at < len(data):
                # struct inotify_event: watch, mask, cookie, length of the name that follows
                at += 16 + int.from_bytes(data[at + 12 : at + 16], sys.byteorder)
                count += 1

    def close(self) -> None:
        os.close(self._fd)
