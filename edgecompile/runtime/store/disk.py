"""Changes of files and folders, of which a loss of power leaves a whole version.

A new folder is filled first, and ``sync_tree`` waits for all of it. What builds on it comes afterwards: ``rename``
and ``point`` wait for the disk by themselves.

All of a store's changes are made here and by ``format.output.write_output``, so that a test can cut the power at each.
"""

import contextlib
import ctypes
import errno
import os
import re
import stat
from typing import Iterable, Iterator

from ..base.errors import DeviceDiskError

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_FOLDER = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY

#: Errors for want of space, or of a quota of it.
FULL = (errno.ENOSPC, errno.EDQUOT)
#: Magic numbers of the file systems whose syncfs waits for the disk: ext2 to ext4, XFS, Btrfs and F2FS.
_SYNCED_AT_ONCE = (0xEF53, 0x58465342, 0x9123683E, 0xF2F52010)
#: Before it, syncfs told nobody of an error.
_SYNCFS_LINUX = (5, 8)
_SYNC_FILE_RANGE_WRITE = 2
_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def filling(target: str) -> Iterator[None]:
    """A block that writes to ``target``; it raises DeviceDiskError where there is too little space."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise DeviceDiskError("{}: {}".format(target, error.strerror)) from None
        raise


@contextlib.contextmanager
def open_folder(path: str) -> Iterator[int]:
    """A descriptor of a folder, which the context closes."""
    fd = os.open(path, _FOLDER)
    try:
        yield fd
    finally:
        os.close(fd)


def sync_folder(path: str) -> None:
    """Waits until the disk has the names in a folder."""
    with open_folder(path) as fd:
        os.fsync(fd)


def sync_tree(path: str, fd: int) -> None:
    """Waits until the disk has a folder with all that is in it; its own name is synced later.

    Args:
        path: the path of the folder, whose files ``write_file`` wrote.
        fd: a folder of its file system, opened before the first of these files. The kernel tells a descriptor no
            error that another process heard of before.

    Raises:
        OSError: the disk can't be written.
    """
    if is_synced_at_once(fd):
        sync_file_system(fd)
        return
    for folder, _, _ in os.walk(path, topdown=False):
        sync_folder(folder)


def is_synced_at_once(fd: int) -> bool:
    """Whether ``sync_file_system`` is as good as an fsync of each file; ``fd`` is one of the file system.

    A disk takes milliseconds for each flush, and a bundle has hundreds of files.
    """
    release = re.match(r"(\d+)\.(\d+)", os.uname().release)
    if release is None or tuple(map(int, release.groups())) < _SYNCFS_LINUX:
        return False
    facts = ctypes.create_string_buffer(256)  # a statfs, which begins with the magic number
    if _libc.fstatfs(fd, facts):
        return False
    return ctypes.c_ulong.from_buffer(facts).value in _SYNCED_AT_ONCE


def sync_file_system(fd: int) -> None:
    """Waits until the disk has all of the file system of ``fd``.

    Raises:
        OSError: the disk couldn't be written since ``fd`` was opened.
    """
    if _libc.syncfs(fd):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def make_folder(path: str, mode: int = 0o755) -> None:
    """Makes a folder that others may read, where there is none, and waits for its name."""
    add_folder(path, mode)
    # Also an older one's: whoever made it may have been killed before the disk had it.
    sync_folder(os.path.dirname(path))


def add_folder(path: str, mode: int = 0o755) -> None:
    """Makes a folder where there is none; the one that it is in is synced later."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, mode)


def add_parents(path: str) -> None:
    """Makes the folders that a file will be in, where there are none, as ``add_folder`` does."""
    missing = []
    folder = os.path.dirname(path)
    while not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for folder in reversed(missing):
        add_folder(folder)


def write_file(path: str, parts: Iterable[bytes]) -> None:
    """Writes a new file that nobody may write to.

    The disk has its content, or begins with it where ``sync_tree`` waits for all files together. Only the
    descriptor that wrote a file surely hears of an error.
    """
    fd = os.open(path, _NEW_FILE, 0o600)
    try:
        for part in parts:
            view = memoryview(part)
            while view:
                view = view[os.write(fd, view) :]
        os.fchmod(fd, 0o444)
        if is_synced_at_once(fd):
            whole = ctypes.c_int64(0)  # from 0, to the end
            _libc.sync_file_range(fd, whole, whole, _SYNC_FILE_RANGE_WRITE)
        else:
            os.fsync(fd)
    finally:
        os.close(fd)


def link(source: str, path: str) -> None:
    """Gives a file another name; ``sync_tree`` waits for it."""
    os.link(source, path, follow_symlinks=False)


def seal_folder(path: str) -> None:
    """Makes a folder one that nobody may write to; ``sync_tree`` waits for it."""
    os.chmod(path, 0o555)


def rename(path: str, target: str) -> None:
    """Moves a folder within its parent, and waits for its name."""
    os.rename(path, target)
    sync_folder(os.path.dirname(target))


def point(path: str, target: str) -> None:
    """Makes a link that points to ``target``, or points it there at once; waits for it in any case."""
    beside = path + ".new"
    if not os.path.islink(path) or os.readlink(path) != target:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(beside)
        os.symlink(target, beside)
        os.replace(beside, path)
    sync_folder(os.path.dirname(path))


def remove(path: str) -> None:
    """Removes a file, or a folder with all that is in it; a link isn't followed."""
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        os.unlink(path)
        return
    os.chmod(path, 0o700)
    for name in os.listdir(path):
        remove(os.path.join(path, name))
    os.rmdir(path)
