"""Hashes of files, files that are written whole or not at all, and values as JSON has them."""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, BinaryIO

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
    hashes = {}
    for file in sorted(_files(path)):
        try:
            hashes[file.relative_to(path).as_posix()] = file_sha256(file)
        except (PermissionError, FileNotFoundError):
            hashes[file.relative_to(path).as_posix()] = "can't be read"
    return hashes


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


def plain(value: Any) -> Any:
    """A value of JSON types: dataclasses as dicts of their fields, sequences as lists, NaN as None, and
    of paths the last name. What has a ``to_json`` is what that gives."""
    if hasattr(value, "to_json"):
        return value.to_json()
    if is_dataclass(value):
        return plain_fields(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and value != value:
        return None
    return value.name if isinstance(value, Path) else value


def plain_fields(value: Any) -> dict[str, Any]:
    """The fields of a dataclass as :func:`plain` values, for its own ``to_json``."""
    return {item.name: plain(getattr(value, item.name)) for item in fields(value)}


def write_json(path: Path, value: object) -> None:
    """Writes a JSON file; a reader sees the old one or the new one, whole."""
    with replacing(path) as file:
        file.write((json.dumps(value, indent=1) + "\n").encode())


@contextmanager
def replacing(path: Path, *, sync: bool = False) -> Iterator[BinaryIO]:
    """A file that gets its name when it is whole, and with ``sync`` on the disk; else nothing is left.

    Several may write the same file at once, in threads or processes.
    """
    partial = path.with_name(f".{uuid.uuid4().hex}.{path.name}.partial")
    try:
        with partial.open("xb") as file:
            yield file
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


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
        with replacing(target, sync=True) as file:
            file.write(text.encode())
    except OSError as error:
        error.filename = str(target)  # nobody knows the temporary name
        raise
    return target


def write_document(path: str | os.PathLike[str], document: Mapping[str, Any]) -> Path:
    """Writes a JSON document for somebody else; as :func:`write_text`."""
    return write_text(path, json.dumps(document, indent=1, allow_nan=False) + "\n")
