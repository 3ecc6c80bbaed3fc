"""Stamps of the C runtime: each runtime finds those that the other kept, and refuses what the other does."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from edgecompile.runtime.format.files import stamps
from tests.native.c_runtime import c_library
from tests.native.c_runtime.c_library import MACHINES, NATIVE_ARCH

MACHINE = MACHINES[NATIVE_ARCH]
SHA256 = "ab" * 32
#: Of ext4 on a first disk; its major number is 8.
DEVICE = os.makedev(8, 1)


@pytest.fixture(scope="module")
def program() -> Path:
    sources = [c_library.PROGRAMS / "host_stamps.cpp"]
    return c_library.build(MACHINE, "host_stamps", sources, flags=c_library.SANITIZERS)


@pytest.fixture
def runtime_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "runtime"
    path.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(path))
    monkeypatch.delenv(stamps.VARIABLE, raising=False)
    return path


def facts(
    *,
    device: int = DEVICE,
    uid: int = os.geteuid(),
    mode: int = 0o100644,
    size: int = 9 << 20,
    age: float = 120,
    exact: bool = True,
) -> os.stat_result:
    """Facts of a file that changed ``age`` seconds ago, at a whole second if not ``exact``."""
    changed = int(time.time() - age) * 10**9 + 123 * exact
    times = {"st_mtime_ns": changed - 5, "st_ctime_ns": changed}
    return os.stat_result((mode, 42, device, 1, uid, 0, size, 0, 0, 0), times)


def ask(program: Path, verb: str, info: os.stat_result, sha256: str = SHA256) -> str:
    known = [info.st_dev, info.st_ino, info.st_uid, info.st_mode, info.st_size]
    words = [verb, sha256, *known, info.st_mtime_ns, info.st_ctime_ns]
    done = MACHINE.run([program], stdin=" ".join(map(str, words)) + "\n", **c_library.SANITIZED)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.strip()


def test_each_runtime_finds_what_the_other_kept(program: Path, runtime_folder: Path) -> None:
    mine, theirs = facts(), facts(size=10 << 20)
    assert ask(program, "find", mine) == "none"
    stamps.keep(mine, SHA256)
    assert ask(program, "find", mine) == "found"
    assert ask(program, "find", mine, "cd" * 32) == "none"
    assert not stamps.find(theirs, SHA256)
    ask(program, "keep", theirs)
    assert stamps.find(theirs, SHA256) and ask(program, "find", theirs) == "found"
    folder = runtime_folder / "edgecompile-hashes"
    modes = {path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert (folder.stat().st_mode & 0o777, modes, len(list(folder.iterdir()))) == (
        0o700,
        {0o600},
        2,
    )


@pytest.mark.parametrize(
    "unusual",
    [
        {"device": os.makedev(0, 44)},
        {"uid": os.geteuid() + 1},
        {"mode": 0o100664},
        {"mode": 0o100646},
        {"age": -3600},
        {"exact": False},
    ],
    ids=["network", "owner", "group", "others", "young", "whole-second"],
)
def test_whatever_is_unusual_has_no_stamp(
    program: Path, runtime_folder: Path, unusual: dict[str, int]
) -> None:
    info = facts(**unusual)  # type: ignore[arg-type]
    ask(program, "keep", info)
    stamps.keep(info, SHA256)
    assert list(runtime_folder.iterdir()) == []
    assert ask(program, "find", info) == "none"


@pytest.mark.parametrize(
    "change", ["longer", "shorter", "link", "mode", "folder", "folder-link", "off"]
)
def test_a_stamp_that_others_could_have_made_counts_as_none(
    program: Path,
    runtime_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
) -> None:
    info = facts()
    ask(program, "keep", info)
    folder = runtime_folder / "edgecompile-hashes"
    (path,) = folder.iterdir()
    assert ask(program, "find", info) == "found"
    text = path.read_bytes()
    if change in ("longer", "shorter"):
        path.write_bytes(text + b"0" if change == "longer" else text[:-1])
    elif change == "link":
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    elif change == "mode":
        path.chmod(0o602)
    elif change == "folder":
        folder.chmod(0o701)
    elif change == "folder-link":
        folder.rename(tmp_path / "moved")
        folder.symlink_to(tmp_path / "moved")
    else:
        monkeypatch.setenv(stamps.VARIABLE, "0")
    assert ask(program, "find", info) == "none"
    assert not stamps.find(info, SHA256)


def test_old_stamps_make_room_and_writers_leave_whole_ones(
    program: Path, runtime_folder: Path
) -> None:
    info = facts()
    known = [info.st_dev, info.st_ino, info.st_uid, info.st_mode, info.st_size]
    rest = " ".join(map(str, [*known, info.st_mtime_ns, info.st_ctime_ns]))
    hashes = [f"{number:064x}" for number in range(2 * stamps._MOST)]
    lines = "".join(f"keep {name} {rest}\nfind {name} {rest}\n" for name in hashes)
    command, environment = [str(program)], {**os.environ, **c_library.SANITIZED}
    alone = subprocess.run(command, input=lines, text=True, capture_output=True, env=environment)
    assert alone.stdout.split() == ["found"] * len(hashes), alone.stderr
    assert len(list((runtime_folder / "edgecompile-hashes").iterdir())) <= stamps._MOST
