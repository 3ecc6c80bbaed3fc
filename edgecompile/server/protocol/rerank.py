"""/rerank, /v1/rerank and /v2/rerank, in the form that Cohere, Jina and vLLM share: requests and answers.

Sources: docs.cohere.com/reference/rerank (v1 and v2); Jina's api.jina.ai/redoc; infinity's fastapi_schemas/pymodels.py.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgecompile.server.errors import BadRequest, TooLarge, Unprocessable
from edgecompile.server.protocol.documents import dump, kind, required
from edgecompile.server.protocol.fields import Fields
from edgecompile.server.protocol.openai import read_model
from edgecompile.server.protocol.texts import flag, number, read_truncate

_FIELDS = Fields(
    "model query documents top_n return_documents max_tokens_per_doc raw_scores truncate "
    "truncation_direction",
    "user priority request_id metadata",
    {
        "max_chunks_per_doc": (1,),
        "rank_fields": (["text"],),
        "return_embeddings": (False,),
        "truncate_prompt_tokens": (-1,),
        "truncation": (True,),
    },
)


@dataclass(frozen=True)
class RankRequest:
    """Documents to order by a query.

    Attributes:
        model: name of the model; None: the only one.
        query: the text that they are to go with.
        documents: the documents in their given form, texts or objects.
        texts: the text of each.
        top: number of documents in the answer, the best ones; None: all.
        with_documents: whether the answer repeats them.
        tokens: number of tokens after which a document would be cut, or None.
        raw: whether scores are the model's logits.
        truncate: the same as for embeddings.
    """

    model: str | None
    query: str
    documents: list[Any]
    texts: list[str]
    top: int | None
    with_documents: bool
    tokens: int | None
    raw: bool
    truncate: bool

    def check_tokens(self, most: int | None) -> None:
        """Raises Unprocessable where documents are to be cut before the model's ``most`` tokens."""
        if self.tokens is not None and most is not None and self.tokens < most:
            raise Unprocessable(
                f"max_tokens_per_doc is {self.tokens}: documents are cut at the {most} tokens of the model alone"
            )


def read_rank(document: dict[str, Any], most: int) -> RankRequest:
    """Reads a request; ``most`` is how many documents at most.

    Raises:
        BadRequest, TooLarge, Unprocessable: something is wrong with it.
    """
    query, documents = required(document, "query"), required(document, "documents")
    _FIELDS.check(document)
    if not isinstance(query, str):
        raise BadRequest(f"query must be a text, not {kind(query)}")
    if not isinstance(documents, list) or not documents:
        raise BadRequest("documents must be a list of at least one document")
    if len(documents) > most:
        raise TooLarge(f"documents has {len(documents)} texts, the limit is {most}")
    return RankRequest(
        read_model(document),
        query,
        documents,
        [_text(item, index) for index, item in enumerate(documents)],
        number(document, "top_n", 1, 1 << 31, True),
        flag(document, "return_documents", False),
        number(document, "max_tokens_per_doc", 1, 1 << 31, True),
        flag(document, "raw_scores", False),
        read_truncate(document),
    )


def _text(item: Any, index: int) -> str:
    text = item.get("text") if isinstance(item, dict) else item
    if not isinstance(text, str):
        raise BadRequest(f"documents[{index}] must be a text or an object with a text")
    return text


def format_rank(
    request: RankRequest, name: str, scores: Sequence[float], usage: Mapping[str, Any]
) -> bytes:
    """The best documents by falling score, for a score of each."""
    order = sorted(range(len(scores)), key=lambda index: -scores[index])[: request.top]
    results: list[dict[str, Any]] = [
        {"index": index, "relevance_score": float(scores[index])} for index in order
    ]
    if request.with_documents:
        for item in results:
            given = request.documents[item["index"]]
            item["document"] = given if isinstance(given, dict) else {"text": given}
    return dump(
        {
            "id": f"rerank-{uuid.uuid4().hex}",
            # infinity's own client takes no other word; Jina's says "list", for which no client asks.
            "object": "rerank",
            "model": name,
            "results": results,
            "usage": usage,
            "meta": {
                "billed_units": {"search_units": 1},
                "tokens": {"input_tokens": usage["total_tokens"]},
            },
        }
    )
