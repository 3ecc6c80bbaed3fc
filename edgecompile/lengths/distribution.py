"""Distributions of traffic: summarise and clip.

Quantiles are those of the sample itself (the smallest length that at least a share q of the
samples doesn't exceed), so every number that a summary prints did occur.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from edgecompile.errors import LengthsError
from edgecompile.lengths.documents import count_array, count_document
from edgecompile.lengths.rows import FORMS_HINT, LENGTH, MAX_TOTAL, Sizes, make_row

IntArray = npt.NDArray[np.int64]

# numpy's hypergeometric draws refuse populations from here on.
_HYPERGEOMETRIC_LIMIT = 10**9


class CountedSamples:
    """Samples of traffic, counted by their sizes; on one axis or on two.

    Attributes:
        counts: number of samples of each size, each from 1 up, 2^53 at most in all.
        source: origin of the samples, for people to read.
    """

    counts: tuple[int, ...]
    source: str

    def _check(self, axes: Sequence[str], sizes: Sequence[Any], noun: str) -> None:
        """Raises a LengthsError if sizes or counts are bad, unordered or too many."""
        if not sizes:
            raise LengthsError(f"{self.source}: holds no {noun}s", hint=FORMS_HINT)
        if len(sizes) != len(self.counts):
            raise LengthsError(f"{self.source}: {len(sizes)} {noun}s but {len(self.counts)} counts")
        problems = []
        for item, count in zip(sizes, self.counts, strict=True):
            cell = item if len(axes) == 2 else (item,)
            row = make_row(axes, cell, count)
            if isinstance(row, str):
                problems.append(f"{item!r} {row}")
            elif any(type(value) is not int for value in (*cell, count)):
                problems.append(f"{item!r}, {count!r} times, isn't an int")
        if problems:
            raise LengthsError(
                f"{self.source}: {len(problems)} bad values: " + "; ".join(problems[:10])
            )
        if any(a >= b for a, b in pairwise(sizes)):
            raise LengthsError(f"{self.source}: the distinct {noun}s aren't in ascending order")
        if self.n > MAX_TOTAL:
            raise LengthsError(
                f"{self.source}: {self.n} samples are more than sums are exact for: "
                f"over {MAX_TOTAL} samples",
                hint="divide the counts by a common factor",
            )

    @cached_property
    def count_array(self) -> IntArray:
        """``counts`` as a read-only int64 array, shape [distinct]."""
        return read_only(self.counts)

    @cached_property
    def n(self) -> int:
        """Number of samples."""
        return sum(self.counts)


@dataclass(frozen=True)
class LengthSummary:
    """Key figures of a distribution; lengths in elements of the length axis (tokens, frames)."""

    n: int
    distinct: int
    mean: float
    min: int
    p50: int
    p90: int
    p99: int
    max: int

    def __str__(self) -> str:
        return f"{self.n:,} inputs, {self.min} to {self.max}, median {self.p50}, p99 {self.p99}"

    def to_json(self) -> dict[str, Any]:
        """A dict of plain numbers."""
        return dict(vars(self))


@dataclass(frozen=True)
class LengthDistribution(CountedSamples):
    """The count of each length.

    Attributes:
        lengths: the distinct lengths, ascending, each from 1 to 2^31-1.
        counts: number of samples of each length, each from 1 up, 2^53 at most in all.
        source: origin of the lengths, for people to read.
        ignored: names of the source's columns, in lower case, that aren't counted.

    Raises:
        LengthsError: the fields break one of these rules.
    """

    lengths: tuple[int, ...]
    counts: tuple[int, ...]
    source: str = "samples"
    ignored: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        self._check((LENGTH,), self.lengths, "length")

    @classmethod
    def from_samples(
        cls, samples: Iterable[int] | npt.NDArray[Any], source: str = "samples"
    ) -> LengthDistribution:
        """Counts raw lengths, one per sample.

        Raises:
            LengthsError: there are none, or some aren't lengths.
        """
        array = samples if isinstance(samples, np.ndarray) else np.array(list(samples))
        if array.size == 0:
            raise LengthsError(f"{source}: holds no lengths")
        return cls.from_sizes(count_array(array, source, "give whole numbers").counts, source)

    @classmethod
    def from_sizes(cls, counts: Mapping[Sizes, int], source: str) -> LengthDistribution:
        """A distribution from the counts of a source that has one axis."""
        return cls.from_counts({length: count for (length,), count in counts.items()}, source)

    @classmethod
    def from_counts(cls, counts: Mapping[int, int], source: str = "samples") -> LengthDistribution:
        """A distribution from a histogram in any order."""
        items = sorted(counts.items())
        return cls(tuple(k for k, _ in items), tuple(n for _, n in items), source)

    @cached_property
    def length_array(self) -> IntArray:
        """``lengths`` as a read-only int64 array, shape [distinct]."""
        return read_only(self.lengths)

    @property
    def min(self) -> int:
        """Shortest length."""
        return self.lengths[0]

    @property
    def max(self) -> int:
        """Longest length."""
        return self.lengths[-1]

    @cached_property
    def mean(self) -> float:
        """Mean length."""
        return sum(a * b for a, b in zip(self.lengths, self.counts, strict=True)) / self.n

    def quantile(self, q: float) -> int:
        """The smallest length that at least a share ``q`` (0 to 1) of samples doesn't exceed."""
        if not 0 <= q <= 1:
            raise ValueError(f"q is {q}, not in 0..1")
        # A share like 0.9 of 10 samples must mean 9, not 9.000000000000002.
        rank = max(1, int(np.ceil(q * self.n - 1e-9 * self.n * q)))
        index = int(np.searchsorted(np.cumsum(self.count_array), rank))
        return self.lengths[min(index, len(self.lengths) - 1)]

    def summary(self) -> LengthSummary:
        """Key figures."""
        return LengthSummary(
            n=self.n,
            distinct=len(self.lengths),
            mean=self.mean,
            min=self.min,
            p50=self.quantile(0.5),
            p90=self.quantile(0.9),
            p99=self.quantile(0.99),
            max=self.max,
        )

    def shares_up_to(self, lengths: IntArray) -> npt.NDArray[np.float64]:
        """For each of ``lengths``, the share of the samples that don't exceed it."""
        reached = np.concatenate([[0], np.cumsum(self.count_array)])
        shares: npt.NDArray[np.float64] = (
            reached[np.searchsorted(self.length_array, lengths, side="right")] / self.n
        )
        return shares

    def share_over(self, max_length: int) -> float:
        """Share of the samples that are longer than ``max_length``."""
        return int(self.count_array[self.length_array > max_length].sum()) / self.n

    def clip(self, max_length: int) -> tuple[LengthDistribution, float]:
        """Counts longer samples as ``max_length``, and gives their share.

        That is what a tokenizer with truncation sends to the model.
        """
        share = self.share_over(max_length)
        if share == 0:
            return self, 0.0
        cut, counts = add_up(np.minimum(self.length_array, max_length), self.count_array)
        return LengthDistribution(tuple(cut.tolist()), tuple(counts.tolist()), self.source), share

    def sparkline(self, width: int = 40) -> str:
        """The histogram in one line of ``width`` block characters, from min to max length."""
        blocks = " ▁▂▃▄▅▆▇█"
        width = max(1, min(width, self.max - self.min + 1))
        edges = np.linspace(self.min, self.max + 1, width + 1)
        heights, _ = np.histogram(self.length_array, bins=edges, weights=self.count_array)
        levels = np.ceil(heights / heights.max() * (len(blocks) - 1)).astype(int)
        return "".join(blocks[level] for level in levels)

    def to_json(self) -> dict[str, Any]:
        """``{"lengths": [...], "counts": [...], "source": ...}``; read_sizes reads it, too."""
        return {
            "lengths": list(self.lengths),
            "counts": list(self.counts),
            "source": self.source,
        }

    @classmethod
    def from_json(cls, value: object, name: str = "lengths") -> LengthDistribution:
        """The inverse of :meth:`to_json`; takes every JSON form of lengths that read_sizes takes.

        Raises:
            LengthsError: the value has another form, or holds bad lengths or counts.
        """
        counted = count_document(value, name)
        if len(counted.axes) != 1:
            raise LengthsError(f"{name}: is about two axes, not about lengths alone")
        return cls.from_sizes(counted.counts, counted.source)


def read_only(values: Sequence[Any]) -> IntArray:
    """The values as an int64 array that can't be changed."""
    array = np.array(values, dtype=np.int64)
    array.flags.writeable = False
    return array


def add_up(sizes: IntArray, counts: IntArray) -> tuple[IntArray, IntArray]:
    """The distinct rows of ``sizes``, ascending, and how many samples each has."""
    distinct, index = np.unique(sizes, axis=0, return_inverse=True)
    total = np.zeros(len(distinct), dtype=np.int64)
    np.add.at(total, index.reshape(-1), counts)
    return distinct, total


def draw_held_out(counts: IntArray, fraction: float, seed: int, source: str) -> IntArray:
    """The number of samples of each kind in a random part of about ``fraction``; shape of ``counts``.

    Raises:
        LengthsError: there are fewer than two samples.
    """
    if not 0 < fraction < 1:
        raise ValueError(f"fraction is {fraction}, not between 0 and 1")
    n = int(counts.sum())
    if n < 2:
        raise LengthsError(f"{source}: one sample can't be split in two")
    rng = np.random.default_rng(seed)
    held = min(max(round(n * fraction), 1), n - 1)
    drawn: IntArray
    if n < _HYPERGEOMETRIC_LIMIT:
        drawn = rng.multivariate_hypergeometric(counts, held, method="marginals")
    else:  # so many samples that drawing each on its own gives the same share
        drawn = rng.binomial(counts, held / n)
    return drawn
