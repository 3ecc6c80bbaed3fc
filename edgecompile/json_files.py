"""Strict JSON objects that a device wrote, read with the checks that a bundle's own JSON passes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edgecompile.errors import BundleError, EdgecompileError
from edgecompile.runtime.format.document import parse_json


@contextmanager
def refused_as(error: type[EdgecompileError], hint: str | None = None) -> Iterator[None]:
    """Turns what the checks of :mod:`edgecompile.runtime.format.document` raise into another error."""
    try:
        yield
    except BundleError as found:
        raise error(found.message, found.hint or hint) from found


def read_object(
    path: str | os.PathLike[str],
    error: type[EdgecompileError],
    *,
    max_bytes: int,
    hint: str | None = None,
) -> tuple[dict[str, Any], bytes]:
    """Reads a file that holds one JSON object, and gives its bytes, too.

    Keys that occur twice, NaN, infinities, integers over 64 bits and deep nesting are refused.

    Args:
        path: the file.
        error: the class to raise.
        max_bytes: the most that is looked at.
        hint: the cure to tell with every refusal.

    Raises:
        EdgecompileError: an error of the class ``error``: the file can't be read, or isn't such an object.
    """
    name = os.fspath(path)
    try:
        with Path(path).open("rb") as stream:
            data = stream.read(max_bytes + 1)
    except OSError as found:
        raise error(f"{name}: can't be read: {found.strerror or found}", hint) from found
    except ValueError as found:  # a NUL byte in the path
        raise error(f"{name!r}: not a path: {found}", hint) from found
    with refused_as(error, hint):
        return parse_json(data, name, max_bytes), data
