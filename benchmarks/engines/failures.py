"""Breaks `finish` of a bundle for TensorRT in many ways on a device, and checks what comes of each.

python benchmarks/engines/failures.py BUNDLE RESULTS.jsonl [SCENARIO...]

Writes a JSON line per scenario: name, ok, and what was seen. Runs `python -m edgecompile.runtime`, so edgecompile has to
be importable; it uses an engine cache of its own. Exits with 1 where something went otherwise.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from edgecompile.runtime.gpu.cache import engine_name
from edgecompile.runtime.gpu.cuda import Cuda

_SERVED, _UNFINISHED, _CRASHED, _MEMORY = 0, 18, 60, 62
_WORKER = b"edgecompile.runtime.finish.worker"


class Rig:
    """A bundle, and an engine cache that nobody else has."""

    def __init__(self, bundle: Path, cache: Path) -> None:
        self.bundle, self.cache = bundle, cache
        self.environment = dict(os.environ, EDGECOMPILE_CACHE=str(cache))

    def start(self, command: str, *arguments: str) -> subprocess.Popen[str]:
        """Starts a command of the bundle."""
        words = [sys.executable, "-m", "edgecompile.runtime", command, str(self.bundle)]
        return subprocess.Popen(
            [*words, *arguments],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, command: str, *arguments: str) -> dict[str, Any]:
        """Its exit code, words and seconds; of finish what was built, too."""
        begun = time.monotonic()
        return ended(self.start(command, *arguments), begun)

    def finish(self, *arguments: str) -> dict[str, Any]:
        """As run."""
        return self.run("finish", "--json", *arguments)

    def files(self, folder: str) -> list[Path]:
        """Files below a folder of the cache."""
        return [path for path in (self.cache / folder).rglob("*") if path.is_file()]

    def engine(self) -> Path:
        """The engine that is finished."""
        (plan,) = [path for path in self.files("engines") if path.suffix == ".plan"]
        return plan


def ended(process: subprocess.Popen[str], begun: float) -> dict[str, Any]:
    """Waits for a command, and says what came of it."""
    output, words = process.communicate()
    seen = {
        "code": process.returncode,
        "s": round(time.monotonic() - begun, 1),
        "words": words[-700:],
    }
    with contextlib.suppress(ValueError):
        report = json.loads(output)
        seen.update(state=report.get("state"), attempts=len(report.get("attempts", ())))
        for key in ("seconds", "timing_cache"):
            seen[key] = (report.get("built") or {}).get(key)
    return seen


def workers() -> list[int]:
    """Numbers of the processes that build or test."""
    numbers = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if _WORKER in path.read_bytes():
                numbers.append(int(path.parent.name))
    return numbers


@contextlib.contextmanager
def full_gpu(left: int) -> Iterator[None]:
    """A process that holds all of the GPU's memory but ``left`` bytes."""
    hog = subprocess.Popen([sys.executable, __file__, "hog", str(left)], stdout=subprocess.PIPE)
    assert hog.stdout is not None
    try:
        hog.stdout.readline()
        yield
    finally:
        hog.kill()
        hog.wait()


def hold(left: int) -> None:
    """What that process does."""
    cuda = Cuda.load()
    while (free := cuda.memory()[0]) > left + (1 << 20):
        cuda.malloc(min(free - left, 1 << 30))
    print("full", flush=True)
    signal.pause()


def timing_cache_saves(rig: Rig) -> Iterator[tuple[str, bool, Any]]:
    """Builds with and without what was measured before, in turns."""
    rounds = []
    for _ in range(2):
        shutil.rmtree(rig.cache / "timing", ignore_errors=True)
        rounds.append([rig.finish("--force") for _ in range(2)])
    states = [[item["timing_cache"] for item in pair] for pair in rounds]
    yield "timing cache: seconds new, used", states == [["new", "used"]] * 2, rounds


def timing_cache_of_rubbish(rig: Rig) -> Iterator[tuple[str, bool, Any]]:
    """Bytes that mean nothing, one byte cut, and another GPU's number."""
    rig.finish()
    (path,) = rig.files("timing")
    whole = path.read_bytes()
    changed = bytearray(whole)
    changed[40] ^= 1
    for name, data in (
        ("rubbish", b"\0\1\2" * 999),
        ("cut", whole[:-9]),
        ("changed", bytes(changed)),
    ):
        path.write_bytes(data)
        seen = [rig.finish("--force") for _ in range(2)]
        good = all(item["code"] == 0 for item in seen) and seen[1]["timing_cache"] in (
            "new",
            "used",
        )
        yield f"timing cache: {name}, then once more", good, [item["timing_cache"] for item in seen]


def engine_cut_or_changed(rig: Rig) -> Iterator[tuple[str, bool, Any]]:
    """Refused when it is opened; finished again afterwards."""
    for name in ("cut", "changed"):
        rig.finish()
        plan = rig.engine()
        data = plan.read_bytes()
        plan.write_bytes(data[:-1] if name == "cut" else data[:-1] + bytes([data[-1] ^ 1]))
        tested, again = rig.run("selftest"), rig.finish()
        good = tested["code"] == _UNFINISHED and again["state"] == "finished"
        yield f"engine: {name}", good, [tested, again]


def with_level(bundle: Path, level: int, copy: Path) -> Path:
    """Another bundle: a copy whose engine is built at this optimization level."""
    shutil.copytree(bundle, copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    (name,) = [item["recipe"] for item in manifest["variants"] if item["backend"] == "tensorrt"]
    recipe = json.loads((copy / name).read_text())
    recipe["builder"]["optimization_level"] = level
    data = json.dumps(recipe).encode()
    (copy / name).write_bytes(data)
    manifest["files"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (copy / "manifest.json").write_text(json.dumps(manifest))
    return copy


def engine_of_another(rig: Rig) -> Iterator[tuple[str, bool, Any]]:
    """An engine that another bundle's recipe asks for, built at level 0, in the place of this one's.

    First as it is; then with a stamp forged to fit. Who may write to the cache is trusted, so that one runs, and is right.
    """
    built = rig.finish()
    other = Rig(with_level(rig.bundle, 0, rig.cache / "other.ecb"), rig.cache / "other")
    foreign = [other.finish(), other.run("selftest")]
    data = other.engine().read_bytes()
    (plan, stamp) = rig.engine(), rig.engine().with_name("stamp.json")
    same = plan.read_bytes() == data
    plan.write_bytes(data)
    exchanged = rig.run("selftest")
    good = not same and exchanged["code"] == _UNFINISHED
    yield "engine: another bundle's, of level 0", good, [built, *foreign, exchanged]
    digest = hashlib.sha256(data).hexdigest()
    plan.rename(plan.with_name(engine_name(digest)))
    document = json.loads(stamp.read_text())
    document["engine"].update(size=len(data), sha256=digest)
    stamp.write_text(json.dumps(document))
    forged = rig.run("selftest")
    yield "engine: another bundle's, with a forged stamp", forged["code"] == _SERVED, forged


def killed(rig: Rig) -> Iterator[tuple[str, bool, Any]]:
    """kill -9 of finish while it builds, and of its builder: nothing is left, and the next one goes on."""
    for name in ("finish", "builder"):
        shutil.rmtree(rig.cache, ignore_errors=True)
        begun = time.monotonic()
        process = rig.start("finish", "--json")
        time.sleep(12)
        for number in [process.pid] if name == "finish" else workers():
            os.kill(number, signal.SIGKILL)
        first = ended(process, begun)
        time.sleep(2)
        left, again = workers(), rig.finish()
        good = not left and again["code"] == _SERVED
        if name == "builder":
            good = good and first["code"] == _SERVED and first["attempts"] == 2
        yield f"kill -9 of the {name}", good, [first, left, again]


def crashed(rig: Rig) -> Iterator[tuple[str, bool, Any]]:
    """A builder that ends by SIGSEGV however little it is given: no want of memory."""
    shutil.rmtree(rig.cache, ignore_errors=True)
    begun = time.monotonic()
    process, met = rig.start("finish", "--json"), 0
    while process.poll() is None:
        time.sleep(5)
        for number in workers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGSEGV)
                met += 1
    seen = ended(process, begun)
    yield "SIGSEGV at every attempt", seen["code"] == _CRASHED, [met, seen]


def two_at_once(rig: Rig) -> Iterator[tuple[str, bool, Any]]:
    """One builds, the other one waits and takes its engine."""
    shutil.rmtree(rig.cache, ignore_errors=True)
    begun = time.monotonic()
    seen = [ended(item, begun) for item in [rig.start("finish", "--json") for _ in range(2)]]
    good = sorted(item["state"] or "" for item in seen) == ["already finished", "finished"]
    yield "two that finish", good, seen


def memory_short(rig: Rig) -> Iterator[tuple[str, bool, Any]]:
    """Another process holds the GPU's memory: refused by prediction, and forced to the last attempt."""
    shutil.rmtree(rig.cache, ignore_errors=True)
    with full_gpu(900 << 20):
        predicted, forced = rig.finish(), rig.finish("--force")
    yield "memory: predicted", predicted["code"] == _MEMORY, predicted
    left = [path for path in rig.files("engines") if path.suffix == ".plan"]
    yield "memory: forced", forced["code"] == _MEMORY and not left, forced


Scenario = Callable[[Rig], Iterator[tuple[str, bool, Any]]]
SCENARIOS: dict[str, Scenario] = {
    item.__name__: item
    for item in (
        timing_cache_saves,
        timing_cache_of_rubbish,
        engine_cut_or_changed,
        engine_of_another,
        killed,
        crashed,
        two_at_once,
        memory_short,
    )
}


def main(bundle: Path, results: Path, names: list[str]) -> bool:
    """Runs scenarios; whether all went as they should."""
    fine = True
    for name in names or SCENARIOS:
        with tempfile.TemporaryDirectory() as cache, results.open("a") as stream:
            for title, good, seen in SCENARIOS[name](Rig(bundle.resolve(), Path(cache))):
                fine = fine and good
                line = json.dumps({"scenario": title, "ok": good, "seen": seen})
                stream.write(line + "\n")
                print(line, flush=True)
    return fine


if __name__ == "__main__":
    if sys.argv[1] == "hog":
        hold(int(sys.argv[2]))
    sys.exit(not main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
