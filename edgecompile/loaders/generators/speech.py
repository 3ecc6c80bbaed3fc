"""The way from a recording to text, as the folder of a model with a decoder has it: features and tokens."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from edgecompile.loaders.folders.ctc import FILTERS_PATH, SAMPLES
from edgecompile.loaders.folders.files import optional_object
from edgecompile.loaders.folders.pretrained import import_transformers, quiet
from edgecompile.loaders.generators.settings import generation_setting, token_or_none
from edgecompile.models.loaded import Speech
from edgecompile.models.modules import describe_error
from edgecompile.runtime.format.manifest.speech_schema import LogMelSpec, SpeechSpec, WindowSpec

#: transformers' time of a timestamp's step; its loop takes no other.
_STEP = 0.02
#: Where nothing says how many tokens a text has, transformers makes so many behind its beginning.
_MAX_LENGTH = 20
_FILE = "preprocessor_config.json"
#: Settings of transformers' loop that the runtime's doesn't have.
_UNHEEDED = (
    *("no_speech_threshold", "logprob_threshold", "compression_ratio_threshold"),
    *("condition_on_prev_tokens", "repetition_penalty"),
)


class _Unfit(Exception):
    """The reason why a bundle takes features instead of recordings."""


def find_speech(
    model: Any, folder: Path | None, tokenizer: Path | None, name: str, notes: list[str]
) -> Speech | None:
    """The speech of a transformers model; None where it reads neither samples nor Whisper's features, or a note says why.

    Args:
        model: the model, whose encoder reads features of sound.
        folder: the folder of its preprocessor_config.json; None: it came without one.
        tokenizer: its tokenizer.json.
        name: the encoder's input.
        notes: remarks for the user; some are added.
    """
    if name != "input_values" and model.config.model_type != "whisper":
        return None
    try:
        if name == "input_values":
            return Speech(_samples(folder, name), {}, tokenizer)
        log_mel, rate, filters = _features(model, folder)
        windows = _windows(model, log_mel, rate)
    except _Unfit as reason:
        notes.append(f"the bundle takes inputs, not recordings: {reason}")
        return None
    settings = {key: _own(model, key) for key in _UNHEEDED}
    # Neutral values of the last two.
    passed = [f"{key} {value}" for key, value in settings.items() if value not in (None, False, 1)]
    if passed:
        notes.append(f"recordings are transcribed without {', '.join(passed)}")
    return Speech(SpeechSpec(name, rate, log_mel, windows), {FILTERS_PATH: filters}, tokenizer)


def _samples(folder: Path | None, name: str) -> SpeechSpec:
    config = {} if folder is None else optional_object(folder / _FILE, "the feature extractor")
    rate = config.get("sampling_rate")
    if config.get("feature_extractor_type", SAMPLES) != SAMPLES or not isinstance(rate, int):
        raise _Unfit(f"there is no {_FILE} of a {SAMPLES} with a sampling_rate")
    return SpeechSpec(name, rate, normalize=bool(config.get("do_normalize", True)))


def _features(model: Any, folder: Path | None) -> tuple[LogMelSpec, int, bytes]:
    transformers = import_transformers()
    if folder is None:
        raise _Unfit(f"it isn't built from a folder with a {_FILE}")
    try:
        with quiet(transformers):
            made = transformers.WhisperFeatureExtractor.from_pretrained(
                str(folder), local_files_only=True
            )
    except Exception as exc:  # whatever transformers raises for files that are missing or wrong
        raise _Unfit(f"its {_FILE} can't be used: {describe_error(exc)}") from exc
    bins, frames = model.config.num_mel_bins, 2 * model.config.max_source_positions
    own = (made.feature_size, made.n_samples // made.hop_length)
    if own != (bins, frames) or made.n_samples != frames * made.hop_length:
        raise _Unfit(
            f"the feature extractor makes {own[0]} bins and {own[1]} frames, "
            f"the model takes {bins} and {frames}"
        )
    if made.dither or made.padding_value or made.n_fft % 2:
        raise _Unfit(
            "the feature extractor dithers, pads with other samples than 0, or has an odd window"
        )
    spec = LogMelSpec(FILTERS_PATH, bins, int(made.n_fft), int(made.hop_length))
    filters = np.asarray(made.mel_filters, "<f4")
    return spec, int(made.sampling_rate), np.ascontiguousarray(filters).tobytes()


def _windows(model: Any, log_mel: LogMelSpec, rate: int) -> WindowSpec:
    encoder, vocabulary = model.get_encoder(), int(model.config.vocab_size)
    stride = int(encoder.conv1.stride[0] * encoder.conv2.stride[0])
    plain = token_or_none(_own(model, "no_timestamps_token_id"), vocabulary)
    timed = plain is not None and plain + 1 < vocabulary and plain > 0
    if timed and stride * log_mel.hop / rate != _STEP:
        raise _Unfit(f"a time's step is {stride * log_mel.hop / rate:g} s, must be {_STEP:g} s")
    ends = _own(model, "eos_token_id")
    if timed and not isinstance(ends, int):
        raise _Unfit(f"one token has to end a text, not {ends}")
    languages, tasks = _names(model, "lang_to_id"), _names(model, "task_to_id")
    if _own(model, "is_multilingual") is False and (languages or tasks):
        raise _Unfit("generation_config.json has languages or tasks, and says that there are none")
    if tasks and "transcribe" not in tasks:
        raise _Unfit("the tasks of generation_config.json have no transcribe")
    language, task = _own(model, "language"), _own(model, "task")
    names = _language_names(languages)
    chosen = _named(language, names, "language"), _named(task, tasks, "task")
    length = generation_setting(model, "max_length")
    initial = _own(model, "max_initial_timestamp_index")
    return WindowSpec(
        frames=2 * model.config.max_source_positions,
        stride=stride,
        timestamps=plain + 1 if timed and plain is not None else None,
        max_length=length if isinstance(length, int) else _MAX_LENGTH,
        max_initial=initial if timed and isinstance(initial, int) else None,
        forced=_forced(model, vocabulary),
        languages=names,
        tasks=tasks,
        language=chosen[0],
        task=chosen[1],
        previous=_previous(model, vocabulary),
        max_new_tokens=_own(model, "max_new_tokens"),
    )


def _own(model: Any, name: str) -> Any:
    return getattr(model.generation_config, name, None)


def _names(model: Any, key: str) -> dict[str, int]:
    value, vocabulary = _own(model, key), int(model.config.vocab_size)
    if not isinstance(value, Mapping):
        return {}
    return {
        name.removeprefix("<|").removesuffix("|>"): token
        for name, token in value.items()
        if isinstance(name, str) and token_or_none(token, vocabulary) is not None
    }


def _language_names(codes: Mapping[str, int]) -> dict[str, int]:
    """The tokens by code, and by the names of languages."""
    from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE

    named = {name: codes[code] for name, code in TO_LANGUAGE_CODE.items() if code in codes}
    return {**codes, **{name: token for name, token in named.items() if name not in codes}}


def _named(value: Any, known: Mapping[str, int], key: str) -> str | None:
    """The name that a setting gives, as ``known`` has it."""
    if value is None:
        return None
    name = str(value).lower().removeprefix("<|").removesuffix("|>")
    if name not in known:
        raise _Unfit(f"generation_config.json says the {key} {value!r}, which it has no token for")
    return name


def _forced(model: Any, vocabulary: int) -> tuple[int | None, ...]:
    """The tokens at the places 1, 2, … of a text; None where nothing is forced there."""
    pairs: Any = generation_setting(model, "forced_decoder_ids")
    if not pairs or pairs[0][0] != 1:
        return ()
    if [pair[0] for pair in pairs] != list(range(1, len(pairs) + 1)):
        raise _Unfit(f"forced_decoder_ids has gaps: {pairs}")
    return tuple(token_or_none(pair[1], vocabulary) for pair in pairs)


def _previous(model: Any, vocabulary: int) -> int | None:
    said = token_or_none(_own(model, "prev_sot_token_id"), vocabulary)
    suppressed: Any = generation_setting(model, "suppress_tokens") or ()
    if said is None and len(suppressed) >= 2:
        return token_or_none(suppressed[-2], vocabulary)
    return said
