"""The routes of text-embeddings-inference: /embed, /embed_all, /embed_sparse, /rerank, /predict, /info.

Source: huggingface/text-embeddings-inference, router/src/http/types.rs and server.rs, router/src/lib.rs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgecompile.runtime.format.manifest.schema import Manifest
from edgecompile.runtime.text.encoder import Text
from edgecompile.server.errors import BadRequest, TooLarge, Unprocessable
from edgecompile.server.protocol.documents import dump, kind, load_object, required
from edgecompile.server.protocol.embeddings import (
    PRECISION_FIELDS,
    VectorForm,
    is_sparse,
    read_form,
)
from edgecompile.server.protocol.fields import Fields
from edgecompile.server.protocol.texts import (
    Item,
    check_finite,
    flag,
    labels_of,
    number,
    read_items,
    read_prompt,
    read_truncate,
    scores_output,
)
from edgecompile.server.settings import Limits


@dataclass(frozen=True)
class EmbedRequest:
    """Texts; ``prompt`` is one of the bundle's by name, ``form`` that of the vectors of /embed."""

    items: list[Item]
    truncate: bool
    prompt: str | None
    form: VectorForm


@dataclass(frozen=True)
class RerankRequest:
    """A query and the texts to order by it."""

    query: str
    texts: list[str]
    raw: bool
    truncate: bool
    with_text: bool
    top: int | None


@dataclass(frozen=True)
class PredictRequest:
    """Texts or pairs of them; ``single``: one was given, not a list."""

    texts: list[Text]
    single: bool
    raw: bool
    truncate: bool


#: What huggingface_hub's clients send beside them, mostly empty.
_IDLE = "options"
_PLAIN: dict[str, tuple[Any, ...]] = {"parameters": ({},)}
_CUT = "truncate truncation_direction"
_EMBED = Fields(
    f"inputs normalize prompt_name dimensions {' '.join(PRECISION_FIELDS)} {_CUT}", _IDLE, _PLAIN
)
_EMBED_PARTS = Fields(f"inputs prompt_name {_CUT}", _IDLE, _PLAIN)
_RERANK = Fields(f"query texts raw_scores return_text top_n {_CUT}", _IDLE, _PLAIN)
_PREDICT = Fields(f"inputs raw_scores {_CUT}", _IDLE, _PLAIN)


def read_embed(body: bytes, most: int, *, parts: bool = False) -> EmbedRequest:
    """Reads a body; ``most`` is how many texts at most.

    Args:
        body: the body.
        most: the most texts.
        parts: whether each text has several vectors, or words: /embed_all and /embed_sparse.

    Raises:
        BadRequest, TooLarge, Unprocessable: something is wrong with it.
    """
    document = load_object(body)
    value = required(document, "inputs")
    (_EMBED_PARTS if parts else _EMBED).check(document)
    items, _ = read_items(value, "inputs", most)
    return EmbedRequest(
        items,
        read_truncate(document),
        read_prompt(document),
        read_form(document, normalize=True),
    )


def read_rerank(document: dict[str, Any], most: int) -> RerankRequest:
    """As ``read_embed``, of a body that has been parsed. ``top_n`` is what LiteLLM's client sends."""
    query, texts = required(document, "query"), required(document, "texts")
    _RERANK.check(document)
    if not isinstance(query, str):
        raise BadRequest(f"query must be a text, not {kind(query)}")
    if not isinstance(texts, list) or not texts:
        raise BadRequest("texts must be a list of at least one text")
    if len(texts) > most:
        raise TooLarge(f"texts has {len(texts)} texts, the limit is {most}")
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise BadRequest(f"texts[{index}] must be a text, not {kind(text)}")
    return RerankRequest(
        query,
        texts,
        flag(document, "raw_scores", False),
        read_truncate(document),
        flag(document, "return_text", False),
        number(document, "top_n", 1, 1 << 31, True),
    )


def read_predict(body: bytes, most: int) -> PredictRequest:
    """As ``read_embed``. A list of two texts is a pair; of lists, each is a text or a pair."""
    document = load_object(body)
    value = required(document, "inputs")
    _PREDICT.check(document)
    single = isinstance(value, str) or (isinstance(value, list) and _are_texts(value))
    if single:
        texts = [_pair(value, "inputs")]
    elif isinstance(value, list) and value:
        if len(value) > most:
            raise TooLarge(f"inputs has {len(value)} texts, the limit is {most}")
        texts = [_pair(item, f"inputs[{i}]") for i, item in enumerate(value)]
    else:
        raise BadRequest("inputs must be a text, a pair of texts, or a list of lists of them")
    return PredictRequest(
        texts, single, flag(document, "raw_scores", False), read_truncate(document)
    )


def _are_texts(value: list[Any]) -> bool:
    return bool(value) and all(isinstance(item, str) for item in value)


def _pair(value: Any, where: str) -> Text:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and _are_texts(value) and len(value) <= 2:
        return value[0] if len(value) == 1 else (value[0], value[1])
    raise BadRequest(f"{where} must be a text or a list of one or two texts")


#: What precisions are called there.
_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


def describe(name: str, version: str, manifest: Manifest, limits: Limits) -> dict[str, Any]:
    """The answer of /info for a model."""
    about: dict[str, Any]
    try:
        item = scores_output(manifest)
    except Unprocessable:
        # How a text's tokens become one dense vector isn't in the bundle.
        form, about = "embedding", {"pooling": "splade" if is_sparse(manifest) else None}
    else:
        labels = labels_of(manifest, item)
        form = "reranker" if len(labels) == 1 else "classifier"
        about = {
            "id2label": {str(index): label for index, label in enumerate(labels)},
            "label2id": {label: index for index, label in enumerate(labels)},
        }
    return {
        "model_id": name,
        "served_model_name": name,
        "model_sha": version,
        "model_dtype": _DTYPES.get(manifest.precision, manifest.precision),
        "model_type": {form: about},
        "max_concurrent_requests": limits.queue,
        "max_input_length": None if manifest.text is None else manifest.text.max_length,
        "max_client_batch_size": limits.texts,
        "auto_truncate": True,
    }


def format_embed(rows: NDArray[Any]) -> bytes:
    """Embeddings [texts, size]."""
    return dump(rows)


def format_tokens(texts: Sequence[NDArray[Any]]) -> bytes:
    """Embeddings of each token [tokens, size] by text, in float32.

    Raises:
        ServerError: one is NaN or infinite.
    """
    return dump([np.ascontiguousarray(check_finite(np.asarray(x, np.float32))) for x in texts])


def format_rerank(request: RerankRequest, scores: Sequence[float]) -> bytes:
    """The texts by falling score."""
    order = sorted(range(len(scores)), key=lambda index: -scores[index])[: request.top]
    return dump(
        [
            {
                "index": index,
                **({"text": request.texts[index]} if request.with_text else {}),
                "score": float(scores[index]),
            }
            for index in order
        ]
    )


def format_predict(request: PredictRequest, scores: NDArray[Any], labels: Sequence[str]) -> bytes:
    """The classes of each text by falling score, from scores [texts, classes]."""
    classes = []
    for row in scores:
        order = np.argsort(-row, kind="stable")
        classes.append([{"score": float(row[index]), "label": labels[index]} for index in order])
    return dump(classes[0] if request.single else classes)
