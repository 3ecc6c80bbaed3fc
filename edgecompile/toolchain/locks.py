"""Locks of the cache, on which processes that make the same thing wait for one another."""

from __future__ import annotations

import errno
import fcntl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

#: Some network file systems lock no files.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Lets one thread of all processes go on at a time; all of them where the file system has no locks.

    Raises:
        OSError: the file can't be written or locked.
    """
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        try:
            yield
        finally:
            # The file's end alone wouldn't unlock it: a process forked meanwhile has it open, too.
            with suppress(OSError):  # it was never locked
                fcntl.flock(lock, fcntl.LOCK_UN)
