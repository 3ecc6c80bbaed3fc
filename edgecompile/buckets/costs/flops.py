"""The FLOP model of one run: arithmetic and memory traffic as functions of its length.

:func:`edgecompile.export.workcount.count_work` finds the numbers; :mod:`edgecompile.planning.costs.roofline` makes costs
of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations

#: Preferred in this order where several explain the counts equally well.
_POWERS = (1, 2, 0)


@dataclass(frozen=True)
class Quadratic:
    """fixed + per_element · L + per_pair · L², no coefficient below 0."""

    fixed: float
    per_element: float
    per_pair: float

    def __call__(self, length: int) -> float:
        return self.fixed + self.per_element * length + self.per_pair * length * length


@dataclass(frozen=True)
class FlopModel:
    """One run at length L, with the sizes of all other axes fixed.

    Attributes:
        model: the model's name.
        length_axis: the axis that L is the size of.
        sizes: (axis, size) pairs of the other axes.
        flops_per_element, flops_per_pair, fixed_flops: floating point operations of matrix
            products and convolutions per L, per L² and per run; a multiply-add counts as two.
        weight_bytes: bytes of weights that every run reads, as float32: the whole of each
            parameter and buffer once, but no table of which rows are looked up.
        fixed_bytes: other bytes moved in every run.
        bytes_per_element, bytes_per_pair: bytes moved per L and per L²: looked-up rows, and what
            leaf modules return, written and read once each. Programs that fuse operations move
            less.
        calls: calls of leaf modules that make a new tensor, at the shortest of ``lengths``.
        lengths: the lengths at which the model was run to count.
        flops: the operations counted there.
        misfit: largest distance of the formula from ``flops``, as a part of the count; 0 where
            the formula is exact.
        notes: the parts that the counts leave out, for people.
    """

    model: str
    length_axis: str
    sizes: tuple[tuple[str, int], ...]
    flops_per_element: float
    flops_per_pair: float
    fixed_flops: float
    weight_bytes: float
    fixed_bytes: float
    bytes_per_element: float
    bytes_per_pair: float
    calls: int
    lengths: tuple[int, ...]
    flops: tuple[int, ...]
    misfit: float = 0.0
    notes: tuple[str, ...] = field(default=())

    def flops_at(self, length: int) -> float:
        """Floating point operations of one run."""
        return Quadratic(self.fixed_flops, self.flops_per_element, self.flops_per_pair)(length)

    def bytes_at(self, length: int) -> float:
        """Bytes moved by one run, weights included."""
        fixed = self.weight_bytes + self.fixed_bytes
        return Quadratic(fixed, self.bytes_per_element, self.bytes_per_pair)(length)


def fit_quadratic(lengths: Sequence[int], counts: Sequence[int]) -> Quadratic:
    """The quadratic without negative coefficients that is nearest to the counts.

    Nearest in the squares of relative distances. Where one passes through all points it is found
    exactly, since the arithmetic is that of fractions; of several the one with fewest terms is
    taken, so that a single count means a cost in proportion to the length.

    Args:
        lengths: at least one, all different, from 1 up.
        counts: not negative, one for each length.
    """
    weights = [Fraction(1, max(1, count) ** 2) for count in counts]
    best: tuple[Fraction, dict[int, Fraction]] | None = None
    for size in range(min(len(_POWERS), len(lengths)) + 1):
        for powers in combinations(_POWERS, size):
            terms = _least_squares(lengths, counts, weights, powers)
            if any(value < 0 for value in terms.values()):
                continue
            distance = sum(
                w * (c - sum(value * n**power for power, value in terms.items())) ** 2
                for n, c, w in zip(lengths, counts, weights, strict=True)
            )
            if best is None or distance < best[0]:
                best = Fraction(distance), terms
    assert best is not None  # no terms at all are never negative
    return Quadratic(*(float(best[1].get(power, 0)) for power in (0, 1, 2)))


def _least_squares(
    lengths: Sequence[int],
    counts: Sequence[int],
    weights: Sequence[Fraction],
    powers: Sequence[int],
) -> dict[int, Fraction]:
    """The coefficients by power, from the normal equations by Gauss and Jordan.

    The matrix is positive definite, since there are no more powers than different lengths from 1
    up, so no pivot is 0.
    """
    rows = [
        [
            *(sum(w * n ** (p + q) for n, w in zip(lengths, weights, strict=True)) for q in powers),
            sum(w * c * n**p for n, c, w in zip(lengths, counts, weights, strict=True)),
        ]
        for p in powers
    ]
    for i, pivot in enumerate(rows):
        pivot[:] = [Fraction(value) / pivot[i] for value in pivot]
        for j, row in enumerate(rows):
            if j != i:
                row[:] = [x - row[i] * y for x, y in zip(row, pivot, strict=True)]
    return {power: Fraction(row[-1]) for power, row in zip(powers, rows, strict=True)}
