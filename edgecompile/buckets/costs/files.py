"""Reading files of cost points: curves over lengths, and surfaces over two axes."""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from edgecompile.buckets.costs.curves import CostCurve, CostKind, CostPoint
from edgecompile.buckets.costs.surfaces import CostSurface, cost_model_from_json
from edgecompile.errors import CostError

_COLUMNS = ("length", "exact_ms", "pad_ms", "exact_spread_ms", "pad_spread_ms")
_LENGTH = _COLUMNS[0]
_OTHER = "other axis"  # no header can name it: it stands for the name of the second axis
_MAX_FILE_BYTES = 16 << 20
_MAX_PROBLEMS_SHOWN = 10
_WHOLE = re.compile(r"[+-]?[0-9]{1,15}(\.0*)?")
_NUMBER = re.compile(
    r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|nan|[+-]?inf", re.IGNORECASE
)
_HINT = (
    "give rows length,exact_ms,pad_ms with or without a header, or the JSON of a cost curve; "
    "two axes need a header, length,batch,exact_ms,pad_ms; "
    "leave the cells of a mode that can't run empty in every row"
)


def read_cost_points(path: str | os.PathLike[str], kind: CostKind = "measured") -> CostCurve:
    """Reads cost points from a CSV file, or a curve from its JSON; the content decides which.

    A CSV file has the columns length, exact_ms, pad_ms, in this order or named by a header, where
    exact_spread_ms and pad_spread_ms may be added and other columns are ignored. ``#`` starts a
    comment. Rows may stand in any order. JSON is that of :meth:`CostCurve.to_json`, or a plan's
    or a report's with such a curve under ``cost_model``.

    Args:
        path: the file.
        kind: what to call the costs of a CSV file; JSON says it itself.

    Raises:
        CostError: the file can't be read, or holds no usable points; every bad row is counted.
    """
    with _named(path) as name:
        text = _read_text(path, name)
        if text.lstrip().startswith("{"):
            return CostCurve.from_json(_document(text))
        return _curve(_Table(text), kind, name)


def read_cost_surface(
    path: str | os.PathLike[str], axes: Sequence[str], kind: CostKind = "measured"
) -> CostSurface:
    """Reads a surface from a CSV file with a header, or from its JSON.

    A CSV file has the columns length, the other axis by its name, and exact_ms, pad_ms or both,
    as :func:`read_cost_points` has them. The column ``length`` stands for the length axis whatever
    its name. The rows form a grid: each length with each size of the other axis.

    Args:
        path: the file.
        axes: names of the two axes, the length axis first.
        kind: what to call the costs of a CSV file; JSON says it itself.

    Raises:
        CostError: the file can't be read, holds no usable points or the axes of another model, or
            pairs of sizes are missing; these are named.
    """
    with _named(path) as name:
        text = _read_text(path, name)
        if text.lstrip().startswith("{"):
            surface = CostSurface.from_json(_document(text))
            if surface.axes != tuple(axes):
                raise CostError(
                    f"has costs over {' and '.join(surface.axes)}, not {' and '.join(axes)}"
                )
            return surface
        return _surface(_Table(text), (axes[0], axes[1]), kind, name)


def read_costs(
    path: str | os.PathLike[str],
    axes: Sequence[str] | None = None,
    kind: CostKind = "measured",
) -> CostCurve | CostSurface:
    """Reads a curve or a surface; the content decides.

    A CSV file holds a surface if its header names one of ``axes`` beside the length. Without
    ``axes`` it holds one if there is a single further column and a length occurs in several rows.

    Args:
        path: the file.
        axes: the axes that may vary, the length axis first; None accepts any.
        kind: what to call the costs of a CSV file; JSON says it itself.

    Raises:
        CostError: see :func:`read_cost_points` and :func:`read_cost_surface`.
    """
    with _named(path) as name:
        text = _read_text(path, name)
        if text.lstrip().startswith("{"):
            return cost_model_from_json(_document(text))
        table = _Table(text)
        found = table.find_axes(axes)
        return _curve(table, kind, name) if found is None else _surface(table, found, kind, name)


@contextmanager
def _named(path: str | os.PathLike[str]) -> Iterator[str]:
    """The name of a file; what is refused within is told with it."""
    name = os.fspath(path)
    try:
        yield name
    except CostError as error:
        raise CostError(f"{name}: {error.message}", hint=error.hint or _HINT) from error


def _read_text(path: str | os.PathLike[str], name: str) -> str:
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
        raise CostError(f"not text: {error}", hint=_HINT) from error


def _document(text: str) -> object:
    """The cost model in a JSON document: all of it, or what stands under ``cost_model``."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CostError(f"not valid JSON: {error}") from error
    if "points" not in value and isinstance(value.get("cost_model"), dict):
        return value["cost_model"]
    return value


def _curve(table: _Table, kind: CostKind, name: str) -> CostCurve:
    points = [point for _, point in table.points(None)]
    points.sort(key=lambda point: point.length)
    return CostCurve(tuple(points), kind, {"file": name})


def _surface(table: _Table, axes: tuple[str, str], kind: CostKind, name: str) -> CostSurface:
    points = [(other, point) for other, point in table.points(axes) if other is not None]
    return CostSurface.from_points(axes, points, kind, {"file": name})


class _Table:
    """The rows of a CSV file with their line numbers, and its header's names, if it has one."""

    def __init__(self, text: str) -> None:
        self.names: list[str] = []
        self.rows: list[tuple[int, list[str]]] = []
        self.problems: list[str] = []
        self.first_line = 0
        for number, line in enumerate(text.splitlines(), start=1):
            content = line.split("#", 1)[0].strip()
            if not content:
                continue
            try:
                cells = next(csv.reader([content], skipinitialspace=True))
            except csv.Error as error:
                self.problems.append(f"line {number}: {error}")
                continue
            self.rows.append((number, [cell.strip() for cell in cells]))
        if self.rows:
            self.first_line, first = self.rows[0]
            lower = [cell.lower() for cell in first]
            if any(name in lower for name in _COLUMNS):
                self.names = lower
                del self.rows[0]

    def find_axes(self, axes: Sequence[str] | None) -> tuple[str, str] | None:
        """The two axes that the header names, None if it names the length alone."""
        if axes is not None:
            present = [axis for axis in axes[1:] if axis.lower() in self.names]
            return (axes[0], present[0]) if len(present) == 1 else None
        others = [name for name in self.names if name not in _COLUMNS]
        if _LENGTH not in self.names or len(others) != 1:
            return None
        at = self.names.index(_LENGTH)
        lengths = [cells[at] for _, cells in self.rows if len(cells) > at]
        return (_LENGTH, others[0]) if len(set(lengths)) < len(lengths) else None

    def points(self, axes: tuple[str, str] | None) -> list[tuple[int | None, CostPoint]]:
        """The points, each with its size on the second axis if there is one.

        Raises:
            CostError: columns are missing or rows are bad; every bad row is counted.
        """
        if not self.rows and not self.names and not self.problems:
            raise CostError("holds no cost points")
        columns = self._columns(axes)
        problems = list(self.problems)
        found = []
        for number, cells in self.rows:
            other = None
            bad = []
            if len(cells) > max(columns.values()) and axes is not None:
                cell = cells[columns[_OTHER]]
                if _WHOLE.fullmatch(cell):
                    other = int(cell.split(".")[0])
                if other is None or other < 1:
                    bad.append(f'{axes[1]} "{cell[:40]}" isn\'t a whole number from 1 up')
            point = _point(cells, columns)
            bad += point if isinstance(point, list) else []
            problems += [f"line {number}: {problem}" for problem in bad]
            if not bad and isinstance(point, CostPoint):
                found.append((other, point))
        if problems:
            shown = "; ".join(problems[:_MAX_PROBLEMS_SHOWN])
            rest = len(problems) - _MAX_PROBLEMS_SHOWN
            raise CostError(
                f"{len(problems)} bad values: {shown}" + (f"; and {rest} more" if rest > 0 else "")
            )
        if not found:
            raise CostError("holds no cost points")
        return found

    def _columns(self, axes: tuple[str, str] | None) -> dict[str, int]:
        """Column numbers by name, from the header, or from the order where there is none."""
        where = f"line {self.first_line}"
        if not self.names:
            if axes is not None:
                raise CostError(f"{where}: no header that names {axes[0]} and {axes[1]}")
            width = len(self.rows[0][1]) if self.rows else 3
            if width != 3:
                raise CostError(
                    f"{where}: {width} columns without a header, "
                    "where length, exact_ms and pad_ms were expected"
                )
            return {name: index for index, name in enumerate(_COLUMNS[:3])}
        sources = {name: name for name in _COLUMNS}
        if axes is not None:
            sources[_OTHER] = axes[1].lower()
            if axes[0].lower() in self.names:
                sources[_LENGTH] = axes[0].lower()
        for name in (sources[_LENGTH], sources.get(_OTHER, sources[_LENGTH])):
            if name not in self.names:
                raise CostError(f"{where}: the header has no column {name}")
        repeated = [name for name in sources.values() if self.names.count(name) > 1]
        if repeated:
            raise CostError(f"{where}: the column {repeated[0]} occurs twice")
        if "exact_ms" not in self.names and "pad_ms" not in self.names:
            raise CostError(f"{where}: the header has neither exact_ms nor pad_ms")
        return {
            name: self.names.index(source)
            for name, source in sources.items()
            if source in self.names
        }


def _point(cells: list[str], columns: dict[str, int]) -> CostPoint | list[str]:
    if len(cells) <= max(columns.values()):
        return [f"{len(cells)} columns where {max(columns.values()) + 1} were expected"]
    problems = []
    values: dict[str, float | None] = {"exact_ms": None, "pad_ms": None}
    for name, index in columns.items():
        cell = cells[index]
        if name in (_LENGTH, _OTHER) or (not cell and name in ("exact_ms", "pad_ms")):
            continue
        if _NUMBER.fullmatch(cell or "0"):
            values[name] = float(cell or "0")
        else:
            problems.append(f'{name} "{cell[:40]}" isn\'t a number')
    length = cells[columns["length"]]
    if not _WHOLE.fullmatch(length):
        problems.append(f'length "{length[:40]}" isn\'t a whole number')
    if problems:
        return problems
    point = CostPoint(
        int(length.split(".")[0]),
        values["exact_ms"],
        values["pad_ms"],
        cast(float, values.get("exact_spread_ms", 0.0)),
        cast(float, values.get("pad_spread_ms", 0.0)),
    )
    return point.problems() or point
