"""Recordings that can't be used are refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgecompile.runtime.base.errors import InputError
from edgecompile.runtime.speech.recording import read_samples

GOOD = np.array([0.5, -0.25, 0], np.float32)


def changed(value: float) -> Any:
    array = GOOD.astype(np.float64)
    array[1] = value
    return array


@pytest.mark.parametrize(
    "samples, rate, text",
    [
        (GOOD, 44100, "sampling_rate is 44100, the model takes 16000 samples a second"),
        (GOOD, True, "sampling_rate is True"),
        (GOOD, "16000", "sampling_rate is '16000'"),
        (GOOD, np.array([16000, 8000]), r"sampling_rate is array\("),
        (np.zeros((3, 2), np.float32), 16000, r"the shape \[3, 2\], must have one channel"),
        (np.float32(1), 16000, r"the shape \[\], must have one channel"),
        (GOOD[:0], 16000, "the recording has no samples"),
        ([], 16000, "the recording has no samples"),
        (np.zeros(3, np.int16), 16000, "has dtype int16, must be floats from -1 to 1"),
        ([1, 2], 16000, "has dtype int64, must be floats"),
        (["a"], 16000, "has dtype <U1, must be floats"),
        ([[1.0], [1.0, 2.0]], 16000, "the recording isn't an array"),
        (changed(np.nan), 16000, r"1 of 3 samples aren't finite float32 numbers, the first is nan"),
        (changed(1e39), 16000, r"the first is inf at \[1\]"),
        (changed(-1e25), 16000, r"aren't within -2147483648\.\.2147483648, the first is -"),
        (changed(3e38), 16000, r"1 of 3 samples aren't within"),
    ],
)
def test_what_is_refused(samples: Any, rate: Any, text: str) -> None:
    with pytest.raises(InputError, match=text):
        read_samples(samples, rate, 16000)


def test_samples_are_taken_as_they_are() -> None:
    for samples in (GOOD, GOOD.tolist(), GOOD.astype(np.float16), GOOD.astype(">f8")):
        np.testing.assert_array_equal(read_samples(samples, np.int64(16000), 16000), GOOD)
