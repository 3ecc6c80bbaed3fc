"""The routes that take texts: OpenAI's embeddings, and those of text-embeddings-inference."""

from __future__ import annotations

from edgecompile import __version__
from edgecompile.server.answers import TextAnswer
from edgecompile.server.errors import UnknownModel
from edgecompile.server.http.infer import timing
from edgecompile.server.http.messages import Request, Response
from edgecompile.server.http.state import State
from edgecompile.server.protocol import openai, tei
from edgecompile.server.protocol.documents import dump
from edgecompile.server.protocol.inference import stack
from edgecompile.server.protocol.texts import (
    Item,
    embedding_output,
    labels_of,
    rank_output,
    scores_output,
    shorten_rows,
    to_scores,
)
from edgecompile.server.serving import ServedModel


class TextRoutes:
    """Those of text-embeddings-inference name no model: they mean the first one that was given."""

    def __init__(self, app: State) -> None:
        self._app = app
        self._limits = app.settings.limits

    def _first(self) -> ServedModel:
        for model in self._app.repository:
            return model
        raise UnknownModel("this server has no model")

    async def _body(self, request: Request) -> bytes:
        return await request.body(self._limits.body_bytes)

    async def _encode(
        self, model: ServedModel, items: list[Item], prompt: str | None, truncate: bool
    ) -> TextAnswer:
        slo = self._app.settings.slo_s
        deadline = None if slo is None else model.clock() + slo
        answer = await model.encode(items, prompt=prompt, truncate=truncate, deadline=deadline)
        self._app.metrics.answer(model.name, answer)
        return answer

    async def embeddings(self, request: Request) -> Response:
        """POST /v1/embeddings."""
        params = openai.read_embeddings(await self._body(request), self._limits.texts)
        model = self._app.repository.get(params.model)
        name = embedding_output(model.model.manifest)
        answer = await self._encode(model, params.items, None, True)
        cut = params.dimensions is not None
        rows = shorten_rows(stack(answer, name), params.dimensions, normalize=cut)
        tokens = sum(len(text.ids) for text in answer.texts)
        body = openai.format_embeddings(params, model.name, rows, tokens)
        return Response(body=body, headers=timing(answer))

    async def embed(self, request: Request) -> Response:
        """POST /embed."""
        params = tei.read_embed(await self._body(request), self._limits.texts)
        model = self._first()
        name = embedding_output(model.model.manifest)
        answer = await self._encode(model, params.items, params.prompt, params.truncate)
        rows = shorten_rows(stack(answer, name), params.dimensions, params.normalize)
        return Response(body=tei.format_embed(rows), headers=timing(answer))

    async def rerank(self, request: Request) -> Response:
        """POST /rerank."""
        params = tei.read_rerank(await self._body(request), self._limits.texts)
        model = self._first()
        name = rank_output(model.model.manifest)
        pairs: list[Item] = [(params.query, text) for text in params.texts]
        answer = await self._encode(model, pairs, None, params.truncate)
        scores = to_scores(name, stack(answer, name), params.raw)[:, 0]
        return Response(body=tei.format_rerank(params, scores.tolist()), headers=timing(answer))

    async def predict(self, request: Request) -> Response:
        """POST /predict."""
        params = tei.read_predict(await self._body(request), self._limits.texts)
        model = self._first()
        manifest = model.model.manifest
        output = scores_output(manifest)
        answer = await self._encode(model, list(params.texts), None, params.truncate)
        scores = to_scores(output.name, stack(answer, output.name), params.raw)
        body = tei.format_predict(params, scores, labels_of(manifest, output))
        return Response(body=body, headers=timing(answer))

    async def info(self, request: Request) -> Response:
        """GET /info."""
        model = self._first()
        document = tei.describe(model.name, model.version, model.model.manifest, self._limits)
        return Response(body=dump({**document, "version": __version__}))
