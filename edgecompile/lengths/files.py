"""Reading files of sequence lengths.

The format is told from the content, never from the name, so a pipe works as a file does:

- an array as ``numpy.save`` writes it (one dimension, whole numbers, nothing pickled);
- one JSON document: a list of lengths, a histogram ``{"12": 3}``, or
  ``{"lengths": [...], "counts": [...]}`` (what :meth:`LengthDistribution.to_json` gives);
- rows, one per line: ``12``, ``12,3`` (length, count), or a JSON object
  ``{"length": 12, "count": 3}``. A first row may name its columns; then ``length`` and ``count``
  are found by name and other columns are ignored. ``#`` starts a comment, blank lines are skipped.

``12.0`` counts as 12, ``12.5`` is refused.
"""

from __future__ import annotations

import io
import json
import os
import tokenize
from collections import Counter
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from edgecompile.errors import LengthsError
from edgecompile.lengths.rows import (
    FORMS_HINT,
    MAX_LENGTH,
    MAX_TOTAL,
    PROBLEMS_SHOWN,
    WHOLE,
    Problems,
    RowReader,
    check_length,
    make_row,
    row_from_object,
    rows_hint,
    spell,
    whole_number,
)
from edgecompile.lengths.tables import count_rows, open_source, read_block, read_document

_NPY_MAGIC = b"\x93NUMPY"
_DENSE_LENGTHS = 1 << 20


@dataclass(frozen=True)
class CountedLengths:
    """What a file holds: samples per length, and the source that it recorded, if any."""

    counts: dict[int, int]
    recorded_source: str | None = None


def count_lengths(source: str | os.PathLike[str]) -> CountedLengths:
    """Counts the lengths in a file, or in standard input where ``source`` is ``"-"``.

    Raises:
        LengthsError: the file can't be opened, isn't in a known form, is empty, or holds values
            that aren't lengths (whole numbers from 1 to 2^31-1) or counts (from 1 up).
    """
    with open_source(source) as (stream, name):
        return _count_stream(stream, name)


def _count_stream(stream: BinaryIO, name: str) -> CountedLengths:
    head = read_block(stream)
    if head.startswith(_NPY_MAGIC):
        found = CountedLengths(_count_array(head + stream.read(), name))
    else:
        head = head.removeprefix(b"\xef\xbb\xbf")  # a byte order mark that some editors write
        if _is_one_document(head):
            found = _count_document(head, stream, name)
        else:
            reader = RowReader()
            found = CountedLengths(count_rows(head, stream, name, reader, rows_hint(head)))
    if not found.counts:
        raise LengthsError(f"{name}: holds no lengths", hint=FORMS_HINT)
    total = sum(found.counts.values())
    if total > MAX_TOTAL:
        raise LengthsError(
            f"{name}: {total} samples are more than {MAX_TOTAL}",
            hint="divide the counts by a common factor",
        )
    return found


# --- an array --------------------------------------------------------------------------------


def _count_array(data: bytes, name: str) -> dict[int, int]:
    try:
        array = np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, OSError, EOFError, MemoryError, SyntaxError, tokenize.TokenError) as error:
        raise LengthsError(
            f"{name}: not a readable .npy file: {error}",
            hint="write it with numpy.save(path, integer_array)",
        ) from error
    if array.ndim != 1 or array.dtype.kind not in "iuf":
        raise LengthsError(
            f"{name}: an array of shape {array.shape} and type {array.dtype}, "
            "but lengths need one dimension and an integer type",
            hint="write it with numpy.save(path, integer_array)",
        )
    if array.dtype.kind == "f":
        array = array.astype(np.float64)  # float16 can't be compared with the largest length
    bad = ~((array >= 1) & (array <= MAX_LENGTH))  # NaN compares false, so it is bad too
    if array.dtype.kind == "f":
        bad |= ~bad & (np.floor(array) != array)
    if bad.any():
        problems = Problems(name)
        indices = np.flatnonzero(bad)
        for index in indices[:PROBLEMS_SHOWN]:
            value = whole_number(array[index])
            reason = value if isinstance(value, str) else check_length(value)
            problems.add(f"element {index}", str(array[index]), str(reason))
        problems.total = len(indices)
        problems.raise_if_any()
    return count_values(array.astype(np.int64))


def count_values(array: npt.NDArray[Any]) -> dict[int, int]:
    """How often each integer occurs, ascending; the values aren't checked."""
    if array.size and array.min() >= 0 and array.max() <= _DENSE_LENGTHS:  # counting beats sorting
        counts = np.bincount(array)
        lengths = np.flatnonzero(counts)
        counts = counts[lengths]
    else:
        lengths, counts = np.unique(array, return_counts=True)
    return dict(zip(lengths.tolist(), counts.tolist(), strict=True))


# --- one JSON document -----------------------------------------------------------------------


def _is_one_document(head: bytes) -> bool:
    text = head.lstrip()
    if text.startswith(b"["):
        return True
    if not text.startswith(b"{"):
        return False
    first_line = text.split(b"\n", 1)[0]
    try:
        value = json.loads(first_line)
    except (ValueError, RecursionError):
        return True  # an object that goes on over the next lines
    return not (isinstance(value, dict) and "length" in value)


def _count_document(head: bytes, stream: BinaryIO, name: str) -> CountedLengths:
    return count_json(read_document(head, stream, name, FORMS_HINT), name)


def count_json(value: object, name: str) -> CountedLengths:
    """Counts the lengths in a decoded JSON document (see the module's text for the forms).

    Raises:
        LengthsError: the document has another form or holds bad values.
    """
    recorded = None
    pairs: list[tuple[str, object, object]]
    if isinstance(value, list):
        pairs = [(f"element {i}", item, 1) for i, item in enumerate(value)]
    elif isinstance(value, dict) and isinstance(value.get("lengths"), list):
        lengths = value["lengths"]
        counts = value.get("counts", [1] * len(lengths))
        if not isinstance(counts, list) or len(counts) != len(lengths):
            size = f"{len(counts)} values" if isinstance(counts, list) else type(counts).__name__
            raise LengthsError(
                f"{name}: {len(lengths)} lengths, but counts has {size}",
                hint="lengths and counts must be lists of one size",
            )
        pairs = [
            (f"element {i}", *pair) for i, pair in enumerate(zip(lengths, counts, strict=True))
        ]
        source = value.get("source")
        recorded = source if isinstance(source, str) else None
    elif isinstance(value, dict) and "length" in value:
        pairs = [("the only row", value, 1)]
    elif isinstance(value, dict):
        # JSON's keys are strings; one that isn't a number stays one and is reported below.
        pairs = [
            ("histogram", int(float(key)) if WHOLE.fullmatch(key) and len(key) < 16 else key, n)
            for key, n in value.items()
        ]
    else:
        raise LengthsError(
            f"{name}: a JSON {type(value).__name__}, not a list or an object", hint=FORMS_HINT
        )
    problems = Problems(name)
    found: Counter[int] = Counter()
    takes_rows = isinstance(value, list) or "length" in value
    for where, item, times in pairs:
        if takes_rows and isinstance(item, dict):
            row = row_from_object(item)
        else:
            row = make_row(item, times)
        if isinstance(row, str):
            problems.add(where, spell(item), row)
        else:
            found[row[0]] += row[1]
    problems.raise_if_any()
    return CountedLengths(dict(found), recorded)
