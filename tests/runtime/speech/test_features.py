"""Features of recordings, against those of the Hugging Face library."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")

import transformers

from edgecompile.runtime.format.manifest.speech_schema import LogMelSpec
from edgecompile.runtime.speech.features import LogMel
from tests.zoo.speech import RATE, make_samples


def make_both(**settings: Any) -> tuple[Any, LogMel]:
    theirs = transformers.WhisperFeatureExtractor(**settings)
    spec = LogMelSpec("", theirs.feature_size, theirs.n_fft, theirs.hop_length)
    return theirs, LogMel(spec, theirs.mel_filters.astype(np.float32))


@pytest.mark.parametrize("seconds", [1 / RATE, 0.02, 1, 29.99, 30, 30.01, 61.7])
def test_they_are_those_of_transformers(seconds: float) -> None:
    theirs, ours = make_both(feature_size=80)
    samples = make_samples(seconds)
    long = {"truncation": False, "padding": "longest"} if seconds > 30 else {}
    want = theirs(samples, sampling_rate=RATE, return_tensors="np", **long)["input_features"][0]
    got = ours.compute(samples, theirs.n_samples)
    assert got.dtype == np.float32
    # The library computes in float32, which loses what is far below the loudest band.
    np.testing.assert_allclose(got, want, atol=2e-4)
    assert float(np.abs(got - want).mean()) < 2e-6


@pytest.mark.parametrize("count", [320, 479, 4000, 16001, 400_000])
def test_those_of_parakeet(count: int) -> None:
    theirs = transformers.ParakeetFeatureExtractor(feature_size=80)
    spec = LogMelSpec("", 80, 512, 160, taper=400, preemphasis=0.97)
    ours = LogMel(spec, theirs.mel_filters.numpy().T)
    samples = make_samples(count / RATE, 2)
    made = theirs(samples, sampling_rate=RATE, return_tensors="pt")
    got = ours.compute_normalized(samples)
    assert got.shape == (int(made["attention_mask"].sum()), 80) and got.dtype == np.float32
    np.testing.assert_allclose(got, made["input_features"][0, : len(got)].numpy(), atol=2e-3)


def test_silence_and_a_click() -> None:
    theirs, ours = make_both(feature_size=128)
    for samples in (np.zeros(RATE, np.float32), np.eye(1, RATE, 7, np.float32)[0]):
        want = theirs(samples, sampling_rate=RATE, return_tensors="np")["input_features"][0]
        np.testing.assert_allclose(ours.compute(samples, theirs.n_samples), want, atol=2e-4)


@pytest.mark.parametrize(("window", "bins"), [(16384, 1), (2, 4096)])
def test_memory_follows_neither_the_window_nor_the_bands(window: int, bins: int) -> None:
    ours = LogMel(LogMelSpec("", bins, window, 1), np.ones((window // 2 + 1, bins), np.float32))
    samples = make_samples(2048 / RATE)
    tracemalloc.start()
    try:
        result = ours.compute(samples)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < result.nbytes + (48 << 20)


def test_blocks_of_frames_dont_show() -> None:
    ours = make_both(feature_size=20, n_fft=256, hop_length=100)[1]
    samples = make_samples(30)
    whole = ours.compute(samples)
    assert whole.shape == (20, 4800)
    # Frames behind the first block, from samples that begin within it.
    part = ours.compute(samples[200_000:])
    shift = min(whole.max(), part.max())
    loud = (whole[:, 2010:] > shift - 1.9) & (part[:, 10:] > shift - 1.9)
    assert loud.mean() > 0.3
    np.testing.assert_allclose(whole[:, 2010:][loud], part[:, 10:][loud], atol=1e-5)
