"""Files of requests: when each arrived, and how long it was."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

from edgecompile.errors import LengthsError
from edgecompile.lengths.rows import MAX_LENGTH

_MOST_SHOWN = 10


def read_trace(path: str | os.PathLike[str]) -> list[tuple[float, int]]:
    """The requests of a CSV file with rows ``seconds,length``, ascending, from 0 seconds on.

    Raises:
        LengthsError: it can't be read, or rows are no such thing; the first ten are named.
    """
    return [(at, length) for at, length in _read_rows(path, ("length",), "0.125,17")]


def read_text_trace(path: str | os.PathLike[str]) -> list[tuple[float, int, int]]:
    """The same of rows ``seconds,length,new``, with the tokens of a prompt and of the new text.

    Raises:
        LengthsError: as of ``read_trace``.
    """
    rows = _read_rows(path, ("length", "new"), "0.125,17,40")
    return [(at, length, new) for at, length, new in rows]


def _read_rows(
    path: str | os.PathLike[str], counts: tuple[str, ...], example: str
) -> list[tuple[Any, ...]]:
    """Rows of seconds, from 0 on, and of whole numbers from 1 on."""
    name = os.fspath(path)
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise LengthsError(f"{name}: can't be read: {error}") from None
    requests: list[tuple[Any, ...]] = []
    problems = []
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or (number == 1 and text.lower().startswith("seconds")):
            continue
        parts = text.split(",")
        try:
            at, found = float(parts[0]), [int(part) for part in parts[1:]]
            if len(found) != len(counts) or not math.isfinite(at):
                raise ValueError
            if not all(1 <= count <= MAX_LENGTH for count in found):
                raise ValueError
        except ValueError:
            problems.append(f"line {number}: {text[:60]!r}")
            continue
        requests.append((at, *found))
    if problems:
        more = len(problems) - _MOST_SHOWN
        listed = "\n  ".join(problems[:_MOST_SHOWN]) + (f"\n  and {more} more" if more > 0 else "")
        raise LengthsError(
            f"{name}: these rows aren't {','.join(('seconds', *counts))}:\n  {listed}",
            hint=f"a row is a time in seconds and a whole number of tokens for each column: {example}",
        )
    if not requests:
        raise LengthsError(f"{name}: has no requests")
    requests.sort()
    first = requests[0][0]
    return [(at - first, *found) for at, *found in requests]
