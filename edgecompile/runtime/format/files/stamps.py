"""Stamps: files whose hash was compared since this machine's boot, so that the next process needn't.

A stamp is a small file in the user's runtime directory ($XDG_RUNTIME_DIR, else /run/user/UID). Only the user can write
there, and the directory ends with the boot. The stamp holds the boot's id, the hash and the file's facts: device, inode,
size and both times in nanoseconds. A write to the file changes its ctime, which can't be set back on file systems with
times of their own; those that keep whole seconds, such as FAT and squashfs, may tell an old one or the mtime.
Wherever anything is unusual there is no stamp, and the file is hashed. EDGECOMPILE_STAMPS=0 switches them off.
"""

import hashlib
import os
import stat
import time
from contextlib import suppress
from typing import Callable, Optional

from .hashes import file_state

VARIABLE = "EDGECOMPILE_STAMPS"

#: Age in ns from which a file's times count. A clock's tick is some milliseconds long, and who has mapped a file may
#: write again without a new time until the kernel has written its pages to the disk, within some 35 seconds.
_SETTLED_NS = 60 * 10**9

_FOLDER = "edgecompile-hashes"
_MOST = 256
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


def is_settled(info: os.stat_result) -> bool:
    """Whether a write to the file would change its times by now."""
    return time.time_ns() - max(info.st_mtime_ns, info.st_ctime_ns) > _SETTLED_NS


def find(info: os.stat_result, sha256: str) -> bool:
    """Whether the open file with these facts had this SHA-256 since the boot."""
    text = _text(info, sha256)
    folder = _open_folder() if text else -1
    if folder < 0:
        return False
    try:
        fd = os.open(_name(text), os.O_RDONLY | os.O_NONBLOCK | _OPEN, dir_fd=folder)
        try:
            return _is_own(os.fstat(fd), stat.S_ISREG) and os.read(fd, len(text) + 1) == text
        finally:
            os.close(fd)
    except OSError:
        return False
    finally:
        os.close(folder)


def keep(info: os.stat_result, sha256: str) -> None:
    """Writes the stamp of a file that had this SHA-256; where it can't be written there is none.

    Args:
        info: Facts from before the file was hashed.
        sha256: Its hash in hex.
    """
    text = _text(info, sha256)
    folder = _open_folder(make=True) if text else -1
    if folder < 0:
        return
    partial = "{}.{}.partial".format(_name(text), os.urandom(8).hex())
    try:
        _make_room(folder)
        fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN, 0o600, dir_fd=folder)
        try:
            os.write(fd, text)  # of a part of it, find() makes nothing
        finally:
            os.close(fd)
        os.rename(partial, _name(text), src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        with suppress(OSError):
            os.unlink(partial, dir_fd=folder)
    finally:
        os.close(folder)


def _text(info: os.stat_result, sha256: str) -> bytes:
    """The contents of a file's stamp; empty if the file can have none."""
    if os.environ.get(VARIABLE) == "0" or not is_settled(info) or not _is_trusted(info):
        return b""
    try:
        with open(_BOOT_ID, "rb") as file:
            boot = file.read(64).strip().decode("ascii")
    except (OSError, ValueError):
        return b""
    if not boot:
        return b""
    return " ".join([boot, sha256, *map(str, file_state(info))]).encode("ascii")


def _is_trusted(info: os.stat_result) -> bool:
    """Whether only this user or root can write to the file, on a disk of this machine.

    Devices without a major number are those of networks, of programs and of btrfs: their times may tell nothing. So
    may times in whole seconds; where others are kept, one file in 10^9 has such a time by chance.
    """
    if info.st_ctime_ns % 10**9 == 0:
        return False
    writable = info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return info.st_uid in (0, os.geteuid()) and not writable and os.major(info.st_dev) != 0


def _name(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:32]


def _open_folder(make: bool = False) -> int:
    """A descriptor of the folder of stamps; -1 where there is none that only this user can use."""
    base = os.environ.get("XDG_RUNTIME_DIR") or "/run/user/{}".format(os.geteuid())
    if not os.path.isabs(base):
        return -1
    outer = _open_own(base)
    if outer < 0:
        return -1
    try:
        if make:
            with suppress(OSError):  # it is there, or can't be made
                os.mkdir(_FOLDER, 0o700, dir_fd=outer)
        return _open_own(_FOLDER, outer)
    finally:
        os.close(outer)


def _open_own(path: str, at: Optional[int] = None) -> int:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _OPEN, dir_fd=at)
    except (OSError, ValueError):
        return -1
    if _is_own(os.fstat(fd), stat.S_ISDIR):
        return fd
    os.close(fd)
    return -1


def _is_own(info: os.stat_result, kind: Callable[[int], bool]) -> bool:
    """Whether it is of this kind and only this user can use it."""
    return kind(info.st_mode) and info.st_uid == os.geteuid() and not info.st_mode & _OTHERS


def _make_room(folder: int) -> None:
    """Removes all stamps where there are many: files are hashed once more then."""
    names = os.listdir(folder)
    if len(names) < _MOST:
        return
    for name in names:
        with suppress(OSError):  # another process was first
            os.unlink(name, dir_fd=folder)
