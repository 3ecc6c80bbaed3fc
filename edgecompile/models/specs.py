"""The inputs, outputs and axes of a model, as plain values."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from edgecompile.files import plain_fields
from edgecompile.runtime.format.dtypes import Number
from edgecompile.runtime.format.sums import axes_of, find_givers, size_of, take_sizes

BATCH = "batch"
#: A number, or the text of a sum of axes.
Bound = Number | str


@dataclass(frozen=True)
class AxisLimits:
    """Sizes that the model itself allows for an axis, inclusive; ``hi`` None: no limit known."""

    lo: int
    hi: int | None = None

    def __str__(self) -> str:
        return f"{self.lo} and up" if self.hi is None else f"{self.lo}..{self.hi}"


_Own = TypeVar("_Own", bound="_Spec")


class _Spec:
    """Reads and writes specs as JSON."""

    def to_json(self) -> dict[str, Any]:
        """A dict of plain values."""
        return plain_fields(self)

    @classmethod
    def from_json(cls: type[_Own], value: Mapping[str, Any]) -> _Own:
        """The inverse of :meth:`to_json`."""
        parts = {key: tuple(v) if isinstance(v, list) else v for key, v in value.items()}
        return cls(**parts)


@dataclass(frozen=True)
class InputSpec(_Spec):
    """One input.

    Attributes:
        name: the argument's name in the module's ``forward``.
        dtype: numpy's name of the element type.
        shape: per dimension a fixed size, the name of an axis, or a sum of axes
            (:mod:`edgecompile.runtime.format.sums`).
        pad: the padding value of the input in pad mode; None: it can't be padded.
        bounds: smallest and largest allowed value, checked by the runtime; None: any. Either may be
            a sum of axes, whose value differs from run to run.
        draw: range from which examples draw values of real positions, where it is narrower than
            ``bounds``, with sums of axes as in ``bounds``; a mask has (1, 1).
        in_place: whether the model changes it; a caller passes memory of its own.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    pad: Number | None = None
    bounds: tuple[Bound, Bound] | None = None
    draw: tuple[Bound, Bound] | None = None
    in_place: bool = False

    @property
    def has_scales(self) -> bool:
        """Whether it is a cache of rows in int8 with scales (:mod:`edgecompile.models.cache_rows`)."""
        return self.in_place and self.dtype == "int8"

    @property
    def is_mask(self) -> bool:
        """Whether the input only tells real positions (1) from padding (0)."""
        return self.pad == 0 and self.draw == (1, 1)

    @property
    def follows_sizes(self) -> bool:
        """Whether the values depend on the sizes of axes: a position, or a length."""
        return any(isinstance(end, str) for end in (self.bounds or ()) + (self.draw or ()))

    def span(self, sizes: Mapping[str, int]) -> tuple[Number, Number] | None:
        """The range to draw from where axes have these sizes; None: any."""
        ends = self.draw or self.bounds
        if ends is None:
            return None
        low, high = (size_of(end, sizes) if isinstance(end, str) else end for end in ends)
        return low, high


@dataclass(frozen=True)
class OutputSpec(_Spec):
    """One output.

    ``shape`` has a fixed size, the name of an axis whose size the dimension always has, or None
    for a size that varies in another way (the frames behind a strided convolution).
    """

    name: str
    dtype: str
    shape: tuple[int | str | None, ...]


def tied_sizes(inputs: Sequence[InputSpec], axes: Collection[str]) -> list[str]:
    """The sizes of inputs that follow from some of ``axes``: inputs aren't filled up along these axes then."""
    dims = dict.fromkeys(dim for spec in inputs for dim in spec.shape if dim not in axes)
    return [str(dim) for dim in dims if not set(axes).isdisjoint(axes_of(dim, ()))]


def axis_sizes(inputs: Sequence[InputSpec], arrays: Mapping[str, Any]) -> dict[str, int]:
    """The size of every axis, as arrays or tensors have it; sums of axes follow, or give it."""
    sizes = {
        dim: int(size)
        for spec in inputs
        for dim, size in zip(spec.shape, arrays[spec.name].shape, strict=True)
        if isinstance(dim, str)
    }
    take_sizes(sizes, find_givers(sizes, [dim for dim in sizes if dim.isidentifier()]))
    return {axis: size for axis, size in sizes.items() if axis.isidentifier()}


def usual_size(axis: str, lo: int, hi: int) -> int:
    """A size of an axis whose sizes nobody has counted: few rows of a batch, else the middle by ratios."""
    return lo if axis == BATCH else math.isqrt(lo * hi)


def batch_problem(axes: Collection[str], batch: tuple[int, int] | None) -> str | None:
    """The fault of a model without an axis for the batches that are asked for; None: there is none."""
    if batch is None or batch == (1, 1) or BATCH in axes:
        return None
    low, high = batch
    sizes = f"{low}" if low == high else f"{low} to {high}"
    return f"batches of {sizes} are asked for, but none of its axes is '{BATCH}'"
