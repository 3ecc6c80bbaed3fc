"""Reading files of cost points, over one axis or two."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from edgecompile.buckets.costs.grid import CostGrid, CostKind, CostPoint, sort_points
from edgecompile.errors import CostError
from edgecompile.lengths.rows import spelled_number, split_cells, strip_comment

__all__ = ["read_costs"]

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

_Row = tuple[int, list[str]]  # line number and cells


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
        kind: what to call the costs of a CSV file; JSON says it itself.

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
    rows: list[_Row] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if content := strip_comment(line.encode()):
            rows.append((number, split_cells(content)))
    if not rows:
        raise CostError("holds no cost points")
    names = [cell.lower() for cell in rows[0][1]]
    if any(column in names for column in _COLUMNS):
        columns = _header_columns(rows.pop(0)[0], names)
    elif len(names) != 3:
        raise CostError(
            f"line {rows[0][0]}: {len(names)} columns without a header, "
            "where length, exact_ms and pad_ms were expected"
        )
    else:
        columns = dict(zip(_COLUMNS, range(3), strict=False))
        names = []
    other = _other_axis(names, rows)
    axes = (_LENGTH,) if other is None else (_LENGTH, other)
    if other is not None:
        columns["other"] = names.index(other)
    problems = []
    points = []
    for number, cells in rows:
        if len(cells) <= max(columns.values()):
            wanted = max(columns.values()) + 1
            problems.append(f"line {number}: {len(cells)} columns where {wanted} were expected")
            continue
        point = CostPoint(**_fields(cells, columns))
        problems += [f"line {number}: {text}" for text in point.problems(axes[-1])]
        points.append(point)
    if problems:
        more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise CostError(f"{len(problems)} bad values: " + "; ".join(problems[:_SHOWN]) + more)
    if not points:
        raise CostError("holds no cost points")
    return CostGrid(sort_points(points), kind, {"file": name}, axes)


def _header_columns(line: int, names: list[str]) -> dict[str, int]:
    """Where the header puts each known column."""
    if _LENGTH not in names:
        raise CostError(f"line {line}: the header has no column {_LENGTH}")
    repeated = [name for name in names if names.count(name) > 1]
    if repeated:
        raise CostError(f"line {line}: the column {repeated[0]} occurs twice")
    if not any(name in names for name in _COSTS):
        raise CostError(f"line {line}: the header has neither exact_ms nor pad_ms")
    return {name: names.index(name) for name in _COLUMNS if name in names}


def _other_axis(names: list[str], rows: list[_Row]) -> str | None:
    """The second axis, if a header names a single further column and lengths repeat."""
    further = [name for name in names if name not in _COLUMNS]
    if len(further) != 1:
        return None
    at = names.index(_LENGTH)
    lengths = [cells[at] for _, cells in rows if len(cells) > at]
    return further[0] if len(set(lengths)) < len(lengths) else None


def _fields(cells: list[str], columns: dict[str, int]) -> dict[str, Any]:
    """The fields of a point; :meth:`CostPoint.problems` says which of them are bad."""
    fields: dict[str, Any] = {"exact_ms": None, "pad_ms": None}
    for name, index in columns.items():
        cell = cells[index]
        if not cell and name in _COSTS:
            continue
        value = spelled_number("0" if not cell and name.endswith("spread_ms") else cell[:40])
        is_size = name in (_LENGTH, "other")
        fields[name] = float(value) if isinstance(value, int) and not is_size else value
    return fields
