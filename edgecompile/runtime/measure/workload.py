"""The lengths of a benchmark and how often each occurs."""

import os
from typing import Dict, List, Mapping, Optional, Tuple

from ..base.errors import InputError
from ..format.document import shorten
from ..format.manifest.schema import Manifest

MAX_LENGTHS_BYTES = 256 << 20

# The length (None without a length axis), the sizes of all axes, and how often it occurs.
Run = Tuple[Optional[int], Dict[str, int], int]


def read_lengths(path: str) -> Dict[int, int]:
    """Counts of lengths from a text file: one integer a line, or ``length,count``.

    Empty lines and lines that begin with ``#`` are skipped.

    Raises:
        InputError: the file can't be read or a line is something else; names the lines.
    """
    try:
        if os.path.getsize(path) > MAX_LENGTHS_BYTES:
            text = "{}: larger than {} bytes".format(path, MAX_LENGTHS_BYTES)
            raise InputError(text)
        with open(path, encoding="utf-8", errors="replace") as stream:
            lines = stream.read().splitlines()
    except OSError as error:
        raise InputError("{}: can't be read: {}".format(path, error.strerror)) from None
    counts: Dict[int, int] = {}
    problems = []
    for number, line in enumerate(lines, 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        fields = [item.strip() for item in line.split(",")]
        good = len(fields) <= 2 and all(
            item.isdigit() and item.isascii() and len(item) < 16 and int(item) > 0
            for item in fields
        )
        if good:
            length = int(fields[0])
            counts[length] = counts.get(length, 0) + (int(fields[1]) if len(fields) == 2 else 1)
        else:
            problems.append("line {}: {!r}".format(number, shorten(line)))
    if problems or not counts:
        what = "; ".join(problems[:10]) if problems else "no lengths"
        text = "{}: must hold a positive length, or length,count, in each line: {}"
        raise InputError(text.format(path, what))
    return counts


def plan_runs(
    manifest: Manifest, lengths: Optional[Mapping[int, int]]
) -> Tuple[List[Run], Dict[str, int]]:
    """Every distinct run, and how often lengths occur that no bucket takes.

    Other axes are at the hint of the first bucket that takes the length. Without ``lengths``, or
    without a length axis, the hints of every bucket are run once.
    """
    axis = manifest.length_axis
    hints = [
        {name: item.hint or item.hi for name, item in b.axes.items()} for b in manifest.buckets
    ]
    if axis is None or lengths is None:
        runs: List[Run] = []
        for sizes in hints:
            if all(sizes != other for _, other, _ in runs):
                runs.append((None if axis is None else sizes[axis], sizes, 1))
        return runs, {}
    runs, outside = [], {}
    for length, count in sorted(lengths.items()):
        for bucket, sizes in zip(manifest.buckets, hints):
            if length in bucket.axes[axis]:
                sizes = manifest.with_room(bucket, dict(sizes, **{axis: length}))
                runs.append((length, sizes, count))
                break
        else:
            outside[str(length)] = count
    return runs, outside
