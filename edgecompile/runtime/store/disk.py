"""Changes of files and folders, each on the disk before the next one builds on it.

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


def sync_folder(path: str) -> None:
    """Waits until the disk has the names in a folder."""
    _sync(path, _FOLDER)


def _sync(path: str, flags: int) -> None:
    fd = os.open(path, flags)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_tree(path: str) -> None:
    """Waits until the disk has a folder with all that is in it; its own name is synced later."""
    if sync_file_system(path):
        return
    for folder, _, names in os.walk(path, topdown=False):
        for name in names:
            _sync(os.path.join(folder, name), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        sync_folder(folder)


def sync_file_system(path: str) -> bool:
    """Waits until the disk has all of a file system, where that is as good as an fsync of each file.

    A disk takes milliseconds for each flush, and a bundle has hundreds of files.

    Args:
        path: the path of a folder in it.

    Returns:
        Whether it did.

    Raises:
        OSError: the disk can't be written.
    """
    release = re.match(r"(\d+)\.(\d+)", os.uname().release)
    if release is None or tuple(map(int, release.groups())) < _SYNCFS_LINUX:
        return False
    fd = os.open(path, _FOLDER)
    try:
        facts = ctypes.create_string_buffer(256)  # a statfs, which begins with the magic number
        if _libc.fstatfs(fd, facts):
            return False
        if ctypes.c_ulong.from_buffer(facts).value not in _SYNCED_AT_ONCE:
            return False
        if _libc.syncfs(fd):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return True
    finally:
        os.close(fd)


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
    """Writes a new file that nobody may write to; the disk begins with it, and ``sync_tree`` waits."""
    fd = os.open(path, _NEW_FILE, 0o600)
    try:
        for part in parts:
            view = memoryview(part)
            while view:
                view = view[os.write(fd, view) :]
        os.fchmod(fd, 0o444)
        whole = ctypes.c_int64(0)  # from 0, to the end
        _libc.sync_file_range(fd, whole, whole, _SYNC_FILE_RANGE_WRITE)
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
