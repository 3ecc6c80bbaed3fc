"""Embeddings in bytes and bits, against the formulas of sentence-transformers written anew here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgecompile.runtime.base.errors import InputError
from edgecompile.runtime.text.embedding import PRECISIONS, find_embeddings, narrow
from tests.runtime.text.test_encoder import FakeModel, make

RANGES = [[0.0, 0.0, 0.0, 4.0], [20.0, 40.0, 10.0, 4.0]]


def embeddings(texts: int = 40, size: int = 24) -> np.ndarray:
    return np.random.default_rng(7).normal(size=(texts, size)).astype(np.float32)


@pytest.mark.parametrize("size", [8, 24])
def test_bits_are_those_of_sentence_transformers(size: int) -> None:
    rows = embeddings(size=size)
    packed = np.packbits(rows > 0).reshape(len(rows), -1)
    assert np.array_equal(narrow(rows, "ubinary"), packed)
    got = narrow(rows, "binary")
    assert got.dtype == np.int8 and np.array_equal(got, (packed - 128).astype(np.int8))


def test_bits_that_fill_the_last_byte_are_zero() -> None:
    assert narrow([[1.0] * 3 + [-1.0] + [0.0] + [2.0] * 6], "ubinary").tolist() == [
        [0b11100111, 0b11100000]
    ]


def test_bytes_are_a_step_from_those_of_sentence_transformers_at_most() -> None:
    """That library cuts the fraction off. Numbers outside of the ranges turn over there, and stay at the ends here."""
    rows = embeddings()
    low, high = rows.min(0), rows.max(0)
    share = (rows - low) / ((high - low) / 255)
    got = narrow(rows, "uint8", (low, high))
    assert got.dtype == np.uint8 and got.min() == 0 and got.max() == 255
    assert np.abs(got - share).max() <= 0.5 + 1e-3
    assert np.abs(got.astype(int) - share.astype(np.uint8)).max() <= 1
    signed = narrow(rows, "int8", (low, high))
    assert signed.dtype == np.int8 and np.array_equal(signed.astype(int) + 128, got)
    outside = narrow([low - 1, high + 1], "int8", (low, high))
    assert (outside[0] == -128).all() and (outside[1] == 127).all()


def test_a_number_that_never_changes_is_nothing() -> None:
    assert narrow([[5.0], [6.0]], "uint8", ([5.0], [5.0])).tolist() == [[0], [0]]


@pytest.mark.parametrize("precision", PRECISIONS[1:])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_no_byte_holds_nan(precision: str, value: float) -> None:
    with pytest.raises(InputError, match="NaN or infinities"):
        narrow([[value]], precision, ([0.0], [1.0]))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_texts_give_embeddings_in_a_precision(tmp_path: Path, precision: str) -> None:
    pytest.importorskip("tokenizers")
    model = make(tmp_path, ranges={"embedding": RANGES})
    texts = ["the cat", "the", "on the mat"]
    plain = model.encode(texts)
    got = encode(model, texts, precision)
    wanted = narrow(plain["embedding"], precision, tuple(model.manifest.ranges["embedding"]))
    assert got["embedding"].dtype == wanted.dtype
    assert np.array_equal(got["embedding"], wanted)
    for one, other in zip(got["states"], plain["states"], strict=True):
        assert np.array_equal(one, other)
    assert len(encode(model, [], precision)["embedding"]) == 0


def encode(model: FakeModel, texts: list[str], precision: str) -> Any:
    from edgecompile.runtime.text.encoder import TextEncoder

    return TextEncoder(model).encode(model, texts, None, True, precision)  # type: ignore[arg-type]


def test_what_a_bundle_cant_give_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    model = make(tmp_path)
    with pytest.raises(InputError, match="'int4', must be one of float32, int8"):
        encode(model, ["the"], "int4")
    for precision in ("int8", "uint8"):
        with pytest.raises(InputError, match=f"of embedding are, which {precision} needs"):
            encode(model, ["the"], precision)
    model.manifest = model.manifest._replace(outputs=model.manifest.outputs[1:])
    with pytest.raises(InputError, match="has no embeddings of a text"):
        encode(model, ["the"], "binary")


def test_sparse_embeddings_and_scores_are_no_embeddings(tmp_path: Path) -> None:
    model = make(tmp_path, ranges={"embedding": RANGES})
    (item, *_) = model.manifest.outputs
    for name, found in (
        ("pooler_output", ("pooler_output",)),
        ("sparse_embedding", ()),
        ("logits", ()),
        ("scores", ()),
    ):
        manifest = model.manifest._replace(outputs=(item._replace(name=name),))
        assert find_embeddings(manifest) == found
