"""OpenAI's /v1/embeddings: requests and answers.

Source: platform.openai.com's reference of the interface; openai-python asks for base64 by default.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgecompile.server.errors import BadRequest
from edgecompile.server.protocol.documents import dump, load_object, required
from edgecompile.server.protocol.texts import Item, number, read_items

MAX_DIMENSIONS = 65536


@dataclass(frozen=True)
class EmbeddingsRequest:
    """The texts, the model's name, whether vectors go out as base64, and their size if not whole."""

    items: list[Item]
    model: str
    base64: bool
    dimensions: int | None


def read_model(document: dict[str, Any]) -> str:
    """The name of the model that is asked for.

    Raises:
        BadRequest: there is none.
    """
    model = required(document, "model")
    if not isinstance(model, str) or not model:
        raise BadRequest("model must be the name of a model")
    return model


def read_embeddings(body: bytes, most: int) -> EmbeddingsRequest:
    """Reads a body; ``most`` is how many texts at most.

    Raises:
        BadRequest, TooLarge: something is wrong with it.
    """
    document = load_object(body)
    items, _ = read_items(required(document, "input"), "input", most)
    encoding = document.get("encoding_format")
    if encoding not in (None, "float", "base64"):
        raise BadRequest(f"encoding_format {encoding!r:.50} must be float or base64")
    dimensions = number(document, "dimensions", 1, MAX_DIMENSIONS, True)
    return EmbeddingsRequest(items, read_model(document), encoding == "base64", dimensions)


def format_embeddings(
    request: EmbeddingsRequest, name: str, rows: NDArray[Any], tokens: int
) -> bytes:
    """The answer for embeddings [texts, size] in float32."""
    vectors: Sequence[Any] = (
        [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in rows]
        if request.base64
        else [np.ascontiguousarray(row) for row in rows]
    )
    return dump(
        {
            "object": "list",
            "data": [
                {"object": "embedding", "index": index, "embedding": vector}
                for index, vector in enumerate(vectors)
            ],
            "model": name,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }
    )
