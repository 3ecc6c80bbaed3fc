"""Judges computed outputs against expected ones; the build host's verifier uses this very code."""

from typing import TYPE_CHECKING, Any, Dict, NamedTuple, Optional

import numpy as np

from ..manifest.schema import Tolerance

if TYPE_CHECKING:
    from numpy.typing import NDArray


#: The end of the reason where numbers are NaN or infinite on one side only.
NOT_FINITE = "values are infinite or NaN where they mustn't be, or finite where they must"


class Agreement(NamedTuple):
    """The agreement of one output with the expected one.

    ``max_abs_error`` and ``scale`` (the largest expected magnitude) are over finite values;
    ``limit`` is what the tolerance allows, ``reason`` why it isn't ok. ``cosine`` is that of all
    finite values as one vector; None where there is nothing to compare directions of.
    """

    ok: bool
    max_abs_error: float
    scale: float
    limit: float
    reason: Optional[str] = None
    cosine: Optional[float] = None

    def to_json(self) -> Dict[str, Any]:
        """Plain JSON values."""
        return dict(self._asdict())


def compare_arrays(
    got: "NDArray[Any]",
    want: "NDArray[Any]",
    tolerance: Tolerance,
    min_cosine: Optional[float] = None,
    margin: float = 0.0,
) -> Agreement:
    """Compares one output.

    Floats agree if every |got - want| <= atol + rtol * max|want| + margin, with infinities and NaNs
    at the same places, and if their cosine isn't less than ``min_cosine``; integers and booleans
    agree if they are equal.
    """
    if got.shape != want.shape or got.dtype != want.dtype:
        text = "is {}{}, expected {}{}"
        text = text.format(got.dtype, list(got.shape), want.dtype, list(want.shape))
        return Agreement(False, 0.0, 0.0, 0.0, text)
    if want.size == 0:
        return Agreement(True, 0.0, 0.0, 0.0)
    if want.dtype.kind != "f":
        different = int(np.count_nonzero(got != want))
        apart = np.abs(got.astype(np.float64) - want.astype(np.float64)).max()
        scale = float(np.abs(want.astype(np.float64)).max())
        reason = "{} of {} values differ".format(different, want.size) if different else None
        return Agreement(different == 0, float(apart), scale, 0.0, reason)
    got64, want64 = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(want64) & np.isfinite(got64)
    scale = float(np.abs(want64[np.isfinite(want64)]).max(initial=0.0))
    error = float(np.abs(got64[finite] - want64[finite]).max(initial=0.0))
    limit = tolerance.limit(scale) + margin
    cosine = _cosine(got64[finite], want64[finite])
    same = (got64 == want64) | (np.isnan(got64) & np.isnan(want64))
    odd = int(np.count_nonzero(~finite & ~same))
    if odd:
        text = "{} of {} {}".format(odd, want.size, NOT_FINITE)
        return Agreement(False, error, scale, limit, text, cosine)
    if not error <= limit:
        text = "differs by {:.3g}, at most {:.3g} is allowed".format(error, limit)
        return Agreement(False, error, scale, limit, text, cosine)
    if min_cosine is not None and cosine is not None and cosine < min_cosine:
        text = "has the cosine {:.6f}, at least {:g} is asked for".format(cosine, min_cosine)
        return Agreement(False, error, scale, limit, text, cosine)
    return Agreement(True, error, scale, limit, None, cosine)


def _cosine(got: "NDArray[Any]", want: "NDArray[Any]") -> Optional[float]:
    """The cosine of two vectors of finite float64 values; None if ``want`` is zero.

    Each is scaled by its largest magnitude first, so that squares neither vanish nor overflow.
    """
    largest = np.abs(want).max(initial=0.0)
    if largest == 0.0:
        return None
    want = want / largest
    got = got / (np.abs(got).max(initial=0.0) or 1.0)
    norms = float(np.linalg.norm(got) * np.linalg.norm(want))
    # Rounding can carry it past one.
    return min(1.0, float(np.dot(got, want)) / norms) if norms else 0.0
