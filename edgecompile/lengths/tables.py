"""Streams of rows and of JSON documents.

Rows are read in blocks and each distinct row is parsed once, because ten million rows hold only
some thousand different ones.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO

from edgecompile.errors import LengthsError
from edgecompile.lengths.rows import Problems, Row, RowReader, Sizes, quote, strip_comment

_BLOCK_BYTES = 1 << 20
_BLOCK_LINES = 1 << 16
_MAX_LINE_BYTES = 1 << 16
_MAX_JSON_BYTES = 1 << 30
_REMEMBERED_ROWS = 1 << 17


@contextmanager
def open_source(
    source: str | os.PathLike[str], option: str = "lengths"
) -> Iterator[tuple[BinaryIO, str]]:
    """A file, or standard input where ``source`` is ``"-"``, and its name in messages.

    Args:
        source: the file.
        option: the argument that names it, for the hint of an error.

    Raises:
        LengthsError: the file can't be read.
    """
    name = "standard input" if str(source) == "-" else os.fspath(source)
    try:
        if str(source) == "-":
            yield sys.stdin.buffer, name
        else:
            with Path(source).open("rb") as stream:
                yield stream, name
    except OSError as error:
        raise LengthsError(
            f"{name}: can't be read: {error.strerror or error}",
            hint=f"`{option}` takes a file, or - for standard input",
        ) from error
    except ValueError as error:  # a NUL byte in the path
        raise LengthsError(f"{name!r}: not a path: {error}") from error


def read_block(stream: BinaryIO) -> bytes:
    """Up to a block; less only at the end (a pipe may hand out less at a time)."""
    parts = []
    missing = _BLOCK_BYTES
    while missing and (part := stream.read(missing)):
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def read_document(head: bytes, stream: BinaryIO, name: str, hint: str) -> object:
    """The JSON document that starts with ``head``.

    Raises:
        LengthsError: it isn't one, is too large, or has repeated keys.
    """
    data = head + stream.read(_MAX_JSON_BYTES - len(head) + 1)
    if len(data) > _MAX_JSON_BYTES:
        raise LengthsError(
            f"{name}: a JSON document of over {_MAX_JSON_BYTES} bytes",
            hint="give one length per line, or a histogram",
        )
    try:
        return json.loads(data, object_pairs_hook=_refuse_repeated_keys)
    except RecursionError as error:
        raise LengthsError(f"{name}: JSON nested too deep", hint=hint) from error
    except ValueError as error:
        raise LengthsError(f"{name}: not valid JSON: {error}", hint=hint) from error


def _refuse_repeated_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    value = dict(pairs)
    if len(value) != len(pairs):
        repeated = [key for key, n in Counter(key for key, _ in pairs).items() if n > 1]
        raise ValueError(f"repeated keys: {', '.join(quote(key) for key in repeated[:10])}")
    return value


def count_rows(
    head: bytes, stream: BinaryIO, name: str, reader: RowReader, hint: str
) -> dict[Sizes, int]:
    """Samples by sizes in the rows of ``head``, the first block, and of the rest.

    Raises:
        LengthsError: rows are bad; the first ten are shown with their line numbers.
    """
    problems = Problems(name, hint)
    counts: Counter[Sizes] = Counter()
    rows: dict[bytes, Row | str | None] = {}
    *whole, last = head.split(b"\n")
    limit = _MAX_LINE_BYTES + 1
    lines = chain(
        whole, [last + stream.readline(limit)], iter(partial(stream.readline, limit), b"")
    )
    # The first row tells the columns, and is no data if it names them.
    number = 1
    for number, line in enumerate(lines, start=1):
        if strip_comment(line):
            _check_line(line, number, name, hint)
            outcome = reader.start(line)
            if isinstance(outcome, str):
                problems.add(f"line {number}", strip_comment(line), outcome)
                if reader.columns is None:  # else every other row would be blamed as well
                    problems.raise_if_any()
            if not outcome:
                lines = chain([line], lines)
            number += bool(outcome)
            break
    while block := list(islice(lines, _BLOCK_LINES)):
        distinct = Counter(block)
        for line, times in distinct.items():
            if line not in rows:
                if b"\0" in line or len(line) > _MAX_LINE_BYTES:
                    _check_line(line, number + block.index(line), name, hint)
                rows[line] = reader.parse(line)
            row = rows[line]
            if isinstance(row, tuple):
                counts[row[0]] += row[1] * times
        bad = {line for line in distinct if isinstance(rows[line], str)}
        for offset, line in enumerate(block if bad else ()):
            if line in bad:
                problems.add(f"line {number + offset}", strip_comment(line), str(rows[line]))
        number += len(block)
        if len(rows) > _REMEMBERED_ROWS:
            rows.clear()
    problems.raise_if_any()
    return dict(counts)


def _check_line(line: bytes, number: int, name: str, hint: str) -> None:
    """Raises a LengthsError if a line is too long for one of a text, or holds NUL bytes."""
    if b"\0" in line:
        is_archive = line.startswith(b"PK\x03\x04")
        kind = "a zip or .npz archive" if is_archive else "UTF-16 text or binary data"
        raise LengthsError(f"{name}: not text but {kind} (it holds NUL bytes)", hint=hint)
    if len(line) > _MAX_LINE_BYTES:
        raise LengthsError(
            f"{name}: line {number} is longer than {_MAX_LINE_BYTES} bytes", hint=hint
        )
