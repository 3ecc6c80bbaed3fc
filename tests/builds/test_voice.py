"""examples/voice: a text-to-speech model in two bundles gives the samples of transformers' VitsModel.

The reference draws its noise as it does; the noise is recorded, and is an input of the bundles.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import wave
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")
from transformers.models.vits import modeling_vits  # noqa: E402

from edgecompile.lengths.distribution import LengthDistribution  # noqa: E402
from edgecompile.pipeline.build import build  # noqa: E402
from edgecompile.pipeline.request import BuildRequest  # noqa: E402
from edgecompile.planning.request import PlanRequest  # noqa: E402
from edgecompile.runtime import open_bundle  # noqa: E402
from tests.plans import exact_plan  # noqa: E402

EXAMPLE = Path(__file__).parents[2] / "examples" / "voice"
SIZES = {
    "vocab_size": 20,
    "sampling_rate": 22050,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "ffn_dim": 24,
    "flow_size": 16,
    "spectrogram_bins": 9,
    "upsample_initial_channel": 16,
    "upsample_rates": [4, 2],
    "upsample_kernel_sizes": [8, 4],
    "resblock_kernel_sizes": [3],
    "resblock_dilation_sizes": [[1, 3]],
    "prior_encoder_num_wavenet_layers": 2,
    "prior_encoder_num_flows": 2,
    "duration_predictor_filter_channels": 16,
    "depth_separable_num_layers": 2,
}
KINDS: dict[str, dict[str, Any]] = {
    "speakers": {"num_speakers": 3, "speaker_embedding_size": 8},
    "plain": {"use_stochastic_duration_prediction": False},
}
#: Lengths of texts: within the window of relative positions, at its end, and far beyond.
LENGTHS = (1, 4, 5, 9, 24)


def write(folder: Path, **changes: Any) -> Path:
    """A random model, whose samples aren't all at the ends of their range."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = transformers.VitsModel(transformers.VitsConfig(**{**SIZES, **changes}))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.05)
            model.decoder.conv_post.weight.mul_(0.004)
    model.save_pretrained(folder)
    return folder


def imported(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the factories replace in transformers comes back."""
    name = "_unconstrained_rational_quadratic_spline"
    monkeypatch.setattr(modeling_vits, name, getattr(modeling_vits, name))
    yield


def recorded(draw: Any, drawn: list[Any], *arguments: Any, **options: Any) -> Any:
    """What ``draw`` gives, which is kept in ``drawn``."""
    drawn.append(draw(*arguments, **options))
    return drawn[-1].clone()


def spoken(
    folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> list[tuple[Any, list[Any], Any]]:
    """The tokens of texts, the noise that transformers' model draws for each, and its samples."""
    model = transformers.VitsModel.from_pretrained(folder).eval()
    found = []
    for length in LENGTHS:
        ids = torch.randint(0, 20, (1, length), generator=torch.Generator().manual_seed(length))
        drawn: list[Any] = []
        with monkeypatch.context() as patch, torch.no_grad():
            for name in ("randn", "randn_like"):
                patch.setattr(torch, name, partial(recorded, getattr(torch, name), drawn))
            torch.manual_seed(length)
            samples = model(ids, **options).waveform[0].numpy()
        found.append((ids[0].numpy(), [item[0].numpy() for item in drawn], samples))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_two_bundles_speak_as_transformers_does(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kept: None,
    kind: str,
) -> None:
    folder = write(tmp_path / "voice", **KINDS[kind])
    wanted = spoken(folder, monkeypatch, **({"speaker_id": 2} if kind == "speakers" else {}))
    monkeypatch.setenv("VOICE", str(folder))
    monkeypatch.setenv("SPEAKER", "2")
    bundles = {}
    for part, longest in (("text", 30), ("sound", 400)):
        plan = PlanRequest(
            LengthDistribution.from_samples([9]),
            plan=exact_plan(longest),
            max_length=longest,
        )
        output = tmp_path / f"{part}.ecb"
        spec = f"{EXAMPLE / 'voice.py'}:make_{part}"
        bundles[part] = build(BuildRequest(spec, "cpu-x86-64-v3", plan, output=output)).bundle_path
    speak = imported("speak")
    with open_bundle(bundles["text"]) as text, open_bundle(bundles["sound"]) as sound:
        voice = speak.Voice(text, sound)
        counts = set()
        for ids, drawn, samples in wanted:
            durations = drawn[0] if kind != "plain" else np.zeros((2, len(ids)), np.float32)
            got = voice.speak(ids, durations, lambda shape, drawn=drawn: drawn[-1])
            assert got.shape == samples.shape and got.dtype == np.float32
            loudest = np.abs(samples).max()
            assert 0.003 < loudest < 0.99
            np.testing.assert_allclose(got, samples, atol=2e-4 * loudest)
            counts.add(len(samples))
        assert len(counts) == len(LENGTHS)  # sizes follow from values
        ids = wanted[2][0]
        assert np.array_equal(voice.speak(ids, seed=3), voice.speak(ids, seed=3))
        if kind == "speakers":  # other noise, another length
            assert len({len(voice.speak(ids, seed=seed)) for seed in range(4)}) > 1
    printed = re.search(r"--rate (\d+)", capsys.readouterr().err)
    assert printed is not None
    file = tmp_path / "said.wav"
    given = [*map(str, bundles.values()), str(file), "3", "1", "4", "--rate", printed[1]]
    monkeypatch.setattr(sys, "argv", ["speak.py", *given])
    speak.main()
    with wave.open(str(file)) as sound:
        assert (sound.getframerate(), sound.getnchannels(), sound.getsampwidth()) == (22050, 1, 2)
        assert sound.getnframes() > 0
