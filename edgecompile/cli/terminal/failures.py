"""Turns any exception into a message for people and a document for scripts."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import click

BROKEN_PIPE = 141  # 128 + SIGPIPE: what a program in C would have ended with
INPUT_OUTPUT = 74  # EX_IOERR of sysexits.h
INTERNAL = 70  # EX_SOFTWARE
INTERRUPTED = 130  # 128 + SIGINT

_FREE_SOME = "free some space, or put --output and --work-dir on another disk (TMPDIR too)"
#: A name as errors have it (``edgecompile.checks``), alone or with a value.
_NAMED = re.compile(r"`(\w+)(?:=([^`]*))?`")
#: What an error keeps for a program to read, and the flag that shows it.
_KEPT = {"__cause__": "--debug", "details": "--debug"}
_QUOTES = "'\""
_FULL = (errno.ENOSPC, errno.EDQUOT)
# What the compiler and torch's C++ writers say where they raise no OSError.
_FULL_TEXTS = ("No space left on device", "Disk quota exceeded")


@dataclass(frozen=True)
class Failure:
    """The exit code and the messages of a run that failed.

    Attributes:
        exit_code: the exit code of the process.
        message: the failure in words; empty if nobody is there to read it.
        hint: the cure, or None.
    """

    exit_code: int
    message: str
    hint: str | None = None

    def to_json(self, exc: BaseException) -> dict[str, Any]:
        """The document that ``--json`` prints in place of the result; ``exc`` is the error."""
        # click's classes for what is wrong with a command line are of no use outside.
        usage = isinstance(exc, click.UsageError)
        return {
            "error": {
                "code": self.exit_code,
                "class": "UsageError" if usage else type(exc).__name__,
                "message": self.message,
                "hint": self.hint,
            }
        }


def describe_failure(exc: BaseException) -> Failure:
    """Maps an exception to its message, hint and exit code."""
    # Late, because edgecompile.errors loads the runtime package, and --help must not.
    from edgecompile.errors import (
        DiskFullError,
        EdgecompileError,
        MissingDependencyError,
        UsageError,
    )
    from edgecompile.runtime.base.errors import MemoryLimitError
    from edgecompile.toolchain.torch_versions import note_untested

    if isinstance(exc, BrokenPipeError):
        return Failure(BROKEN_PIPE, "")
    if isinstance(exc, (KeyboardInterrupt, click.Abort)):
        return Failure(INTERRUPTED, "interrupted")
    if isinstance(exc, click.ClickException):
        return _usage(exc)
    if isinstance(exc, DiskFullError):  # names the disk; what caused it may name another one's file
        return Failure(exc.exit_code, exc.message, exc.hint or _FREE_SOME)
    full = _disk_full(exc)
    if full is not None:
        return Failure(DiskFullError.exit_code, full, _FREE_SOME)
    if isinstance(exc, UsageError):
        return Failure(click.UsageError.exit_code, exc.message, exc.hint)
    if isinstance(exc, EdgecompileError):
        return Failure(exc.exit_code, exc.message, exc.hint)
    if isinstance(exc, ModuleNotFoundError) and not (exc.name or "").startswith("edgecompile"):
        name = exc.name or str(exc)
        return Failure(
            MissingDependencyError.exit_code,
            f"the Python package '{name}' is needed for this and isn't installed",
            "pip install 'edgecompile' brings what building needs",
        )
    if isinstance(exc, MemoryError):
        return Failure(
            MemoryLimitError.exit_code, "out of memory", "fewer --jobs need less memory at once"
        )
    if isinstance(exc, OSError):
        return Failure(INPUT_OUTPUT, _os_error(exc))
    cure = "run it again with --debug and report the traceback to the maintainers"
    if untested := note_untested():
        cure = f"{untested}; {cure}"
    return Failure(
        INTERNAL, f"a bug in edgecompile: {type(exc).__name__}: {exc}".rstrip(": "), cure
    )


def in_flags(text: str, params: Iterable[click.Parameter]) -> str:
    """The text of an error with a command line's flags in place of Python's names.

    Args:
        params: the parameters of the commands whose flags they are; of one name the last counts. A
            name that none has stays as it is: it may be the key of a file.
    """
    by_name: dict[str | None, click.Parameter] = {}
    for item in params:
        # Of some options the command's argument has another name than that of the function.
        by_name[item.opts[0].lstrip("-").replace("-", "_")] = by_name[item.name] = item
        if isinstance(item.envvar, str):
            by_name[item.envvar] = item

    def flag(match: re.Match[str]) -> str:
        name, value = match.groups(default="")
        item = by_name.get(name)
        if item is None:
            return _KEPT.get(name, match[0])
        if isinstance(item, click.Argument):
            return item.human_readable_name
        if isinstance(item, click.Option) and item.is_flag:
            return (item.secondary_opts or item.opts)[0] if value == "False" else item.opts[0]
        return f"{item.opts[0]} {value.strip(_QUOTES)}".rstrip()

    return _NAMED.sub(flag, text)


def _usage(exc: click.ClickException) -> Failure:
    hint = None
    if isinstance(exc, click.UsageError) and exc.ctx is not None:
        hint = f"see '{exc.ctx.command_path} --help'"
    return Failure(exc.exit_code, exc.format_message(), hint)


def _chain(exc: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while exc is not None and id(exc) not in seen:
        seen.add(id(exc))
        yield exc
        exc = exc.__cause__ or (None if exc.__suppress_context__ else exc.__context__)


def _disk_full(exc: BaseException) -> str | None:
    for link in _chain(exc):
        if isinstance(link, OSError) and link.errno in _FULL:
            return _os_error(link)
        for text in _FULL_TEXTS:
            if text in str(link):
                line = next(line for line in str(link).splitlines() if text in line)
                return line.strip()
    return None


def _os_error(exc: OSError) -> str:
    reason = exc.strerror or str(exc) or type(exc).__name__
    return f"{exc.filename}: {reason}" if exc.filename else reason
