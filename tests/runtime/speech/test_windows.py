"""The loop over a recording's windows, against transformers' own. Eager stands for the bundle's programs."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("transformers")

import torch
import transformers

from edgecompile.loaders.load import load_model
from edgecompile.models.loaded import LoadedModel
from edgecompile.runtime.speech.features import LogMel
from edgecompile.runtime.speech.windows import Choices, WindowLoop
from tests.zoo.speech import EOS, PLAIN, RATE, SECONDS, TIMES, make_samples, write_whisper

Logits = npt.NDArray[np.float32]


class EagerText:
    """Stands for a session: eager runs each token of a text behind its source."""

    def __init__(self, model: Any, loaded: LoadedModel) -> None:
        assert loaded.generation is not None
        spec = loaded.generation.spec
        self._model = model
        self.suppressed = (np.array(spec.suppress), np.array(spec.suppress_first))

    def begin(self, stream: Any, request: Any) -> Any:
        source = torch.from_numpy(request.source["input_features"])
        self._encoded, self._past = self._model.model.encoder(source), None
        return self._run(request.prompt)
        yield

    def advance(self, stream: Any, token: int) -> Logits:
        return self._run([token])

    def has_turn(self, stream: Any) -> bool:
        return True

    def _run(self, tokens: list[int]) -> Logits:
        with torch.no_grad():
            made = self._model(
                encoder_outputs=self._encoded,
                decoder_input_ids=torch.tensor([tokens]),
                past_key_values=self._past,
                use_cache=True,
            )
        self._past = made.past_key_values
        result: Logits = made.logits[0, -1].numpy()
        return result


class Loaded(NamedTuple):
    """A small Whisper for both loops."""

    model: Any
    loaded: LoadedModel
    bundle: Any
    log_mel: LogMel
    extractor: Any


def load(folder: Path, seed: int, **settings: Any) -> Loaded:
    write_whisper(folder, seed, **settings)
    model = transformers.WhisperForConditionalGeneration.from_pretrained(folder)
    loaded = load_model(folder, task="seq2seq-lm")
    assert loaded.generation is not None and loaded.speech is not None
    encoder = loaded.generation.encoder
    spec = loaded.speech.spec
    assert spec.log_mel is not None and encoder is not None
    bundle = SimpleNamespace(
        manifest=SimpleNamespace(
            generation=loaded.generation.spec,
            speech=spec,
            inputs=loaded.inputs,
            outputs=[SimpleNamespace(shape=(1, model.config.vocab_size))],
        ),
        encoder=SimpleNamespace(manifest=encoder, check_inputs=dict),
    )
    filters = np.frombuffer(loaded.speech.files[spec.log_mel.filters], "<f4")
    log_mel = LogMel(spec.log_mel, filters.reshape(-1, spec.log_mel.bins))
    extractor = transformers.WhisperFeatureExtractor.from_pretrained(folder)
    return Loaded(model, loaded, bundle, log_mel, extractor)


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({}, {}),
        ({}, {"condition_on_prev_tokens": True}),
        ({}, {"language": "german", "task": "translate", "max_new_tokens": 7}),
        ({"language": "<|de|>", "task": "translate", "max_length": 12}, {}),
        ({"forced_decoder_ids": [[1, None], [2, 65]], "max_initial_timestamp_index": None}, {}),
        ({"forced_decoder_ids": [[1, 63], [2, 65], [3, PLAIN]], "max_length": None}, {}),
        ({"lang_to_id": None, "task_to_id": None, "is_multilingual": False}, {}),
    ],
)
def test_windows_are_those_of_transformers(
    settings: dict[str, Any], options: dict[str, Any], tmp_path: Path
) -> None:
    model, loaded, bundle, log_mel, extractor = load(tmp_path, 6, **settings)
    seen = set()
    for seed, seconds in enumerate((1 / RATE, SECONDS, SECONDS + 1 / RATE, 9.1)):
        samples = make_samples(seconds, seed)
        features = log_mel.compute(samples, extractor.n_samples)
        text: Any = EagerText(model, loaded)
        with torch.no_grad():
            spans = list(WindowLoop(bundle, text, features, Choices(**options)))
            long = {"truncation": False, "padding": "longest"} if seconds > SECONDS else {}
            made = extractor(samples, sampling_rate=RATE, return_tensors="pt", **long)
            wanted = model.generate(
                made["input_features"], return_timestamps=True, return_segments=True, **options
            )["segments"][0]
        assert [span.tokens for span in spans] == [part["tokens"].tolist() for part in wanted]
        assert [(span.start, span.end) for span in spans] == [
            (float(part["start"]), float(part["end"])) for part in wanted
        ]
        seen.add(tuple(spans[0].tokens))
    assert len(spans) > 4 and len(seen) > 2


class _Endless(Exception):
    pass


def test_windows_without_times_end(tmp_path: Path) -> None:
    """Nothing keeps such a text from times: transformers cuts at them, and never ends where they are 0."""
    kinds = []
    for number in range(6):
        folder = tmp_path / str(number)
        # Half of the models have no time but 0.
        later = [*range(10, EOS), *range(PLAIN + 2, PLAIN + 1 + TIMES)] if number % 2 else None
        settings = {"suppress_tokens": later} if later else {}
        model, loaded, bundle, log_mel, extractor = load(folder, number, **settings)
        for seed in range(3):
            samples, places = make_samples(SECONDS, seed), []

            def watch(progress: torch.Tensor, places: list[int] = places) -> None:
                places.append(int(progress[0, 0]))
                if places.count(places[-1]) > 1:
                    raise _Endless

            made = extractor(samples, sampling_rate=RATE, return_tensors="pt")["input_features"]
            features = log_mel.compute(samples, extractor.n_samples)
            text: Any = EagerText(model, loaded)
            with torch.no_grad():
                loop = WindowLoop(bundle, text, features, Choices(timestamps=False))
                spans = list(islice(loop, 1000))
                try:
                    wanted = model.generate(
                        made, return_timestamps=False, return_segments=True, monitor_progress=watch
                    )["segments"][0]
                except _Endless:
                    assert len(spans) < 1000
                    kinds.append("endless")
                    continue
            assert [(span.start, span.end) for span in spans] == [
                (float(part["start"]), float(part["end"])) for part in wanted
            ]
            kinds.append("cut" if len(places) > 1 else "whole")
            assert [span.tokens for span in spans] == [part["tokens"].tolist() for part in wanted]
    assert set(kinds) == {"endless", "cut", "whole"}
