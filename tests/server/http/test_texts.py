"""Requests of the text protocols, and scores and vectors as they give them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgecompile.server.errors import BadRequest, ServerError, TooLarge, Unprocessable
from edgecompile.server.protocol.completions import read_completion
from edgecompile.server.protocol.documents import load_object
from edgecompile.server.protocol.embeddings import shorten_rows
from edgecompile.server.protocol.openai import read_embeddings
from edgecompile.server.protocol.rerank import read_rank
from edgecompile.server.protocol.tei import (
    format_predict,
    format_rerank,
    read_embed,
    read_predict,
    read_rerank,
)
from edgecompile.server.protocol.texts import read_items, to_scores
from tests.server.http.test_tensors import patient


def encoded(**document: Any) -> bytes:
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("inputs", "texts", "single"),
    [
        ("a", ["a"], True),
        (["a"], ["a"], True),
        (["a", "b"], [("a", "b")], True),
        ([["a"], ["b"]], ["a", "b"], False),
        ([["a", "b"], ["c"], "d"], [("a", "b"), "c", "d"], False),
    ],
)
def test_texts_and_pairs_to_predict(inputs: Any, texts: list[Any], single: bool) -> None:
    found = read_predict(encoded(inputs=inputs), 10)
    assert (found.texts, found.single) == (texts, single)


@pytest.mark.parametrize(
    ("inputs", "error"),
    [
        ([], BadRequest),
        ([[]], BadRequest),
        (["a", "b", "c"], BadRequest),
        ([["a", "b", "c"]], BadRequest),
        ([["a", 1]], BadRequest),
        (3, BadRequest),
        (None, BadRequest),
        ([["a"]] * 11, TooLarge),
    ],
)
def test_what_can_not_be_predicted(inputs: Any, error: type[ServerError]) -> None:
    with pytest.raises(error):
        read_predict(encoded(inputs=inputs), 10)


def test_classes_come_by_falling_score() -> None:
    request = read_predict(encoded(inputs=[["a"], ["b"]]), 10)
    scores = np.array([[0.2, 0.8], [0.7, 0.3]])
    assert json.loads(format_predict(request, scores, ["no", "yes"])) == [
        [{"score": 0.8, "label": "yes"}, {"score": 0.2, "label": "no"}],
        [{"score": 0.7, "label": "no"}, {"score": 0.3, "label": "yes"}],
    ]
    request = read_predict(encoded(inputs="a"), 10)
    (first, _) = json.loads(format_predict(request, scores[:1], ["no", "yes"]))
    assert first["label"] == "yes"


def test_texts_come_by_falling_score() -> None:
    request = read_rerank({"query": "q", "texts": ["a", "b", "c"], "return_text": True}, 10)
    found = json.loads(format_rerank(request, [0.1, 0.9, 0.5]))
    assert [(item["index"], item["text"], item["score"]) for item in found] == [
        (1, "b", 0.9),
        (2, "c", 0.5),
        (0, "a", 0.1),
    ]
    request = read_rerank({"query": "q", "texts": ["a"]}, 10)
    assert json.loads(format_rerank(request, [0.1])) == [{"index": 0, "score": 0.1}]
    request = read_rerank({"query": "q", "texts": ["a", "b"], "top_n": 1}, 10)
    assert json.loads(format_rerank(request, [0.1, 0.2])) == [{"index": 1, "score": 0.2}]


def test_scores_of_logits() -> None:
    one = np.array([[0.0], [1000.0], [-1000.0]], np.float32)
    np.testing.assert_allclose(to_scores("logits", one, False)[:, 0], [0.5, 1, 0], atol=1e-12)
    several = np.array([[1000.0, 1000.0, -1000.0]], np.float32)
    np.testing.assert_allclose(to_scores("logits", several, False), [[0.5, 0.5, 0]])
    assert to_scores("logits", several, True) is several
    assert to_scores("scores", several, False) is several
    with pytest.raises(Unprocessable):
        to_scores("scores", several, True)


def test_vectors_are_cut_and_normalized() -> None:
    rows = np.array([[3, 4, 12], [0, 0, 0]], np.float32)
    np.testing.assert_allclose(shorten_rows(rows, 2, True), [[0.6, 0.8], [0, 0]], atol=1e-7)
    np.testing.assert_array_equal(shorten_rows(rows, None, False), rows)
    with pytest.raises(BadRequest, match="has 3"):
        shorten_rows(rows, 4, False)


def test_half_precision_is_normalized_in_single() -> None:
    rows = np.full((1, 16), 300, np.float16)  # the sum of its squares is beyond half precision
    np.testing.assert_allclose(shorten_rows(rows, None, True), np.full((1, 16), 0.25), atol=1e-7)


@pytest.mark.parametrize("strange", [np.nan, np.inf])
def test_what_json_lacks_is_no_answer(strange: float) -> None:
    rows = np.array([[1, 2], [strange, 2]], np.float32)
    for normalize in (False, True):
        with pytest.raises(ServerError, match="NaN or infinities"):
            shorten_rows(rows, None, normalize)
    for name, raw in (("logits", False), ("logits", True), ("scores", False)):
        with pytest.raises(ServerError, match="NaN or infinities"):
            to_scores(name, rows, raw)


def test_items() -> None:
    assert read_items("a", "x", 3) == (["a"], True)
    assert read_items(["a", "b"], "x", 3) == (["a", "b"], False)
    (ids,), single = read_items([1, 2], "x", 3)
    assert (single and not isinstance(ids, (str, tuple))) or ids.ids == (1, 2)  # type: ignore[union-attr]
    found, single = read_items([[1], "b"], "x", 3)
    assert not single and found[1] == "b"
    for bad in ([1, True], [1, -1], [1, 1.5], [[1], []], [[2**31]], [None], {}, 3, []):
        with pytest.raises(BadRequest):
            read_items(bad, "x", 3)


KEYS = st.sampled_from(
    [
        "input",
        "inputs",
        "model",
        "query",
        "texts",
        "prompt",
        "messages",
        "stop",
        "dimensions",
        "documents",
        "truncate",
        "seed",
        "max_tokens",
        "tool_choice",
        "tools",
        "stream_options",
    ]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@patient
@given(st.dictionaries(KEYS, VALUES, max_size=5))
def test_any_document_is_read_or_refused(document: dict[str, Any]) -> None:
    body = json.dumps(document).encode()
    readers: list[Any] = [
        lambda: read_embeddings(body, 3),
        lambda: read_embed(body, 3),
        lambda: read_rerank(load_object(body), 3),
        lambda: read_rank(load_object(body), 3),
        lambda: read_predict(body, 3),
        lambda: read_completion(body, False),
        lambda: read_completion(body, True),
    ]
    for read in readers:
        try:
            read()
        except ServerError as error:
            assert error.status in (400, 413, 422)
