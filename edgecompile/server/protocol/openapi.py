"""The server's interface as an OpenAPI document, version 3.1."""

from __future__ import annotations

from typing import Any

from edgecompile.runtime.text.embedding import PRECISIONS

_TEXTS: dict[str, Any] = {"type": "array", "items": {"type": "string"}, "minItems": 1}
_IDS: dict[str, Any] = {
    "type": "array",
    "items": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1},
    "minItems": 1,
}
_ITEMS = {
    "description": "a text, texts; with --token-ids token ids, or lists of token ids",
    "anyOf": [
        {"type": "string"},
        _TEXTS,
        _IDS,
        {"type": "array", "items": {"anyOf": [{"type": "string"}, _IDS]}, "minItems": 1},
    ],
}
_FLAG = {"type": ["boolean", "null"]}
_PARAMETERS = {"type": ["object", "null"]}
_SIDE = {"enum": ["right", "Right", None]}
_DIMENSIONS = {"type": ["integer", "null"], "minimum": 1, "maximum": 65536}
_DATATYPE = {
    "type": "string",
    "enum": [
        "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
        "FP16", "FP32", "FP64", "BYTES",
    ],
}  # fmt: skip


def _places(path: str) -> list[dict[str, Any]]:
    """The parameters in an address."""
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in ("model", "version")
        if "{" + name + "}" in path
    ]


def _object(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        entry["required"] = list(required)
    return entry


_SIZES = {"type": "array", "items": {"type": "integer", "minimum": 0}, "maxItems": 16}
_SHAPE = {"type": "array", "items": {"type": "integer", "minimum": -1}}
_TENSOR = _object(
    ("name", "datatype", "shape"),
    name={"type": "string", "minLength": 1},
    datatype=_DATATYPE,
    shape=_SIZES,
    parameters=_PARAMETERS,
    data={"type": "array"},
)
_INFER = _object(
    ("inputs",),
    id={"type": ["string", "null"]},
    parameters={
        **_object(
            timeout={
                "type": ["integer", "null"],
                "minimum": 1,
                "maximum": 2**63 - 1,
                "description": "microseconds in which the answer is of use",
            },
            priority={
                "type": ["integer", "null"],
                "minimum": 0,
                "maximum": 2**64 - 1,
                "description": "1 goes first, then 2, and so on; without one a request goes last",
            },
            binary_data_output=_FLAG,
        ),
        "type": ["object", "null"],
    },
    inputs={"type": "array", "items": _TENSOR, "minItems": 1},
    outputs={
        "type": ["array", "null"],
        "items": _object(("name",), name={"type": "string"}, parameters=_PARAMETERS),
    },
)
_ANSWER = _object(
    ("model_name", "outputs"),
    model_name={"type": "string"},
    model_version={"type": "string"},
    id={"type": "string"},
    outputs={"type": "array", "items": _TENSOR},
)
_SPEC = _object(
    ("name", "datatype", "shape"),
    name={"type": "string"},
    datatype=_DATATYPE,
    shape=_SHAPE,
)
_METADATA = _object(
    ("name", "versions", "platform", "inputs", "outputs"),
    name={"type": "string"},
    versions={"type": "array", "items": {"type": "string"}},
    platform={"type": "string"},
    inputs={"type": "array", "items": _SPEC},
    outputs={"type": "array", "items": _SPEC},
)
_MODEL = {
    "type": ["string", "null"],
    "description": "name of the model; may be left out where one is served",
}
_COUNT = {
    "anyOf": [{"type": ["integer", "null"], "minimum": 1}, {"const": -1}],
    "description": "-1: as far as the context reaches; a completion has 16 by default, a chat the model's own "
    "max_new_tokens, and without one as many as the context has room for",
}
_COMPLETION: dict[str, Any] = {
    "model": _MODEL,
    "max_tokens": _COUNT,
    "max_completion_tokens": _COUNT,
    "temperature": {"type": ["number", "null"], "minimum": 0, "maximum": 100},
    "top_p": {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 1},
    "top_k": {
        "type": ["integer", "null"],
        "minimum": -1,
        "maximum": 2**31 - 1,
        "description": "only of the k likeliest tokens; 0 and -1: of all",
    },
    "repetition_penalty": {"type": ["number", "null"], "minimum": 0.01, "maximum": 100},
    "seed": {
        "type": ["integer", "null"],
        "minimum": -(2**63),
        "maximum": 2**63 - 1,
        "description": "-1: none",
    },
    "stop": {"anyOf": [{"type": ["string", "null"]}, {**_TEXTS, "minItems": 0, "maxItems": 16}]},
    "response_format": {
        "type": ["object", "null"],
        "description": "type text, json_object, or json_schema with an object json_schema that has a schema",
    },
    "guided_json": {"type": ["object", "string", "null"], "description": "a JSON schema"},
    "json_schema": {
        "type": ["object", "string", "null"],
        "description": "the same, as llama.cpp's",
    },
    "guided_regex": {"type": ["string", "null"]},
    "guided_choice": {"anyOf": [_TEXTS, {"type": "null"}]},
    "structured_outputs": {
        "type": ["object", "null"],
        "description": "vLLM's: one of json, regex, choice and json_object",
    },
    "stream": _FLAG,
    "stream_options": {**_object(include_usage=_FLAG), "type": ["object", "null"]},
}
_PART = _object(
    ("type", "text"), type={"type": "string", "enum": ["text"]}, text={"type": "string"}
)
_CONTENTS: list[dict[str, Any]] = [
    {"type": "string"},
    {"type": "array", "items": _PART, "minItems": 1},
]
_MESSAGE = _object(
    ("role",),
    role={"type": "string"},
    content={
        "anyOf": [*_CONTENTS, {"type": "null"}],
        "description": "may be null, or left out, in an assistant's message",
    },
    tool_calls={"type": ["array", "null"], "description": "an assistant's calls of tools"},
    tool_call_id={"type": ["string", "null"]},
)
_TOOL = _object(
    ("type", "function"),
    type={"const": "function"},
    function=_object(
        ("name",),
        name={"type": "string", "minLength": 1, "maxLength": 256},
        description={"type": ["string", "null"]},
        parameters={"type": ["object", "null"], "description": "a JSON schema"},
        strict=_FLAG,
    ),
)
_ANY = {"type": "object"}


def make_document(version: str, keys: bool) -> dict[str, Any]:
    """The document.

    Args:
        version: the version of the server.
        keys: whether requests need a bearer key.
    """
    model = "/v2/models/{model}"
    versioned = model + "/versions/{version}"
    paths: dict[str, Any] = {
        "/v2": {"get": _get("The server's name and extensions")},
        "/v2/health/live": {"get": _get("Fails when a run is stuck, or a GPU broken", probe=True)},
        "/v2/health/ready": {"get": _get("Fails until all models are verified", probe=True)},
        **{
            path: {"get": _get("As /v2/health/ready", probe=True)}
            for path in ("/", "/health", "/healthz", "/ping")
        },
        "/metrics": {
            "get": _get("Counters", media="text/plain", answer={"type": "string"}, probe=True)
        },
        "/openapi.json": {"get": _get("This document")},
        "/v2/models/stats": {"get": _get("Times and counts of all models, as Triton's")},
        "/v2/repository/index": {"post": _post("The models, as Triton lists them", _INDEX, _LIST)},
        "/v1/models": {"get": _get("The models, as OpenAI lists them")},
        "/info": {"get": _get("The first model, as text-embeddings-inference tells it")},
        **{
            path: {"post": _post("Embeddings as OpenAI's", _EMBEDDINGS, _ANY)}
            for path in ("/v1/embeddings", "/embeddings")
        },
        "/embed": {"post": _post("Embeddings of texts", _EMBED, {"type": "array"})},
        "/embed_all": {
            "post": _post("An embedding of each token", _EMBED_PARTS, {"type": "array"})
        },
        "/embed_sparse": {
            "post": _post("Words of texts, with weights", _EMBED_PARTS, {"type": "array"})
        },
        **{
            path: {
                "post": _post(
                    "Texts, or documents, by how well they go with a query",
                    {"anyOf": [_RERANK, _RANK]},
                    {"type": ["array", "object"]},
                )
            }
            for path in ("/rerank", "/v1/rerank", "/v2/rerank")
        },
        "/predict": {"post": _post("Classes of texts", _PREDICT, {"type": "array"})},
        "/": {
            "post": _post(
                "As /embed, /embed_sparse, /rerank or /predict, by the first model",
                {"anyOf": [_EMBED, _RERANK, _PREDICT]},
                {"type": ["array", "object"]},
            )
        },
        "/v1/completions": {"post": _post("A text that goes on", _PROMPT, _ANY, events=True)},
        "/v1/chat/completions": {"post": _post("A chat's answer", _CHAT, _ANY, events=True)},
    }
    listed = "/v1/models/{model}"
    paths[listed] = {"parameters": _places(listed), "get": _get("One of them")}
    predict = listed + ":predict"
    paths[predict] = {
        "parameters": _places(predict),
        "post": _post("Rows or texts, as KServe's protocol V1 has them", _INSTANCES, _ANY),
    }
    for path in (model, versioned):
        places = _places(path)
        infer = _post("Runs a batch", _INFER, _ANSWER)
        paths[path] = {"parameters": places, "get": _get("Inputs and outputs", answer=_METADATA)}
        paths[path + "/ready"] = {"parameters": places, "get": _get("Whether it is ready")}
        paths[path + "/config"] = {"parameters": places, "get": _get("As Triton configures it")}
        paths[path + "/stats"] = {
            "parameters": places,
            "get": _get("Times and counts, as Triton's"),
        }
        paths[path + "/infer"] = {"parameters": places, "post": infer}
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "edgecompile", "version": version},
        "paths": paths,
        "components": {
            "schemas": {
                "Error": _object(
                    ("error",),
                    error={"type": ["string", "object"]},
                    error_type={"type": "string"},
                )
            }
        },
    }
    if keys:
        scheme = {"type": "http", "scheme": "bearer"}
        document["components"]["securitySchemes"] = {"key": scheme}
        document["security"] = [{"key": []}]
    return document


_INDEX = _object(ready={**_FLAG, "description": "only those that are ready"})
_LIST = {"type": "array"}
_PRECISION = {"enum": ["float", *PRECISIONS, None]}
_PRECISIONS = {
    "output_dtype": _PRECISION,
    "embedding_type": _PRECISION,
    "embed_dtype": _PRECISION,
    "embedding_types": {"type": ["array", "null"], "items": _PRECISION, "maxItems": 1},
}
_EMBEDDINGS = _object(
    ("input",),
    model=_MODEL,
    input=_ITEMS,
    encoding_format={"enum": ["float", "base64", *PRECISIONS, None]},
    **_PRECISIONS,
    dimensions=_DIMENSIONS,
    normalize=_FLAG,
    truncate={"enum": [True, False, "END", "NONE", None]},
    truncation_direction=_SIDE,
    prompt_name={"type": ["string", "null"]},
)
_EMBED = _object(
    ("inputs",),
    inputs=_ITEMS,
    normalize=_FLAG,
    truncate=_FLAG,
    truncation_direction=_SIDE,
    prompt_name={"type": ["string", "null"]},
    dimensions=_DIMENSIONS,
    **_PRECISIONS,
)
_EMBED_PARTS = _object(
    ("inputs",),
    inputs=_ITEMS,
    truncate=_FLAG,
    truncation_direction=_SIDE,
    prompt_name={"type": ["string", "null"]},
)
_RERANK = _object(
    ("query", "texts"),
    query={"type": "string"},
    texts=_TEXTS,
    raw_scores=_FLAG,
    return_text=_FLAG,
    top_n={"type": ["integer", "null"], "minimum": 1},
    truncate=_FLAG,
    truncation_direction=_SIDE,
)
_RANK = _object(
    ("query", "documents"),
    model=_MODEL,
    query={"type": "string"},
    documents={
        "type": "array",
        "items": {
            "anyOf": [{"type": "string"}, _object(("text",), text={"type": "string"})],
        },
        "minItems": 1,
    },
    top_n={"type": ["integer", "null"], "minimum": 1},
    return_documents=_FLAG,
    max_tokens_per_doc={"type": ["integer", "null"], "minimum": 1},
    raw_scores=_FLAG,
    truncate=_FLAG,
    truncation_direction=_SIDE,
)
_INSTANCES = _object(
    ("instances",),
    instances={
        "type": "array",
        "minItems": 1,
        "description": "texts; or an input's values for one row; or objects with those of each input by name",
    },
)
_PAIR = {**_TEXTS, "maxItems": 2}
_PREDICT = _object(
    ("inputs",),
    inputs={
        "description": "a text, a pair of texts, or a list of lists of one or two texts",
        "anyOf": [{"type": "string"}, _PAIR, {"type": "array", "items": _PAIR, "minItems": 1}],
    },
    raw_scores=_FLAG,
    truncate=_FLAG,
    truncation_direction=_SIDE,
)
_PROMPT = _object(("prompt",), prompt={"anyOf": [{"type": "string"}, _IDS]}, **_COMPLETION)
_CHAT = _object(
    ("messages",),
    messages={"type": "array", "items": _MESSAGE, "minItems": 1},
    tools={"type": ["array", "null"], "items": _TOOL, "maxItems": 128},
    tool_choice={
        "type": ["string", "object", "null"],
        "description": "none, auto, required, or an object of the type function with the name of a tool",
    },
    parallel_tool_calls=_FLAG,
    **_COMPLETION,
)

_FAILURES = {
    400: "the request is wrong",
    401: "no key, or a wrong one",
    404: "no such model",
    405: "the address takes another method",
    408: "the request came too slowly",
    413: "the request is too large",
    415: "the body is compressed in a way that isn't known",
    422: "the model can't do that, or a field would change the answer and isn't known here",
    429: "overloaded; see Retry-After",
    431: "too many or too large headers",
    500: "the model failed",
    503: "not ready, or about to end",
    504: "the deadline passed",
}


def _answers(codes: tuple[int, ...], media: str, schema: dict[str, Any]) -> dict[str, Any]:
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {
        "200": {"description": "the answer", "content": {media: {"schema": schema}}},
        **{str(code): {"description": _FAILURES[code], "content": error} for code in codes},
    }


def _get(
    summary: str,
    answer: dict[str, Any] = _ANY,
    media: str = "application/json",
    probe: bool = False,
) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "summary": summary,
        "responses": _answers((400, 401, 404, 405, 408, 431, 503), media, answer),
    }
    if probe:
        entry["security"] = []
    return entry


def _post(
    summary: str, body: dict[str, Any], answer: dict[str, Any], events: bool = False
) -> dict[str, Any]:
    responses = _answers(tuple(_FAILURES), "application/json", answer)
    if events:
        responses["200"]["content"]["text/event-stream"] = {"schema": {"type": "string"}}
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": responses,
    }
