"""disk: which file systems are synced together, and what becomes of an error."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgecompile.runtime.base.errors import DeviceDiskError
from edgecompile.runtime.store import disk

EXT4, XFS, BTRFS, F2FS = 0xEF53, 0x58465342, 0x9123683E, 0xF2F52010
TMPFS, OVERLAYFS = 0x01021994, 0x794C7630


class Libc:
    """A C library on whose file system a disk may fail.

    Args:
        magic: Number of the file system.
        error: Error of the disk; 0: there is none.
    """

    def __init__(self, magic: int = EXT4, error: int = 0) -> None:
        self.magic, self.error = magic, error
        self.calls: list[tuple[str, int]] = []

    def fstatfs(self, fd: int, facts: ctypes.Array[ctypes.c_char]) -> int:
        ctypes.c_ulong.from_buffer(facts).value = self.magic
        return 0

    def syncfs(self, fd: int) -> int:
        self.calls.append(("syncfs", fd))
        ctypes.set_errno(self.error)
        return -1 if self.error else 0

    def sync_file_range(self, fd: int, *rest: object) -> int:
        self.calls.append(("sync_file_range", fd))
        return 0


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    with disk.open_folder(str(tmp_path)) as fd:
        yield fd


def use(monkeypatch: pytest.MonkeyPatch, libc: Libc, release: str = "5.8.0-1-generic") -> Libc:
    monkeypatch.setattr(disk, "_libc", libc)
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(release=release))
    return libc


@pytest.mark.parametrize(
    ("magic", "release", "is_synced"),
    [
        *((magic, "5.8.0-1-generic", True) for magic in (EXT4, XFS, BTRFS, F2FS)),
        (EXT4, "5.10", True),
        (EXT4, "6.1.0", True),
        (EXT4, "5.7.19", False),
        (EXT4, "4.19.0", False),
        (EXT4, "unknown", False),
        (TMPFS, "6.1.0", False),
        (OVERLAYFS, "6.1.0", False),
    ],
)
def test_some_file_systems_are_synced_at_once(
    monkeypatch: pytest.MonkeyPatch, folder: int, magic: int, release: str, is_synced: bool
) -> None:
    use(monkeypatch, Libc(magic), release)
    assert disk.is_synced_at_once(folder) is is_synced


def test_a_file_system_of_no_disk_is_not_synced_at_once() -> None:
    with disk.open_folder("/proc") as fd:
        assert not disk.is_synced_at_once(fd)


@pytest.mark.parametrize("magic", [EXT4, TMPFS])
def test_files_are_synced_together_or_as_they_are_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: int, magic: int
) -> None:
    libc, synced, fsync = use(monkeypatch, Libc(magic)), [], os.fsync

    def note(fd: int) -> None:
        synced.append(Path(f"/proc/self/fd/{fd}").readlink().name)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", note)
    disk.write_file(str(tmp_path / "x"), [b"x"])
    disk.sync_tree(str(tmp_path), folder)
    if magic == EXT4:
        assert [name for name, _ in libc.calls] == ["sync_file_range", "syncfs"]
        assert libc.calls[1] == ("syncfs", folder) and not synced
    else:
        assert synced == ["x", tmp_path.name] and not libc.calls


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_an_error_of_the_disk_is_raised(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: int, number: int
) -> None:
    use(monkeypatch, Libc(error=number))
    kind = OSError if number == errno.EIO else DeviceDiskError
    with pytest.raises(kind, match=os.strerror(number)), disk.filling("x"):
        disk.sync_tree(str(tmp_path), folder)


def test_the_system_answers(folder: int) -> None:
    disk.sync_file_system(folder)
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        disk.sync_file_system(-1)
