"""Files of requests: when each arrived, and how long it was."""

from __future__ import annotations

import math
import os
from pathlib import Path

from edgecompile.errors import LengthsError
from edgecompile.lengths.rows import MAX_LENGTH

_MOST_SHOWN = 10


def read_trace(path: str | os.PathLike[str]) -> list[tuple[float, int]]:
    """The requests of a CSV file with rows ``seconds,length``, ascending, from 0 seconds on.

    Raises:
        LengthsError: it can't be read, or rows are no such thing; the first ten are named.
    """
    name = os.fspath(path)
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise LengthsError(f"{name}: can't be read: {error}") from None
    requests: list[tuple[float, int]] = []
    problems = []
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or (number == 1 and text.lower().startswith("seconds")):
            continue
        parts = text.split(",")
        try:
            at, length = float(parts[0]), int(parts[1])
            if len(parts) != 2 or not math.isfinite(at) or not 1 <= length <= MAX_LENGTH:
                raise ValueError
        except (ValueError, IndexError):
            problems.append(f"line {number}: {text[:60]!r}")
            continue
        requests.append((at, length))
    if problems:
        more = len(problems) - _MOST_SHOWN
        listed = "\n  ".join(problems[:_MOST_SHOWN]) + (f"\n  and {more} more" if more > 0 else "")
        raise LengthsError(
            f"{name}: these rows aren't seconds,length:\n  {listed}",
            hint="a row is a time in seconds and a whole number of tokens: 0.125,17",
        )
    if not requests:
        raise LengthsError(f"{name}: has no requests")
    requests.sort()
    first = requests[0][0]
    return [(at - first, length) for at, length in requests]
