"""Files that commands write: whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["write_json", "write_text"]


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes a file beside its final name and renames it, so that no reader sees half of it.

    Raises:
        OSError: it can't be written; the file that stood there before still stands.
    """
    target = Path(path)
    if target.exists() and not target.is_file():
        # A pipe or /dev/stdout can't be replaced; what goes there is read as it comes.
        target.write_text(text, encoding="utf-8")
        return
    try:
        _replace(target, text)
    except OSError as error:
        error.filename = str(target)  # nobody knows the temporary name
        raise


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


def write_json(path: str | os.PathLike[str], document: Mapping[str, Any]) -> None:
    """Writes a JSON document; see :func:`write_text`."""
    write_text(path, json.dumps(document, indent=1, allow_nan=False) + "\n")


def _umask() -> int:
    # The only way to read it is to set it.
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
