"""The lengths that traffic has: read, summarise, clip, split, sample.

Quantiles are those of the sample itself (the smallest length that at least a share q of the
samples doesn't exceed), so every number that a summary prints did occur. Randomness takes an
explicit seed and nothing else; the same seed gives the same draw for one numpy version.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from edgecompile.errors import LengthsError
from edgecompile.lengths.files import count_json, count_lengths, count_values
from edgecompile.lengths.rows import MAX_TOTAL, check_count, check_length, whole_number
from edgecompile.lengths.tables import display_name

IntArray = npt.NDArray[np.int64]

# numpy's hypergeometric draws refuse populations from here on.
_HYPERGEOMETRIC_LIMIT = 10**9


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

    def to_json(self) -> dict[str, Any]:
        """A dict of plain numbers."""
        return dict(vars(self))


@dataclass(frozen=True)
class LengthDistribution:
    """How often each length occurs.

    Attributes:
        lengths: the distinct lengths, ascending, each from 1 to 2^31-1.
        counts: how many samples have each length, each from 1 up, 2^53 at most in all.
        source: where the lengths come from, for people to read.

    Raises:
        LengthsError: the fields break one of these rules.
    """

    lengths: tuple[int, ...]
    counts: tuple[int, ...]
    source: str = "samples"

    def __post_init__(self) -> None:
        if not self.lengths:
            raise LengthsError(f"{self.source}: holds no lengths")
        if len(self.lengths) != len(self.counts):
            raise LengthsError(
                f"{self.source}: {len(self.lengths)} lengths but {len(self.counts)} counts"
            )
        problems = [
            f"{value!r} {reason}"
            for values, check in ((self.lengths, check_length), (self.counts, check_count))
            for value in values
            if (reason := _reason(value, check)) is not None
        ]
        if problems:
            raise LengthsError(
                f"{self.source}: {len(problems)} bad values: " + "; ".join(problems[:10])
            )
        if any(a >= b for a, b in pairwise(self.lengths)):
            raise LengthsError(f"{self.source}: the distinct lengths aren't in ascending order")
        if sum(self.counts) > MAX_TOTAL:
            raise LengthsError(f"{self.source}: over {MAX_TOTAL} samples")

    @classmethod
    def from_samples(
        cls, samples: Iterable[int] | npt.NDArray[Any], source: str = "samples"
    ) -> LengthDistribution:
        """Counts raw lengths, one per sample.

        Raises:
            LengthsError: there are none, or some aren't lengths.
        """
        array = samples if isinstance(samples, np.ndarray) else np.array(list(samples))
        if array.ndim != 1 or array.size == 0:
            raise LengthsError(f"{source}: holds no lengths")
        if array.dtype.kind not in "iu":
            raise LengthsError(f"{source}: lengths of type {array.dtype}, not integers")
        return cls.from_counts(count_values(array), source)

    @classmethod
    def from_counts(cls, counts: Mapping[int, int], source: str = "samples") -> LengthDistribution:
        """A distribution from a histogram in any order."""
        items = sorted(counts.items())
        return cls(tuple(k for k, _ in items), tuple(n for _, n in items), source)

    @cached_property
    def length_array(self) -> IntArray:
        """``lengths`` as a read-only int64 array, shape [distinct]."""
        return _frozen(self.lengths)

    @cached_property
    def count_array(self) -> IntArray:
        """``counts`` as a read-only int64 array, shape [distinct]."""
        return _frozen(self.counts)

    @cached_property
    def n(self) -> int:
        """Number of samples."""
        return sum(self.counts)

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
        wanted = max(1, int(np.ceil(q * self.n - 1e-9 * self.n * q)))
        index = int(np.searchsorted(np.cumsum(self.count_array), wanted))
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

    def share_over(self, max_length: int) -> float:
        """Share of the samples that are longer than ``max_length``."""
        index = int(np.searchsorted(self.length_array, max_length, side="right"))
        return sum(self.counts[index:]) / self.n

    def clip(
        self, max_length: int, over: Literal["truncate", "drop"] = "truncate"
    ) -> tuple[LengthDistribution, float]:
        """Limits the lengths, and gives the share of samples that were over the limit.

        Args:
            max_length: the longest length that stays.
            over: ``truncate`` counts longer samples as ``max_length`` (what a tokenizer with
                truncation sends to the model); ``drop`` leaves them out (what a caller sees who
                sends them whole and is refused).

        Raises:
            LengthsError: with ``drop``, no sample is left.
        """
        share = self.share_over(max_length)
        if share == 0:
            return self, 0.0
        index = int(np.searchsorted(self.length_array, max_length, side="right"))
        kept = dict(zip(self.lengths[:index], self.counts[:index], strict=True))
        if over == "truncate":
            kept[max_length] = kept.get(max_length, 0) + sum(self.counts[index:])
        if not kept:
            raise LengthsError(
                f"{self.source}: all {self.n} samples are longer than {max_length}; "
                f"the shortest has {self.min}",
                hint="raise --max-length, or truncate the inputs",
            )
        return LengthDistribution.from_counts(kept, self.source), share

    def split(self, fraction: float, seed: int) -> tuple[LengthDistribution, LengthDistribution]:
        """Splits the samples at random in two: a part to plan from, and a part held out.

        Args:
            fraction: share of the samples to hold out, over 0 and under 1.
            seed: seed of the draw.

        Returns:
            (rest, held out); each has one sample at least.

        Raises:
            LengthsError: there are fewer than two samples.
        """
        drawn = draw_held_out(self.count_array, fraction, seed, self.source)
        return self._with_counts(self.count_array - drawn), self._with_counts(drawn)

    def sample(self, n: int, seed: int) -> IntArray:
        """Draws ``n`` lengths with replacement, in random order; int64, shape [n]."""
        rng = np.random.default_rng(seed)
        drawn: IntArray = rng.choice(self.length_array, size=n, p=self.count_array / self.n)
        return drawn

    def resample(self, seed: int) -> LengthDistribution:
        """A bootstrap sample: as many samples, drawn with replacement."""
        rng = np.random.default_rng(seed)
        return self._with_counts(rng.multinomial(self.n, self.count_array / self.n))

    def sparkline(self, width: int = 40) -> str:
        """The histogram in one line of ``width`` block characters, from min to max length."""
        blocks = " ▁▂▃▄▅▆▇█"
        width = max(1, min(width, self.max - self.min + 1))
        edges = np.linspace(self.min, self.max + 1, width + 1)
        heights, _ = np.histogram(self.length_array, bins=edges, weights=self.count_array)
        levels = np.ceil(heights / heights.max() * (len(blocks) - 1)).astype(int)
        return "".join(blocks[level] for level in levels)

    def to_json(self) -> dict[str, Any]:
        """``{"lengths": [...], "counts": [...], "source": ...}``; read_lengths reads it, too."""
        return {
            "lengths": list(self.lengths),
            "counts": list(self.counts),
            "source": self.source,
        }

    @classmethod
    def from_json(cls, value: object, name: str = "lengths") -> LengthDistribution:
        """The inverse of :meth:`to_json`; takes every JSON form that read_lengths takes.

        Raises:
            LengthsError: the value has another form, or holds bad lengths or counts.
        """
        found = count_json(value, name)
        return cls.from_counts(found.counts, found.recorded_source or name)

    def _with_counts(self, counts: IntArray) -> LengthDistribution:
        kept = counts > 0
        return LengthDistribution(
            tuple(self.length_array[kept].tolist()), tuple(counts[kept].tolist()), self.source
        )


def read_lengths(source: str | os.PathLike[str]) -> LengthDistribution:
    """Reads a lengths file, or standard input where ``source`` is ``"-"``.

    The forms are listed in :mod:`edgecompile.lengths.files`; the content decides, not the name.

    Raises:
        LengthsError: see :func:`edgecompile.lengths.files.count_lengths`.
    """
    found = count_lengths(source)
    return LengthDistribution.from_counts(
        found.counts, found.recorded_source or display_name(source)
    )


def draw_held_out(counts: IntArray, fraction: float, seed: int, source: str) -> IntArray:
    """How many samples of each kind a random part of about ``fraction`` takes; shape of ``counts``.

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


def _frozen(values: tuple[int, ...]) -> IntArray:
    array = np.array(values, dtype=np.int64)
    array.flags.writeable = False
    return array


def _reason(value: object, check: Any) -> str | None:
    number = whole_number(value)
    if isinstance(number, str):
        return number
    if not isinstance(value, int):
        return "isn't an int"
    reason: str | None = check(number)
    return reason
