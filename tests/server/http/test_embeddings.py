"""Texts through every protocol on a real bundle: one answer, and fields that ask for nothing."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np

from edgecompile.runtime import open_bundle
from tests.server.http.asgi import call, run, serving

INFER = "/v2/models/tiny/infer"
EMBEDDINGS = "/v1/embeddings"
EMBEDDED = {"input": "a", "model": "tiny"}


def test_texts_through_every_protocol_are_one_answer(tiny_bundle: Path) -> None:
    texts = ["the cat sat", "the"]
    with open_bundle(tiny_bundle) as model:
        wanted = model.encode_texts(texts)["pooler_output"]
    unit = wanted / np.linalg.norm(wanted, axis=1, keepdims=True)

    async def ask() -> None:
        async with serving(tiny_bundle, token_ids=True) as app:
            reply = await call(app, "POST", "/embed", {"inputs": texts})
            assert reply.json == (await call(app, "POST", "/", {"inputs": texts})).json
            np.testing.assert_allclose(reply.json, unit, atol=1e-5)
            reply = await call(app, "POST", "/embed", {"inputs": texts, "normalize": False})
            np.testing.assert_allclose(reply.json, wanted, atol=1e-5)
            reply = await call(app, "POST", "/embed", {"inputs": texts[0], "dimensions": 4})
            short = wanted[:1, :4] / np.linalg.norm(wanted[:1, :4])
            np.testing.assert_allclose(reply.json, short, atol=1e-5)

            body: dict[str, Any] = {"model": "tiny", "input": texts}
            reply = await call(app, "POST", "/v1/embeddings", body)
            found = [item["embedding"] for item in reply.json["data"]]
            np.testing.assert_allclose(found, wanted, atol=1e-5)
            count = reply.json["usage"]["prompt_tokens"]
            assert count > 2 and [item["index"] for item in reply.json["data"]] == [0, 1]
            reply = await call(app, "POST", "/v1/embeddings", {**body, "dimensions": 4})
            found = [item["embedding"] for item in reply.json["data"]]
            short = wanted[:, :4] / np.linalg.norm(wanted[:, :4], axis=1, keepdims=True)
            np.testing.assert_allclose(found, short, atol=1e-5)
            for more, vectors in (
                ({"normalize": True}, unit),
                ({"normalized": True}, unit),  # Jina's word
                ({"normalize": False, "dimensions": 4}, wanted[:, :4]),
            ):
                reply = await call(app, "POST", "/v1/embeddings", {**body, **more})
                found = [item["embedding"] for item in reply.json["data"]]
                np.testing.assert_allclose(found, vectors, atol=1e-5)
            body["encoding_format"] = "base64"
            reply = await call(app, "POST", "/v1/embeddings", {**body, "dimensions": 4})
            data = [base64.b64decode(item["embedding"]) for item in reply.json["data"]]
            np.testing.assert_allclose(np.frombuffer(data[1], np.float32), short[1], atol=1e-5)
            reply = await call(app, "POST", "/v1/embeddings", body)
            data = [base64.b64decode(item["embedding"]) for item in reply.json["data"]]
            np.testing.assert_allclose(np.frombuffer(data[1], np.float32), wanted[1], atol=1e-5)
            # The same as token ids.
            ids = app.repository.get("tiny").encoder().tokenize(texts)
            given = [list(item.ids) for item in ids]
            reply = await call(app, "POST", "/v1/embeddings", {"model": "tiny", "input": given})
            found = [item["embedding"] for item in reply.json["data"]]
            np.testing.assert_allclose(found, wanted, atol=1e-5)
            assert reply.json["usage"]["prompt_tokens"] == count

            entry = {"name": "text", "datatype": "BYTES", "shape": [2], "data": texts}
            body = {"inputs": [entry], "outputs": [{"name": "pooler_output"}]}
            reply = await call(app, "POST", INFER, body)
            found = np.array(reply.json["outputs"][0]["data"]).reshape(2, -1)
            np.testing.assert_allclose(found, wanted, atol=1e-5)

    run(ask())


def test_ids_are_the_models_own_where_the_operator_says_so(tiny_bundle: Path) -> None:
    async def ask() -> None:
        async with serving(tiny_bundle, token_ids=True) as app:
            for ids, message in ([400], "outside 0..39"), ([[1] * 33], "33"):
                reply = await call(app, "POST", "/embed", {"inputs": ids})
                assert reply.status == 400 and message in reply.error

    run(ask())


def test_the_only_model_needs_no_name(tiny_bundle: Path, decoder_bundle: Path) -> None:
    async def ask() -> None:
        async with serving(tiny_bundle) as app:
            named = await call(app, "POST", EMBEDDINGS, EMBEDDED)
            for model in ({}, {"model": None}, {"model": ""}):
                reply = await call(app, "POST", EMBEDDINGS, {"input": "a", **model})
                assert reply.json == named.json
        async with serving(tiny_bundle, decoder_bundle) as app:
            reply = await call(app, "POST", EMBEDDINGS, {"input": "a"})
            assert reply.status == 400 and "model is missing; this server has tiny, " in reply.error

    run(ask())


def test_what_clients_always_send_is_taken(tiny_bundle: Path) -> None:
    """Fields that say nothing, or ask for nothing, of OpenAI's, NVIDIA's, Jina's and huggingface's clients."""
    asked = {
        "user": "me",
        "encoding_format": "float",
        "dimensions": None,
        "truncate": "END",
        "add_special_tokens": True,
        "output_dtype": "float",
        "late_chunking": False,
        "return_multivector": False,
        "stream": False,
        "truncate_prompt_tokens": -1,
        "input_type": None,
    }

    async def ask() -> None:
        async with serving(tiny_bundle) as app:
            plain = await call(app, "POST", EMBEDDINGS, EMBEDDED)
            assert (await call(app, "POST", EMBEDDINGS, {**EMBEDDED, **asked})).json == plain.json
            body = {"inputs": "a", "parameters": {}, "options": {"wait_for_model": True}}
            assert (await call(app, "POST", "/embed", body)).status == 200

    run(ask())


def test_a_text_that_was_cut_says_so(tiny_bundle: Path) -> None:
    texts = ["the " * 99, "the", "cat " * 99]

    async def ask() -> None:
        async with serving(tiny_bundle) as app:
            reply = await call(app, "POST", EMBEDDINGS, {"input": texts})
            assert reply.json["usage"]["truncated"] == [0, 2]
            assert reply.headers["x-truncated-texts"] == "2"
            reply = await call(app, "POST", EMBEDDINGS, {"input": "the"})
            assert "truncated" not in reply.json["usage"]
            assert "x-truncated-texts" not in reply.headers
            reply = await call(app, "POST", "/embed", {"inputs": texts})
            assert reply.headers["x-truncated-texts"] == "2"
            entry = {"name": "text", "datatype": "BYTES", "shape": [3], "data": texts}
            asked = {"inputs": [entry], "outputs": [{"name": "pooler_output"}]}
            reply = await call(app, "POST", INFER, asked)
            assert reply.headers["x-truncated-texts"] == "2"
            metrics = (await call(app, "GET", "/metrics")).body.decode()
            assert 'edgecompile_truncated_texts_total{model="tiny"} 6' in metrics

    run(ask())
