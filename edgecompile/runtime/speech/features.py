"""The features of a recording: logarithms of its energies in bands of frequencies."""

import os
from typing import TYPE_CHECKING

import numpy as np

from ..base.errors import DamagedBundleError
from ..format.speech_schema import LogMelSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..open.bundle import OpenBundle

#: Frames that are computed at once: their memory doesn't grow with the recording.
_BLOCK = 2048
_LEAST = 1e-10
#: Values are raised to so much below the largest, in powers of ten.
_RANGE = np.float32(8)


class LogMel:
    """Computes the features of Whisper: log10 of energies, of a range of 8, shifted by 4 and divided by 4."""

    def __init__(self, spec: LogMelSpec, filters: "NDArray[np.float32]") -> None:
        """``filters`` are the weights of the bands, [window // 2 + 1, bins]."""
        self.spec = spec
        self._filters = filters.astype(np.float64)
        places = np.arange(spec.window, dtype=np.float64)
        self._window = 0.5 - 0.5 * np.cos(2 * np.pi * places / spec.window)

    def compute(self, samples: "NDArray[np.float32]", least: int = 0) -> "NDArray[np.float32]":
        """The features [bins, frames] of samples [n], with one frame for each whole ``hop`` of them.

        Args:
            samples: Samples of one channel.
            least: Number of samples up to which zeros follow shorter recordings.
        """
        spec = self.spec
        if len(samples) < least:
            samples = np.concatenate([samples, np.zeros(least - len(samples), np.float32)])
        half, frames = spec.window // 2, len(samples) // spec.hop
        padded = np.pad(samples, half, mode="reflect")
        result = np.empty((spec.bins, frames), np.float32)
        for begin in range(0, frames, _BLOCK):
            end = min(begin + _BLOCK, frames)
            # A frame for each hop, as a view of the samples.
            view = np.lib.stride_tricks.as_strided(
                padded[begin * spec.hop :],
                (end - begin, spec.window),
                (spec.hop * padded.itemsize, padded.itemsize),
                writeable=False,
            )
            spectrum = np.fft.rfft(view * self._window, axis=1)
            energies = spectrum.real**2 + spectrum.imag**2
            bands = np.maximum(energies @ self._filters, _LEAST)
            result[:, begin:end] = np.log10(bands).T
        np.maximum(result, result.max() - _RANGE, out=result)
        result += 4
        result /= 4
        return result


def open_log_mel(model: "OpenBundle", spec: LogMelSpec) -> LogMel:
    """What computes the features of a bundle.

    Raises:
        DamagedBundleError: the file of the filters isn't the one that was written, or has NaN or infinity.
    """
    with os.fdopen(model.open_file(spec.filters), "rb") as stream:
        data = stream.read()
    filters = np.frombuffer(data, "<f4").reshape(spec.window // 2 + 1, spec.bins)
    if not np.isfinite(filters).all():
        raise DamagedBundleError(
            "{}: {} has NaN or infinity".format(model.path, spec.filters),
            "the bundle was written wrongly or changed; build it again",
        )
    return LogMel(spec, filters)
