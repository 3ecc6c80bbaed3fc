"""Every refusal of the application on a real bundle, and an answer after it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgecompile.server.settings import Limits
from tests.server.http.asgi import call, run, serving, tensor

INFER = "/v2/models/tiny/infer"
EMBEDDINGS = "/v1/embeddings"
EMBEDDED = {"input": "a", "model": "tiny"}


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"),
    [
        ("GET", "/nothing", b"", 404, "nothing at"),
        ("GET", "/nothing", b"", 404, "nothing at"),
        ("GET", "//v2", b"", 404, "nothing at"),
        ("GET", "/v2/models/%7Bmodel%7D", b"", 404, "{model}"),
        ("GET", "/v1/models/%7Bmodel%7D", b"", 404, "{model}"),
        ("GET", "/v2/../v2", b"", 404, "nothing at"),
        ("GET", "/v2/%00", b"", 404, "nothing at"),
        ("GET", "/v2/models/%ff", b"", 400, "UTF-8"),
        ("GET", "/v2/models/%F0%9F%90%88", b"", 404, "no model"),
        ("GET", "/v2/models/..%2F..", b"", 404, "no model"),
        ("GET", "/v2/models/tiny/versions/9", b"", 404, "no version"),
        ("GET", INFER, b"", 405, "takes POST"),
        ("DELETE", "/v2/models/tiny", b"", 405, "takes GET"),
        ("POST", "/v2/models/x/infer", tensor(1), 404, "no model"),
        ("POST", INFER, b"{", 400, "isn't JSON"),
        ("POST", INFER, tensor(1, 2, name="x"), 400, "x"),
        ("POST", INFER, tensor(1, 400), 400, "outside 0..39"),
        ("POST", INFER, tensor(-1, 2), 400, "outside 0..39"),
        ("POST", INFER, tensor(*[1] * 33), 400, "33"),
        ("POST", INFER, tensor(1, 2, shape=[0, 2], data=[]), 400, "batch"),
        ("POST", INFER, tensor(1, 2, shape=[1, 0], data=[]), 400, "length"),
        ("POST", INFER, tensor(1, shape=[10_000, 1], data=[1] * 10_000), 400, "10000"),
        ("POST", INFER, tensor(1, 2, datatype="FP32"), 400, "input_ids"),
        ("POST", INFER, {**tensor(1, 2, 3), "outputs": [{"name": "y"}]}, 400, "no output"),
        (
            "POST",
            INFER,
            {**tensor(1, 2, 3), "outputs": [{"name": "pooler_output"}] * 2},
            400,
            "twice",
        ),
        ("POST", INFER, {**tensor(1, 2), "parameters": {"priority": False}}, 400, "priority"),
        (
            "POST",
            INFER,
            {"inputs": [*tensor(1, 2)["inputs"], *tensor(1, name="attention_mask")["inputs"]]},
            400,
            "attention_mask",
        ),
        ("POST", INFER, {"input": []}, 400, "inputs is missing"),
        ("POST", "/embed", {"inputs": []}, 400, "empty"),
        ("POST", "/embed", {"input": "a"}, 400, "inputs is missing"),
        ("POST", "/predict", {"input": "a"}, 400, "inputs is missing"),
        ("POST", "/rerank", {"texts": ["a"]}, 400, "query is missing"),
        ("POST", "/rerank", {"query": "a", "text": ["a"]}, 400, "texts is missing"),
        ("POST", "/v1/embeddings", {"inputs": "a", "model": "tiny"}, 400, "input is missing"),
        ("POST", "/v1/completions", {"messages": [], "model": "tiny"}, 400, "prompt is missing"),
        ("POST", "/v1/chat/completions", {"prompt": "a"}, 400, "messages is missing"),
        ("POST", "/embed", {"inputs": ["a"] * 9}, 413, "the limit is 8"),
        ("POST", "/embed", {"inputs": {"a": 1}}, 400, "must be a text"),
        ("POST", "/embed", {"inputs": [["a"]]}, 400, "token ids"),
        ("POST", "/embed", {"inputs": [4]}, 422, "check_embedding_ctx_length=False"),
        ("POST", "/embed", {"inputs": ["a", [4]]}, 422, "--token-ids"),
        ("POST", EMBEDDINGS, {**EMBEDDED, "input": [[4]]}, 422, "check_embedding_ctx_length=False"),
        (
            "POST",
            EMBEDDINGS,
            {**EMBEDDED, "input_type": "query"},
            422,
            "input_type isn't supported",
        ),
        ("POST", EMBEDDINGS, {**EMBEDDED, "output_dtype": "int8"}, 422, "which int8 needs"),
        ("POST", EMBEDDINGS, {**EMBEDDED, "encoding_format": "uint8"}, 422, "which uint8 needs"),
        ("POST", "/embed", {"inputs": "a", "embedding_type": "int8"}, 422, "which int8 needs"),
        ("POST", EMBEDDINGS, {**EMBEDDED, "output_dtype": "int4"}, 400, 'output_dtype is "int4"'),
        ("POST", EMBEDDINGS, {**EMBEDDED, "embedding_type": ["int8"]}, 400, "embedding_type is"),
        ("POST", EMBEDDINGS, {**EMBEDDED, "embedding_types": []}, 400, "embedding_types is []"),
        ("POST", EMBEDDINGS, {**EMBEDDED, "encoding_format": "hex"}, 400, 'encoding_format "hex"'),
        (
            "POST",
            EMBEDDINGS,
            {**EMBEDDED, "output_dtype": "binary", "embedding_types": ["float"]},
            400,
            "output_dtype and embedding_types name different precisions",
        ),
        ("POST", "/embed_sparse", {"inputs": "a"}, 422, "no sparse embedding"),
        ("POST", "/embed_sparse", {"inputs": "a", "normalize": True}, 422, "normalize isn't"),
        ("POST", "/embed_all", {"inputs": "a", "dimensions": 4}, 422, "dimensions isn't"),
        ("POST", "/embed_all", {}, 400, "inputs is missing"),
        ("POST", EMBEDDINGS, {**EMBEDDED, "add_special_tokens": False}, 422, "add_special_tokens"),
        ("POST", EMBEDDINGS, {**EMBEDDED, "prompt_name": "x"}, 400, "no prompt"),
        ("POST", EMBEDDINGS, {**EMBEDDED, "truncate": "START"}, 422, "truncate"),
        ("POST", EMBEDDINGS, {**EMBEDDED, "truncate": {}}, 400, "truncate must be"),
        ("POST", EMBEDDINGS, {"input": "the " * 99, "truncate": False}, 400, "tokens"),
        ("POST", EMBEDDINGS, {"input": "the " * 99, "truncate": "NONE"}, 400, "tokens"),
        ("POST", "/embed", {"inputs": "a", "pooling": "cls"}, 422, "pooling isn't supported"),
        ("POST", "/", {"inputs": "a", "pooling": "cls"}, 422, "pooling isn't supported"),
        ("POST", "/embed", {"inputs": "a", "dimensions": 0}, 400, "dimensions"),
        ("POST", "/embed", {"inputs": "a", "dimensions": 17}, 400, "has 16"),
        ("POST", "/embed", {"inputs": "a", "prompt_name": "x"}, 400, "no prompt"),
        ("POST", "/embed", {"inputs": ["a", [1]], "prompt_name": "x"}, 422, "token ids"),
        ("POST", "/embed", {"inputs": "a", "truncation_direction": "Left"}, 422, "at their end"),
        ("POST", "/embed", {"inputs": "the " * 99, "truncate": False}, 400, "tokens"),
        ("POST", "/embed", b'{"inputs": "\\ud800"}', 400, ""),
        ("POST", "/predict", {"inputs": "a"}, 422, "no scores"),
        ("POST", "/rerank", {"query": "a", "texts": ["b"]}, 422, "no scores"),
        ("POST", "/rerank", {"query": "a", "texts": []}, 400, "at least one"),
        (
            "POST",
            "/rerank",
            {"query": "a", "texts": ["b", 5]},
            400,
            "texts[1] must be a text, not a",
        ),
        (
            "POST",
            "/rerank",
            {"query": {}, "texts": ["b"]},
            400,
            "query must be a text, not an object",
        ),
        ("POST", EMBEDDINGS, {**EMBEDDED, "dimensions": True}, 400, "dimensions is true, must be"),
        ("POST", EMBEDDINGS, {**EMBEDDED, "stream": True}, 422, "stream isn't supported except as"),
        (
            "POST",
            EMBEDDINGS,
            {**EMBEDDED, "normalized": 1},
            400,
            "normalized must be true or false",
        ),
        ("POST", "/v1/rerank", {"query": "a", "documents": ["b"]}, 422, "no scores"),
        ("POST", "/v1/embeddings", {"input": "a", "model": 5}, 400, "model must be"),
        ("POST", "/v1/embeddings", {"input": "a", "model": "x"}, 404, "no model"),
        (
            "POST",
            "/v1/embeddings",
            {"input": "a", "model": "tiny", "encoding_format": "x"},
            400,
            "base64",
        ),
        ("POST", EMBEDDINGS, {**EMBEDDED, "dimensions": 0}, 400, "must be an integer in 1.."),
        ("POST", EMBEDDINGS, {**EMBEDDED, "dimensions": "4"}, 400, 'dimensions is "4", must be'),
        ("POST", EMBEDDINGS, {**EMBEDDED, "dimensions": 17}, 400, "has 16"),
        ("POST", EMBEDDINGS, {**EMBEDDED, "dimensions": 65537}, 400, "must be an integer in 1.."),
        ("POST", EMBEDDINGS, {**EMBEDDED, "dimensions": 4.0}, 400, "must be an integer in 1.."),
        ("POST", "/v1/completions", {"prompt": "a", "model": "tiny"}, 422, "not a language model"),
    ],
)
def test_refusals(
    tiny_bundle: Path, method: str, path: str, body: Any, status: int, message: str
) -> None:
    async def ask() -> None:
        async with serving(tiny_bundle, limits=Limits(texts=8)) as app:
            reply = await call(app, method, path, body)
            assert (reply.status, message in reply.error) == (status, True), reply.body
            assert (await call(app, "POST", INFER, tensor(1, 2, 3))).status == 200

    run(ask())
