"""Where cost curves come from: files of cost points, and a roofline where nothing can be measured.

The curves themselves are in :mod:`edgecompile.curves`; their names are exported here, too.
"""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import cast

from edgecompile.curves import (
    KINDS,
    MODES,
    CostCurve,
    CostKind,
    CostModel,
    CostPoint,
    FloatArray,
    Mode,
)
from edgecompile.errors import CostError

__all__ = [
    "KINDS",
    "MODES",
    "CostCurve",
    "CostKind",
    "CostModel",
    "CostPoint",
    "FloatArray",
    "Mode",
    "read_cost_points",
    "roofline",
]

_COLUMNS = ("length", "exact_ms", "pad_ms", "exact_spread_ms", "pad_spread_ms")
_MAX_FILE_BYTES = 16 << 20
_MAX_PROBLEMS_SHOWN = 10
_WHOLE = re.compile(r"[+-]?[0-9]{1,15}(\.0*)?")
_HINT = (
    "give rows length,exact_ms,pad_ms with or without a header, or the JSON of a cost curve; "
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
    name = os.fspath(path)
    try:
        with Path(path).open("rb") as stream:
            data = stream.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise CostError(
            f"{name}: can't be read: {error.strerror or error}", hint="give a file of cost points"
        ) from error
    except ValueError as error:  # a NUL byte in the path
        raise CostError(f"{name!r}: not a path: {error}") from error
    if len(data) > _MAX_FILE_BYTES:
        raise CostError(f"{name}: over {_MAX_FILE_BYTES} bytes are no file of cost points")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CostError(f"{name}: not text: {error}", hint=_HINT) from error
    try:
        if text.lstrip().startswith("{"):
            return _from_document(text)
        return CostCurve(_from_rows(text), kind, {"file": name})
    except CostError as error:
        raise CostError(f"{name}: {error.message}", hint=error.hint or _HINT) from error


def _from_document(text: str) -> CostCurve:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CostError(f"not valid JSON: {error}") from error
    if "points" not in value and isinstance(value.get("cost_model"), dict):
        value = value["cost_model"]
    return CostCurve.from_json(value)


def _from_rows(text: str) -> tuple[CostPoint, ...]:
    columns: dict[str, int] | None = None
    problems: list[str] = []
    points = []
    for number, line in enumerate(text.splitlines(), start=1):
        content = line.split("#", 1)[0].strip()
        if not content:
            continue
        try:
            cells = [cell.strip() for cell in next(csv.reader([content], skipinitialspace=True))]
        except csv.Error as error:
            problems.append(f"line {number}: {error}")
            continue
        if columns is None:
            columns = _find_columns(cells, number)
            if cells[columns["length"]].lower() == "length":
                continue
        point = _point(cells, columns)
        if isinstance(point, list):
            problems += [f"line {number}: {problem}" for problem in point]
        else:
            points.append(point)
    if problems:
        shown = "; ".join(problems[:_MAX_PROBLEMS_SHOWN])
        rest = len(problems) - _MAX_PROBLEMS_SHOWN
        raise CostError(
            f"{len(problems)} bad values: {shown}" + (f"; and {rest} more" if rest > 0 else "")
        )
    if not points:
        raise CostError("holds no cost points")
    return tuple(sorted(points, key=lambda point: point.length))


def _find_columns(cells: list[str], line_number: int) -> dict[str, int]:
    """Column numbers by name, from a header, or from the order where the first row is data."""
    names = [cell.lower() for cell in cells]
    if "length" in names:
        repeated = [name for name in _COLUMNS if names.count(name) > 1]
        if repeated:
            raise CostError(f"line {line_number}: the column {repeated[0]} occurs twice")
        if "exact_ms" not in names and "pad_ms" not in names:
            raise CostError(f"line {line_number}: the header has neither exact_ms nor pad_ms")
        return {name: names.index(name) for name in _COLUMNS if name in names}
    if len(cells) != 3:
        raise CostError(
            f"line {line_number}: {len(cells)} columns without a header, "
            "where length, exact_ms and pad_ms were expected"
        )
    return {name: index for index, name in enumerate(_COLUMNS[:3])}


def _point(cells: list[str], columns: dict[str, int]) -> CostPoint | list[str]:
    if len(cells) <= max(columns.values()):
        return [f"{len(cells)} columns where {max(columns.values()) + 1} were expected"]
    problems = []
    values: dict[str, float | None] = {"exact_ms": None, "pad_ms": None}
    for name, index in columns.items():
        cell = cells[index]
        if name == "length" or (not cell and name in ("exact_ms", "pad_ms")):
            continue
        try:
            values[name] = float(cell or "0")
        except ValueError:
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


def roofline(
    lengths: Iterable[int],
    *,
    peak_gflops: float,
    bandwidth_gb_s: float,
    flops_per_element: float,
    flops_per_pair: float = 0.0,
    fixed_flops: float = 0.0,
    fixed_bytes: float = 0.0,
    bytes_per_element: float = 0.0,
    bytes_per_pair: float = 0.0,
    overhead_ms: float = 0.0,
    dynamic_factor: float = 1.0,
    provenance: Mapping[str, str] | None = None,
) -> CostCurve:
    """A modelled curve: the slower of arithmetic and memory traffic, plus a fixed overhead.

    ms(L) = overhead + 1e3 · max((f + a·L + b·L²) / peak, (g + c·L + d·L²) / bandwidth), the
    roofline of Williams, Waterman and Patterson (CACM 52(4), 2009). A transformer of P weights in
    its layers has a ≈ 2·P and b ≈ 4·layers·hidden (attention's two products).

    Args:
        lengths: where to put the points.
        peak_gflops: arithmetic that the target sustains, in 1e9 operations per second.
        bandwidth_gb_s: memory bandwidth in 1e9 bytes per second.
        flops_per_element: a, operations per element of the length axis.
        flops_per_pair: b, operations per pair of elements.
        fixed_flops: f, operations of every run.
        fixed_bytes: g, bytes read in every run (the weights).
        bytes_per_element: c, bytes moved per element.
        bytes_per_pair: d, bytes moved per pair of elements.
        overhead_ms: milliseconds of a run that don't depend on the length.
        dynamic_factor: how many times the cost of a static program a dynamic one has.
        provenance: recorded in the curve beside the parameters.

    Raises:
        CostError: a parameter isn't a usable number, or there are no lengths.
    """
    positive = {"peak_gflops": peak_gflops, "bandwidth_gb_s": bandwidth_gb_s}
    positive["dynamic_factor"] = dynamic_factor
    others = {
        "flops_per_element": flops_per_element,
        "flops_per_pair": flops_per_pair,
        "fixed_flops": fixed_flops,
        "fixed_bytes": fixed_bytes,
        "bytes_per_element": bytes_per_element,
        "bytes_per_pair": bytes_per_pair,
        "overhead_ms": overhead_ms,
    }
    bad = [f"{k} is {v}, not over 0" for k, v in positive.items() if not 0 < v < float("inf")]
    bad += [f"{k} is {v}, not 0 or more" for k, v in others.items() if not 0 <= v < float("inf")]
    if bad:
        raise CostError("roofline: " + "; ".join(bad))
    points = []
    for length in sorted(set(lengths)):
        flops = fixed_flops + flops_per_element * length + flops_per_pair * length * length
        moved = fixed_bytes + bytes_per_element * length + bytes_per_pair * length * length
        seconds = max(flops / (peak_gflops * 1e9), moved / (bandwidth_gb_s * 1e9))
        pad_ms = overhead_ms + 1e3 * seconds
        points.append(CostPoint(length, pad_ms * dynamic_factor, pad_ms))
    parameters = {name: repr(number) for name, number in {**positive, **others}.items()}
    return CostCurve(tuple(points), "modelled", {**parameters, **(provenance or {})})
