"""The way from samples to text, as a folder of a model with a CTC head has it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgecompile.loaders.folders.files import optional_object
from edgecompile.loaders.folders.pretrained import import_transformers
from edgecompile.models.loaded import Speech
from edgecompile.models.specs import InputSpec, OutputSpec
from edgecompile.runtime.format.manifest.speech_schema import CtcSpec, LogMelSpec, SpeechSpec

SAMPLES, _FRAMES = "Wav2Vec2FeatureExtractor", "ParakeetFeatureExtractor"
#: Where the weights of bands of frequencies are in a bundle.
FILTERS_PATH = "speech/filters.bin"
_DIMS = 3
#: Tokens that transformers' tokenizer has where its configuration is silent.
_PAD, _DELIMITER = "<pad>", "|"


def find_ctc(
    model: Any,
    folder: Path,
    inputs: Sequence[InputSpec],
    outputs: Sequence[OutputSpec],
    notes: list[str],
) -> Speech | None:
    """The speech of a model that gives a token for each frame of samples; None where it isn't one, or a note says why.

    Args:
        model: the transformers model.
        folder: the folder of its preprocessor_config.json and vocab.json.
        inputs: its inputs.
        outputs: its outputs.
        notes: remarks for the user; some are added.
    """
    names = {"input_values": SAMPLES, "input_features": _FRAMES}
    if not type(model).__name__.endswith("ForCTC") or inputs[0].name not in names:
        return None
    config = optional_object(
        folder / "preprocessor_config.json", "the feature extractor's configuration"
    )
    extractor, rate = names[inputs[0].name], config.get("sampling_rate")
    logits = next((s for s in outputs if len(s.shape) == _DIMS and s.name == "logits"), None)
    known = config.get("feature_extractor_type", SAMPLES) == extractor
    if logits is None or not known or not isinstance(rate, int) or config.get("padding_value"):
        notes.append(
            "the bundle takes inputs, not recordings: there is no preprocessor_config.json "
            f"of a {extractor} with a sampling_rate"
        )
        return None
    tokens = optional_object(folder / "vocab.json", "the vocabulary")
    settings = optional_object(folder / "tokenizer_config.json", "the tokenizer's configuration")
    blank, size = model.config.pad_token_id, logits.shape[2]
    if extractor == SAMPLES:
        blank = tokens.get(_token(settings, "pad_token", _PAD), blank)
    if not isinstance(size, int) or not isinstance(blank, int) or not 0 <= blank < size:
        notes.append(f"the bundle takes inputs, not recordings: the blank token is {blank}")
        return None
    spec = SpeechSpec(inputs[0].name, rate, ctc=CtcSpec(logits.name, blank))
    if extractor == SAMPLES:
        spec = spec._replace(normalize=bool(config.get("do_normalize", True)))
        return Speech(spec, tokenizer=_make_tokenizer(tokens, settings, notes))
    made = import_transformers().ParakeetFeatureExtractor.from_pretrained(
        str(folder), local_files_only=True
    )
    if made.n_fft % 2 or made.feature_size != inputs[0].shape[2]:
        notes.append(
            f"the bundle takes inputs, not recordings: the feature extractor makes {made.feature_size} bins "
            f"of {made.n_fft} samples"
        )
        return None
    filters = np.ascontiguousarray(np.asarray(made.mel_filters, "<f4").T)
    log_mel = LogMelSpec(
        FILTERS_PATH,
        int(made.feature_size),
        int(made.n_fft),
        int(made.hop_length),
        int(made.win_length),
        float(made.preemphasis or 0),
    )
    path = folder / "tokenizer.json"
    return Speech(
        spec._replace(log_mel=log_mel),
        {FILTERS_PATH: filters.tobytes()},
        path if path.is_file() else None,
    )


def _token(settings: Any, key: str, usual: str) -> str:
    value = settings.get(key, usual)
    return str(value.get("content", usual) if isinstance(value, dict) else value)


def _make_tokenizer(tokens: Any, settings: Any, notes: list[str]) -> bytes | None:
    """A tokenizer.json that joins the characters of vocab.json, with a space for the delimiter of words."""
    lower = bool(settings.get("do_lower_case"))
    vocabulary = {text.lower() if lower else text: number for text, number in tokens.items()}
    flat = all(isinstance(number, int) and number >= 0 for number in tokens.values())
    if not tokens or not flat or len(vocabulary) < len(tokens):
        notes.append(
            "transcripts have tokens, but no text: there is no vocab.json with a number for each text"
        )
        return None
    delimiter = _token(settings, "word_delimiter_token", _DELIMITER)
    space = str(settings.get("replace_word_delimiter_char", " "))
    replace = {"type": "Replace", "pattern": {"String": delimiter}, "content": space}
    document: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [replace, {"type": "Fuse"}]},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": next(iter(vocabulary))},
    }
    return json.dumps(document, ensure_ascii=False).encode()
