"""/rerank, /predict and labels on real classifiers: answers are those of ``encode_texts``."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgecompile.runtime import open_bundle
from edgecompile.runtime.text.encoder import Text
from tests.generative import replace_files
from tests.server.http.asgi import call, run, serving

QUERY = "the cat"
TEXTS = ["a mat", "sat on a mat", "purred quietly all day", "day", "the cat and the mat"]
#: More than the 12 tokens that the bundles take.
LONG = "sat quietly on the mat all day " * 4
EMBEDDED = {"model": "classifier", "input": "a"}


def logits_of(bundle: Path, texts: list[Text]) -> NDArray[np.float64]:
    """Logits [texts, classes] of the bundle, called without a server; no two texts have the same."""
    with open_bundle(bundle) as model:
        found = np.asarray(model.encode_texts(texts)["logits"], np.float64)
    assert found.shape[0] == 1 or np.diff(np.sort(found[:, 0])).min() > 1e-3
    return found


def sigmoid(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1 / (1 + np.exp(-logits))


def softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    powers = np.exp(logits)
    result: NDArray[np.float64] = powers / powers.sum(1, keepdims=True)
    return result


def ask(bundle: Path, path: str, body: dict[str, Any], status: int = 200) -> Any:
    """The answer of a server that has only this bundle."""

    async def post() -> Any:
        async with serving(bundle) as app:
            reply = await call(app, "POST", path, body)
            assert reply.status == status, reply.body
            return reply.json

    return run(post())


def check_ranks(found: list[dict[str, Any]], scores: NDArray[np.float64]) -> None:
    """Holds an answer of /rerank against the score of each text."""
    order = np.argsort(-scores)
    assert [item["index"] for item in found] == order.tolist()
    np.testing.assert_allclose([item["score"] for item in found], scores[order], atol=1e-5)


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("with_text", [False, True])
def test_texts_are_ranked(reranker_bundle: Path, raw: bool, with_text: bool) -> None:
    logits = logits_of(reranker_bundle, [(QUERY, text) for text in TEXTS])
    assert logits.shape == (5, 1)
    scores = (logits if raw else sigmoid(logits))[:, 0]
    assert np.argsort(-scores).tolist() != list(range(5))
    body = {"query": QUERY, "texts": TEXTS, "raw_scores": raw, "return_text": with_text}
    found = ask(reranker_bundle, "/rerank", body)
    check_ranks(found, scores)
    for item in found:
        assert item.get("text") == (TEXTS[item["index"]] if with_text else None)


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
def test_documents_are_ranked_as_cohere_and_jina_do(reranker_bundle: Path, path: str) -> None:
    logits = logits_of(reranker_bundle, [(QUERY, text) for text in TEXTS])[:, 0]
    order = np.argsort(-logits).tolist()
    documents: list[Any] = [*TEXTS[:3], *({"text": text, "title": "t"} for text in TEXTS[3:])]
    body: dict[str, Any] = {"model": "reranker", "query": QUERY, "documents": documents}
    always = {"top_n": None, "max_chunks_per_doc": None, "max_tokens_per_doc": 4096, "user": "me"}

    async def look() -> None:
        async with serving(reranker_bundle) as app:

            async def ranked(status: int = 200, **more: Any) -> Any:
                reply = await call(app, "POST", path, {**body, **more})
                assert reply.status == status, reply.body
                return reply.json if status == 200 else reply.error

            plain = await ranked()
            assert [item["index"] for item in plain["results"]] == order
            scores = [item["relevance_score"] for item in plain["results"]]
            np.testing.assert_allclose(scores, sigmoid(logits)[order], atol=1e-5)
            assert (await ranked(**always))["results"] == plain["results"]
            assert (await ranked(model=None))["results"] == plain["results"]
            assert plain["model"] == "reranker" and "document" not in plain["results"][0]
            assert plain["usage"]["total_tokens"] == plain["meta"]["tokens"]["input_tokens"] > 5

            best = (await ranked(top_n=2, return_documents=True, raw_scores=True))["results"]
            assert [item["index"] for item in best] == order[:2]
            scores = [item["relevance_score"] for item in best]
            np.testing.assert_allclose(scores, logits[order[:2]], atol=1e-5)
            for item in best:
                given = documents[item["index"]]
                assert item["document"] == (given if isinstance(given, dict) else {"text": given})
            assert len((await ranked(top_n=99))["results"]) == 5

            long = await ranked(documents=["a", LONG])
            assert long["usage"]["truncated"] == [1]
            for status, words, more in (
                (400, "more than 12 tokens", {"documents": [LONG], "truncate": False}),
                (400, "top_n is 0", {"top_n": 0}),
                (400, "documents[1] must be a text", {"documents": ["a", {"image": "x"}]}),
                (400, "at least one document", {"documents": []}),
                (400, "query is missing", {"query": None}),
                (404, "no model 'other'", {"model": "other"}),
                (422, "max_tokens_per_doc is 5", {"max_tokens_per_doc": 5}),
                (422, "rank_fields isn't supported", {"rank_fields": ["title"]}),
                (422, "texts isn't supported", {"texts": ["a"]}),
            ):
                assert words in await ranked(status, **more)

    run(look())


def test_what_clients_of_rerankers_send_is_answered(reranker_bundle: Path) -> None:
    """The bodies as the clients send them, and what each reads of the answer."""
    texts = TEXTS[:3]
    scores = sigmoid(logits_of(reranker_bundle, [(QUERY, text) for text in texts])[:, 0])
    best = int(scores.argmax())
    asked = {"query": QUERY, "documents": texts, "model": "reranker", "top_n": 1}
    bodies: list[tuple[str, dict[str, Any]]] = [
        # LiteLLM 1.110's hosted_vllm (the first path), jina_ai and cohere; it always sends return_documents.
        ("/rerank", {**asked, "return_documents": True}),
        ("/v1/rerank", {**asked, "return_documents": True}),
        # LangChain's JinaRerank and haystack's JinaRanker.
        ("/v1/rerank", asked),
        # haystack's CohereRanker; llama-index's lacks the last one.
        ("/v2/rerank", {**asked, "max_tokens_per_doc": 4096}),
        # infinity_client 0.0.76, which LangChain's InfinityRerank calls.
        ("/rerank", {**asked, "return_documents": False, "raw_scores": False}),
    ]
    for path, body in bodies:
        found = ask(reranker_bundle, path, body)
        assert (found["object"], found["model"]) == ("rerank", "reranker")
        assert found["usage"]["prompt_tokens"] == found["usage"]["total_tokens"] > 5
        (item,) = found["results"]
        assert item["index"] == best
        assert item["relevance_score"] == pytest.approx(scores[best], abs=1e-5)
        told = {"text": texts[best]} if body.get("return_documents") else None
        assert item.get("document") == told
    # LiteLLM's huggingface, with the server's address and with /v1 behind it.
    asked = {"query": QUERY, "texts": texts, "top_n": 1, "return_text": True}
    asked |= {"raw_scores": False, "truncation_direction": "Right"}
    for path in ("/rerank", "/v1/rerank"):
        (item,) = ask(reranker_bundle, path, asked)
        assert (item["index"], item["text"]) == (best, texts[best])
    refused = ask(reranker_bundle, "/v1/rerank", {"query": QUERY}, 400)
    assert refused["error"]["message"] == "documents is missing"


def test_the_root_is_what_the_model_is_for(reranker_bundle: Path, classifier_bundle: Path) -> None:
    body: dict[str, Any] = {"query": QUERY, "texts": TEXTS}
    assert ask(reranker_bundle, "/", body) == ask(reranker_bundle, "/rerank", body)
    body = {"inputs": "the cat sat"}
    assert ask(classifier_bundle, "/", body) == ask(classifier_bundle, "/predict", body)
    assert ask(classifier_bundle, "/", {"query": "a"}, 400)["error_type"] == "Validation"


def test_the_query_is_the_first_of_a_pair(reranker_bundle: Path) -> None:
    """The model tells the two apart, so the order and the types of tokens have to be right."""
    pairs: list[Text] = [(QUERY, "a mat"), ("a mat", QUERY), f"{QUERY} a mat"]
    wanted = logits_of(reranker_bundle, pairs)[0, 0]
    body = {"query": QUERY, "texts": ["a mat"], "raw_scores": True}
    (found,) = ask(reranker_bundle, "/rerank", body)
    assert found == {"index": 0, "score": pytest.approx(wanted, abs=1e-5)}


def test_long_texts_are_cut_unless_they_must_not_be(reranker_bundle: Path) -> None:
    texts = [LONG, "a mat"]
    scores = sigmoid(logits_of(reranker_bundle, [(QUERY, text) for text in texts]))[:, 0]
    body: dict[str, Any] = {"query": QUERY, "texts": texts}
    for more in ({}, {"truncate": True}, {"truncation_direction": "Right"}):
        check_ranks(ask(reranker_bundle, "/rerank", {**body, **more}), scores)
    refused = ask(reranker_bundle, "/rerank", {**body, "truncate": False}, 400)
    assert "1 of 2 texts have more than 12 tokens" in refused["error"]
    refused = ask(reranker_bundle, "/predict", {"inputs": LONG, "truncate": False}, 400)
    assert "more than 12 tokens" in refused["error"]


def test_several_classes_rank_nothing(classifier_bundle: Path) -> None:
    """Which of them says that a text fits nobody knows: of some models it is the last."""
    refused = ask(classifier_bundle, "/rerank", {"query": QUERY, "texts": TEXTS}, 422)
    assert "2 scores by text, a reranker gives one" in refused["error"]


def check_classes(
    found: list[dict[str, Any]], scores: NDArray[np.float64], labels: list[str]
) -> None:
    """Holds a text's classes against their scores."""
    order = np.argsort(-scores)
    assert [item["label"] for item in found] == [labels[index] for index in order]
    np.testing.assert_allclose([item["score"] for item in found], scores[order], atol=1e-5)


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize(
    ("inputs", "texts"),
    [
        ("the cat sat", "the cat sat"),
        (["the cat sat"], "the cat sat"),
        (["the cat", "sat"], ("the cat", "sat")),
        (LONG, LONG),
        ([["the cat sat"]], ["the cat sat"]),
        ([["the cat sat"], ["day"], "a mat"], ["the cat sat", "day", "a mat"]),
        ([["the cat", "sat"], ["a mat"], ["a", LONG]], [("the cat", "sat"), "a mat", ("a", LONG)]),
    ],
    ids=["text", "list-of-one", "pair", "long", "lists-of-one", "lists", "lists-of-pairs"],
)
def test_classes_are_predicted(
    classifier_bundle: Path, inputs: Any, texts: Text | list[Text], raw: bool
) -> None:
    listed = texts if isinstance(texts, list) else [texts]
    logits = logits_of(classifier_bundle, listed)
    found = ask(classifier_bundle, "/predict", {"inputs": inputs, "raw_scores": raw})
    found = found if isinstance(texts, list) else [found]
    for classes, scores in zip(found, logits if raw else softmax(logits), strict=True):
        check_classes(classes, scores, ["calm", "angry"])


@pytest.mark.slow
def test_the_softmax_of_a_bundle_is_its_own(softmax_bundle: Path) -> None:
    texts = ["the cat sat", "day"]
    with open_bundle(softmax_bundle) as model:
        wanted = np.asarray(model.encode_texts(texts)["scores"], np.float64)
    np.testing.assert_allclose(wanted.sum(1), 1, atol=1e-5)
    found = ask(softmax_bundle, "/predict", {"inputs": [[text] for text in texts]})
    for classes, scores in zip(found, wanted, strict=True):
        check_classes(classes, scores, ["calm", "angry"])
    refused = ask(softmax_bundle, "/predict", {"inputs": "a", "raw_scores": True}, 422)
    assert "--softmax and has no raw scores" in refused["error"]


def test_one_class_is_predicted(reranker_bundle: Path) -> None:
    (logit,) = logits_of(reranker_bundle, ["the cat sat"])
    body: dict[str, Any] = {"inputs": "the cat sat"}
    check_classes(ask(reranker_bundle, "/predict", body), sigmoid(logit), ["LABEL_0"])
    body["raw_scores"] = True
    check_classes(ask(reranker_bundle, "/predict", body), logit, ["LABEL_0"])


def test_classes_without_names_are_numbered(classifier_bundle: Path, tmp_path: Path) -> None:
    folder = tmp_path / "nameless.ecb"
    shutil.copytree(classifier_bundle, folder, copy_function=os.link)
    document = json.loads((folder / "manifest.json").read_bytes())
    assert document.pop("labels") == {"logits": ["calm", "angry"]}
    replace_files(folder, document, {})
    (scores,) = softmax(logits_of(folder, ["the cat sat"]))
    found = ask(folder, "/predict", {"inputs": "the cat sat"})
    check_classes(found, scores, ["LABEL_0", "LABEL_1"])


def test_what_a_classifier_says_of_itself(classifier_bundle: Path) -> None:
    async def look() -> None:
        async with serving(classifier_bundle) as app:
            found = (await call(app, "GET", "/info")).json
            assert found["model_type"] == {
                "classifier": {
                    "id2label": {"0": "calm", "1": "angry"},
                    "label2id": {"calm": 0, "angry": 1},
                }
            }
            assert found["max_input_length"] == 12
            for path, body in (("/embed", {"inputs": "a"}), ("/v1/embeddings", EMBEDDED)):
                reply = await call(app, "POST", path, body)
                assert reply.status == 422 and "gives no embedding" in reply.error

    run(look())


def test_what_a_reranker_says_of_itself(reranker_bundle: Path) -> None:
    async def look() -> None:
        async with serving(reranker_bundle) as app:
            found = (await call(app, "GET", "/info")).json["model_type"]
            assert found["reranker"]["id2label"] == {"0": "LABEL_0"}

    run(look())
