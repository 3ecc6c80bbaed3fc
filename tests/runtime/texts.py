"""A manifest's ``text`` and ``labels`` for dummy bundles, and hostile changes of them."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from edgecompile.runtime.format.manifest.parse import parse_manifest
from edgecompile.runtime.text.encoder import TextEncoder, TextOutputs
from tests.runtime.bundles import DELETE, DOCUMENT, DummyBundle

TOKENIZER = "tokenizer/tokenizer.json"
TEXT: dict[str, Any] = {
    "tokenizer": TOKENIZER,
    "max_length": 64,
    "pad_id": 0,
    "inputs": {"input_ids": "ids", "attention_mask": "attention_mask"},
    "prepare": ["strip", "lower"],
    "prompts": {"query": "query: ", "": ""},
    "default_prompt": "query",
}
LABELS: dict[str, Any] = {"embedding": ["up", "down", "left over", "träge"]}
RANGES: dict[str, Any] = {"embedding": [[-1, -0.5, 0, 2], [1.0, 0.25, 0, 1e3]]}


def add_texts(bundle: DummyBundle, tokenizer: bytes = b"{}") -> None:
    """Gives a bundle a tokenizer, by default one that is none, labels and ranges."""
    bundle.files[TOKENIZER] = tokenizer
    bundle.document["text"] = copy.deepcopy(TEXT)
    bundle.document["labels"] = copy.deepcopy(LABELS)
    bundle.document["ranges"] = copy.deepcopy(RANGES)


#: The ids and the mask have a size that follows from another input's.
TIED: list[dict[str, Any]] = [
    {**item, "shape": ["batch", "batch+2"]} for item in DOCUMENT["inputs"]
] + [{"name": "x", "dtype": "int64", "shape": ["length"], "pad": 0, "bounds": None}]
HUGE = {"size": (64 << 20) + 1, "sha256": "0" * 64}
#: rule, where, what, part of the message.
HOSTILE_TEXTS: list[tuple[str, str, Any, str]] = [
    ("key-type", "text", [], "text: must be an object, not list"),
    ("key-type", "text", None, "text: must be an object, not null"),
    ("key-missing", "text.tokenizer", DELETE, "text.tokenizer: is required"),
    ("key-missing", "text.inputs", DELETE, "text.inputs: is required"),
    ("key-type", "text.max_length", 1.0, "text.max_length: must be an integer, not number"),
    ("key-type", "text.pad_id", None, "text.pad_id: must be an integer"),
    ("key-type", "text.inputs.input_ids", 1, "text.inputs.input_ids: must be a string"),
    ("key-type", "text.prompts", ["query: "], "text.prompts: must be an object"),
    ("key-type", "text.prompts.query", 7, "text.prompts.query: must be a string"),
    ("key-type", "text.prepare", "strip", "text.prepare: must be a list"),
    ("path-listed", "text.tokenizer", "tokenizer.json", "isn't listed in files"),
    ("path-listed", "text.tokenizer", "../tokenizer.json", "isn't listed in files"),
    ("text-size", f"files.{TOKENIZER}", HUGE, "has 67108865 bytes, at most 67108864"),
    ("list-size", "text.inputs", {}, "text.inputs: has 0 entries"),
    ("list-size", "text.prepare", ["strip"] * 3, "text.prepare: has 3 entries"),
    ("list-size", "text.prompts", {str(i): "" for i in range(65)}, "has 65 entries"),
    ("text-inputs", "text.inputs", {"input_ids": "tokens"}, "'tokens' isn't one of"),
    ("text-inputs", "text.inputs", {"input_ids": "ids", "attention_mask": "ids"}, "ids goes twice"),
    ("text-inputs", "text.inputs", {"ids": "ids"}, "text.inputs.ids: there is no such input"),
    ("text-inputs", "text.inputs", {"input_ids": "type_ids"}, "none of them gets the ids"),
    ("text-inputs", "inputs.1.dtype", "float32", "signed integers with two dimensions"),
    ("text-inputs", "inputs.1.shape", ["batch", "length", 1], "with two dimensions"),
    ("text-inputs", "inputs.1.shape", ["batch", 64], "they must have one shape"),
    ("text-inputs", "inputs", TIED, "axes or fixed sizes as dimensions, no sums"),
    ("text-length", "text.max_length", 65, "65 isn't within 1..64"),
    ("text-length", "text.max_length", 0, "0 isn't within 1..64"),
    ("text-pad", "text.pad_id", 100, "100 isn't a value of 'input_ids'"),
    ("text-pad", "text.pad_id", -1, "-1 isn't a value of 'input_ids'"),
    ("text-prepare", "text.prepare", ["upper"], "'upper' isn't one of strip, lower"),
    ("text-prompts", "text.default_prompt", "passage", "'passage' isn't one of the prompts"),
    ("key-type", "labels", ["up"], "labels: must be an object"),
    ("key-type", "labels.embedding", "up", "labels.embedding: must be a list"),
    ("key-type", "labels.embedding.0", 1, "labels.embedding[0]: must be a string"),
    ("list-size", "labels.embedding", [], "labels.embedding: has 0 entries"),
    ("list-size", "labels.embedding", ["x"] * 65537, "has 65537 entries"),
    ("label-output", "labels.embedding", ["up"], "1 labels, but the output's last dimension is"),
    ("label-output", "labels.other", ["up"], "labels.other: there is no such output"),
    ("label-output", "outputs.0.shape", ["batch"], "labels, but the output's last dimension is"),
    ("label-form", "labels.embedding.1", "", "labels.embedding[1]: '' must be 1 to 200"),
    ("label-form", "labels.embedding.1", "x" * 201, "must be 1 to 200 printable"),
    ("label-form", "labels.embedding.1", "\x1b[2J", "must be 1 to 200 printable"),
    ("label-form", "labels.embedding.1", "a\u202eb", "must be 1 to 200 printable"),
    ("key-type", "ranges", [[0], [1]], "ranges: must be an object"),
    ("key-type", "ranges.embedding", {"lo": 0}, "ranges.embedding: must be a list"),
    ("key-type", "ranges.embedding.0", 0.5, "ranges.embedding[0]: must be a list"),
    ("key-type", "ranges.embedding.1.2", None, "ranges.embedding[1][2]: must be a number"),
    ("key-type", "ranges.embedding.1.2", True, "ranges.embedding[1][2]: must be a number"),
    ("list-size", "ranges.embedding", [[0.5] * 4], "ranges.embedding: has 1 entries"),
    ("list-size", "ranges.embedding.0", [], "ranges.embedding[0]: has 0 entries"),
    ("list-size", "ranges.embedding.0", [0] * 65537, "has 65537 entries"),
    ("range-ends", "ranges.embedding.0", [0, 0, 0], "must have the lower end of each range"),
    ("range-ends", "ranges.embedding.0.1", 0.26, "must have the lower end of each range"),
    ("range-output", "ranges.embedding", [[0.5], [1]], "two dimensions, the last one 1"),
    ("range-output", "ranges.other", [[0.5], [1]], "ranges.other: there is no such output"),
    ("range-output", "outputs.0.dtype", "int32", "an output of floats with two dimensions"),
]


def a_tokenizer() -> bytes:
    """The tokenizer.json of one token per word; needs no package to be written."""
    words = ["<pad>", "<s>", "</s>", "<unk>", "the", "cat", "sat", "on", "mat"]
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                {
                    "id": index,
                    "content": word,
                    "single_word": False,
                    "lstrip": False,
                    "rstrip": False,
                    "normalized": False,
                    "special": True,
                }
                for index, word in enumerate(words[:4])
            ],
            "normalizer": None,
            "pre_tokenizer": {"type": "Whitespace"},
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [
                    {"SpecialToken": {"id": "<s>", "type_id": 0}},
                    {"Sequence": {"id": "A", "type_id": 0}},
                    {"SpecialToken": {"id": "</s>", "type_id": 0}},
                ],
                "pair": [
                    {"SpecialToken": {"id": "<s>", "type_id": 0}},
                    {"Sequence": {"id": "A", "type_id": 0}},
                    {"SpecialToken": {"id": "</s>", "type_id": 0}},
                    {"Sequence": {"id": "B", "type_id": 1}},
                    {"SpecialToken": {"id": "</s>", "type_id": 1}},
                ],
                "special_tokens": {
                    "<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]},
                    "</s>": {"id": "</s>", "ids": [2], "tokens": ["</s>"]},
                },
            },
            "decoder": None,
            "model": {
                "type": "WordLevel",
                "vocab": {word: index for index, word in enumerate(words)},
                "unk_token": "<unk>",
            },
        }
    ).encode()


class StandIn:
    """Stands for an open bundle of token classifiers: made-up scores, high at the tokens "cat" (a
    start, and the first class) and "sat" (an end)."""

    def __init__(self, folder: Path) -> None:
        document = copy.deepcopy(DOCUMENT)
        ids, mask = document["inputs"]
        document["inputs"] = [ids, mask, {**mask, "name": "token_type_ids"}]
        row = {"dtype": "float32", "shape": ["batch", "length"]}
        document["outputs"] = [
            {**row, "name": "start_scores"},
            {**row, "name": "end_scores"},
            {"name": "logits", "dtype": "float32", "shape": ["batch", "length", 2]},
        ]
        inputs = {**TEXT["inputs"], "token_type_ids": "type_ids"}
        document.update(
            golden=[],
            text={**TEXT, "inputs": inputs, "default_prompt": None},
            labels={"logits": ["cat", "other"]},
        )
        names = [TOKENIZER, "weights.fp32", "code/x86-64/libecprobe.so"]
        names += [document["variants"][0]["runtime"], *document["variants"][0]["programs"]]
        document["files"] = {name: {"size": 1, "sha256": "0" * 64} for name in names}
        self.manifest = parse_manifest(json.dumps(document).encode())
        self.file = folder / "stand-in.json"
        self.file.write_bytes(a_tokenizer())

    def __enter__(self) -> StandIn:
        return self

    def __exit__(self, *details: object) -> None:
        pass

    def open_file(self, name: str) -> int:
        return os.open(self.file, os.O_RDONLY)

    def run(self, inputs: Any) -> dict[str, Any]:
        ids = inputs["input_ids"]
        cat, sat = (ids == 5).astype(np.float32), (ids == 6).astype(np.float32)
        return {"start_scores": cat, "end_scores": sat, "logits": np.stack([cat, 1 - cat], 2)}

    def encode_texts(self, texts: Any) -> TextOutputs:
        return TextEncoder(self).encode(self, texts, None, True)  # type: ignore[arg-type]
