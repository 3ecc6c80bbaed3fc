"""texts: what the tokenizer makes of texts, how they are batched, and what comes back.

Nothing native runs here: a fake model, named so, tells what it was given.
"""

from __future__ import annotations

import copy
import io
import json
import os
import random
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgecompile.runtime.base.errors import InputError, TokenizerError, TokenizersMissingError
from edgecompile.runtime.commands.encode import encode_bundle, format_encode, read_texts
from edgecompile.runtime.format.manifest.parse import parse_manifest
from edgecompile.runtime.format.manifest.schema import Manifest
from edgecompile.runtime.text.encoder import TextEncoder, TextOutputs
from tests.runtime.bundles import DOCUMENT
from tests.runtime.texts import TEXT, TOKENIZER, a_tokenizer

pytest.importorskip("tokenizers")


class FakeModel:
    """Stands for an open model: a row's embedding is what its tokens add up to, and its states are
    its tokens. Padding that the mask doesn't hide changes them."""

    def __init__(self, manifest: Manifest, folder: Path, tokenizer: bytes) -> None:
        self.manifest = manifest
        self.file = folder / "tokenizer.json"
        self.file.write_bytes(tokenizer)
        self.shapes: list[tuple[int, ...]] = []
        self.opened: list[str] = []
        self.last: dict[str, Any] = {}

    def open_file(self, name: str) -> int:
        self.opened.append(name)
        return os.open(self.file, os.O_RDONLY)

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        self.last = dict(inputs)
        ids = inputs["input_ids"]
        assert all(array.dtype == np.int64 for array in inputs.values())
        self.shapes.append(ids.shape)
        mask = inputs.get("attention_mask", np.ones_like(ids))
        total = (ids * mask).sum(1, keepdims=True)
        return {
            "embedding": np.repeat(total, 4, axis=1).astype(np.float32),
            "states": np.stack([ids, mask], axis=2).astype(np.float32),
        }

    def encode(self, texts: Any, prompt: str | None = None, truncate: bool = True) -> TextOutputs:
        return TextEncoder(self).encode(self, texts, prompt, truncate)  # type: ignore[arg-type]


def make(tmp_path: Path, tokenizer: bytes | None = None, **changes: Any) -> FakeModel:
    """A fake model of a manifest with texts; ``changes`` by top-level key, "text" merged."""
    document = copy.deepcopy(DOCUMENT)
    text = {**copy.deepcopy(TEXT), "default_prompt": None, **changes.pop("text", {})}
    document.update(copy.deepcopy(changes), text=text)
    document["golden"] = []
    names = [TOKENIZER, "weights.fp32", "code/x86-64/libecprobe.so"]
    names += [document["variants"][0]["runtime"], *document["variants"][0]["programs"]]
    document["files"] = {name: {"size": 1, "sha256": "0" * 64} for name in names}
    manifest = parse_manifest(json.dumps(document).encode())
    return FakeModel(manifest, tmp_path, tokenizer or a_tokenizer())


def sized(batch: Any, length: Any, masked: bool = True) -> dict[str, Any]:
    """A document's changes for other limits: (lo, hi), or a number for a fixed size."""
    axes = {
        name: {"lo": span[0], "hi": span[1]}
        for name, span in (("batch", batch), ("length", length))
        if isinstance(span, tuple)
    }
    dims = [
        name if isinstance(span, tuple) else span
        for name, span in (("batch", batch), ("length", length))
    ]
    inputs = copy.deepcopy(DOCUMENT["inputs"])[: 2 if masked else 1]
    outputs = copy.deepcopy(DOCUMENT["outputs"])
    for item in inputs:
        item["shape"] = dims
    outputs[0]["shape"], outputs[1]["shape"] = [dims[0], 4], [*dims, 2]
    variant = copy.deepcopy(DOCUMENT["variants"])
    variant[0]["programs"] = variant[0]["programs"][:1]
    return {
        "axes": axes,
        "inputs": inputs,
        "outputs": outputs,
        "length_axis": "length" if "length" in axes else None,
        "buckets": [
            {"mode": "exact", "axes": {n: {**s, "hint": s["hi"]} for n, s in axes.items()}}
        ],
        "variants": variant,
        "text": {
            "max_length": length[1] if isinstance(length, tuple) else length,
            "inputs": dict(list(TEXT["inputs"].items())[: 2 if masked else 1]),
        },
    }


# "<s> the cat </s>" is 1 4 5 2.
def test_outputs_come_in_the_order_of_the_texts(tmp_path: Path) -> None:
    model = make(tmp_path)
    texts = ["the", "the cat sat on the mat", "cat", "the cat sat on the cat", "mat mat"]
    got = model.encode(texts)
    sums = [7, 3 + 4 + 5 + 6 + 7 + 4 + 8, 8, 3 + 4 + 5 + 6 + 7 + 4 + 5, 3 + 16]
    np.testing.assert_array_equal(got["embedding"], np.repeat([sums], 4, axis=0).T)
    assert [row.shape for row in got["states"]] == [(3, 2), (8, 2), (3, 2), (8, 2), (4, 2)]
    for row, text in zip(got["states"], got.texts, strict=True):
        np.testing.assert_array_equal(row[:, 0], text.ids)
        assert row[:, 1].all()
    # Those of like length together, never more than the plan's two.
    assert model.shapes == [(2, 8), (1, 4), (2, 3)]
    assert got.truncated == () and model.opened == [TOKENIZER]
    assert got.texts[0].offsets == ((0, 0), (0, 3), (0, 0))


def test_rows_are_filled_behind_their_tokens(tmp_path: Path) -> None:
    model = make(tmp_path, text={"pad_id": 9})
    model.encode(["the cat sat on", "the cat sat on mat"])
    np.testing.assert_array_equal(model.last["input_ids"][1], [1, 4, 5, 6, 7, 2, 9])
    np.testing.assert_array_equal(model.last["attention_mask"][1], [1, 1, 1, 1, 1, 1, 0])


def test_an_unlike_text_doesnt_join_a_batch(tmp_path: Path) -> None:
    model = make(tmp_path, **sized((1, 8), (1, 64)))
    model.encode(["the " * 20, "the " * 19, "the " * 3, "the " * 2])
    assert model.shapes == [(2, 22), (2, 5)]


def test_a_fixed_batch_and_a_fixed_length_are_filled(tmp_path: Path) -> None:
    model = make(tmp_path, **sized(4, 16))
    got = model.encode(["the cat", "mat"])
    assert model.shapes == [(4, 16)]
    np.testing.assert_array_equal(got["embedding"][:, 0], [12, 11])
    assert got["states"].shape == (2, 16, 2)  # nothing tells tokens from a size


def test_without_a_mask_only_equal_lengths_go_together(tmp_path: Path) -> None:
    model = make(tmp_path, **sized((1, 8), (3, 64), masked=False))
    got = model.encode(["the cat", "mat sat", "the cat sat", "cat"])
    assert model.shapes == [(1, 5), (2, 4), (1, 3)]
    np.testing.assert_array_equal(got["embedding"][:, 0], [12, 17, 18, 8])
    narrow = make(tmp_path, **sized((1, 8), (5, 64), masked=False))
    with pytest.raises(InputError, match=r"a text has 3 tokens, .* 5\.\.64 and no mask"):
        narrow.encode(["cat"])


def test_long_texts_are_cut_and_that_is_told(tmp_path: Path) -> None:
    model = make(tmp_path, text={"max_length": 6})
    texts = ["the cat", "the cat sat on the mat", "the cat sat on", "mat " * 99]
    got = model.encode(texts)
    assert got.truncated == (1, 3)
    assert got.texts[1].ids == (1, 4, 5, 6, 7, 2)
    assert [text.truncated for text in got.texts] == [False, True, False, True]
    with pytest.raises(InputError, match=r"2 of 4 texts have more than 6 tokens: number 1, 3"):
        model.encode(texts, truncate=False)


def learned_tokenizer(kind: str) -> Any:
    """One with a vocabulary learned from a few words: WordPiece, BPE by bytes, or BPE and Unigram of sentences
    that aren't divided into words."""
    t = pytest.importorskip("tokenizers")
    corpus = [
        "the cat sat quietly on the mat",
        "purred all day, and then 1234 nights",
        "猫がマットに座る",
    ]
    if kind == "wordpiece":
        tokenizer = t.Tokenizer(t.models.WordPiece(unk_token="[UNK]"))
        tokenizer.pre_tokenizer = t.pre_tokenizers.BertPreTokenizer()
        trainer = t.trainers.WordPieceTrainer(vocab_size=120, special_tokens=["[UNK]", "[CLS]"])
    elif kind == "unigram":
        tokenizer = t.Tokenizer(t.models.Unigram())
        tokenizer.pre_tokenizer = t.pre_tokenizers.Metaspace(split=False)
        trainer = t.trainers.UnigramTrainer(
            vocab_size=120,
            special_tokens=["[UNK]", "[CLS]"],
            unk_token="[UNK]",
            show_progress=False,
        )
    else:
        tokenizer = t.Tokenizer(t.models.BPE(unk_token="[UNK]"))
        tokenizer.pre_tokenizer = (
            t.pre_tokenizers.ByteLevel()
            if kind == "bytes"
            else t.pre_tokenizers.Metaspace(split=False)
        )
        trainer = t.trainers.BpeTrainer(vocab_size=300, special_tokens=["[UNK]", "[CLS]"])
    tokenizer.train_from_iterator(corpus * 20, trainer)
    tokenizer.post_processor = t.processors.TemplateProcessing(
        single="[CLS] $A", pair="[CLS] $A [CLS]:1 $B:1", special_tokens=[("[CLS]", 1)]
    )
    return tokenizer


@pytest.mark.parametrize("kind", ["wordpiece", "bytes", "sentences", "unigram"])
def test_a_long_text_is_tokenized_as_far_as_the_model_reads_it(tmp_path: Path, kind: str) -> None:
    """With the same tokens, and the same word on what was cut, as the whole text has."""
    inputs = copy.deepcopy(DOCUMENT["inputs"])
    inputs.append({**inputs[1], "name": "token_type_ids"})
    fed = {**TEXT["inputs"], "token_type_ids": "type_ids"}
    tokenizer = learned_tokenizer(kind)
    model = make(
        tmp_path,
        tokenizer.to_str().encode(),
        inputs=inputs,
        text={"inputs": fed, "max_length": 33, "prepare": []},
    )
    encoder = TextEncoder(model)  # type: ignore[arg-type]
    given: list[int] = []
    encode_batch = encoder._tokenizer.encode_batch

    class Watched:
        def encode_batch(self, texts: list[Any]) -> Any:
            given.extend(
                len(text) if isinstance(text, str) else sum(map(len, text)) for text in texts
            )
            return encode_batch(texts)

    encoder._tokenizer = Watched()
    words = ["the", "cat", "sat", "on", "1234", "mat,", "猫がマット", "purred", "q"]
    draw = random.Random(2)
    text = " ".join(draw.choices(words, k=4_000))
    texts: list[Any] = [
        text, text[:3000], "the cat", "aa" * 4_000, "猫が" * 4_000, "the cat " + "z" * 5_000 + " mat",
        " " * 5_000 + text[:5000], "x" * 2250 + " " + text, ("the cat", text), (text, "the cat"),
        (text[:4000], text[:5000]), ("the cat " * 4_000, "x y z " * 300), ("x y z " * 300, "the cat " * 4_000),
    ]  # fmt: skip
    tokenizer.enable_truncation(33)
    for item, found in zip(texts, encoder.tokenize(texts), strict=True):
        (whole,) = tokenizer.encode_batch([item])
        assert found.ids == tuple(whole.ids) and found.type_ids == tuple(whole.type_ids)
        assert found.offsets == tuple(whole.offsets)
        assert found.truncated == bool(whole.overflowing)
    given.clear()
    encoder.tokenize([text, ("the cat", text), (text, "the cat")])
    assert sum(given) < 3 * 2400


def test_what_the_file_says_about_cutting_and_filling_isnt_heeded(tmp_path: Path) -> None:
    document = json.loads(a_tokenizer())
    document["truncation"] = {
        "direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0,
    }  # fmt: skip
    document["padding"] = {
        "strategy": {"Fixed": 32}, "direction": "Left", "pad_to_multiple_of": None,
        "pad_id": 3, "pad_type_id": 0, "pad_token": "<unk>",
    }  # fmt: skip
    got = make(tmp_path, json.dumps(document).encode()).encode(["the cat sat"])
    assert got.texts[0].ids == (1, 4, 5, 6, 2) and got.truncated == ()


def test_pairs_need_an_input_for_their_types(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="second text of a pair") as failure:
        make(tmp_path).encode([("the cat", "mat")])
    assert "token_type_ids" in (failure.value.hint or "")
    inputs = copy.deepcopy(DOCUMENT["inputs"])
    inputs.append({**inputs[1], "name": "token_type_ids"})
    fed = {**TEXT["inputs"], "token_type_ids": "type_ids"}
    model = make(tmp_path, inputs=inputs, text={"inputs": fed})
    got = model.encode([("the cat", "mat"), "cat"])
    assert got.texts[0].ids == (1, 4, 5, 2, 8, 2)
    assert got.texts[0].type_ids == (0, 0, 0, 0, 1, 1)
    assert model.shapes == [(1, 6), (1, 3)]


def test_prompts_and_what_is_done_to_a_text(tmp_path: Path) -> None:
    prompts = {"query": "the ", "passage": "mat ", "": ""}
    model = make(tmp_path, text={"prompts": prompts, "default_prompt": "query"})
    assert model.encode([" CAT "]).texts[0].ids == (1, 4, 5, 2)
    assert model.encode(["cat"], prompt="passage").texts[0].ids == (1, 8, 5, 2)
    assert model.encode(["cat"], prompt="").texts[0].ids == (1, 5, 2)
    with pytest.raises(InputError, match=r"no prompt 'title'; the bundle has 'query', 'passage'"):
        model.encode(["cat"], prompt="title")
    with pytest.raises(InputError, match="there is no prompt"):
        model.encode(["cat"], prompt=["query"])  # type: ignore[arg-type]
    plain = make(tmp_path, text={"prepare": []})
    assert plain.encode(["CAT"]).texts[0].ids == (1, 3, 2)


def test_no_texts_give_no_rows(tmp_path: Path) -> None:
    got = make(tmp_path).encode([])
    assert got["embedding"].shape == (0, 4) and got["embedding"].dtype == np.float32
    assert got["states"] == [] and got.truncated == ()


@pytest.mark.parametrize(
    ("texts", "text"),
    [
        ("the cat", "texts is a str, must be a list"),
        (7, "texts is a int, must be a list"),
        ([b"the cat"], "text 0 is a bytes, must be a string"),
        (["a", None], "text 1 is a NoneType, must be a string"),
        ([("a", "b", "c")], "text 0 is a tuple, must be a string or a pair"),
        ([("a", 3)], "text 0 holds a int, must be a string"),
        (["a", "b\udc80"], r"text 1 has half of a surrogate pair, '\\udc80' at 1"),
    ],
)
def test_what_isnt_text_is_refused(tmp_path: Path, texts: Any, text: str) -> None:
    with pytest.raises(InputError, match=text):
        make(tmp_path).encode(texts)


def test_a_tokenizer_that_leaves_nothing(tmp_path: Path) -> None:
    document = json.loads(a_tokenizer())
    document["post_processor"] = None
    with pytest.raises(InputError, match="leaves nothing of text 1"):
        make(tmp_path, json.dumps(document).encode()).encode(["cat", "  "])


def test_without_the_package_the_cure_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(TokenizersMissingError, match="isn't installed here") as failure:
        make(tmp_path).encode(["cat"])
    assert "pip install tokenizers" in (failure.value.hint or "")


def test_a_bundle_without_a_tokenizer_or_with_a_bad_one(tmp_path: Path) -> None:
    model = make(tmp_path, b'{"version": "9"}')
    with pytest.raises(TokenizerError, match=r"tokenizer/tokenizer.json can't be read"):
        model.encode(["cat"])
    document = copy.deepcopy(DOCUMENT)
    document["golden"] = []
    document["files"] = {
        name: {"size": 1, "sha256": "0" * 64} for name in list(make(tmp_path).manifest.files)
    }
    model.manifest = parse_manifest(json.dumps(document).encode())
    with pytest.raises(TokenizerError, match="holds no tokenizer"):
        model.encode(["cat"])


def test_a_model_that_takes_more_than_texts_is_refused(tmp_path: Path) -> None:
    inputs = copy.deepcopy(DOCUMENT["inputs"])
    inputs.append({**inputs[0], "name": "position", "shape": [1]})
    with pytest.raises(TokenizerError, match="it also takes position"):
        make(tmp_path, inputs=inputs).encode(["cat"])
    outputs = copy.deepcopy(DOCUMENT["outputs"])
    outputs[0]["shape"] = [4]
    with pytest.raises(TokenizerError, match="output embedding isn't by text"):
        make(tmp_path, outputs=outputs).encode(["cat"])


def test_threads_share_an_encoder(tmp_path: Path) -> None:
    model = make(tmp_path)
    encoder = TextEncoder(model)  # type: ignore[arg-type]
    wanted = encoder.tokenize(["the cat sat"] * 5)
    found: list[Any] = []

    def work() -> None:
        for _ in range(50):
            found.append(encoder.tokenize(["the cat sat"] * 5) == wanted)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 200 and all(found)


class TestCommand:
    def test_texts_of_options_and_of_a_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = tmp_path / "texts.txt"
        file.write_bytes("größe\n\n the cat \n".encode())
        assert read_texts(["a"], str(file)) == ["a", "größe", " the cat "]
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\ntwo\n")))
        assert read_texts([], "-") == ["one", "two"]
        file.write_bytes(b"caf\xe9")
        with pytest.raises(InputError, match="byte 3 isn't UTF-8"):
            read_texts([], str(file))
        with pytest.raises(InputError, match="No such file"):
            read_texts([], str(tmp_path / "none"))
        with pytest.raises(InputError, match="there is no text"):
            read_texts([], None)

    def test_a_report_and_its_lines(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        model = make(tmp_path, labels={"embedding": ["a", "b", "c", "d"]})

        class Opened:
            """Stands for open_bundle(): the fake model as a context."""

            def __enter__(self) -> Any:
                return self

            def __exit__(self, *details: object) -> None:
                pass

            manifest = model.manifest

            def encode_texts(self, texts: Any, prompt: str | None = None) -> TextOutputs:
                return model.encode(texts, prompt)

        monkeypatch.setattr(
            "edgecompile.runtime.commands.encode.open_bundle", lambda *a, **k: Opened()
        )
        report = encode_bundle("b.ecb", ["the cat", "mat " * 99])
        assert json.loads(json.dumps(report, allow_nan=False)) == report
        first, second = report["texts"]
        assert (first["tokens"], first["truncated"], second["truncated"]) == (4, False, True)
        assert first["outputs"]["embedding"] == [12.0] * 4
        assert first["labels"] == {"embedding": [[name, 12.0] for name in "abcd"]}
        assert format_encode(report)[:3] == [
            "the cat  (4 tokens)",
            "  embedding: a 12, b 12, c 12, d 12",
            "  states: 4 rows, the first 1, 1",
        ]
