"""The features of a recording: logarithms of its energies in bands of frequencies."""

import os
from typing import TYPE_CHECKING

import numpy as np

from ..base.errors import DamagedBundleError
from ..format.manifest.speech_schema import LogMelSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..open.bundle import OpenBundle

#: Values of the frames that are computed at once: their memory doesn't grow with the recording.
_BLOCK = 1 << 20
_LEAST = np.float32(1e-10)
#: Values are raised to so much below the largest, in powers of ten.
_RANGE = np.float32(8)
#: Parakeet's: what is added to energies, and to the deviation of a band.
_GUARD, _LEAST_SCALE = 2.0**-24, 1e-5


class LogMel:
    """Computes the features of Whisper, or of Parakeet where the frames are tapered."""

    def __init__(self, spec: LogMelSpec, filters: "NDArray[np.float32]") -> None:
        """``filters`` are the weights of the bands, [window // 2 + 1, bins]."""
        self.spec = spec
        self._filters = filters.astype(np.float64)
        self._window = np.zeros(spec.window)
        # Periodic where the window fills the frame, symmetric where it is a part in its middle.
        taper, period = spec.window, spec.window
        if spec.taper is not None:
            taper, period = spec.taper, spec.taper - 1
        begin = (spec.window - taper) // 2
        places = np.arange(taper, dtype=np.float64)
        self._window[begin : begin + taper] = 0.5 - 0.5 * np.cos(2 * np.pi * places / period)

    def compute(self, samples: "NDArray[np.float32]", least: int = 0) -> "NDArray[np.float32]":
        """The features of Whisper [bins, frames]: log10 of energies, of a range of 8, shifted by 4 and divided by 4.

        There is one frame for each whole ``hop`` of samples.

        Args:
            samples: Samples [n] of one channel.
            least: Number of samples up to which zeros follow shorter recordings.
        """
        if len(samples) < least:
            samples = np.concatenate([samples, np.zeros(least - len(samples), np.float32)])
        padded = np.pad(samples, self.spec.window // 2, mode="reflect")
        result = self._energies(padded, len(samples) // self.spec.hop)
        np.log10(np.maximum(result, _LEAST, out=result), out=result)
        np.maximum(result, result.max() - _RANGE, out=result)
        result += 4
        result /= 4
        return result

    def compute_normalized(self, samples: "NDArray[np.float32]") -> "NDArray[np.float32]":
        """The features of Parakeet [frames, bins]: logarithms of energies, of mean 0 and variance 1 in each band.

        There is one frame for each whole ``hop`` of samples.

        Args:
            samples: Samples [n] of one channel, with two frames at least.
        """
        filtered = samples.copy()
        filtered[1:] -= np.float32(self.spec.preemphasis or 0) * samples[:-1]
        padded = np.pad(filtered, self.spec.window // 2)
        bands = self._energies(padded, len(samples) // self.spec.hop).astype(np.float64)
        bands = np.log(bands + _GUARD)
        bands -= bands.mean(axis=1, keepdims=True)
        bands /= bands.std(axis=1, ddof=1, keepdims=True) + _LEAST_SCALE
        return np.ascontiguousarray(bands.T, np.float32)

    def _energies(self, padded: "NDArray[np.float32]", frames: int) -> "NDArray[np.float32]":
        """The energies [bins, frames] of samples with half a window before the first."""
        spec = self.spec
        result = np.empty((spec.bins, frames), np.float32)
        block = max(1, _BLOCK // max(spec.window, spec.bins))
        for begin in range(0, frames, block):
            end = min(begin + block, frames)
            # A frame for each hop, as a view of the samples.
            view = np.lib.stride_tricks.as_strided(
                padded[begin * spec.hop :],
                (end - begin, spec.window),
                (spec.hop * padded.itemsize, padded.itemsize),
                writeable=False,
            )
            spectrum = np.fft.rfft(view * self._window, axis=1)
            energies = spectrum.real**2 + spectrum.imag**2
            result[:, begin:end] = (energies @ self._filters).T
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
