"""Hashes of files, and files that are written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

__all__ = ["file_sha256", "hash_tree", "write_json", "write_text"]

#: What version control and downloads keep for themselves: no loader of models reads it.
_FOREIGN = (".git", ".cache")


def file_sha256(path: Path) -> str:
    """Hex SHA-256 of a file, read in blocks.

    Raises:
        OSError: it can't be read.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def hash_tree(path: Path) -> dict[str, str]:
    """SHA-256 of every file below a folder, whole, by its path there; or of the one file.

    Linked folders count as if they were there. The folders ``.git`` and ``.cache`` don't count. A
    file that can't be read, or is gone by then, counts as such: nobody else reads it either.

    Raises:
        OSError: a single file can't be read.
    """
    if not path.is_dir():
        return {path.name: file_sha256(path)}
    found = {}
    for file in sorted(_files(path)):
        try:
            found[file.relative_to(path).as_posix()] = file_sha256(file)
        except (PermissionError, FileNotFoundError):
            found[file.relative_to(path).as_posix()] = "can't be read"
    return found


def _files(folder: Path) -> Iterator[Path]:
    seen = set()
    for place, folders, names in os.walk(folder, followlinks=True):
        # By its real path: links may lead around in a circle.
        real = os.path.realpath(place)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = [name for name in folders if name not in _FOREIGN]
        yield from (file for name in names if (file := Path(place, name)).is_file())


def write_json(path: Path, value: object) -> None:
    """Writes a stage's file; a reader sees the old one or the new one."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(value, indent=1) + "\n")
    os.replace(partial, path)


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Writes a file beside its final name and renames it, so that no reader sees half of it.

    Returns:
        Its path.

    Raises:
        OSError: it can't be written; the file that stood there before still stands.
    """
    target = Path(path)
    if target.exists() and not target.is_file():
        # A pipe or /dev/stdout can't be replaced; what goes there is read as it comes.
        target.write_text(text, encoding="utf-8")
        return target
    try:
        _replace(target, text)
    except OSError as error:
        error.filename = str(target)  # nobody knows the temporary name
        raise
    return target


def _replace(target: Path, text: str) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def _umask() -> int:
    # The only way to read it is to set it.
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
