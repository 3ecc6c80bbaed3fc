"""Times what a roll-out costs a device: the check of signatures, a change of versions, an installation.

    benchmarks/run rollout verify BUNDLE
    benchmarks/run rollout swap BUNDLE
    benchmarks/run rollout install BUNDLE
    benchmarks/run rollout disk BUNDLE

BUNDLE is a bundle of this machine, whose copies are signed here by two keys.

- verify: an open in a warm process with a trust folder, less one without, in turns. No file's hash is among it.
- swap: the longest answer while a new version opens and takes over, beside the longest in a time as long without;
  and the most memory, beside that of one version.
- install: an installation beside its parts, each once and in turns: copy, sync, hash and self-test.
- disk: the space of a second version of which every library changed, beside that of the first.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from edgecompile import generate_key, sign
from edgecompile.files import file_sha256
from edgecompile.hosts.identity import describe_machine, load_average
from edgecompile.runtime import follow, open_bundle
from edgecompile.runtime.format.files.folder import BundleFolder
from edgecompile.runtime.format.golden.cases import read_case
from edgecompile.runtime.store.disk import point, remove
from tests.native.c_runtime.c_library import CLibrary, build_library

FORMS = ("folder", "tar", "gzip", "image")
#: Runs the installed runtime's commands, then prints the most memory that this process had, in kB.
_RUNTIME = """
import atexit, runpy, sys
def show():
    print(*[line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")])
atexit.register(show)
runpy.run_module("edgecompile.runtime", run_name="__main__", alter_sys=True)
"""


def make_signed(bundle: Path, place: Path, files: int | None = None) -> tuple[Path, Path]:
    """A copy of a bundle that two keys signed, and the trust folder that wants both.

    Args:
        bundle: Bundle to copy.
        place: Folder for both.
        files: Number of files to which files of its runtime are left out; None: it stays whole.
    """
    copy, trust = place / bundle.name, place / "trust"
    shutil.copytree(bundle, copy, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.rmtree(copy / "signatures", ignore_errors=True)
    if files is not None:
        document = json.loads((copy / "manifest.json").read_bytes())
        spare = sorted(name for name in document["files"] if name.startswith("runtime/"))
        for name in spare[: max(0, len(document["files"]) - files)]:
            del document["files"][name]
            (copy / name).unlink()
        (copy / "manifest.json").write_text(json.dumps(document))
        for folder, _, _ in os.walk(copy, topdown=False):
            with contextlib.suppress(OSError):  # it isn't empty
                os.rmdir(folder)
    trust.mkdir(mode=0o755)
    for name in ("ci", "fleet"):
        private, public = generate_key(place / name)
        sign(copy, private, release=1, force=True)
        shutil.copy(public, trust)
    rule = {"keys": ["ci", "fleet"], "threshold": 2}
    policy = {"policy_version": 1, "models": {"*": rule}}
    (trust / "policy.json").write_text(json.dumps(policy))
    for path in trust.iterdir():
        path.chmod(0o644)
    return copy, trust


def time_ms(call: Callable[..., object], *arguments: object) -> float:
    begun = time.perf_counter()
    call(*arguments)
    return (time.perf_counter() - begun) * 1e3


def verify(bundle: Path, place: Path, runs: int, files: int | None) -> None:
    """Prints what the signatures add to an open, in Python and in C."""
    signed, trust = make_signed(bundle, place, files)
    count = len(json.loads((signed / "manifest.json").read_bytes())["files"])
    library = CLibrary(build_library())

    def in_python(wanted: bool) -> None:
        BundleFolder(str(signed), trust=str(trust) if wanted else False).close()

    def in_c(wanted: bool) -> None:
        os.environ["EDGECOMPILE_TRUST"] = str(trust) if wanted else "off"
        # Without the weights' hash and the programs, whose times vary more than the check takes.
        library.open(signed, threads=1, verify=1, lazy=1).close()

    for name, call in (("Python", in_python), ("C", in_c)):
        took: dict[bool, list[float]] = {True: [], False: []}
        for turn in range(2 * runs + 20):
            took[turn % 2 == 0].append(time_ms(call, turn % 2 == 0))
        without = statistics.median(took[False][10:])
        more, noise = (sorted(item - without for item in took[side][10:]) for side in (True, False))
        print(
            f"{name}: {count} files, 2 signatures: {statistics.median(more):.2f} ms median, "
            f"{more[len(more) * 99 // 100]:.2f} ms p99 more than {without:.2f} ms without "
            f"(whose own p99 is {noise[len(noise) * 99 // 100]:.2f} ms more), {runs} times"
        )


def swap(bundle: Path, place: Path, swaps: int) -> None:
    """Prints the longest answers while versions change, and while none does."""
    versions = [place / "versions" / name for name in ("0", "1")]
    for number, version in enumerate(versions):
        # Files that are equal are linked, as an installation does.
        shutil.copytree(bundle, version, copy_function=os.link)
        document = json.loads((version / "manifest.json").read_bytes())
        document["expected"]["turn"] = number
        (version / "manifest.json").unlink()
        (version / "manifest.json").write_text(json.dumps(document))
    link = str(place / "current")
    point(link, str(versions[0]))
    with open_bundle(versions[0], trust=False) as model:
        case = min(Path(versions[0], "golden").glob("*.npz"))
        fd = os.open(case, os.O_RDONLY)
        inputs = read_case(fd, str(case), model.manifest).inputs
        os.close(fd)
    answers: list[tuple[float, float]] = []
    stop = threading.Event()
    with follow(link, threads=1, trust=False) as followed:

        def ask() -> None:
            while not stop.is_set():
                begun = time.perf_counter()
                followed.run(inputs)
                answers.append((begun, time.perf_counter()))

        client = threading.Thread(target=ask)
        client.start()
        time.sleep(1)
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
        alone = memory_mb("VmRSS")

        def longest(call: Callable[..., object], *arguments: object) -> tuple[float, float]:
            """The seconds of a call, and the longest answer in ms that was waited for meanwhile."""
            time.sleep(0.1)
            first = len(answers)
            took = time_ms(call, *arguments) / 1e3
            end = time.perf_counter()
            while answers[-1][0] < end:
                assert client.is_alive(), "the client's run failed"
                time.sleep(0.001)
            return took, max((b - a) * 1e3 for a, b in answers[first:] if a < end)

        pairs = []
        for turn in range(1, swaps + 1):
            point(link, str(versions[turn % 2]))
            took, during = longest(followed.refresh)
            _, quiet = longest(time.sleep, took)
            pairs.append((during, quiet, took))
        stop.set()
        client.join()
        assert followed.swaps == swaps
        most = memory_mb("VmHWM")
    usual = statistics.median((end - begun) * 1e3 for begun, end in answers)
    during, quiet, took = ([pair[number] for pair in pairs] for number in range(3))
    more = sorted(a - b for a, b in zip(during, quiet, strict=True))
    print(
        f"{swaps} swaps of {statistics.median(took) * 1e3:.0f} ms, {len(answers)} answers of {usual:.2f} ms; the longest: "
        f"{statistics.median(during):.2f} ms in a swap (worst {max(during):.2f}), "
        f"{statistics.median(quiet):.2f} ms without (worst {max(quiet):.2f}); "
        f"{statistics.median(more):.2f} ms more (worst {more[-1]:.2f}); "
        f"{most:.0f} MB at most, {alone:.0f} MB with one version: {most / alone:.2f}"
    )


def pack(signed: Path, place: Path) -> dict[str, str]:
    """The bundle in each form that ``install`` takes."""
    for mode, name in (("-cf", "m.tar"), ("-czf", "m.tar.gz")):
        subprocess.run(["tar", "--sort=name", mode, place / name, "-C", signed, "."], check=True)
    image = [sys.executable, "-m", "edgecompile", "image", signed, "--only-bundle", "--quiet"]
    subprocess.run([*image, "-o", place / "m.oci"], check=True, stdout=subprocess.DEVNULL)
    names = (str(signed), str(place / "m.tar"), str(place / "m.tar.gz"), f"oci:{place / 'm.oci'}")
    return dict(zip(FORMS, names, strict=True))


def memory_mb(name: str) -> float:
    """A figure of this process' status, such as VmRSS."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1e3


def disk(bundle: Path, place: Path) -> None:
    """Prints the space that a second version takes."""
    signed, trust = make_signed(bundle, place)
    store = place / "store"

    def add() -> int:
        """Installs the bundle; returns the bytes that the store takes, of each file once."""
        command = [sys.executable, "-m", "edgecompile.runtime", "install", "--store", store, signed]
        environment = {**os.environ, "EDGECOMPILE_TRUST": str(trust)}
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        found = {info.st_ino: info.st_blocks * 512 for info in map(os.lstat, store.rglob("*"))}
        return sum(found.values())

    first = add()
    document = json.loads((signed / "manifest.json").read_bytes())
    for name, entry in document["files"].items():
        if name.startswith("code/"):
            with (signed / name).open("ab") as file:
                file.write(b"\0")  # behind the library's last section
            entry["size"] += 1
            entry["sha256"] = file_sha256(signed / name)
    (signed / "manifest.json").write_text(json.dumps(document))
    for name in ("ci", "fleet"):
        sign(signed, place / f"{name}.key", release=2, force=True)
    second = add() - first
    print(
        f"{first / 1e6:.1f} MB, with another version's code {second / 1e6:.1f} MB more: {second / first:.1%}"
    )


def hash_files(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            file_sha256(path)


def install(bundle: Path, place: Path, rounds: int) -> None:
    """Prints what an installation takes beside its parts, and its memory."""
    signed, trust = make_signed(bundle, place)
    sources = pack(signed, place)
    environment = {**os.environ, "EDGECOMPILE_TRUST": str(trust)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed runtime has its byte code

    def run(*command: object) -> bytes:
        words = list(map(str, command))
        return subprocess.run(words, env=environment, check=True, stdout=subprocess.PIPE).stdout

    copy, store = place / "copy", place / "store"
    selftest = [sys.executable, "-m", "edgecompile.runtime", "selftest", copy, "--verify", "fast"]
    command = [sys.executable, "-c", _RUNTIME, "install", "--store", store]
    found: dict[str, list[list[float]]] = {form: [] for form in FORMS}
    memory = 0
    for _ in range(rounds):
        for form, source in sources.items():
            shutil.rmtree(copy, ignore_errors=True)
            copy.mkdir()
            unpack: list[object] = ["cp", "-r", f"{source}/.", copy]
            if form != "folder":
                packed = source if form == "tar" else sources["gzip"]
                unpack = ["tar", "-xf", packed, "-C", copy]
            parts = [
                time_ms(run, *unpack),
                time_ms(run, "sync", "-f", copy),
                time_ms(hash_files, copy),
                time_ms(run, *selftest),
            ]
            if store.exists():
                remove(str(store))  # its folders are read-only, also for their owner
            os.sync()
            begun = time.perf_counter()
            said = run(*command, source)
            found[form].append([*parts, (time.perf_counter() - begun) * 1e3])
            memory = max(memory, int(said.split()[-1]))
    for form, rows in found.items():
        copied, synced, hashed, tested, took = (
            statistics.median(column) for column in zip(*rows, strict=True)
        )
        whole = copied + synced + hashed + tested
        print(
            f"{form}: {took:.0f} ms; copy {copied:.0f}, sync {synced:.0f}, hash {hashed:.0f}, self-test {tested:.0f}: "
            f"{took / whole - 1:+.0%} of their sum, {took / (whole - synced) - 1:+.0%} without the sync"
        )
    print(f"memory of the installer: {memory / 1e3:.0f} MB; medians of {rounds} rounds")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("verify", "swap", "install", "disk"))
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--runs", type=int, help="opens of each (500), swaps (30), or rounds (7)")
    parser.add_argument("--files", type=int, help="number of files of which verify opens a bundle")
    options = parser.parse_args()
    machine = describe_machine()
    print(f"{machine['cpu']}, {machine['usable_cpus']} CPUs, load {load_average()[0]:.2f}")
    with tempfile.TemporaryDirectory(dir=options.bundle.resolve().parent) as name:
        place, bundle = Path(name), options.bundle.resolve()
        if options.what == "verify":
            verify(bundle, place, options.runs or 500, options.files)
        elif options.what == "swap":
            swap(bundle, place, options.runs or 30)
        elif options.what == "disk":
            disk(bundle, place)
        else:
            install(bundle, place, options.runs or 7)
    return 0


if __name__ == "__main__":
    sys.exit(main())
