"""Refusals by the system of a sound bundle: open files, permission, memory, mounts without code.

Told apart from damage, whose cure, another copy of the bundle, helps against none of these.
"""

import contextlib
import errno
import mmap
import os
import resource
from typing import Callable, Dict, Iterator, Optional

from .errors import (
    FilePermissionError,
    HostLimitError,
    MemoryLimitError,
    NoExecError,
    OpenFilesError,
)


def explain_errno(number: int, where: str) -> Optional[HostLimitError]:
    """The error for an errno of a failed open, read or map; None if it isn't about a limit.

    Args:
        number: such as ``errno.EMFILE``.
        where: the file or folder.
    """
    make = _EXPLAINED.get(number)
    return None if make is None else make(where)


def raise_limit(error: OSError, where: str) -> None:
    """Raises a HostLimitError where it is the system that refuses, and nothing is damaged."""
    limit = explain_errno(error.errno or 0, where)
    if limit is not None:
        raise limit from None


def explain_loading(text: str, where: str, path: str) -> Optional[HostLimitError]:
    """The error for what the dynamic loader said of a library; None if it isn't about a limit.

    Args:
        text: the loader's words, which may have the system's own text for an errno.
        where: the library, for people.
        path: the file that was to be loaded.
    """
    numbers = [number for number in _EXPLAINED if os.strerror(number) in text]
    number = numbers[0] if numbers else _try_mapping(path)
    if not number and "map segment" in text:
        number = errno.ENOMEM  # a library takes more address space than its file
    if number in (errno.EPERM, errno.EACCES):
        # A file that was opened and hashed may be read: what isn't allowed is to run it.
        return _no_exec(where, path)
    return explain_errno(number, where)


def no_memory(doing: str, needed: int = 0) -> MemoryLimitError:
    """The error where memory or address space is lacking for what is being done.

    Args:
        doing: what, for people.
        needed: bytes that it takes at least; 0 if that isn't known.
    """
    parts = ["out of memory"] if not needed else ["no memory for {} bytes".format(needed)]
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    used = _address_space()
    hint = "free memory, or use a smaller bundle or smaller inputs"
    if limit != resource.RLIM_INFINITY:
        parts.append("the process may have {} bytes of address space".format(limit))
        hint = "raise the limit of address space: ulimit -v, or RLIMIT_AS of the service"
    if used:
        parts.append("{} are in use".format(used))
    return MemoryLimitError("{}: {}".format(doing, ", ".join(parts)), hint)


@contextlib.contextmanager
def memory_for(doing: str) -> Iterator[None]:
    """Turns a MemoryError, which says nothing, into one that says what was being done."""
    try:
        yield
    except MemoryLimitError:
        raise
    except MemoryError as error:
        detail = str(error)  # numpy's says what was to be allocated
        raise no_memory("{}: {}".format(doing, detail) if detail else doing) from None


def _too_many_files(where: str) -> HostLimitError:
    text = "{}: can't be opened: this process has as many files open as it may, {}"
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    hint = "raise the limit: ulimit -n, or LimitNOFILE of the service; or close files"
    return OpenFilesError(text.format(where, limit), hint)


def _too_many_on_system(where: str) -> HostLimitError:
    text = "{}: can't be opened: the whole system has as many files open as it may"
    return OpenFilesError(text.format(where), "raise fs.file-max (sysctl), or end other programs")


def _not_permitted(where: str) -> HostLimitError:
    text = "{}: user {} isn't permitted to read it"
    return FilePermissionError(
        text.format(where, os.geteuid()),
        "give this user the right: chmod -R a+rX BUNDLE, and x on each folder above it",
    )


def _no_exec(where: str, path: str) -> HostLimitError:
    text = "{}: the system doesn't let code run from it{}"
    why = ": its file system is mounted noexec" if _mounted_noexec(path) else ""
    return NoExecError(
        text.format(where, why),
        "mount it without noexec, or move the bundle to another file system"
        if why
        else "see what the security module logs, SELinux or AppArmor, or move the bundle",
    )


_EXPLAINED: Dict[int, Callable[[str], HostLimitError]] = {
    errno.ENFILE: _too_many_on_system,  # first: its text begins with EMFILE's
    errno.EMFILE: _too_many_files,
    errno.EACCES: _not_permitted,
    errno.EPERM: _not_permitted,
    errno.ENOMEM: no_memory,
}


def _try_mapping(path: str) -> int:
    """The errno of mapping a file as code is mapped; 0: none. The loader doesn't always tell it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            mmap.mmap(fd, 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC).close()
        finally:
            os.close(fd)
    except OSError as error:
        return error.errno or 0
    except ValueError:  # an empty file
        pass
    return 0


def _mounted_noexec(path: str) -> bool:
    try:
        return bool(os.statvfs(path).f_flag & os.ST_NOEXEC)
    except (OSError, ValueError):
        return False


def _address_space() -> int:
    """Bytes of address space in use; 0 if that isn't known."""
    try:
        with open("/proc/self/statm", "rb") as stream:
            return int(stream.read().split()[0]) * mmap.PAGESIZE
    except (OSError, ValueError, IndexError):
        return 0
