"""Hashes of files that are open, and the facts by which a file is known again."""

import hashlib
import os
from typing import Optional, Tuple

from ..manifest.schema import MANIFEST_NAME, FileEntry

_CHUNK = 1 << 20


def file_state(info: os.stat_result) -> Tuple[int, ...]:
    """Facts that change with the content of a file: device, inode, size in bytes, times in ns.

    A writer can set the time of modification back, but not the one of change (ctime).
    """
    return (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)


def linked_state(info: os.stat_result) -> Tuple[int, ...]:
    """``file_state`` without the time of change (ctime), which a further link to the file changes, too."""
    return file_state(info)[:-1]


def bundle_state(path: str) -> Optional[Tuple[int, ...]]:
    """Facts that every new version at a bundle's path changes; None: there is no bundle."""
    try:
        return linked_state(os.stat(os.path.join(path, MANIFEST_NAME)))
    except OSError:
        return None


def find_hash_damage(fd: int, entry: FileEntry) -> Optional[Tuple[str, str]]:
    """(rule, text) if what ``fd`` holds isn't what ``entry`` says, or None."""
    try:
        digest, size = hash_descriptor(fd, entry.size)
    except OSError as error:
        return "file-hash", "can't be read: {}".format(error.strerror)
    if size != entry.size:
        return "file-size-differs", "has {} bytes, must have {}".format(size, entry.size)
    if digest != entry.sha256:
        return "file-hash", "has SHA-256 {}, must have {}".format(digest, entry.sha256)
    return None


def hash_descriptor(fd: int, limit: int) -> Tuple[str, int]:
    """SHA-256 in hex and size in bytes of what ``fd`` holds, from its start.

    Stops where more than ``limit`` bytes were read, so a file that grows meanwhile takes no longer.
    Read, not mapped: hashing must not add the file to the process' resident memory.
    """
    digest = hashlib.sha256()
    buffer = bytearray(_CHUNK)
    view = memoryview(buffer)
    offset = 0
    while True:
        count = os.preadv(fd, [buffer], offset)
        digest.update(view[:count])
        offset += count
        if count == 0 or offset > limit:
            return digest.hexdigest(), offset
