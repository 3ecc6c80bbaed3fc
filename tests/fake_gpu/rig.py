"""Runs ``finish`` as its user does, on the fakes of TensorRT and CUDA and a fake of a device."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.fake_gpu.build import MODULES
from tests.fake_gpu.bundles import DEVICE, GpuBundle, make_device_root
from tests.fake_gpu.kept import make_once

REPOSITORY = Path(__file__).resolve().parents[2]


class Finished:
    """The result of one run."""

    def __init__(self, code: int, stdout: str, stderr: str) -> None:
        self.code = code
        self.stderr = stderr
        self.stdout = stdout

    @property
    def report(self) -> dict[str, Any]:
        """The JSON that it printed."""
        assert self.code == 0, self.stderr
        report: dict[str, Any] = json.loads(self.stdout)
        return report


class Rig:
    """A bundle, a device and a cache of engines; all fake but the code that is tested."""

    def __init__(self, folder: Path, cudart: Path) -> None:
        self.folder = folder
        self.cache = folder / "cache"
        self.log = folder / "calls.log"
        self.root = make_device_root(folder / "root")
        self.bundle = GpuBundle(folder / "tiny.ecb")
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "OPENBLAS_NUM_THREADS": "1",  # as scripts/test says
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(MODULES)]),
            "EDGECOMPILE_CUDART": str(cudart),
            "EDGECOMPILE_DEVICE_ROOT": str(self.root),
            "EDGECOMPILE_CACHE": str(self.cache),
            "FAKE_CUDART_DEVICE": DEVICE,
            "FAKE_TRT_LOG": str(self.log),
        }

    def command(self, *arguments: str) -> list[str]:
        """The command line of ``finish``."""
        path = str(self.bundle.folder)
        return [sys.executable, "-m", "edgecompile.runtime", "finish", path, "--json", *arguments]

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """Begins to finish and doesn't wait."""
        if not self.bundle.folder.exists():
            self.bundle.write()
        return subprocess.Popen(
            self.command(*arguments),
            env={**self.environment, **environment},
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=_heed_signals,
        )

    def finish(self, *arguments: str, **environment: str) -> Finished:
        """Finishes."""
        child = self.start(*arguments, **environment)
        stdout, stderr = child.communicate()
        assert "Traceback" not in stderr, stderr
        return Finished(child.returncode, stdout, stderr)

    def finish_before(self) -> Finished:
        """As ``finish``, where a test is about what comes then.

        It runs once for the same bundle and device in all tests of this process; others get copies of its cache
        and of its log, and what it said, with their own paths.
        """
        if not self.bundle.folder.exists():
            self.bundle.write()
        said = self.folder / "finished.json"

        def finish() -> None:
            done = self.finish()
            text = json.dumps([done.code, done.stdout, done.stderr])
            said.write_text(text.replace(str(self.folder), "FOLDER"))

        # Beside the folders of the tests.
        folder = self.folder.parent / f"finished-{self._key()}"
        make_once(folder, [self.cache, self.log, said], finish)
        return Finished(*json.loads(said.read_text().replace("FOLDER", str(self.folder))))

    def _key(self) -> str:
        """Changes with what a run without arguments is about."""
        variables = {k: v for k, v in self.environment.items() if k.startswith("FAKE_")}
        del variables["FAKE_TRT_LOG"]
        digest = hashlib.sha256(json.dumps(variables, sort_keys=True).encode())
        for path in (self.bundle.folder / "manifest.json", *sorted(self.root.rglob("*"))):
            if path.is_file():
                digest.update(path.name.encode() + b"\0" + path.read_bytes())
        return digest.hexdigest()[:16]

    def kill_at(self, point: str, *, worker: bool = False) -> str:
        """Lets it come to a point (NAME:N of FAKE_TRT_PAUSE) and kills it there; its stderr.

        ``worker``: kills the process that works for it instead, and lets it go on.
        """
        pause = self.folder / "paused"
        with self.start(FAKE_TRT_PAUSE=f"{point}:{pause}") as child:
            number = wait_for_pause(pause, child)
            os.kill(number if worker else child.pid, signal.SIGKILL)
            pause.unlink()
            stderr = child.communicate()[1]
        wait_for_end(number)
        return stderr

    def calls(self, name: str) -> list[str]:
        """The calls of the fake TensorRT."""
        if not self.log.exists():
            return []
        lines = [line.split(" ", 1)[1] for line in self.log.read_text().splitlines()]
        return [line for line in lines if line.split(" ")[0] == name]

    @property
    def engines(self) -> list[Path]:
        """The folders of engines."""
        return sorted((self.cache / "engines").glob("*"))

    def names(self) -> list[str]:
        """The files of the one folder of engines, the digests of their names cut off."""
        (folder,) = self.engines
        return sorted(
            "engine" if path.name.startswith("engine-") else path.name for path in folder.iterdir()
        )


def _heed_signals() -> None:
    """A shell starts what runs in its background with some of them ignored."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def wait_for_pause(path: Path, child: subprocess.Popen[str]) -> int:
    """The number of the process that paused."""
    while not path.exists():
        assert child.poll() is None, child.communicate()
        time.sleep(0.01)
    return int(path.read_text())


def wait_for_end(number: int) -> None:
    """Waits until a process that isn't ours has ended."""
    while Path(f"/proc/{number}").exists():
        stat = Path(f"/proc/{number}/stat")
        try:
            if stat.read_text().rpartition(")")[2].split()[0] == "Z":
                return
        except OSError:
            return
        time.sleep(0.01)
