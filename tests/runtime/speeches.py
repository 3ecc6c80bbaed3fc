"""A manifest's ``speech`` for dummy bundles, and hostile changes of it."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from tests.runtime.bundles import DELETE, DummyBundle
from tests.runtime.generations import make_seq2seq
from tests.runtime.golden_files import write_case

FILTERS, TOKENIZER = "speech/filters.bin", "tokenizer/tokenizer.json"
SPEECH: dict[str, Any] = {
    "input": "input_ids",
    "sampling_rate": 16000,
    "log_mel": {"filters": FILTERS, "bins": 3, "window": 8, "hop": 2},
    "windows": {
        "frames": 20,
        "stride": 2,
        "timestamps": 8,
        "max_length": 9,
        "max_initial": 1,
        "forced": [None, 5],
        "languages": {"en": 4},
        "tasks": {"transcribe": 5},
        "language": "en",
        "task": "transcribe",
        "previous": 6,
        "max_new_tokens": 3,
    },
    "tokenizer": TOKENIZER,
}


def add_speech(bundle: DummyBundle) -> None:
    """Makes the bundle one that takes recordings, with every key that there is."""
    make_seq2seq(bundle)
    bundle.document["generation"]["eos"] = [2]
    bundle.document["speech"] = copy.deepcopy(SPEECH)
    bundle.files[FILTERS] = bytes(4 * 3 * 5)
    bundle.files[TOKENIZER] = b"{}"


def add_ctc(bundle: DummyBundle) -> None:
    """Makes the bundle one that gives a token for each frame of a recording's samples."""
    document = bundle.document
    document["inputs"][0].update(name="samples", dtype="float32", pad=0.0, bounds=None)
    document["speech"] = {
        "input": "samples",
        "sampling_rate": 8000,
        "normalize": True,
        "ctc": {"output": "states", "blank": 1},
    }
    for bucket, size in ((0, 16), (1, 64)):
        inputs = {
            "samples": np.zeros((1, size), np.float32),
            "attention_mask": np.ones((1, size), np.int64),
        }
        outputs = {
            "embedding": np.zeros((1, 4), np.float32),
            "states": np.zeros((1, size, 2), np.float32),
        }
        bundle.files[f"golden/{bucket}-hint.npz"] = write_case(inputs, outputs)


_W = "speech.windows"
#: rule, where, what, part of the message.
HOSTILE_SPEECHES: list[tuple[str, str, Any, str]] = [
    ("key-type", "speech", None, "speech: must be an object, not null"),
    ("key-type", "speech", [], "speech: must be an object, not list"),
    *[
        ("key-missing", f"speech.{key}", DELETE, f"speech.{key}: is required")
        for key in ("input", "sampling_rate", "log_mel")
    ],
    *[
        ("key-missing", f"speech.log_mel.{key}", DELETE, f"speech.log_mel.{key}: is required")
        for key in SPEECH["log_mel"]
    ],
    *[
        ("key-missing", f"{_W}.{key}", DELETE, f"{_W}.{key}: is required")
        for key in ("frames", "stride", "max_length")
    ],
    *[("key-type", f"{_W}.{key}", 0.5, f"{_W}.{key}: must be") for key in SPEECH["windows"]],
    ("key-type", f"{_W}.forced.1", "5", "forced[1]: must be an integer"),
    ("key-type", f"{_W}.languages.en", None, "languages.en: must be an integer"),
    ("list-size", f"{_W}.forced", [5] * 65, "has 65 entries"),
    ("path-listed", "speech.log_mel.filters", "speech/no.bin", "isn't listed"),
    ("path-listed", "speech.tokenizer", "no.json", "isn't listed"),
    ("speech-input", "speech.input", "input_features", "'input_features' isn't the source"),
    ("speech-input", "generation", DELETE, "no encoder reads a recording"),
    ("speech-kind", "speech.windows", DELETE, "speech.log_mel: is for windows or ctc"),
    ("speech-kind", "speech.ctc", {"output": "logits", "blank": 0}, "at most one of windows"),
    ("speech-kind", "speech.normalize", True, "speech.normalize: is for samples"),
    ("speech-numbers", "speech.sampling_rate", 0, "0 isn't within 1..1000000"),
    ("speech-numbers", "speech.log_mel.bins", 4097, "4097 isn't within 1..4096"),
    ("speech-numbers", "speech.log_mel.window", 1, "1 isn't within 2..65536"),
    ("speech-numbers", "speech.log_mel.hop", 0, "0 isn't within 1..65536"),
    ("speech-numbers", f"{_W}.frames", 0, "0 isn't within 1..16777216"),
    (
        "speech-numbers",
        "speech",
        {
            **SPEECH,
            "log_mel": {**SPEECH["log_mel"], "hop": 5},
            "windows": {**SPEECH["windows"], "frames": 1 << 24},
        },
        "16777216 frames have 83886080 samples, at most 67108864",
    ),
    ("speech-numbers", f"{_W}.stride", -2, "-2 isn't within 1..16777216"),
    ("speech-numbers", f"{_W}.max_length", 2**40, "isn't within 1..16777216"),
    ("speech-numbers", f"{_W}.max_initial", -1, "-1 isn't within 0..16777216"),
    ("speech-files", "speech.log_mel.bins", 4, "has 60 bytes, must have 80"),
    ("speech-files", "speech.log_mel.window", 10, "has 60 bytes, must have 72"),
    ("speech-tokens", f"{_W}.timestamps", 1 << 20, "isn't a token"),
    ("speech-tokens", f"{_W}.timestamps", 0, "need a token before the first"),
    ("speech-tokens", "generation.eos", [2, 3], "one token in generation.eos"),
    ("speech-tokens", f"{_W}.forced", [-1], "-1 isn't a token"),
    ("speech-tokens", f"{_W}.forced", [None] * 62, "a text begins with 66 tokens, the context has"),
    ("speech-tokens", f"{_W}.languages.en", 1 << 20, "isn't a token"),
    ("speech-tokens", f"{_W}.tasks", {"translate": 5}, "'transcribe'"),
    ("speech-tokens", f"{_W}.previous", 1 << 20, "isn't a token"),
    ("speech-tokens", f"{_W}.language", "fr", "'fr' isn't one of en"),
    ("speech-tokens", f"{_W}.task", "sing", "'sing' isn't one of transcribe"),
    ("speech-tokens", f"{_W}.languages.e\x1b", 4, "must be 1 to 200 printable"),
    ("speech-tokens", f"{_W}.tasks.", 4, "must be 1 to 200 printable"),
]

#: The same of a bundle that :func:`add_ctc` made.
HOSTILE_CTCS: list[tuple[str, str, Any, str]] = [
    ("key-type", "speech.ctc", [], "speech.ctc: must be an object"),
    ("key-type", "speech.normalize", 1, "speech.normalize: must be true or false"),
    ("key-missing", "speech.ctc.output", DELETE, "speech.ctc.output: is required"),
    ("key-missing", "speech.ctc.blank", DELETE, "speech.ctc.blank: is required"),
    ("speech-kind", "speech.log_mel", {}, "speech.normalize: is for samples, not for log_mel"),
    *[
        ("key-missing", "speech.log_mel", {}, f"speech.log_mel.{key}: is required")
        for key in ("filters", "bins", "window", "hop", "taper", "preemphasis")
    ],
    ("speech-numbers", "speech.log_mel", {"taper": 9, "window": 8}, "9 samples don't fit into"),
    ("speech-numbers", "speech.log_mel", {"preemphasis": 1.5}, "1.5 isn't within 0..1"),
    ("speech-numbers", "speech.log_mel", {"taper": 1}, "1 isn't within 2..65536"),
    ("speech-input", "speech.ctc", DELETE, "no encoder reads a recording"),
    ("speech-input", "speech.input", "embedding", "'embedding' isn't an input, float32"),
    ("speech-input", "speech.input", "attention_mask", "'attention_mask' isn't an input, float32"),
    ("speech-input", "inputs.1.bounds", [0, 0], "nothing says what the input 'attention_mask' is"),
    (
        "speech-input",
        "inputs.1.dtype",
        "float32",
        "nothing says what the input 'attention_mask' is",
    ),
    ("speech-input", "speech.ctc.output", "logits", "'logits' isn't an output"),
    ("speech-input", "speech.ctc.output", "embedding", "'embedding' isn't an output"),
    ("speech-input", "outputs.1.shape", ["batch", "length", "length"], "'states' isn't an output"),
    ("speech-tokens", "speech.ctc.blank", 2, "2 isn't a token, 0..1"),
    ("speech-tokens", "speech.ctc.blank", -1, "-1 isn't a token, 0..1"),
]
