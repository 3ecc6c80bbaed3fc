"""Reading files of cost points, over one axis or two."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgecompile.buckets.costs.grid import CostGrid, CostKind, CostPoint, sort_points
from edgecompile.errors import CostError
from edgecompile.lengths.rows import spelled_number, split_cells, strip_comment

_LENGTH = "length"
_COSTS = ("exact_ms", "pad_ms")
_COLUMNS = (_LENGTH, *_COSTS, "exact_spread_ms", "pad_spread_ms")
_MAX_FILE_BYTES = 16 << 20
_SHOWN = 10
_HINT = (
    "give rows length,exact_ms,pad_ms with or without a header, or the JSON of a plan's costs; "
    "two axes need a header, length,batch,exact_ms,pad_ms; "
    "leave the cells of a mode that can't run empty in every row"
)


def read_costs(path: str | os.PathLike[str], kind: CostKind = "measured") -> CostGrid:
    """Reads costs from a CSV file of points, or from JSON; the content decides which.

    A CSV file has the columns length, exact_ms, pad_ms, in this order or named by a header, where
    exact_spread_ms and pad_spread_ms may be added. ``#`` starts a comment. Rows may stand in any
    order. It is over two axes if its header names a single further column and a length occurs in
    several rows: then each length must come with each size of the other axis. Other columns are
    ignored. JSON is that of :meth:`CostGrid.to_json`, or a plan's or a report's with such costs
    under ``cost_model``.

    Args:
        path: the file.
        kind: the kind of the costs of a CSV file; JSON states it itself.

    Raises:
        CostError: the file can't be read, or holds no usable points; every bad row is counted.
    """
    name = os.fspath(path)
    try:
        text = _read_text(path)
        if text.lstrip().startswith("{"):
            return CostGrid.from_json(_document(text))
        return _read_rows(text, kind, name)
    except CostError as error:
        raise CostError(f"{name}: {error.message}", hint=error.hint or _HINT) from error


def _read_text(path: str | os.PathLike[str]) -> str:
    try:
        with Path(path).open("rb") as stream:
            data = stream.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise CostError(
            f"can't be read: {error.strerror or error}", hint="give a file of cost points"
        ) from error
    except ValueError as error:  # a NUL byte in the path
        raise CostError(f"not a path: {error}") from error
    if len(data) > _MAX_FILE_BYTES:
        raise CostError(f"over {_MAX_FILE_BYTES} bytes are no file of cost points")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CostError(f"not text: {error}") from error


def _document(text: str) -> object:
    """The costs in a JSON document: all of it, or the value of ``cost_model``."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CostError(f"not valid JSON: {error}") from error
    if "points" not in value and isinstance(value.get("cost_model"), dict):
        return value["cost_model"]
    return value


def _read_rows(text: str, kind: CostKind, name: str) -> CostGrid:
    lines = enumerate(text.splitlines(), start=1)
    stripped = ((number, strip_comment(line.encode())) for number, line in lines)
    rows = [(number, split_cells(content)) for number, content in stripped if content]
    if not rows:
        raise CostError("holds no cost points")
    names = [cell.lower() for cell in rows[0][1]]
    if any(column in names for column in _COLUMNS):
        _check_header(rows.pop(0)[0], names)
    elif len(names) != 3:
        raise CostError(
            f"line {rows[0][0]}: {len(names)} columns without a header, "
            "where length, exact_ms and pad_ms were expected"
        )
    else:
        names = list(_COLUMNS[:3])
    used, further = ([n for n in names if (n in _COLUMNS) is fixed] for fixed in (True, False))
    named = [(number, dict(zip(names, cells, strict=False))) for number, cells in rows]
    # A single further column is a second axis if lengths repeat.
    lengths = [row.get(_LENGTH) for _, row in named]
    other = further if len(further) == 1 and len(set(lengths)) < len(lengths) else []
    width = 1 + max(names.index(column) for column in (*used, *other))
    problems = []
    points = []
    for number, row in named:
        if len(row) < width:
            problems.append(f"line {number}: {len(row)} columns where {width} were expected")
            continue
        fields = _fields(row, used)
        if other:
            fields["other"] = spelled_number(row[other[0]][:40])
        point = CostPoint(**fields)
        problems += [f"line {number}: {text}" for text in point.problems((_LENGTH, *other)[-1])]
        points.append(point)
    if problems:
        more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise CostError(f"{len(problems)} bad values: " + "; ".join(problems[:_SHOWN]) + more)
    if not points:
        raise CostError("holds no cost points")
    return CostGrid(sort_points(points), kind, {"file": name}, (_LENGTH, *other))


def _check_header(line: int, names: list[str]) -> None:
    if _LENGTH not in names:
        raise CostError(f"line {line}: the header has no column {_LENGTH}")
    repeated = [name for name in names if names.count(name) > 1]
    if repeated:
        raise CostError(f"line {line}: the column {repeated[0]} occurs twice")
    if not any(name in names for name in _COSTS):
        raise CostError(f"line {line}: the header has neither exact_ms nor pad_ms")


def _fields(row: Mapping[str, str], columns: Sequence[str]) -> dict[str, Any]:
    """The fields of a point; :meth:`CostPoint.problems` says which of them are bad."""
    fields: dict[str, Any] = {"exact_ms": None, "pad_ms": None}
    for name in columns:
        cell = row[name] or ("0" if name.endswith("spread_ms") else "")
        if cell or name == _LENGTH:
            value = spelled_number(cell[:40])
            fields[name] = float(value) if isinstance(value, int) and name != _LENGTH else value
    return fields
