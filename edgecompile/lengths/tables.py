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
from pathlib import Path
from typing import BinaryIO

from edgecompile.errors import LengthsError
from edgecompile.lengths.rows import Problems, Row, RowReader, Sizes, quote, strip_comment

_BLOCK_BYTES = 1 << 20
_MAX_LINE_BYTES = 1 << 16
_MAX_JSON_BYTES = 1 << 30
_REMEMBERED_ROWS = 1 << 17


def display_name(source: str | os.PathLike[str]) -> str:
    """The name under which messages speak of a source."""
    return "standard input" if str(source) == "-" else os.fspath(source)


@contextmanager
def open_source(
    source: str | os.PathLike[str], option: str = "--lengths"
) -> Iterator[tuple[BinaryIO, str]]:
    """A file, or standard input where ``source`` is ``"-"``, and its name in messages.

    Args:
        source: the file.
        option: the option that names it, for the hint of an error.

    Raises:
        LengthsError: the file can't be read.
    """
    name = display_name(source)
    try:
        if str(source) == "-":
            yield sys.stdin.buffer, name
        else:
            with Path(source).open("rb") as stream:
                yield stream, name
    except OSError as error:
        raise LengthsError(
            f"{name}: can't be read: {error.strerror or error}",
            hint=f"{option} takes a file, or - for standard input",
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
    known: dict[bytes, Row | str | None] = {}
    counts: Counter[Sizes] = Counter()
    line_number = 1  # of the first line of the block
    rest = b""
    block = head
    while block or rest:
        at_end = not block
        _refuse_binary(block, name, hint)
        lines = (rest + block).split(b"\n")
        rest = b"" if at_end else lines.pop()
        if len(rest) > _MAX_LINE_BYTES:
            raise LengthsError(
                f"{name}: line {line_number + len(lines)} is longer than {_MAX_LINE_BYTES} bytes",
                hint=hint,
            )
        if reader.columns is None:
            lines, line_number = _start_reader(reader, lines, line_number, problems)
        bad = False
        for line, times in Counter(lines).items():
            row = known.get(line, "unknown")
            if row == "unknown":
                row = known[line] = reader.parse(line)
            if isinstance(row, tuple):
                counts[row[0]] += row[1] * times
            elif row is not None:
                bad = True
        if bad:
            for offset, line in enumerate(lines):
                row = known[line]
                if isinstance(row, str):
                    problems.add(f"line {line_number + offset}", strip_comment(line), row)
        line_number += len(lines)
        if len(known) > _REMEMBERED_ROWS:
            known.clear()
        block = read_block(stream)
    problems.raise_if_any()
    return dict(counts)


def _start_reader(
    reader: RowReader, lines: list[bytes], line_number: int, problems: Problems
) -> tuple[list[bytes], int]:
    """Shows the first data row to the reader; gives the rows that remain, and their number."""
    for index, line in enumerate(lines):
        if not strip_comment(line):
            continue
        outcome = reader.start(line)
        if isinstance(outcome, str):
            problems.add(f"line {line_number + index}", strip_comment(line), outcome)
            if reader.columns is None:  # without columns every other row would be blamed as well
                problems.raise_if_any()
        skipped = index + 1 if outcome else index
        return lines[skipped:], line_number + skipped
    return [], line_number + len(lines)


def _refuse_binary(block: bytes, name: str, hint: str) -> None:
    if b"\0" not in block:
        return
    kind = "UTF-16 text or binary data"
    if block.startswith(b"PK\x03\x04"):
        kind = "a zip or .npz archive"
    raise LengthsError(f"{name}: not text but {kind} (it holds NUL bytes)", hint=hint)
