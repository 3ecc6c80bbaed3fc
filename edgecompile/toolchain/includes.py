"""The headers that a source includes: what its object depends on, beside the compiler's and torch's own."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

_SPACE = rb"(?:[ \t]|/\*.*?\*/)*"
#: A directive, also behind a comment, with what it names unless a macro does.
_INCLUDE = re.compile(
    rb"^(?:.*\*/)?[ \t]*#"
    + _SPACE
    + rb"(?:include(_next)?|import)\b"
    + _SPACE
    + rb'(?:"([^"\n]+)"|<([^>\n]+)>)?',
    re.MULTILINE,
)
#: Other spellings of directives, and a condition on headers that may be elsewhere.
_UNSEEN = re.compile(rb"%:|\?\?=|\?\?/|#[ \t]*\\|__has_include")


class Includes:
    """The headers in some folders, found by what includes them. Each is read once.

    Conditions of the preprocessor are ignored, so a header counts even where it is left out.

    Args:
        folders: the folders of headers, in the compiler's order.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = tuple(folders)
        self._read: dict[Path, tuple[bytes, tuple[Path, ...]]] = {}

    def find(self, source: bytes) -> list[Path]:
        """The headers that a source includes, directly or through others, in the order of the directives.

        Headers that are in none of the folders don't count. All headers count where a macro names one, where a
        directive begins with a digraph, and where ``__has_include`` asks for one.
        """
        left = [*reversed(self._named(source, None))]
        found: dict[Path, None] = {}
        while left:
            header = left.pop()
            if header not in found:
                found[header] = None
                left += reversed(self._content(header)[1])
        return [*found]

    def identify(self, source: bytes) -> str:
        """Identifies the paths and contents of these headers, wherever the folders lie."""
        digest = hashlib.sha256()
        for header in self.find(source):
            digest.update(self._place(header).encode() + b"\0" + self._content(header)[0])
        return digest.hexdigest()

    def _content(self, header: Path) -> tuple[bytes, tuple[Path, ...]]:
        """The hash of a header, and the headers that it names."""
        if header not in self._read:
            text = header.read_bytes()
            self._read[header] = hashlib.sha256(text).digest(), self._named(text, header.parent)
        return self._read[header]

    def _named(self, text: bytes, own: Path | None) -> tuple[Path, ...]:
        """The headers that a text names; ``own`` is its folder, None where that holds no headers."""
        found: list[Path] = [*self._every] if _UNSEEN.search(text) else []
        for later, quoted, bracketed in _INCLUDE.findall(text):
            name = (quoted or bracketed).decode()
            if not name:
                found += self._every
                continue
            folders = self._folders if own is None or not quoted else (own, *self._folders)
            # Without "..", by which headers that include each other would get a new path each time.
            paths = [Path(os.path.normpath(folder / name)) for folder in folders]
            there = [path for path in paths if path.is_file()]
            found += there if later else there[:1]
        return tuple(found)

    @cached_property
    def _every(self) -> tuple[Path, ...]:
        return tuple(h for folder in self._folders for h in sorted(folder.rglob("*.h")))

    def _place(self, header: Path) -> str:
        """A header's path below the first folder that has it."""
        for index, folder in enumerate(self._folders):
            if header.is_relative_to(folder):
                return f"{index} {header.relative_to(folder).as_posix()}"
        return header.name
