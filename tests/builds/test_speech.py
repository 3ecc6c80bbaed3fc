"""Bundles of speech models: recordings of any length, token for token and time for time as in transformers."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")

import torch
import transformers

from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.models.options import LoadOptions
from edgecompile.pipeline.build import build
from edgecompile.pipeline.request import BuildRequest
from edgecompile.planning.request import PlanRequest
from edgecompile.runtime.base.errors import (
    ContextLengthError,
    DamagedBundleError,
    InputError,
    NativeError,
    OutsideBucketsError,
)
from edgecompile.runtime.commands.transcribe import read_wav
from edgecompile.runtime.model.open_bundle import open_bundle
from edgecompile.runtime.speech.transcript import Transcript
from tests.conftest import built_once
from tests.native.c_runtime import c_library
from tests.native.c_runtime.c_library import CLibrary
from tests.zoo.speech import (
    PLAIN,
    RATE,
    Samples,
    make_samples,
    make_whisper,
    write_ctc,
    write_moonshine,
    write_parakeet,
    write_whisper,
)

#: Less than a window, a window, a bit more, many.
LONG = (1 / RATE, 0.013, 0.5, 1.99, 2.0, 2.0001, 3.3, 4.0, 31.7, 100.0)


def build_whisper(output: Path, work: Path, **settings: Any) -> None:
    write_whisper(work / "whisper", **settings)
    build(
        BuildRequest(
            model=work / "whisper",
            target="cpu-x86-64-v3",
            load=LoadOptions(task="seq2seq-lm"),
            plan=PlanRequest(lengths=None),
            output=output,
            work_dir=work / "build",
        )
    )


@pytest.fixture(scope="session")
def whisper(shared_folder: Path) -> Path:
    return built_once(shared_folder, "whisper", lambda o, w: build_whisper(o, w, seed=6))


def features(samples: Samples) -> torch.Tensor:
    """Features as the Hugging Face library's pipeline makes them."""
    made = transformers.WhisperFeatureExtractor(feature_size=16, chunk_length=2)
    long = {"truncation": False, "padding": "longest"} if len(samples) > made.n_samples else {}
    result: torch.Tensor = made(samples, sampling_rate=RATE, return_tensors="pt", **long)[
        "input_features"
    ]
    return result


def expect(model: Any, samples: Samples, **options: Any) -> dict[str, Any]:
    options = {"return_timestamps": True, **options}
    with torch.no_grad():
        result: dict[str, Any] = model.generate(features(samples), return_segments=True, **options)
    return result


def compare(got: Transcript, want: dict[str, Any]) -> None:
    segments = want["segments"][0]
    assert [segment.tokens for segment in got.segments] == [s["tokens"].tolist() for s in segments]
    # To the last bit: the same additions and products in the same order.
    assert [(s.start, s.end) for s in got.segments] == [
        (float(s["start"]), float(s["end"])) for s in segments
    ]
    words = [token for s in segments for token in s["tokens"].tolist() if token < PLAIN]
    assert got.text == " ".join(f"w{word}" for word in words)


def test_recordings_are_those_of_transformers(whisper: Path) -> None:
    eager, texts = make_whisper(6), set()
    with open_bundle(whisper) as model:
        for seed, seconds in enumerate(LONG):
            samples = make_samples(seconds, seed)
            compare(got := model.transcribe(samples, RATE), expect(eager, samples))
            texts.add(got.text)
    assert len(texts) == len(LONG) and len(got.segments) > 100


def test_options_are_those_of_transformers(whisper: Path) -> None:
    eager, samples = make_whisper(6), make_samples(7.3, 4)
    texts, seen = set(), []
    with open_bundle(whisper) as model:
        for options in (
            {},
            {"language": "German"},
            {"language": "de", "task": "translate"},
            {"task": "transcribe"},
            {"max_new_tokens": 7},
            {"condition_on_prev_tokens": True},
        ):
            got = model.transcribe(samples, RATE, **options)
            compare(got, expect(eager, samples, **options))
            assert got.language == "de" if "language" in options else got.language in ("en", "de")
            texts.add(got.text)
        short = samples[: 2 * RATE]
        got = model.transcribe(short, RATE, timestamps=False)
        compare(got, expect(eager, short, return_timestamps=False))
        assert len(texts) > 3
        got = model.transcribe(samples, RATE, on_segment=lambda s: seen.append(s) or len(seen) < 3)
        whole = model.transcribe(samples, RATE)
        assert seen == got.segments == whole.segments[:3]


def test_what_is_refused(whisper: Path, tmp_path: Path) -> None:
    samples = make_samples(3)
    with open_bundle(whisper) as model:
        for options, text in (
            (
                {"language": "french"},
                "`language` is 'french', must be one of de, en, english, german",
            ),
            ({"language": 3}, "`language` is 3, must be one of"),
            ({"language": ["en"]}, r"`language` is \['en'\], must be one of"),
            ({"task": {}}, "`task` is {}, must be one of"),
            ({"task": "sing"}, "`task` is 'sing', must be one of transcribe, translate"),
            ({"timestamps": False}, "a long recording is cut at them"),
            ({"timestamps": "yes"}, "`timestamps` is 'yes', must be True or False"),
            ({"condition_on_prev_tokens": samples}, "`condition_on_prev_tokens` is array"),
            ({"on_segment": 3}, "on_segment is a int, must be a function"),
            ({"max_new_tokens": 0}, "max_new_tokens is 0, must be an integer"),
            ({"max_new_tokens": "a"}, "max_new_tokens is 'a', must be an integer"),
        ):
            with pytest.raises(InputError, match=text):
                model.transcribe(samples, RATE, **options)
        with pytest.raises(ContextLengthError, match="3 tokens before the text and 38 new ones"):
            model.transcribe(samples, RATE, language="de", max_new_tokens=38)
        with pytest.raises(InputError, match="sampling_rate is 8000"):
            model.transcribe(samples, 8000)
    damaged = tmp_path / "damaged.ecb"
    shutil.copytree(whisper, damaged)
    filters = damaged / "speech" / "filters.bin"
    filters.write_bytes(filters.read_bytes()[:-4] + b"\0\0\xc0\x7f")
    with (
        open_bundle(damaged) as model,
        pytest.raises(DamagedBundleError, match=r"speech/filters\.bin"),
    ):
        model.transcribe(samples, RATE)


def write_wav(path: Path, samples: Samples, width: int = 2, channels: int = 1) -> Path:
    whole = np.round(samples.astype(np.float64) * (2.0 ** (8 * width - 1) - 1)).astype("<i8")
    if width == 1:
        whole += 128
    data = whole.view(np.uint8).reshape(-1, 8)[:, :width].tobytes()
    with wave.open(str(path), "wb") as file:
        file.setparams((channels, width, RATE, 0, "NONE", ""))
        file.writeframes(data)
    return path


def run(whisper: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "edgecompile.runtime", "transcribe", str(whisper)]
    return subprocess.run([*command, *map(str, arguments)], capture_output=True, text=True)


def test_files_from_the_command_line(whisper: Path, tmp_path: Path) -> None:
    samples, path = make_samples(3.3, 1), tmp_path / "a.wav"
    for width in (1, 2, 3, 4):
        write_wav(path, samples, width)
        got, rate = read_wav(str(path))
        assert rate == RATE
        np.testing.assert_allclose(got, samples, atol=1.1 * 2.0 ** (1 - 8 * width) + 1e-7)
    done = run(whisper, path, "--json", "--language", "en")
    with open_bundle(whisper) as model:
        want = model.transcribe(got, RATE, language="en")
    report = json.loads(done.stdout)
    assert report["text"] == want.text and report["language"] == "en"
    assert [entry["tokens"] for entry in report["segments"]] == [s.tokens for s in want.segments]
    done = run(whisper, path, "--language", "en")
    first = want.segments[0]
    assert done.stdout.startswith(f"[{first.start:.2f} - {first.end:.2f}] w")
    assert f"{len(want.segments)} segments of 3.30 s, the language is en" in done.stderr
    write_wav(path, samples, channels=2)
    done = run(whisper, path)
    assert done.returncode != 0 and "must have one channel" in done.stderr
    path.write_bytes(b"RIFF")
    done = run(whisper, path)
    assert "a.wav: isn't a WAV file that can be read" in done.stderr
    done = run(whisper, tmp_path / "no.wav")
    assert "no.wav: No such file" in done.stderr


def build_whole(folder: Path, most: int, task: str | None = None) -> Path:
    lengths = LengthDistribution.from_samples([most // 20, most // 5, most - 9])
    output = folder.with_suffix(".ecb")
    build(
        BuildRequest(
            model=folder,
            target="cpu-x86-64-v3",
            load=LoadOptions(task=task),
            plan=PlanRequest(lengths, max_length=most, quick=True),
            output=output,
            work_dir=folder.with_suffix(".work"),
        )
    )
    return output


@pytest.mark.parametrize("norm", ["group", "layer"])
def test_letters_of_samples_are_those_of_transformers(norm: str, tmp_path: Path) -> None:
    settings = {"feat_extract_norm": norm, "do_stable_layer_norm": norm == "layer"}
    eager = write_ctc(tmp_path / "ctc", **settings)
    processor = transformers.Wav2Vec2Processor.from_pretrained(tmp_path / "ctc")
    bundle, texts = build_whole(tmp_path / "ctc", 40000), set()
    with open_bundle(bundle) as model:
        assert ("attention_mask" in str(model.manifest.inputs)) == (norm == "layer")
        for seed, count in enumerate((1000, 1603, 16000, 39999)):
            samples = make_samples(count / RATE, seed)
            inputs = processor(samples, sampling_rate=RATE, return_tensors="pt")
            with torch.no_grad():
                logits = eager(**inputs).logits
            got = model.transcribe(samples, RATE)
            assert got.text == processor.batch_decode(logits.argmax(-1))[0]
            assert [(s.start, s.end) for s in got.segments] == [(0.0, count / RATE)]
            texts.add(got.text)
        assert len(texts) == 4 and max(map(len, texts)) > 200
        with pytest.raises(InputError, match="`language` is for models with a decoder"):
            model.transcribe(samples, RATE, language="en")
        with pytest.raises(InputError, match="`timestamps` is for models with a decoder"):
            model.transcribe(samples, RATE, timestamps=samples)
        with pytest.raises(OutsideBucketsError, match="40001"):
            model.transcribe(make_samples(40001 / RATE), RATE)
    done = run(bundle, write_wav(tmp_path / "a.wav", samples))
    assert done.returncode == 0 and "1 segments of 2.50 s" in done.stderr


def test_pieces_of_features_are_those_of_transformers(tmp_path: Path) -> None:
    eager = write_parakeet(tmp_path / "parakeet")
    extractor = transformers.ParakeetFeatureExtractor.from_pretrained(tmp_path / "parakeet")
    texts = set()
    with open_bundle(build_whole(tmp_path / "parakeet", 240)) as model:
        for seed, count in enumerate((320, 4000, 16000, 38559)):
            samples = make_samples(count / RATE, seed)
            inputs = extractor(samples, sampling_rate=RATE, return_tensors="pt")
            with torch.no_grad():
                tokens = eager.generate(**inputs)[0].tolist()
            got = model.transcribe(samples, RATE)
            want = [t for t, _ in itertools.groupby(tokens) if t != eager.config.pad_token_id]
            assert got.segments[0].tokens == want
            assert got.text == " ".join(f"w{token}" for token in want)
            texts.add(got.text)
        assert len(texts) > 2 and len(want) > 10
        with pytest.raises(InputError, match="has 319 samples, must have 320 at least"):
            model.transcribe(samples[:319], RATE)


@pytest.fixture(scope="module")
def moonshine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("speech") / "moonshine"
    write_moonshine(folder)
    return build_whole(folder, 40000, "seq2seq-lm")


def test_texts_of_samples_are_those_of_transformers(moonshine: Path, tmp_path: Path) -> None:
    folder, random, texts = moonshine.with_suffix(""), np.random.default_rng(3), set()
    eager: Any = transformers.MoonshineForConditionalGeneration.from_pretrained(folder)
    processor = transformers.AutoFeatureExtractor.from_pretrained(folder)
    counts = [1279, 1280, 40000, *random.integers(1281, 40000, 17).tolist()]
    with open_bundle(moonshine) as model:
        for seed, count in enumerate(counts):
            samples = make_samples(count / RATE, seed)
            inputs = processor(samples, sampling_rate=RATE, return_tensors="pt")
            with torch.no_grad():
                want = eager.generate(**inputs)[0, 1:].tolist()
            assert model.generate({"input_values": samples[None]}, do_sample=False) == want
            got = model.transcribe(samples, RATE)
            words = [token for token in want if token != 2]
            assert got.segments[0][:2] == (0.0, count / RATE)
            assert got.segments[0].tokens == words
            assert got.text == " ".join(f"w{word}" for word in words)
            texts.add(got.text)
        assert len(texts) > 10
        assert model.transcribe(samples, RATE, max_new_tokens=3).segments[0].tokens == words[:3]
        for wrong, options, kind, text in (
            (samples[:0], {}, InputError, "the recording has no samples"),
            (
                samples[:1278],
                {},
                OutsideBucketsError,
                "1278 samples, the model takes 1279 to 40000",
            ),
            (make_samples(40001 / RATE), {}, OutsideBucketsError, "40001 samples"),
            (samples * np.nan, {}, InputError, "aren't finite"),
            (samples, {"timestamps": True}, InputError, "`timestamps` is for Whisper"),
            (samples, {"language": "en"}, InputError, "`language` is for Whisper"),
            (samples, {"max_new_tokens": 64}, ContextLengthError, "context of 64"),
        ):
            with pytest.raises(kind, match=text):
                model.transcribe(wrong, RATE, **options)
    done = run(moonshine, write_wav(tmp_path / "a.wav", samples))
    assert done.returncode == 0 and "1 segments of" in done.stderr, done.stderr


def test_the_c_runtime_makes_the_same_text(moonshine: Path) -> None:
    library, samples = CLibrary(c_library.build_library()), make_samples(1.7)[None]
    with open_bundle(moonshine) as model:
        want = model.generate({"input_values": samples}, do_sample=False, max_new_tokens=12)
    with (
        library.open(moonshine / "encoder", threads=1) as encoder,
        library.open(moonshine, threads=1) as decoder,
    ):
        cross, tokens = encoder.run({"input_values": samples}), [1]
        for row in range(len(want)):
            place = {"input_ids": np.array([tokens[-1:]]), "position": np.array([row])}
            logits = decoder.run({**place, "last": np.array([0]), **cross})["logits"]
            tokens.append(int(logits.argmax()))
    assert tokens[1:] == want


def test_a_decoder_that_takes_shorter_sources(moonshine: Path, tmp_path: Path) -> None:
    """No manifest says how many rows an encoder gives, so it shows in a run."""
    changed = tmp_path / "changed.ecb"
    shutil.copytree(moonshine, changed)
    document = json.loads((changed / "manifest.json").read_text())
    for entry in (document, *document["buckets"]):
        entry["axes"]["source"]["hi"] = 40
    (changed / "manifest.json").write_text(json.dumps(document))
    with open_bundle(changed) as model:
        assert model.transcribe(make_samples(0.9), RATE).text
        with pytest.raises(
            NativeError, match=r"61 rows of the source, .* takes one number of 2\.\.40"
        ):
            model.transcribe(make_samples(1.5), RATE)
