"""Lines of a model's code, out of the texts in which torch and Python name them."""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from edgecompile.files import plain_fields
from edgecompile.models.modules import is_user_code

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)(?:\n[ \t]+(?!File ")([^\n]+))?')
_TEXT = re.compile(r"(?:^|\(at )([^\s()][^()]*?):(\d+) in ([^\s:()]+)(?:: (.*?))?\)?$", re.DOTALL)


@dataclass(frozen=True)
class Place:
    """A line of code: its file, its number, the function around it and what it says."""

    file: str
    line: int
    function: str
    code: str = ""

    def __str__(self) -> str:
        where = f"{self.file}:{self.line} in {self.function}"
        return f"{where}: {self.code}" if self.code else where

    @property
    def short(self) -> str:
        """``file.py:12``, for tables."""
        return f"{PurePath(self.file).name}:{self.line}"

    def to_json(self) -> dict[str, Any]:
        """A dict of plain values."""
        return plain_fields(self)


def place_of_trace(trace: str | None) -> Place | None:
    """The innermost line of a stack trace that is the model's own; None without one."""
    found = None
    for match in _FRAME.finditer(trace or ""):
        if is_user_code(match[1]):
            found = Place(match[1], int(match[2]), match[3], (match[4] or "").strip())
    return found


def place_of_text(text: str | None) -> Place | None:
    """The line that a message of ours names as ``file.py:12 in forward: code``, or ``(at …)``."""
    match = _TEXT.search(text or "")
    if match is None:
        return None
    return Place(match[1], int(match[2]), match[3], (match[4] or "").strip())


def places_of_error(error: BaseException) -> tuple[Place, ...]:
    """The calls of the model's code that led to an error, outermost first.

    Looks at what caused the error where there is a cause: the error itself is ours.
    """
    cause = error.__cause__ or error
    frames = traceback.extract_tb(cause.__traceback__)
    return tuple(
        Place(frame.filename, frame.lineno or 0, frame.name, (frame.line or "").strip())
        for frame in frames
        if is_user_code(frame.filename)
    )
