"""Traffic from whatever a caller has: a file, a list, an array, a histogram, or pairs of sizes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from edgecompile.checks import describe
from edgecompile.errors import LengthsError, UsageError
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.lengths.documents import count_array, count_document, count_elements
from edgecompile.lengths.files import read_sizes
from edgecompile.lengths.joint import JointDistribution, distribution_of
from edgecompile.lengths.rows import LENGTH

TrafficSource: TypeAlias = (
    str
    | os.PathLike[str]
    | LengthDistribution
    | JointDistribution
    | Mapping[Any, int]
    | Iterable[Any]
)
_HINT = (
    "give a file's path, a list or an integer array of lengths, a histogram {length: count}, "
    "or pairs (batch, length)"
)


def read_traffic(
    source: TrafficSource, axes: Sequence[str] | None = None
) -> LengthDistribution | JointDistribution:
    """The distribution of lengths, or of lengths with another size, that ``source`` describes.

    Args:
        source: one of

            - the path of a lengths file, or ``"-"`` for standard input;
            - lengths, one per sample: any iterable of whole numbers, or an array of shape [samples];
            - a histogram: a mapping from length to number of samples;
            - the object of a JSON file, as ``json.load`` gives it
              (:mod:`edgecompile.lengths.documents` has the forms);
            - pairs (batch, length), in the order of an input's shape: an iterable, an array of
              shape [samples, 2], or a mapping from pair to number of samples;
            - a distribution, which is returned as it is.
        axes: the model's axes that may vary, the length axis first; None: "length" and "batch".
            Of a file, columns with other names are ignored: a plan refuses those of the model's axes.

    Raises:
        UsageError: the source is of another type.
        LengthsError: it can't be read, is empty, or holds values that aren't lengths (integers from 1
            to 2^31-1) or counts (from 1 up).
    """
    if isinstance(source, LengthDistribution | JointDistribution):
        return source
    if isinstance(source, str | os.PathLike):
        return read_sizes(source, axes)
    if isinstance(source, bytes | bytearray) or not isinstance(source, Iterable):
        raise UsageError(f"`lengths` is {describe(source)}", hint=_HINT)
    if isinstance(source, Mapping):
        if source and all(isinstance(key, str) for key in source):
            return distribution_of(count_document(dict(source), "lengths", axes))
        return _count(list(source.items()), axes)
    try:
        array = np.asarray(source if isinstance(source, np.ndarray) else list(source))
    except ValueError as error:
        raise LengthsError("the lengths and pairs don't have one shape", hint=_HINT) from error
    if array.ndim == 2 and array.shape[1] == 2 and array.dtype.kind in "iuf":
        pairs, counts = np.unique(array, axis=0, return_counts=True)
        cells = map(tuple, pairs.tolist())
        return _count(list(zip(cells, counts.tolist(), strict=True)), axes)
    if array.ndim == 1 and not array.size:
        raise LengthsError("the source holds no lengths", hint=_HINT)
    return distribution_of(count_array(array, "lengths", _HINT))


def _count(
    items: list[tuple[Any, Any]], axes: Sequence[str] | None
) -> LengthDistribution | JointDistribution:
    """The distribution of (length or pair, count)."""
    if not items:
        raise LengthsError("the source holds no lengths", hint=_HINT)
    joint = isinstance(items[0][0], tuple)
    name = "pairs of sizes" if joint else "lengths"
    elements = [
        # A pair is (batch, length); the length axis comes first here.
        (f"element {i}", sizes[::-1] if joint and isinstance(sizes, tuple) else sizes, count)
        for i, (sizes, count) in enumerate(items)
    ]
    columns = tuple(axes or (LENGTH, "batch"))[:2] if joint else (LENGTH,)
    return distribution_of(count_elements(elements, columns, name, _HINT))
