"""Reading files of joint sizes: how often each length comes with each batch, say.

The format is told from the content:

- rows with a header that names two axes: ``length,batch,count``; the second axis may have any
  name, ``count`` may be left out (then a row is one sample), ``#`` starts a comment;
- JSON lines: ``{"length": 12, "batch": 4, "count": 3}``;
- one JSON document: ``{"axes": ["length", "batch"], "sizes": [[12, 4], …], "counts": [3, …]}``
  (what :meth:`JointDistribution.to_json` gives), or with ``cells`` ``[[12, 4, 3], …]`` for both.

A file without names of axes can't be told from one of lengths alone, so names are needed. If the
model's axes are given, other columns are ignored, and the column ``length`` stands for the length
axis whatever its name.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO

from edgecompile.errors import LengthsError
from edgecompile.lengths.rows import (
    MAX_TOTAL,
    Problems,
    check_count,
    check_size,
    quote,
    spell,
    spelled_number,
    split_cells,
    strip_comment,
    whole_number,
)
from edgecompile.lengths.tables import count_rows, open_source, read_block, read_document

JOINT_HINT = (
    'give rows with a header "length,batch,count" (the second axis may have any name), JSON lines '
    '{"length": 12, "batch": 4, "count": 3}, or {"axes": [...], "sizes": [[...]], "counts": [...]}'
)
LENGTH = "length"
COUNT = "count"
_HEAD_BYTES = 1 << 16

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class CountedSizes:
    """What a file holds: its axes, samples per pair of sizes, and the source that it recorded."""

    axes: tuple[str, ...]
    counts: dict[Sizes, int]
    recorded_source: str | None = None


def joint_axes_of(
    source: str | os.PathLike[str], axes: Sequence[str] | None = None
) -> tuple[str, ...] | None:
    """The two axes that a file of samples names, the length axis first; None if it names fewer.

    Only the beginning is read, and standard input is left as it was.

    Args:
        source: a file, or ``"-"`` for standard input.
        axes: the axes that may vary, the length axis first; None accepts any name, and then a
            file is joint if it has two columns beside ``count``, one of them ``length``.

    Raises:
        LengthsError: the file can't be read.
    """
    with open_source(source) as (stream, _):
        head = _peek(stream) if source == "-" else stream.read(_HEAD_BYTES)
    head = head.removeprefix(b"\xef\xbb\xbf")
    if b"\0" in head:
        return None
    text = head.lstrip()
    if text.startswith(b"{") and _is_document(text):
        return _axes_of_document(text, axes)
    for line in text.split(b"\n"):
        row = strip_comment(line)
        if row:
            return _axes_only(find_axes(_names_of_row(row), axes))
    return None


def count_joint(source: str | os.PathLike[str], axes: Sequence[str] | None = None) -> CountedSizes:
    """Counts the pairs of sizes in a file, or in standard input where ``source`` is ``"-"``.

    Args:
        source: the file.
        axes: see :func:`joint_axes_of`.

    Raises:
        LengthsError: the file can't be read, names no two axes, is empty, or holds values that
            aren't sizes (whole numbers from 1 to 2^31-1) or counts (from 1 up); the first ten
            are told with their line numbers.
    """
    with open_source(source) as (stream, name):
        head = read_block(stream).removeprefix(b"\xef\xbb\xbf")
        if head.lstrip().startswith((b"[", b"{")) and _is_document(head.lstrip()):
            found = count_joint_json(read_document(head, stream, name, JOINT_HINT), name, axes)
        else:
            reader = JointRowReader(axes)
            counts = count_rows(head, stream, name, reader, JOINT_HINT)
            found = CountedSizes(reader.axes, counts)
    return _checked(found, name)


def count_joint_json(value: object, name: str, axes: Sequence[str] | None = None) -> CountedSizes:
    """Counts the pairs of sizes in a decoded JSON document (the module's text has the forms).

    Raises:
        LengthsError: the document has another form or holds bad values.
    """
    if not isinstance(value, dict) or not isinstance(value.get("axes"), list):
        raise LengthsError(f'{name}: not an object with "axes"', hint=JOINT_HINT)
    names = value["axes"]
    known = all(isinstance(item, str) for item in names)
    found = find_axes(names, axes) if known else "aren't names"
    if isinstance(found, str) or len(names) != 2:
        reason = found if isinstance(found, str) else "aren't two"
        raise LengthsError(f"{name}: the axes {spell(names)[:80]} {reason}", hint=JOINT_HINT)
    problems = Problems(name, JOINT_HINT)
    counts: Counter[Sizes] = Counter()
    for where, cell, count in _document_cells(value, name):
        if not isinstance(cell, list) or len(cell) != 2:
            problems.add(where, spell(cell), "isn't a pair of sizes")
            continue
        row = make_joint_row(found.axes, [cell[i] for i in found.at], count)
        if isinstance(row, str):
            problems.add(where, spell(cell), row)
        else:
            counts[row[0]] += row[1]
    problems.raise_if_any()
    source = value.get("source")
    recorded = source if isinstance(source, str) else None
    return _checked(CountedSizes(found.axes, dict(counts), recorded), name)


@dataclass(frozen=True)
class AxisColumns:
    """The two axes of a file, the length axis first, and where among the names they stand."""

    axes: tuple[str, ...]
    at: tuple[int, ...]


def find_axes(names: Sequence[str], axes: Sequence[str] | None) -> AxisColumns | str:
    """The two axes that names of columns or keys stand for, or why there are none.

    Args:
        names: the names, ``count`` among them or not.
        axes: the axes that may vary, the length axis first; None accepts any.
    """
    lower = [name.lower() for name in names]
    if axes is None:
        others = [name for name in lower if name not in (LENGTH, COUNT)]
        if LENGTH not in lower or len(others) != 1:
            return 'don\'t name "length" and one other axis'
        found = (LENGTH, others[0])
    else:
        present = [axis for axis in axes[1:] if axis.lower() in lower]
        stands_in = LENGTH not in [axis.lower() for axis in axes[1:]]
        has_length = axes[0].lower() in lower or (stands_in and LENGTH in lower)
        if not has_length or len(present) != 1:
            further = ", ".join(axes[1:]) or "none"
            return f"don't name {axes[0]} and one of the model's other axes ({further})"
        found = (axes[0], present[0])
    first = found[0].lower() if found[0].lower() in lower else LENGTH
    used = (first, found[1].lower())
    repeated = [name for name in (*used, COUNT) if lower.count(name) > 1]
    if repeated:
        return f'name "{repeated[0]}" twice'
    return AxisColumns(found, tuple(lower.index(name) for name in used))


def make_joint_row(
    axes: Sequence[str], sizes: Sequence[object], count: object
) -> tuple[Sizes, int] | str:
    """Checked sizes and count, or the reasons of all that are bad."""
    reasons = []
    for axis, value in zip(axes, sizes, strict=True):
        if value is None or value == "":
            reasons.append(f"has no {axis}")
            continue
        number = whole_number(value)
        reason = number if isinstance(number, str) else check_size(number)
        if reason is not None:
            reasons.append(f"has the {axis} {quote(spell(value))}, which {reason}")
    if count is None or count == "":
        reasons.append("has no count")
    else:
        times = whole_number(count)
        reason = times if isinstance(times, str) else check_count(times)
        if reason is not None:
            reasons.append(f"has the count {quote(spell(count))}, which {reason}")
    if reasons:
        return "; ".join(reasons)
    return tuple(int(str(whole_number(value))) for value in sizes), int(str(whole_number(count)))


class JointRowReader:
    """The grammar of one row of a joint file; the first row that isn't blank names the columns."""

    def __init__(self, axes: Sequence[str] | None = None) -> None:
        self.n_columns = 0
        self.axes: tuple[str, ...] = ()
        self._wanted = axes
        self._columns: list[int] = []
        self._keys: list[str] = []
        self._count_at: int | None = None

    def start(self, line: bytes) -> bool | str:
        """Learns the axes; True for a header, False for a JSON row, else the reason of refusal."""
        text = strip_comment(line)
        names = _names_of_row(text)
        found = find_axes(names, self._wanted)
        if isinstance(found, str):
            kind = "its keys" if text.startswith("{") else "its cells"
            return f"can't be the first row: {kind} {found}"
        self.axes = found.axes
        if text.startswith("{"):
            self.n_columns = 1
            self._keys = [names[i].lower() for i in found.at]
            return False
        lower = [name.lower() for name in names]
        self.n_columns = len(names)
        self._columns = list(found.at)
        self._count_at = lower.index(COUNT) if COUNT in lower else None
        return True

    def parse(self, line: bytes) -> tuple[Sizes, int] | str | None:
        """Sizes and count; None for a blank or comment; else the reason of refusal."""
        text = strip_comment(line)
        if not text:
            return None
        if text.startswith("{") != bool(self._keys):
            return "isn't a row of the kind that the first row is"
        if self._keys:
            return self._parse_object(text)
        cells = split_cells(text)
        if len(cells) != self.n_columns:
            return f"has {len(cells)} columns where the first row has {self.n_columns}"
        count = 1 if self._count_at is None else spelled_number(cells[self._count_at])
        return make_joint_row(self.axes, [spelled_number(cells[i]) for i in self._columns], count)

    def _parse_object(self, text: str) -> tuple[Sizes, int] | str:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return "isn't valid JSON"
        names = {str(key).lower(): item for key, item in value.items()}
        sizes = [names.get(key) for key in self._keys]
        return make_joint_row(self.axes, sizes, names.get(COUNT, 1))


def _names_of_row(text: str) -> list[str]:
    if not text.startswith("{"):
        return split_cells(text)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return [str(key) for key in value]


def _is_document(text: bytes) -> bool:
    """Whether JSON is one document: not an object in its first line that is a row."""
    if text.startswith(b"["):
        return True
    try:
        value = json.loads(text.split(b"\n", 1)[0])
    except (ValueError, RecursionError):
        return text.startswith(b"{")  # it goes on over the next lines
    return isinstance(value, dict) and isinstance(value.get("axes"), list)


def _axes_of_document(text: bytes, axes: Sequence[str] | None) -> tuple[str, ...] | None:
    """The axes in the beginning of a document, which needn't be all of it."""
    at = text.find(b'"axes"')
    start = text.find(b"[", at)
    if at < 0 or start < 0:
        return None
    try:
        names = json.JSONDecoder().raw_decode(text[start:].decode("utf-8", "replace"))[0]
    except (ValueError, RecursionError):
        return None
    if len(names) != 2 or not all(isinstance(name, str) for name in names):
        return None
    return _axes_only(find_axes(names, axes))


def _axes_only(found: AxisColumns | str) -> tuple[str, ...] | None:
    return None if isinstance(found, str) else found.axes


def _document_cells(value: dict[str, object], name: str) -> list[tuple[str, object, object]]:
    cells = value.get("cells")
    if isinstance(cells, list):
        return [
            (f"cell {i}", cell[:-1], cell[-1])
            if isinstance(cell, list) and cell
            else (f"cell {i}", cell, 1)
            for i, cell in enumerate(cells)
        ]
    sizes = value.get("sizes")
    if not isinstance(sizes, list):
        raise LengthsError(f'{name}: has no list of "sizes"', hint=JOINT_HINT)
    counts = value.get("counts", [1] * len(sizes))
    if not isinstance(counts, list) or len(counts) != len(sizes):
        size = f"{len(counts)} values" if isinstance(counts, list) else type(counts).__name__
        raise LengthsError(
            f"{name}: {len(sizes)} sizes, but counts has {size}",
            hint="sizes and counts must be lists of one size",
        )
    pairs = zip(sizes, counts, strict=True)
    return [(f"element {i}", cell, count) for i, (cell, count) in enumerate(pairs)]


def _checked(found: CountedSizes, name: str) -> CountedSizes:
    if not found.counts:
        raise LengthsError(f"{name}: holds no sizes", hint=JOINT_HINT)
    total = sum(found.counts.values())
    if total > MAX_TOTAL:
        raise LengthsError(
            f"{name}: {total} samples are more than {MAX_TOTAL}",
            hint="divide the counts by a common factor",
        )
    return found


def _peek(stream: BinaryIO) -> bytes:
    """The beginning of standard input, which stays there to be read."""
    if hasattr(stream, "peek"):
        head: bytes = stream.peek(_HEAD_BYTES)
        return head[:_HEAD_BYTES]
    if stream.seekable():
        at = stream.tell()
        head = stream.read(_HEAD_BYTES)
        stream.seek(at)
        return head
    return b""
