"""Lines of a model's code, out of the texts in which torch and Python name them."""

from __future__ import annotations

import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from types import FrameType

import torch
from torch import nn

# With a slash behind: torchvision isn't torch.
_TORCH = f"{Path(torch.__file__).parent}/"
_OWN = f"{Path(__file__).parents[1]}/"
_PYTHON = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib")})
#: Packages, which lie within Python's own folders; and those among them that hold no model: tools of torch and of ours.
_PACKAGE = re.compile(r"/(?:site|dist)-packages/([^/]+)")
_TOOLS = ("click", "mpmath", "numpy", "sympy")
#: The code that calls a module's forward.
_CALLS = (nn.Module.__call__.__code__, nn.Module._call_impl.__code__)
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)(?:\n[ \t]+(?!File ")([^\n]+))?')
_MODULE = re.compile(r"(?:^|\(at )(the module \S+ \(\w+\))\)?$")
_TEXT = re.compile(r"(?:^|\(at )([^\s()][^()]*?):(\d+) in ([^\s:()]+)(?:: (.*?))?\)?$", re.DOTALL)


@dataclass(frozen=True)
class SourceLine:
    """A line of code: its file, its number, the function around it and its text.

    Where only torch's modules run, ``file`` says which of them, and ``line`` is 0.
    """

    file: str
    line: int
    function: str
    code: str = ""

    def __str__(self) -> str:
        if not self.line:
            return self.file
        where = f"{self.file}:{self.line} in {self.function}"
        return f"{where}: {self.code}" if self.code else where

    @property
    def short(self) -> str:
        """``file.py:12``, for tables."""
        if not self.line:
            return self.file
        return f"{PurePath(self.file).name}:{self.line}"


def line_of_trace(trace: str | None) -> SourceLine | None:
    """The innermost line of a stack trace that is the model's own; None without one."""
    frames = list(_FRAME.finditer(trace or ""))
    # Whoever called us stands before all that is ours.
    first = next((i for i, match in enumerate(frames) if match[1].startswith(_OWN)), 0)
    users = [match for match in frames[first:] if is_user_code(match[1])]
    return _place(users[-1]) if users else None


def line_of_text(text: str | None) -> SourceLine | None:
    """The line that a message of ours names as ``file.py:12 in forward: code``, or ``(at …)``."""
    module = _MODULE.search(text or "")
    if module is not None:
        return SourceLine(module[1], 0, "")
    match = _TEXT.search(text or "")
    return None if match is None else _place(match)


def running_line() -> SourceLine | None:
    """The innermost line of the model's code that is running; without one, torch's module."""
    stack = [frame for frame, _ in traceback.walk_stack(sys._getframe(1))]
    # Whoever called us lies outside of all that is ours.
    own = [i for i, frame in enumerate(stack) if frame.f_code.co_filename.startswith(_OWN)]
    return _innermost(stack[: own[-1]] if own else [])


def line_of_error(error: BaseException) -> SourceLine | None:
    """The innermost line of the model's code that an error comes from; without one, torch's module."""
    return _innermost([frame for frame, _ in traceback.walk_tb(error.__traceback__)][::-1])


def _innermost(frames: Sequence[FrameType]) -> SourceLine | None:
    """The place of a stack, whose innermost frame comes first."""
    lines = user_lines(traceback.StackSummary.extract((f, f.f_lineno) for f in frames))
    if lines:
        return lines[0]
    modules: list[nn.Module] = []
    for frame in frames:
        module = frame.f_locals.get("self") if frame.f_code in _CALLS else None
        if isinstance(module, nn.Module):
            if type(module).__module__.partition(".")[0] == __name__.partition(".")[0]:
                break
            modules.append(module)
    if not modules:
        return None
    names = {id(module): name for name, module in modules[-1].named_modules()}
    name = names.get(id(modules[0])) or "itself"
    return SourceLine(f"the module {name} ({type(modules[0]).__name__})", 0, "")


def _place(match: re.Match[str]) -> SourceLine:
    return SourceLine(match[1], int(match[2]), match[3], (match[4] or "").strip())


def user_lines(frames: Iterable[traceback.FrameSummary]) -> tuple[SourceLine, ...]:
    """The frames of a stack that are in the model's own code."""
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
    if filename.startswith((_TORCH, _OWN, "<")):
        return False
    package = _PACKAGE.search(filename)
    if package is not None:
        return package[1] not in _TOOLS
    return not filename.startswith(_PYTHON)
