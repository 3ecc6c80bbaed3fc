"""The sizes that traffic has on two axes at once: lengths with batches, or two lengths.

The first axis is the length axis. What is said of lengths in :mod:`edgecompile.lengths.distribution` holds here
too: quantiles are those of the sample, and randomness takes an explicit seed and nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from edgecompile.errors import LengthsError
from edgecompile.lengths.distribution import LengthDistribution, draw_held_out
from edgecompile.lengths.joint_files import CountedSizes, Sizes, count_joint, count_joint_json
from edgecompile.lengths.rows import MAX_TOTAL, check_count, check_size, whole_number
from edgecompile.lengths.tables import display_name

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class JointDistribution:
    """How often each pair of sizes occurs.

    Attributes:
        axes: names of the two axes, the length axis first.
        sizes: the distinct pairs, ascending, each size from 1 to 2^31-1.
        counts: how many samples have each pair, each from 1 up, 2^53 at most in all.
        source: where the sizes come from, for people to read.

    Raises:
        LengthsError: the fields break one of these rules.
    """

    axes: tuple[str, ...]
    sizes: tuple[Sizes, ...]
    counts: tuple[int, ...]
    source: str = "samples"

    def __post_init__(self) -> None:
        if len(self.axes) != 2 or len(set(self.axes)) != 2:
            raise LengthsError(f"{self.source}: needs two axes, not {', '.join(self.axes) or 0}")
        if not self.sizes:
            raise LengthsError(f"{self.source}: holds no sizes")
        if len(self.sizes) != len(self.counts):
            raise LengthsError(
                f"{self.source}: {len(self.sizes)} pairs of sizes but {len(self.counts)} counts"
            )
        problems = []
        for cell, count in zip(self.sizes, self.counts, strict=True):
            if len(cell) != 2:
                problems.append(f"{cell!r} isn't a pair")
                continue
            for value in cell:
                reason = _reason(value, check_size)
                if reason is not None:
                    problems.append(f"{value!r} in {cell!r} {reason}")
            reason = _reason(count, check_count)
            if reason is not None:
                problems.append(f"the count {count!r} of {cell!r} {reason}")
        if problems:
            raise LengthsError(
                f"{self.source}: {len(problems)} bad values: " + "; ".join(problems[:10])
            )
        if any(a >= b for a, b in pairwise(self.sizes)):
            raise LengthsError(f"{self.source}: the distinct sizes aren't in ascending order")
        if sum(self.counts) > MAX_TOTAL:
            raise LengthsError(f"{self.source}: over {MAX_TOTAL} samples")

    @classmethod
    def from_counts(
        cls, axes: tuple[str, ...], counts: Mapping[Sizes, int], source: str = "samples"
    ) -> JointDistribution:
        """A distribution from a histogram in any order."""
        items = sorted(counts.items())
        return cls(tuple(axes), tuple(k for k, _ in items), tuple(n for _, n in items), source)

    @cached_property
    def size_array(self) -> IntArray:
        """``sizes`` as a read-only int64 array, shape [cells, 2]."""
        return _frozen(self.sizes)

    @cached_property
    def count_array(self) -> IntArray:
        """``counts`` as a read-only int64 array, shape [cells]."""
        return _frozen(self.counts)

    @cached_property
    def n(self) -> int:
        """Number of samples."""
        return sum(self.counts)

    def index(self, axis: str) -> int:
        """Position of an axis, 0 or 1.

        Raises:
            KeyError: there is no such axis.
        """
        if axis not in self.axes:
            raise KeyError(axis)
        return self.axes.index(axis)

    def min(self, axis: str) -> int:
        """Smallest size on an axis."""
        return int(self.size_array[:, self.index(axis)].min())

    def max(self, axis: str) -> int:
        """Largest size on an axis."""
        return int(self.size_array[:, self.index(axis)].max())

    @property
    def max_sizes(self) -> dict[str, int]:
        """Largest size on each axis; no sample needs to have them all."""
        return {axis: self.max(axis) for axis in self.axes}

    def marginal(self, axis: str) -> LengthDistribution:
        """The sizes on one axis, whatever the other has."""
        found, where = np.unique(self.size_array[:, self.index(axis)], return_inverse=True)
        counts = np.zeros(len(found), dtype=np.int64)
        np.add.at(counts, where, self.count_array)
        return LengthDistribution(tuple(found.tolist()), tuple(counts.tolist()), self.source)

    def share_over(self, axis: str, max_size: int) -> float:
        """Share of the samples that are larger than ``max_size`` on an axis."""
        over = self.size_array[:, self.index(axis)] > max_size
        return int(self.count_array[over].sum()) / self.n

    def clip(
        self, axis: str, max_size: int, over: Literal["truncate", "drop"] = "truncate"
    ) -> tuple[JointDistribution, float]:
        """Limits the sizes on one axis, and gives the share of samples that were over the limit.

        Args:
            axis: the axis.
            max_size: the largest size that stays.
            over: ``truncate`` counts larger samples as ``max_size``; ``drop`` leaves them out.

        Raises:
            LengthsError: with ``drop``, no sample is left.
        """
        share = self.share_over(axis, max_size)
        if share == 0:
            return self, 0.0
        column = self.index(axis)
        kept: dict[Sizes, int] = {}
        for cell, count in zip(self.sizes, self.counts, strict=True):
            if cell[column] > max_size:
                if over == "drop":
                    continue
                cell = (max_size, cell[1]) if column == 0 else (cell[0], max_size)
            kept[cell] = kept.get(cell, 0) + count
        if not kept:
            raise LengthsError(
                f"{self.source}: all {self.n} samples are larger than {max_size} on the axis "
                f"{axis}; the smallest has {self.min(axis)}",
                hint="raise the limit, or truncate the inputs",
            )
        return JointDistribution.from_counts(self.axes, kept, self.source), share

    def clip_all(self, max_sizes: Mapping[str, int]) -> JointDistribution:
        """Truncates on every axis that ``max_sizes`` names."""
        served = self
        for axis, size in max_sizes.items():
            served, _ = served.clip(axis, size)
        return served

    def split(self, fraction: float, seed: int) -> tuple[JointDistribution, JointDistribution]:
        """Splits the samples at random: (rest, held out); each has one sample at least.

        Args:
            fraction: share of the samples to hold out, over 0 and under 1.
            seed: seed of the draw.

        Raises:
            LengthsError: there are fewer than two samples.
        """
        drawn = draw_held_out(self.count_array, fraction, seed, self.source)
        return self._with_counts(self.count_array - drawn), self._with_counts(drawn)

    def resample(self, seed: int) -> JointDistribution:
        """A bootstrap sample: as many samples, drawn with replacement."""
        rng = np.random.default_rng(seed)
        return self._with_counts(rng.multinomial(self.n, self.count_array / self.n))

    def to_json(self) -> dict[str, Any]:
        """``{"axes", "sizes": [[…], …], "counts", "source"}``; read_joint reads it, too."""
        return {
            "axes": list(self.axes),
            "sizes": [list(cell) for cell in self.sizes],
            "counts": list(self.counts),
            "source": self.source,
        }

    @classmethod
    def from_json(cls, value: object, name: str = "sizes") -> JointDistribution:
        """The inverse of :meth:`to_json`; pairs may repeat and stand in any order.

        Raises:
            LengthsError: the value has another form, or holds bad sizes or counts.
        """
        return _counted(count_joint_json(value, name), name)

    def _with_counts(self, counts: IntArray) -> JointDistribution:
        kept = counts > 0
        sizes = tuple((a, b) for a, b in self.size_array[kept].tolist())
        return JointDistribution(self.axes, sizes, tuple(counts[kept].tolist()), self.source)


def read_joint(
    source: str | os.PathLike[str], axes: Sequence[str] | None = None
) -> JointDistribution:
    """Reads a file of joint sizes, or standard input where ``source`` is ``"-"``.

    Args:
        source: the file; :mod:`edgecompile.lengths.joint_files` lists the forms, the content decides.
        axes: the model's axes that may vary, the length axis first; None accepts any.

    Raises:
        LengthsError: see :func:`edgecompile.lengths.joint_files.count_joint`.
    """
    return _counted(count_joint(source, axes), display_name(source))


def _counted(found: CountedSizes, name: str) -> JointDistribution:
    source = found.recorded_source or name
    return JointDistribution.from_counts(found.axes, found.counts, source)


def _frozen(values: tuple[Any, ...]) -> IntArray:
    array = np.array(values, dtype=np.int64)
    array.flags.writeable = False
    return array


def _reason(value: object, check: Any) -> str | None:
    number = whole_number(value)
    if isinstance(number, str):
        return number
    reason: str | None = check(number) if isinstance(value, int) else "isn't an int"
    return reason
