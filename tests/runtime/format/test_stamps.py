"""Hashes of weights, compared once for each boot."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from edgecompile.runtime.base.errors import DamagedBundleError
from edgecompile.runtime.format.files import folder as folders
from edgecompile.runtime.format.files import hashes, stamps
from edgecompile.runtime.format.files.folder import BundleFolder
from edgecompile.runtime.format.files.weights import map_weights
from tests.runtime.bundles import DummyBundle

NAME = "weights.fp32"


class Hashing:
    """The hashes that were computed of whole files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        compute = hashes.hash_descriptor

        def counted(*arguments: object) -> tuple[str, int]:
            self.count += 1
            return compute(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(hashes, "hash_descriptor", counted)


@pytest.fixture
def runtime_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runtime directory of this user. Files count as large and as old, as if they were on a disk."""
    path = tmp_path / "runtime"
    path.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(path))
    monkeypatch.delenv(stamps.VARIABLE, raising=False)
    monkeypatch.setattr(folders, "_LARGE", 0)
    monkeypatch.setattr(stamps, "_SETTLED_NS", -(10**9))
    if os.major(tmp_path.stat().st_dev) == 0:  # a container's
        monkeypatch.setattr(os, "major", lambda device: 8)
    return path


@pytest.fixture
def hashing(runtime_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Hashing:
    return Hashing(monkeypatch)


@pytest.fixture
def check(bundle: DummyBundle) -> Iterator[Callable[[], None]]:
    """Maps the weights as a new process does, and compares their hash."""
    path = bundle.write()

    def map_anew() -> None:
        folder = BundleFolder(path)
        try:
            map_weights(folder, NAME, check_hash=True)
        finally:
            folder.close()

    yield map_anew


def stamp(runtime_folder: Path) -> Path:
    (path,) = (runtime_folder / "edgecompile-hashes").iterdir()
    return path


def test_the_next_process_need_not_hash(
    hashing: Hashing, check: Callable[[], None], runtime_folder: Path
) -> None:
    check()
    check()
    assert hashing.count == 1
    folder = runtime_folder / "edgecompile-hashes"
    assert (folder.stat().st_mode & 0o777, stamp(runtime_folder).stat().st_mode & 0o777) == (
        0o700,
        0o600,
    )


def test_a_change_is_found_though_its_time_was_set_back(
    hashing: Hashing, check: Callable[[], None], bundle: DummyBundle
) -> None:
    check()
    place = bundle.folder / NAME
    info, data = place.stat(), bytearray(place.read_bytes())
    data[-1] ^= 1
    with place.open("r+b") as file:
        file.write(data)
    os.utime(place, ns=(info.st_atime_ns, info.st_mtime_ns))
    assert place.stat().st_mtime_ns == info.st_mtime_ns
    with pytest.raises(DamagedBundleError, match="file-hash"):
        check()


def test_another_recorded_hash_is_compared(
    hashing: Hashing, check: Callable[[], None], bundle: DummyBundle
) -> None:
    check()
    place = bundle.folder / "manifest.json"
    manifest = json.loads(place.read_text())
    manifest["files"][NAME]["sha256"] = "0" * 64
    place.write_text(json.dumps(manifest))
    with pytest.raises(DamagedBundleError, match="file-hash"):
        check()


@pytest.mark.parametrize("damage", [b"", b"x", None])
def test_a_damaged_stamp_counts_as_none(
    hashing: Hashing, check: Callable[[], None], runtime_folder: Path, damage: bytes | None
) -> None:
    check()
    path = stamp(runtime_folder)
    path.write_bytes(path.read_bytes() + b"0" if damage is None else damage)
    check()
    assert hashing.count == 2


def test_a_link_to_a_stamp_counts_as_none(
    hashing: Hashing, check: Callable[[], None], runtime_folder: Path, tmp_path: Path
) -> None:
    check()
    path = stamp(runtime_folder)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    check()
    assert hashing.count == 2


@pytest.mark.parametrize("which", ["runtime", "runtime/edgecompile-hashes"])
@pytest.mark.parametrize("mode", [0o750, 0o702, 0o701])
def test_a_folder_that_others_may_enter_is_ignored(
    hashing: Hashing,
    check: Callable[[], None],
    tmp_path: Path,
    runtime_folder: Path,
    which: str,
    mode: int,
) -> None:
    check()
    (tmp_path / which).chmod(mode)
    check()
    check()
    assert hashing.count == 3


def test_a_stamp_that_others_may_write_is_ignored(
    hashing: Hashing, check: Callable[[], None], runtime_folder: Path
) -> None:
    check()
    stamp(runtime_folder).chmod(0o602)
    check()
    assert hashing.count == 2


@pytest.mark.parametrize("which", ["runtime", "runtime/edgecompile-hashes"])
def test_a_link_to_a_folder_is_ignored(
    hashing: Hashing, check: Callable[[], None], tmp_path: Path, runtime_folder: Path, which: str
) -> None:
    check()
    (tmp_path / which).rename(tmp_path / "moved")
    (tmp_path / which).symlink_to(tmp_path / "moved")
    check()
    check()
    assert hashing.count == 3


def test_a_folder_of_another_user_is_ignored(
    hashing: Hashing,
    check: Callable[[], None],
    runtime_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check()
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    check()
    assert hashing.count == 2


@pytest.mark.parametrize("change", ["boot", "network", "writable", "young", "off", "relative"])
def test_whatever_is_unusual_is_hashed(
    hashing: Hashing,
    check: Callable[[], None],
    bundle: DummyBundle,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
) -> None:
    check()
    if change == "boot":
        (tmp_path / "boot").write_text("another\n")
        monkeypatch.setattr(stamps, "_BOOT_ID", str(tmp_path / "boot"))
    elif change == "network":
        monkeypatch.setattr(os, "major", lambda device: 0)
    elif change == "writable":
        (bundle.folder / NAME).chmod(0o622)
    elif change == "young":
        monkeypatch.setattr(stamps, "_SETTLED_NS", 10**18)
    elif change == "off":
        monkeypatch.setenv(stamps.VARIABLE, "0")
    else:
        monkeypatch.setenv("XDG_RUNTIME_DIR", "runtime")
        monkeypatch.chdir(tmp_path)
    check()
    assert hashing.count == 2


def test_times_in_whole_seconds_tell_too_little(runtime_folder: Path, tmp_path: Path) -> None:
    """FAT tells the mtime for the ctime, and an image that was exchanged may have the same times."""
    path = tmp_path / "file"
    path.write_bytes(b"x")
    fine = path.stat()
    known = {name: getattr(fine, name) for name in ("st_mtime_ns", "st_ctime_ns", "st_rdev")}
    for time, kept in ((fine.st_ctime_ns | 1, True), (fine.st_ctime_ns // 10**9 * 10**9, False)):
        info = os.stat_result(tuple(fine), {**known, "st_ctime_ns": time})
        stamps.keep(info, "0" * 64)
        assert stamps.find(info, "0" * 64) == kept


def test_many_writers_leave_whole_stamps(runtime_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    info = path.stat()
    known = [f"{number:064x}" for number in range(40)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda sha256: stamps.keep(info, sha256), known * 8))
    assert all(stamps.find(info, sha256) for sha256 in known)
    assert not stamps.find(info, f"{41:064x}")
    assert len(list((runtime_folder / "edgecompile-hashes").iterdir())) == len(known)


def test_old_stamps_make_room(runtime_folder: Path, tmp_path: Path) -> None:
    info = tmp_path.stat()
    for number in range(2 * stamps._MOST):
        stamps.keep(info, f"{number:064x}")
        assert stamps.find(info, f"{number:064x}")
    assert len(list((runtime_folder / "edgecompile-hashes").iterdir())) <= stamps._MOST
