"""The way from samples to text, as a folder of a model with a CTC head has it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgecompile.loaders.folders.files import optional_object
from edgecompile.models.loaded import Speech
from edgecompile.models.specs import InputSpec, OutputSpec
from edgecompile.runtime.format.speech_schema import CtcSpec, SpeechSpec

_EXTRACTOR = "Wav2Vec2FeatureExtractor"
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
    if not type(model).__name__.endswith("ForCTC") or inputs[0].name != "input_values":
        return None
    path = folder / "preprocessor_config.json"
    config = optional_object(path, "the feature extractor's configuration")
    rate = config.get("sampling_rate")
    kind = config.get("feature_extractor_type", _EXTRACTOR)
    logits = next(
        (spec for spec in outputs if len(spec.shape) == _DIMS and spec.name == "logits"), None
    )
    if (
        logits is None
        or kind != _EXTRACTOR
        or not isinstance(rate, int)
        or config.get("padding_value")
    ):
        notes.append(
            "the bundle takes inputs, not recordings: there is no preprocessor_config.json "
            f"of a {_EXTRACTOR} with a sampling_rate"
        )
        return None
    tokens = optional_object(folder / "vocab.json", "the vocabulary")
    settings = optional_object(folder / "tokenizer_config.json", "the tokenizer's configuration")
    blank, size = (
        tokens.get(_token(settings, "pad_token", _PAD), model.config.pad_token_id),
        logits.shape[2],
    )
    if not isinstance(size, int) or not isinstance(blank, int) or not 0 <= blank < size:
        notes.append(f"the bundle takes inputs, not recordings: the blank token is {blank}")
        return None
    spec = SpeechSpec(
        inputs[0].name,
        rate,
        normalize=bool(config.get("do_normalize", True)),
        ctc=CtcSpec(logits.name, blank),
    )
    return Speech(spec, tokenizer=_make_tokenizer(tokens, settings, notes))


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
