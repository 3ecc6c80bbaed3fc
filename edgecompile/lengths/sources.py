"""Traffic from whatever a caller has: a file, a list, an array, a histogram, or pairs of sizes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from edgecompile.errors import LengthsError
from edgecompile.lengths.distribution import LengthDistribution, read_lengths
from edgecompile.lengths.joint import JointDistribution, read_joint
from edgecompile.lengths.joint_files import Sizes, joint_axes_of
from edgecompile.lengths.rows import whole_number

__all__ = ["TrafficSource", "read_traffic"]

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
            - pairs (batch, length), in the order of an input's shape: an iterable, an array of
              shape [samples, 2], or a mapping from pair to number of samples;
            - a distribution, which is returned as it is.
        axes: the model's axes that may vary, the length axis first; None: "length" and "batch".
            Of a file, columns with other names are ignored.

    Raises:
        LengthsError: the source can't be read, is of another type, is empty, or holds values that
            aren't lengths (integers from 1 to 2^31-1) or counts (from 1 up).
    """
    if isinstance(source, LengthDistribution | JointDistribution):
        return source
    if isinstance(source, str | os.PathLike):
        return _read_file(source, axes)
    if isinstance(source, bytes | bytearray) or not isinstance(source, Iterable):
        raise LengthsError(f"lengths of type {type(source).__name__}", hint=_HINT)
    try:
        counts = _count(source)
    except (TypeError, ValueError) as error:
        raise LengthsError(f"the lengths can't be counted: {error}", hint=_HINT) from error
    if not any(isinstance(key, tuple) for key in counts):
        return LengthDistribution.from_counts(counts, "lengths")
    bad = [key for key in counts if not (isinstance(key, tuple) and len(key) == 2)]
    if bad:
        raise LengthsError(
            f"{bad[0]!r} isn't a pair (batch, length), as other elements are", hint=_HINT
        )
    names = tuple(axes or ("length", "batch"))[:2]
    pairs: dict[Sizes, int] = {(length, batch): count for (batch, length), count in counts.items()}
    return JointDistribution.from_counts(names, pairs, "pairs of sizes")


def _read_file(
    path: str | os.PathLike[str], axes: Sequence[str] | None
) -> LengthDistribution | JointDistribution:
    named = joint_axes_of(path, axes)
    if named is not None and (axes or named[1] == "batch" or "length" in named[1]):
        return read_joint(path, named)
    return read_lengths(path)


def _count(source: Iterable[Any]) -> dict[Any, int]:
    """Samples by length or pair; whole numbers of any type become integers.

    Raises:
        TypeError, ValueError: elements aren't whole numbers or sequences of these.
    """
    if isinstance(source, Mapping):
        return {_plain(key): _plain(count) for key, count in source.items()}
    if isinstance(source, np.ndarray):
        if source.dtype.kind not in "iuf" or source.ndim not in (1, 2):
            raise TypeError(f"an array of shape {source.shape} and type {source.dtype}")
        source = source.tolist()
    return dict(Counter(_plain(item) for item in source))


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | list | tuple):
        return tuple(_plain(item) for item in value)
    number = whole_number(value)  # before counting, in which True and 1 would be one key
    if isinstance(number, str):
        raise ValueError(f"{value!r} {number}")
    return number
