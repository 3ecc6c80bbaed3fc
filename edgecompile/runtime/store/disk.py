"""Changes of files and folders, each on the disk before the next one builds on it.

All of a store's changes are made here and by ``format.output.write_output``, so that a test can cut the power at each.
"""

import contextlib
import errno
import os
import stat
from typing import Iterable, Iterator

from ..base.errors import DeviceDiskError

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_FOLDER = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY


#: Errors for want of space, or of a quota of it.
FULL = (errno.ENOSPC, errno.EDQUOT)


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
    fd = os.open(path, _FOLDER)
    try:
        os.fsync(fd)
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
    """Writes a new file that nobody may write to, and waits for its content, but not for its name."""
    fd = os.open(path, _NEW_FILE, 0o600)
    try:
        for part in parts:
            view = memoryview(part)
            while view:
                view = view[os.write(fd, view) :]
        os.fchmod(fd, 0o444)
        os.fsync(fd)
    finally:
        os.close(fd)


def link(source: str, path: str) -> None:
    """Gives a file another name; its folder is synced later."""
    os.link(source, path, follow_symlinks=False)


def seal_folder(path: str) -> None:
    """Makes a folder one that nobody may write to, and waits for its names."""
    os.chmod(path, 0o555)
    sync_folder(path)


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
