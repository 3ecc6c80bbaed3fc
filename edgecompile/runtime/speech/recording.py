"""A recording as the caller gives it: its samples, checked."""

from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.errors import InputError
from ..call.inputs import as_array
from ..format.document import shorten

if TYPE_CHECKING:
    from numpy.typing import NDArray


#: Far beyond the samples of any recording, even of integers as floats; energies stay within float32.
_LARGEST = 1 << 31
_LEAST_VARIANCE = np.float32(1e-7)


def read_samples(samples: Any, sampling_rate: Any, expected: int) -> "NDArray[np.float32]":
    """The samples of a recording, float32 [samples].

    Args:
        samples: the caller's array or sequence of floats.
        sampling_rate: samples of a second, as the caller says.
        expected: samples of a second that the model takes.

    Raises:
        InputError: they aren't the finite floats of one channel, one is beyond 2147483648, there are none, or their
            rate is another.
    """
    known = isinstance(sampling_rate, Real) and not isinstance(sampling_rate, bool)
    if not known or sampling_rate != expected:
        text = "sampling_rate is {}, the model takes {} samples a second"
        raise InputError(
            text.format(shorten(repr(sampling_rate), 80), expected),
            "resample the recording to {} Hz".format(expected),
        )
    try:
        array = as_array(samples)
    except Exception as error:  # whatever an object's __array__ raises
        text = "the recording isn't an array: {}".format(shorten(error, 160))
        raise InputError(text) from None
    if array.ndim != 1:
        raise InputError(
            "the recording has the shape {}, must have one channel: [samples]".format(
                list(array.shape)
            ),
            "average its channels, or take one of them",
        )
    if array.size == 0:
        raise InputError("the recording has no samples")
    if array.dtype.kind != "f":
        raise InputError(
            "the recording has dtype {}, must be floats from -1 to 1".format(array.dtype),
            "divide int16 samples by 32768",
        )
    with np.errstate(over="ignore"):
        array = array.astype(np.float32)
    _refuse(array, ~np.isfinite(array), "aren't finite float32 numbers")
    _refuse(array, np.abs(array) > _LARGEST, "aren't within -{0}..{0}".format(_LARGEST))
    return array


def normalize(samples: "NDArray[np.float32]") -> "NDArray[np.float32]":
    """The samples with the mean 0 and the variance 1."""
    result: NDArray[np.float32] = samples - samples.mean()
    result /= np.sqrt(samples.var() + _LEAST_VARIANCE)
    return result


def _refuse(array: "NDArray[np.float32]", wrong: "NDArray[np.bool_]", reason: str) -> None:
    bad = np.flatnonzero(wrong)
    if bad.size:
        text = "{} of {} samples {}, the first is {} at [{}]"
        first = int(bad[0])
        raise InputError(
            text.format(bad.size, array.size, reason, array[first], first),
            "recordings are floats from -1 to 1",
        )
