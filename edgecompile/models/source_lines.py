"""Lines of a model's code, out of the texts in which torch and Python name them."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePath

import torch

_TORCH = str(Path(torch.__file__).parent)
_OWN = str(Path(__file__).parents[1])
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)(?:\n[ \t]+(?!File ")([^\n]+))?')
_TEXT = re.compile(r"(?:^|\(at )([^\s()][^()]*?):(\d+) in ([^\s:()]+)(?:: (.*?))?\)?$", re.DOTALL)


@dataclass(frozen=True)
class SourceLine:
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


def line_of_trace(trace: str | None) -> SourceLine | None:
    """The innermost line of a stack trace that is the model's own; None without one."""
    users = [match for match in _FRAME.finditer(trace or "") if is_user_code(match[1])]
    return _place(users[-1]) if users else None


def line_of_text(text: str | None) -> SourceLine | None:
    """The line that a message of ours names as ``file.py:12 in forward: code``, or ``(at …)``."""
    match = _TEXT.search(text or "")
    return None if match is None else _place(match)


def _place(match: re.Match[str]) -> SourceLine:
    return SourceLine(match[1], int(match[2]), match[3], (match[4] or "").strip())


def user_lines(frames: Iterable[traceback.FrameSummary]) -> tuple[SourceLine, ...]:
    """Those of the model's own code among the frames of a stack."""
    return tuple(
        SourceLine(frame.filename, frame.lineno or 0, frame.name, (frame.line or "").strip())
        for frame in frames
        if is_user_code(frame.filename)
    )


def lines_of_error(error: BaseException) -> tuple[SourceLine, ...]:
    """The calls of the model's code that led to an error, outermost first.

    Looks at what caused the error where there is a cause: the error itself is ours.
    """
    return user_lines(traceback.extract_tb((error.__cause__ or error).__traceback__))


def is_user_code(filename: str) -> bool:
    """Whether a file of a traceback belongs to the model rather than to torch, Python or us."""
    return not (filename.startswith((_TORCH, _OWN, "<")) or "/importlib/" in filename)
