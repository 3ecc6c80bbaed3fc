"""JSON documents and arrays of traffic, counted.

A document is a list of lengths, a histogram ``{"12": 3}``, ``{"lengths": [...], "counts": [...]}``, or
for two axes ``{"axes": ["length", "batch"], "sizes": [[12, 4], …], "counts": [3, …]}``, where
``cells`` ``[[12, 4, 3], …]`` may stand for sizes and counts both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edgecompile.errors import LengthsError
from edgecompile.lengths.rows import (
    COUNT,
    FORMS_HINT,
    LENGTH,
    MAX_LENGTH,
    WHOLE,
    Problems,
    Sizes,
    find_pair,
    make_row,
    spell,
)

Element = tuple[str, object, object]  # its name in messages, its sizes, its count


class CountedSizes(NamedTuple):
    """The contents of a source.

    Attributes:
        axes: its axes, the length axis first; ("length",) for lengths alone.
        counts: samples by sizes.
        source: the source of the samples, for people.
        ignored: names of columns, in lower case, that aren't counted.
    """

    axes: tuple[str, ...]
    counts: Mapping[Sizes, int]
    source: str
    ignored: tuple[str, ...] = ()


def count_document(value: object, name: str, axes: Sequence[str] | None = None) -> CountedSizes:
    """Counts the sizes in a decoded JSON document (the module's text has the forms).

    Args:
        value: the document.
        name: the name of its file, for messages.
        axes: the model's axes that may vary, the length axis first; None: any.

    Raises:
        LengthsError: the document has another form or holds bad values.
    """
    record: dict[str, Any] = value if isinstance(value, dict) else {}
    if isinstance(record.get("axes"), list):
        own_axes, elements = _cells(record, name, axes)
    else:
        own_axes, elements = (LENGTH,), _lengths(value, name)
    counted = count_elements(elements, own_axes, name, FORMS_HINT)
    source = record.get("source")
    return counted._replace(source=source) if source and isinstance(source, str) else counted


def count_elements(
    elements: Iterable[Element], axes: tuple[str, ...], name: str, hint: str
) -> CountedSizes:
    """Samples by sizes.

    Raises:
        LengthsError: elements are bad; the first ten are shown.
    """
    problems = Problems(name, hint)
    counts: Counter[Sizes] = Counter()
    for where, item, count in elements:
        pair = item if isinstance(item, list | tuple) and len(item) == 2 else ()
        row = make_row(axes, [item] if len(axes) == 1 else pair, count)
        if isinstance(row, str):
            problems.add(where, spell(item), row)
        else:
            counts[row[0]] += row[1]
    problems.raise_if_any()
    return CountedSizes(axes, counts, name)


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
    values, counts = np.unique(array, return_counts=True)
    if not np.all((values >= 1) & (values <= MAX_LENGTH) & (np.floor(values) == values)):
        values, counts = array, np.ones_like(array)  # the problems are named by their positions
    pairs = enumerate(zip(values.tolist(), counts.tolist(), strict=True))
    return count_elements(((f"element {i}", *pair) for i, pair in pairs), (LENGTH,), name, hint)


def _cells(
    value: dict[str, Any], name: str, axes: Sequence[str] | None
) -> tuple[tuple[str, ...], list[Element]]:
    """The axes of a document about two, the length axis first, and its elements in that order."""
    names = value["axes"]
    texts = [item.lower() for item in names if isinstance(item, str)]
    columns = find_pair(texts, axes) if len(names) == len(texts) == 2 else None
    if columns is None:
        expected = ", ".join(axes or ("length", "another"))
        raise LengthsError(
            f"{name}: the axes {spell(names)[:80]} aren't two of {expected}", hint=FORMS_HINT
        )
    cells = value.get("cells")
    elements: list[Element]
    if isinstance(cells, list):
        rows = [cell if isinstance(cell, list) and cell else [cell, 1] for cell in cells]
        elements = [(f"cell {i}", row[:-1], row[-1]) for i, row in enumerate(rows)]
    elif isinstance(value.get("sizes"), list):
        elements = _with_counts(value, "sizes", name)
    else:
        raise LengthsError(f'{name}: has no list of "sizes"', hint=FORMS_HINT)
    if texts != list(columns.values()):
        elements = [
            (where, item[::-1] if isinstance(item, list) else item, count)
            for where, item, count in elements
        ]
    return tuple(columns), elements


def _lengths(value: object, name: str) -> list[Element]:
    if isinstance(value, list):  # of lengths, or of rows with counts of their own
        return [_element(f"element {i}", item) for i, item in enumerate(value)]
    if not isinstance(value, dict):
        raise LengthsError(
            f"{name}: a JSON {type(value).__name__}, not a list or an object", hint=FORMS_HINT
        )
    if isinstance(value.get("lengths"), list):
        return _with_counts(value, "lengths", name)
    if LENGTH in value:
        return [_element("the only row", value)]
    # JSON's keys are strings; one that isn't a number stays one and is reported.
    return [
        ("histogram", int(float(key)) if WHOLE.fullmatch(key) and len(key) < 16 else key, count)
        for key, count in value.items()
    ]


def _element(where: str, item: object) -> Element:
    if isinstance(item, dict):
        return where, item.get(LENGTH), item.get(COUNT, 1)
    return where, item, 1


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
