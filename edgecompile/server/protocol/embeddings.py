"""Embeddings of texts as requests want them: of one vector, of a vector for each token, of words with weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgecompile.runtime.format.manifest.schema import Manifest
from edgecompile.runtime.text.embedding import PRECISIONS, find_embeddings, narrow
from edgecompile.server.errors import BadRequest, Unprocessable
from edgecompile.server.protocol.documents import shown
from edgecompile.server.protocol.texts import check_finite, flag, number

MAX_DIMENSIONS = 65536
#: Names of one vector's precision: Voyage's and Mistral's, Jina's and NVIDIA's, vLLM's, Cohere's (a list of one).
PRECISION_FIELDS = ("output_dtype", "embedding_type", "embed_dtype", "embedding_types")
SPARSE = "sparse_embedding"


@dataclass(frozen=True)
class VectorForm:
    """The form of the vectors in an answer.

    Attributes:
        dimensions: numbers of a vector that isn't whole, or None.
        normalize: whether vectors get a length of 1.
        asked: whether the request itself says so.
        precision: the numbers' precision.
    """

    dimensions: int | None
    normalize: bool
    asked: bool = False
    precision: str = "float32"

    def find_output(self, manifest: Manifest) -> str:
        """The output that is a text's embedding, checked before anything runs.

        Raises:
            Unprocessable: there is none, it can't be told, or it can't be had in this form.
        """
        name = embedding_output(manifest)
        if self.precision.endswith("int8"):
            if name not in manifest.ranges:
                raise Unprocessable(
                    f"{manifest.name} doesn't know the ranges of {name}, which {self.precision} needs\n"
                    "hint: build it from texts; or ask for binary, which needs none"
                )
            if self.asked:
                raise Unprocessable(
                    f"normalize isn't supported with {self.precision}: its ranges are those of the model's own output"
                )
        return name

    def apply(self, rows: NDArray[Any], manifest: Manifest, name: str) -> NDArray[Any]:
        """Embeddings [texts, size] in this form: float32, or bytes.

        Raises:
            BadRequest: they have fewer numbers.
            ServerError: one is NaN or infinite.
        """
        whole = self.precision == "float32"
        rows = shorten_rows(rows, self.dimensions, self.normalize and whole)
        ranges = manifest.ranges.get(name)
        if whole or ranges is None:
            return narrow(rows, self.precision)
        size = rows.shape[1]
        return narrow(rows, self.precision, (ranges[0][:size], ranges[1][:size]))


def read_form(document: Mapping[str, Any], *, normalize: bool | None) -> VectorForm:
    """The form that a request asks for.

    Args:
        document: the request; ``encoding_format`` may name a precision, too, as Azure's does.
        normalize: whether vectors have a length of 1 unless it says so; None: where they aren't whole.

    Raises:
        BadRequest: a field has another value, or two of them name different precisions.
    """
    dimensions = number(document, "dimensions", 1, MAX_DIMENSIONS, True)
    said = [key for key in ("normalize", "normalized") if document.get(key) is not None]
    # What is left of a shortened vector has another length.
    usual = dimensions is not None if normalize is None else normalize
    wanted = flag(document, "normalize", flag(document, "normalized", usual))
    return VectorForm(dimensions, wanted, bool(said), _read_precision(document))


def _read_precision(document: Mapping[str, Any]) -> str:
    names = {}
    for key in PRECISION_FIELDS:
        value = document.get(key)
        if key == "embedding_types" and isinstance(value, list) and len(value) == 1:
            value = value[0]
        if value is not None:
            name = "float32" if value == "float" else value
            if name not in PRECISIONS:
                text = ", ".join(("float", *PRECISIONS))
                raise BadRequest(f"{key} is {shown(value)}, must be one of {text}")
            names[key] = name
    if document.get("encoding_format") in PRECISIONS:
        names["encoding_format"] = document["encoding_format"]
    if len(set(names.values())) > 1:
        raise BadRequest(" and ".join(names) + " name different precisions")
    return next(iter(names.values()), "float32")


def embedding_output(manifest: Manifest) -> str:
    """The output that is a text's embedding: [batch, size].

    Raises:
        Unprocessable: there is none, or it can't be told.
    """
    names = find_embeddings(manifest)
    if len(names) != 1:
        what = "several embeddings: " + ", ".join(names) if names else "no embedding"
        other = "ask /embed_sparse" if is_sparse(manifest) else "ask /v2/models/…/infer"
        hint = f"build it with --pooling, or {other}"
        if manifest.generation is not None:
            hint = "it generates text: ask /v1/chat/completions or /v1/completions"
        raise Unprocessable(f"{manifest.name} gives {what}\nhint: {hint}")
    return names[0]


def is_sparse(manifest: Manifest) -> bool:
    """Whether it gives weights of words, [batch, vocabulary]."""
    return any(item.name == SPARSE and len(item.shape) == 2 for item in manifest.outputs)


def sparse_output(manifest: Manifest) -> str:
    """The output that has a weight for each word of the vocabulary.

    Raises:
        Unprocessable: there is none.
    """
    if not is_sparse(manifest):
        raise Unprocessable(
            f"{manifest.name} gives no sparse embedding\n"
            "hint: build a masked language model with --pooling splade"
        )
    return SPARSE


def token_output(manifest: Manifest) -> str:
    """The output that has an embedding for each token: [batch, length, size].

    Raises:
        Unprocessable: there is none.
    """
    for name in ("token_embeddings", "last_hidden_state"):
        for item in manifest.outputs:
            if item.name == name and len(item.shape) == 3:
                return name
    raise Unprocessable(
        f"{manifest.name} gives no embedding for each token\nhint: build it without --pooling"
    )


def sparse_rows(rows: NDArray[Any]) -> list[list[dict[str, Any]]]:
    """The words of each text with a weight: {"index", "value"}, by rising index.

    Raises:
        ServerError: a weight is NaN or infinite.
    """
    rows = check_finite(np.asarray(rows, np.float32))
    return [
        [{"index": int(index), "value": row[index]} for index in np.nonzero(row)[0]] for row in rows
    ]


def shorten_rows(rows: NDArray[Any], size: int | None, normalize: bool) -> NDArray[Any]:
    """Embeddings [texts, size], of their first ``size`` numbers, with a length of 1.

    Raises:
        BadRequest: they have fewer numbers.
        ServerError: one is NaN or infinite.
    """
    rows = np.asarray(rows, np.float32)  # the squares of half precision's own would overflow
    if size is not None:
        if size > rows.shape[1]:
            raise BadRequest(f"dimensions is {size}, the embedding has {rows.shape[1]}")
        rows = rows[:, :size]
    check_finite(rows)
    if normalize:
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        rows = rows / np.maximum(norms, np.finfo(np.float32).tiny)
    return np.ascontiguousarray(rows)
