"""JSON documents and arrays of traffic, counted.

A document is a list of lengths, a histogram ``{"12": 3}``, ``{"lengths": [...], "counts": [...]}``, or
for two axes ``{"axes": ["length", "batch"], "sizes": [[12, 4], …], "counts": [3, …]}``, where
``cells`` ``[[12, 4, 3], …]`` may stand for sizes and counts both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edgecompile.errors import LengthsError
from edgecompile.lengths.rows import (
    COUNT,
    FORMS_HINT,
    LENGTH,
    LENGTHS_ALONE,
    MAX_LENGTH,
    MAX_TOTAL,
    PROBLEMS_SHOWN,
    WHOLE,
    AxisRule,
    Columns,
    Problems,
    Sizes,
    find_pair,
    make_row,
    spell,
)

__all__ = ["CountedSizes", "check_counts", "count_array", "count_document", "count_elements"]

_DENSE_LENGTHS = 1 << 20

Element = tuple[str, object, object]  # its name in messages, its sizes, its count


@dataclass(frozen=True)
class CountedSizes:
    """The contents of a source.

    Attributes:
        axes: its axes, the length axis first; ("length",) for lengths alone.
        counts: samples by sizes.
        recorded_source: the source of the samples, if it is recorded there.
    """

    axes: tuple[str, ...]
    counts: dict[Sizes, int]
    recorded_source: str | None = None


def check_counts(counted: CountedSizes, name: str, hint: str) -> CountedSizes:
    """The counts themselves.

    Raises:
        LengthsError: there are none, or they are too large.
    """
    if not counted.counts:
        raise LengthsError(f"{name}: holds no {_noun(counted.axes)}s", hint=hint)
    total = sum(counted.counts.values())
    if total > MAX_TOTAL:
        raise LengthsError(
            f"{name}: {total} samples are more than {MAX_TOTAL}",
            hint="divide the counts by a common factor",
        )
    return counted


def count_document(value: object, name: str, rule: AxisRule) -> CountedSizes:
    """Counts the sizes in a decoded JSON document (the module's text has the forms).

    Raises:
        LengthsError: the document has another form or holds bad values.
    """
    record: dict[str, Any] = value if isinstance(value, dict) else {}
    columns = LENGTHS_ALONE
    if rule.pairs and isinstance(record.get("axes"), list):
        columns = _document_axes(record["axes"], name, rule)
        elements = _cells(record, name)
    else:
        elements = _lengths(value, name)
    counts = count_elements(elements, columns, name, FORMS_HINT)
    source = record.get("source")
    recorded = source if isinstance(source, str) else None
    return check_counts(CountedSizes(columns.axes, counts, recorded), name, FORMS_HINT)


def count_elements(
    elements: Iterable[Element], columns: Columns, name: str, hint: str
) -> dict[Sizes, int]:
    """Samples by sizes.

    Raises:
        LengthsError: elements are bad; the first ten are shown.
    """
    problems = Problems(name, hint)
    counts: Counter[Sizes] = Counter()
    for where, item, count in elements:
        if len(columns.axes) == 1:
            row = make_row(columns.axes, [item], count)
        else:
            pair = item if isinstance(item, list | tuple) and len(item) == 2 else ()
            cell = [pair[i] for i in columns.at] if pair else []
            row = make_row(columns.axes, cell, count)
        if isinstance(row, str):
            problems.add(where, spell(item), row)
        else:
            counts[row[0]] += row[1]
    problems.raise_if_any()
    return dict(counts)


def _noun(axes: Sequence[str]) -> str:
    return "length" if len(axes) == 1 else "size"


def _document_axes(names: list[object], name: str, rule: AxisRule) -> Columns:
    texts = [item for item in names if isinstance(item, str)]
    columns = find_pair(texts, rule.axes) if len(names) == len(texts) == 2 else None
    if columns is None:
        expected = ", ".join(rule.axes or ("length", "another"))
        raise LengthsError(
            f"{name}: the axes {spell(names)[:80]} aren't two of {expected}", hint=FORMS_HINT
        )
    return columns


def _cells(value: dict[str, Any], name: str) -> list[Element]:
    cells = value.get("cells")
    if isinstance(cells, list):
        return [
            (f"cell {i}", cell[:-1], cell[-1])
            if isinstance(cell, list) and cell
            else (f"cell {i}", cell, 1)
            for i, cell in enumerate(cells)
        ]
    if not isinstance(value.get("sizes"), list):
        raise LengthsError(f'{name}: has no list of "sizes"', hint=FORMS_HINT)
    return _with_counts(value, "sizes", name)


def _lengths(value: object, name: str) -> list[Element]:
    if isinstance(value, list):  # of lengths, or of rows with counts of their own
        return [
            _row(f"element {i}", item) if isinstance(item, dict) else (f"element {i}", item, 1)
            for i, item in enumerate(value)
        ]
    if not isinstance(value, dict):
        raise LengthsError(
            f"{name}: a JSON {type(value).__name__}, not a list or an object", hint=FORMS_HINT
        )
    if isinstance(value.get("lengths"), list):
        return _with_counts(value, "lengths", name)
    if LENGTH in value:
        return [_row("the only row", value)]
    # JSON's keys are strings; one that isn't a number stays one and is reported.
    return [
        ("histogram", int(float(key)) if WHOLE.fullmatch(key) and len(key) < 16 else key, count)
        for key, count in value.items()
    ]


def _with_counts(value: dict[str, Any], key: str, name: str) -> list[Element]:
    """The elements of a list with those of the list of counts beside it."""
    items, counts = value[key], value.get("counts", [1] * len(value[key]))
    if not isinstance(counts, list) or len(counts) != len(items):
        size = f"{len(counts)} values" if isinstance(counts, list) else type(counts).__name__
        raise LengthsError(
            f"{name}: {len(items)} {key}, but counts has {size}",
            hint=f"{key} and counts must be lists of one size",
        )
    pairs = enumerate(zip(items, counts, strict=True))
    return [(f"element {i}", item, count) for i, (item, count) in pairs]


def _row(where: str, value: dict[str, Any]) -> Element:
    return where, value.get(LENGTH), value.get(COUNT, 1)


def count_array(array: npt.NDArray[Any], name: str, hint: str) -> CountedSizes:
    """Counts the lengths in an array of one dimension.

    Raises:
        LengthsError: it has another shape or type, is empty or holds bad values.
    """
    if array.ndim != 1 or array.dtype.kind not in "iuf":
        raise LengthsError(
            f"{name}: an array of shape {array.shape} and type {array.dtype}, "
            "but lengths need one dimension and an integer type",
            hint=hint,
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
            row = make_row((LENGTH,), [array[index]], 1)
            problems.add(f"element {index}", str(array[index]), str(row))
        problems.total = len(indices)
        problems.raise_if_any()
    array = array.astype(np.int64)
    if array.size and array.max() <= _DENSE_LENGTHS:  # counting beats sorting
        counts = np.bincount(array)
        lengths = np.flatnonzero(counts)
        counts = counts[lengths]
    else:
        lengths, counts = np.unique(array, return_counts=True)
    pairs = zip(lengths.tolist(), counts.tolist(), strict=True)
    counted = CountedSizes((LENGTH,), {(length,): count for length, count in pairs})
    return check_counts(counted, name, hint)
