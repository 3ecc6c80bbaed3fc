"""The OpenAPI document against the application: nulls that it allows are taken, and say nothing."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest

from tests.server.http.asgi import call, run, serving, tensor

EMBEDDINGS: dict[str, Any] = {"input": "a"}
RANK: dict[str, Any] = {"query": "a", "documents": ["b"]}
CHAT = {
    "messages": [{"role": "user", "content": "w1"}, {"role": "assistant", "content": "w2"}],
    "max_tokens": 2,
    "stream_options": {},
}
INFER = tensor(1, 2, 3) | {"parameters": {}, "outputs": [{"name": "pooler_output"}]}
BODIES = [
    ("tiny_bundle", "/v2/models/tiny/infer", "/v2/models/{model}/infer", INFER),
    ("tiny_bundle", "/v1/embeddings", "/v1/embeddings", EMBEDDINGS),
    ("tiny_bundle", "/embed", "/embed", {"inputs": "a"}),
    ("tiny_bundle", "/v2/repository/index", "/v2/repository/index", {}),
    ("reranker_bundle", "/v1/rerank", "/v1/rerank", RANK),
    ("reranker_bundle", "/rerank", "/rerank", {"query": "a", "texts": ["b"]}),
    ("classifier_bundle", "/predict", "/predict", {"inputs": "a"}),
    ("chatting_bundle", "/v1/completions", "/v1/completions", {"prompt": "w3", "max_tokens": 2}),
    ("chatting_bundle", "/v1/chat/completions", "/v1/chat/completions", CHAT),
]


def allows_null(schema: dict[str, Any]) -> bool:
    """Whether null is one of a schema's values."""
    kinds = schema.get("type", ())
    named = "null" in (kinds if isinstance(kinds, list) else [kinds])
    return named or None in schema.get("enum", ()) or any(map(allows_null, schema.get("anyOf", ())))


def with_nulls(schema: dict[str, Any], body: Any) -> Iterator[Any]:
    """The body, as many times as a null can be put into it."""
    for choice in schema.get("anyOf", ()):
        if set(choice.get("required", ())) <= set(body if isinstance(body, dict) else ()):
            yield from with_nulls(choice, body)
    if isinstance(body, list):
        for index, item in enumerate(body):
            for changed in with_nulls(schema.get("items", {}), item):
                yield [*body[:index], changed, *body[index + 1 :]]
    elif isinstance(body, dict):
        for name, inner in schema.get("properties", {}).items():
            if allows_null(inner):
                yield {**deepcopy(body), name: None}
            if name in body:
                for changed in with_nulls(inner, body[name]):
                    yield {**deepcopy(body), name: changed}


@pytest.mark.parametrize(
    ("bundle", "path", "address", "body"), BODIES, ids=[item[1] for item in BODIES]
)
def test_nulls_are_as_no_field(
    request: pytest.FixtureRequest, bundle: str, path: str, address: str, body: dict[str, Any]
) -> None:
    async def ask() -> None:
        async with serving(request.getfixturevalue(bundle)) as app:
            document = (await call(app, "GET", "/openapi.json")).json
            content = document["paths"][address]["post"]["requestBody"]["content"]
            bodies = [*with_nulls(content["application/json"]["schema"], body)]
            assert bodies
            for changed in (body, *bodies):
                reply = await call(app, "POST", path, changed)
                if (
                    reply.status == 400
                    and changed.get("messages", [{}])[0].get("content", 0) is None
                ):
                    assert "content must be a text" in reply.error  # of an assistant alone
                    continue
                assert reply.status == 200, (changed, reply.body)

    run(ask())
