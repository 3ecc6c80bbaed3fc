"""The routes that take texts: OpenAI's embeddings, and those of text-embeddings-inference."""

from __future__ import annotations

from typing import Any

from edgecompile import __version__
from edgecompile.runtime.text.encoder import TokenizedText
from edgecompile.server.answers import TextAnswer
from edgecompile.server.errors import UnknownModel, Unprocessable
from edgecompile.server.http.infer import timing
from edgecompile.server.http.messages import HttpRequest, Response
from edgecompile.server.http.state import State
from edgecompile.server.protocol import openai, tei
from edgecompile.server.protocol.documents import dump, load_object
from edgecompile.server.protocol.embeddings import (
    is_sparse,
    sparse_output,
    sparse_rows,
    token_output,
)
from edgecompile.server.protocol.inference import stack
from edgecompile.server.protocol.rerank import RankRequest, format_rank, read_rank
from edgecompile.server.protocol.texts import (
    Item,
    count_tokens,
    labels_of,
    rank_output,
    refuse_ids,
    scores_output,
    to_scores,
)
from edgecompile.server.serving import ServedModel


class TextRoutes:
    """The routes of text-embeddings-inference, which name no model: they mean the first one that was given."""

    def __init__(self, app: State) -> None:
        self._app = app
        self._limits = app.settings.limits

    def _first(self) -> ServedModel:
        for model in self._app.repository:
            return model
        raise UnknownModel("this server has no model")

    async def _body(self, request: HttpRequest) -> bytes:
        return await request.body(self._limits.body_bytes)

    async def _encode(
        self, model: ServedModel, items: list[Item], prompt: str | None, truncate: bool
    ) -> TextAnswer:
        settings = self._app.settings
        if not settings.token_ids and any(isinstance(item, TokenizedText) for item in items):
            refuse_ids()
        slo = settings.slo_s
        deadline = None if slo is None else model.clock() + slo
        answer = await model.encode(items, prompt=prompt, truncate=truncate, deadline=deadline)
        self._app.metrics.answer(model.name, answer)
        return answer

    async def embeddings(self, request: HttpRequest) -> Response:
        """POST /v1/embeddings."""
        params = openai.read_embeddings(await self._body(request), self._limits.texts)
        model = self._app.repository.get(params.model)
        manifest = model.model.manifest
        name = params.form.find_output(manifest)
        answer = await self._encode(model, params.items, params.prompt, params.truncate)
        rows = params.form.apply(stack(answer, name), manifest, name)
        body = openai.format_embeddings(params, model.name, rows, count_tokens(answer))
        return Response(body=body, headers=timing(answer))

    async def _rank(self, document: dict[str, Any]) -> Response:
        params = read_rank(document, self._limits.texts)
        model = self._app.repository.get(params.model)
        manifest = model.model.manifest
        name = rank_output(manifest)
        params.check_tokens(None if manifest.text is None else manifest.text.max_length)
        scores, answer = await self._scores(model, name, params)
        body = format_rank(params, model.name, scores, count_tokens(answer))
        return Response(body=body, headers=timing(answer))

    async def root(self, request: HttpRequest) -> Response:
        """POST /: as text-embeddings-inference's, what the first model is for."""
        manifest = self._first().model.manifest
        try:
            classes = scores_output(manifest).shape[1]
        except Unprocessable:
            return await (self.embed_sparse if is_sparse(manifest) else self.embed)(request)
        return await (self.rerank if classes == 1 else self.predict)(request)

    async def embed(self, request: HttpRequest) -> Response:
        """POST /embed."""
        params = tei.read_embed(await self._body(request), self._limits.texts)
        model = self._first()
        manifest = model.model.manifest
        name = params.form.find_output(manifest)
        answer = await self._encode(model, params.items, params.prompt, params.truncate)
        rows = params.form.apply(stack(answer, name), manifest, name)
        return Response(body=tei.format_embed(rows), headers=timing(answer))

    async def embed_sparse(self, request: HttpRequest) -> Response:
        """POST /embed_sparse: the words that a text stands for, with their weights."""
        params = tei.read_embed(await self._body(request), self._limits.texts, parts=True)
        model = self._first()
        name = sparse_output(model.model.manifest)
        answer = await self._encode(model, params.items, params.prompt, params.truncate)
        return Response(body=dump(sparse_rows(stack(answer, name))), headers=timing(answer))

    async def embed_all(self, request: HttpRequest) -> Response:
        """POST /embed_all: an embedding for each token."""
        params = tei.read_embed(await self._body(request), self._limits.texts, parts=True)
        model = self._first()
        name = token_output(model.model.manifest)
        answer = await self._encode(model, params.items, params.prompt, params.truncate)
        body = tei.format_tokens([item[name] for item in answer.outputs])
        return Response(body=body, headers=timing(answer))

    async def rerank(self, request: HttpRequest) -> Response:
        """POST /rerank, /v1/rerank and /v2/rerank: with ``texts`` as text-embeddings-inference's, with
        ``documents`` as Cohere's, Jina's and vLLM's."""
        document = load_object(await self._body(request))
        versioned = request.path.startswith("/v")
        if "documents" in document or (versioned and "texts" not in document):
            return await self._rank(document)
        params = tei.read_rerank(document, self._limits.texts)
        model = self._first()
        name = rank_output(model.model.manifest)
        scores, answer = await self._scores(model, name, params)
        return Response(body=tei.format_rerank(params, scores), headers=timing(answer))

    async def _scores(
        self, model: ServedModel, name: str, params: tei.RerankRequest | RankRequest
    ) -> tuple[list[float], TextAnswer]:
        """A score of each text for the query, and the answer that has it."""
        pairs: list[Item] = [(params.query, text) for text in params.texts]
        answer = await self._encode(model, pairs, None, params.truncate)
        return to_scores(name, stack(answer, name), params.raw)[:, 0].tolist(), answer

    async def predict(self, request: HttpRequest) -> Response:
        """POST /predict."""
        params = tei.read_predict(await self._body(request), self._limits.texts)
        model = self._first()
        manifest = model.model.manifest
        output = scores_output(manifest)
        answer = await self._encode(model, list(params.texts), None, params.truncate)
        scores = to_scores(output.name, stack(answer, output.name), params.raw)
        body = tei.format_predict(params, scores, labels_of(manifest, output))
        return Response(body=body, headers=timing(answer))

    async def info(self, request: HttpRequest) -> Response:
        """GET /info."""
        model = self._first()
        document = tei.describe(model.name, model.version, model.model.manifest, self._limits)
        return Response(body=dump({**document, "version": __version__}))
