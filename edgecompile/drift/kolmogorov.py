"""The two-sample Kolmogorov-Smirnov test on histograms of lengths."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from edgecompile.buckets.costs.grid import FloatArray
from edgecompile.lengths.distribution import LengthDistribution

__all__ = ["kolmogorov_distance", "kolmogorov_p_value", "kolmogorov_tail"]

# Below this the series for small arguments converges faster; both are exact to double precision
# with the terms taken here.
_SMALL = 1.18
_TERMS = 8


def kolmogorov_distance(first: LengthDistribution, second: LengthDistribution) -> float:
    """D = sup |F1 − F2|: the largest difference between the two shares of inputs up to a length.

    It is attained at an observed length, so the value is exact.
    """
    at = np.union1d(first.length_array, second.length_array)
    gap = _shares(first, at) - _shares(second, at)
    return float(np.max(np.abs(gap)))


def kolmogorov_p_value(distance: float, first_n: int, second_n: int) -> float:
    """How probable a distance of at least ``distance`` is between two samples of one distribution.

    Asymptotic: Q(D·√(n·m/(n+m))) with Kolmogorov's distribution Q (N. Smirnov, "Table for
    estimating the goodness of fit of empirical distributions", Annals of Mathematical Statistics
    19(2), 1948). It supposes a continuous distribution. Lengths are whole numbers with many ties,
    where such distances are smaller, so that this p-value is too large and never too small (G. E.
    Noether, "Note on the Kolmogorov statistic in the discrete case", Metrika 7, 1963): the test
    errs on the side of not seeing a shift.

    Args:
        distance: D, 0 to 1.
        first_n, second_n: sizes of the samples, from 1 up.
    """
    return kolmogorov_tail(distance * math.sqrt(first_n * second_n / (first_n + second_n)))


def kolmogorov_tail(x: float) -> float:
    """Q(x) = 2·Σ (−1)^(k−1)·exp(−2k²x²), the upper tail of Kolmogorov's distribution.

    For small x by the equivalent 1 − √(2π)/x · Σ exp(−(2k−1)²π²/(8x²)), which converges there.
    """
    if x <= 0:
        return 1.0
    k = np.arange(1, _TERMS + 1, dtype=np.float64)
    if x < _SMALL:
        with np.errstate(under="ignore"):
            terms = np.exp(-(((2 * k - 1) * math.pi) ** 2) / (8 * x * x))
        return float(1.0 - math.sqrt(2 * math.pi) / x * terms.sum())
    with np.errstate(under="ignore"):
        terms = np.exp(-2.0 * (k * x) ** 2)
    return float(2.0 * (terms[::2].sum() - terms[1::2].sum()))


def _shares(sample: LengthDistribution, at: npt.NDArray[np.int64]) -> FloatArray:
    """Share of the sample up to each of the lengths ``at``."""
    reached = np.concatenate([[0], np.cumsum(sample.count_array)])
    index = np.searchsorted(sample.length_array, at, side="right")
    shares: FloatArray = reached[index] / sample.n
    return shares
