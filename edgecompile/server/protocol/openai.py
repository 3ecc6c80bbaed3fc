"""OpenAI's /v1/embeddings: requests and answers.

Source: platform.openai.com's reference of the interface; openai-python asks for base64 by default.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgecompile.runtime.text.embedding import PRECISIONS
from edgecompile.server.errors import BadRequest
from edgecompile.server.protocol.documents import dump, kind, load_object, required, shown
from edgecompile.server.protocol.embeddings import PRECISION_FIELDS, VectorForm, read_form
from edgecompile.server.protocol.fields import Fields
from edgecompile.server.protocol.texts import Item, read_items, read_prompt, read_truncate


@dataclass(frozen=True)
class EmbeddingsRequest:
    """Texts for one model.

    Attributes:
        items: texts or token ids.
        model: name of the model; None: the only one.
        base64: whether vectors go out as base64.
        form: the form of the vectors.
        truncate: whether the end of a text that is too long is cut off, rather than the text refused.
        prompt: name of the bundle's prompt to put before each text; None: its default.
    """

    items: list[Item]
    model: str | None
    base64: bool
    form: VectorForm
    truncate: bool
    prompt: str | None


_FIELDS = Fields(
    "input model encoding_format dimensions normalize normalized truncate truncation_direction prompt_name "
    + " ".join(PRECISION_FIELDS),
    "user priority request_id safety_identifier metadata service_tier keep_alive cache_salt",
    {
        "add_special_tokens": (True,),
        "endianness": ("native", "little"),
        "late_chunking": (False,),
        "modality": ("text",),
        "return_multivector": (False,),
        "stream": (False,),
        "truncate_prompt_tokens": (-1,),  # vLLM's for as many as the model takes
        "truncation": (True,),
    },
)
#: NVIDIA's and Cohere's words for whether, and where, a long text is cut.
_CUTS = {"NONE": False, "END": True}


def read_model(document: dict[str, Any]) -> str | None:
    """The name of the model that is asked for; None where none is named.

    Raises:
        BadRequest: it is no name.
    """
    model = document.get("model")
    if model is not None and not isinstance(model, str):
        raise BadRequest(f"model must be the name of a model, not {kind(model)}")
    return model or None


def read_embeddings(body: bytes, most: int) -> EmbeddingsRequest:
    """Reads a body; ``most`` is how many texts at most.

    Raises:
        BadRequest, TooLarge: something is wrong with it.
    """
    document = load_object(body)
    value = required(document, "input")
    cut = document.get("truncate")
    if isinstance(cut, str):
        document["truncate"] = _CUTS.get(cut, cut)
    _FIELDS.check(document)
    items, _ = read_items(value, "input", most)
    encoding = document.get("encoding_format")
    if encoding not in (None, "float", "base64", *PRECISIONS):
        names = ", ".join(PRECISIONS)
        raise BadRequest(
            f"encoding_format {shown(encoding)} must be float, base64 or one of {names}"
        )
    return EmbeddingsRequest(
        items,
        read_model(document),
        encoding == "base64",
        read_form(document, normalize=None),
        read_truncate(document),
        read_prompt(document),
    )


def format_embeddings(
    request: EmbeddingsRequest, name: str, rows: NDArray[Any], usage: Mapping[str, Any]
) -> bytes:
    """The answer for embeddings [texts, size] in float32, or in bytes."""
    vectors: Sequence[Any] = (
        [
            base64.b64encode(row.astype(row.dtype.newbyteorder("<")).tobytes()).decode()
            for row in rows
        ]
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
            "usage": usage,
        }
    )
