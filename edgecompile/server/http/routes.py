"""The table of addresses and their handlers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from edgecompile import __version__
from edgecompile.server.errors import NotReady
from edgecompile.server.http.completions import CompletionRoutes
from edgecompile.server.http.infer import InferRoutes
from edgecompile.server.http.messages import Handler, HttpRequest, Response
from edgecompile.server.http.metrics import CONTENT_TYPE
from edgecompile.server.http.state import State
from edgecompile.server.http.texts import TextRoutes
from edgecompile.server.protocol.documents import dump
from edgecompile.server.protocol.openapi import make_document
from edgecompile.server.protocol.v2 import EXTENSIONS


def make_routes(app: State) -> Mapping[str, Mapping[str, Handler]]:
    """Handlers by address and method; ``{model}`` stands for a name and perhaps a version."""
    own, infer, texts = _OwnRoutes(app), InferRoutes(app), TextRoutes(app)
    completions = CompletionRoutes(app)
    model = "/v2/models/{model}"
    gets = {
        "/v2": own.server,
        "/v2/health/live": own.live,
        "/v2/health/ready": own.ready,
        **dict.fromkeys(("/", "/health", "/healthz", "/ping"), own.ready),
        "/metrics": own.metrics,
        "/openapi.json": own.openapi,
        "/v1/models": own.models,
        "/v1/models/{model}": own.model,
        "/info": texts.info,
        model: infer.metadata,
        model + "/ready": infer.ready,
        model + "/config": infer.config,
        model + "/stats": infer.statistics,
        "/v2/models/stats": infer.all_statistics,
    }
    posts = {
        model + "/infer": infer.infer,
        "/v1/models/{model}:predict": infer.predict,
        "/v2/repository/index": infer.index,
        "/v1/embeddings": texts.embeddings,
        "/embeddings": texts.embeddings,
        "/embed": texts.embed,
        "/embed_all": texts.embed_all,
        "/embed_sparse": texts.embed_sparse,
        "/rerank": texts.rerank,
        "/v1/rerank": texts.rerank,
        "/v2/rerank": texts.rerank,
        "/": texts.root,
        "/predict": texts.predict,
        "/v1/completions": completions.complete,
        "/v1/chat/completions": completions.chat,
    }
    table: dict[str, dict[str, Handler]] = {}
    for method, handlers in (("GET", gets), ("POST", posts)):
        for path, handler in handlers.items():
            table.setdefault(path, {})[method] = handler
    return table


class _OwnRoutes:
    """Answers about the server itself."""

    def __init__(self, app: State) -> None:
        self._app = app
        self._started = int(time.time())

    async def server(self, request: HttpRequest) -> Response:
        """GET /v2."""
        metadata = {"name": "edgecompile", "version": __version__, "extensions": list(EXTENSIONS)}
        return Response(body=dump(metadata))

    async def live(self, request: HttpRequest) -> Response:
        """GET /v2/health/live: fails when a run is stuck, or nothing runs on the GPU any more."""
        if (reason := self._app.sick()) is not None:
            raise NotReady(reason)
        return Response(body=dump({"live": True}))

    async def ready(self, request: HttpRequest) -> Response:
        """GET /v2/health/ready, and where probes of others ask: fails until golden vectors passed, and when it ends."""
        self._app.check_ready()
        return Response(body=dump({"ready": True, "live": True}))

    async def metrics(self, request: HttpRequest) -> Response:
        """GET /metrics."""
        app = self._app
        text = app.metrics.text(app.repository, app.connections(), app.room.held, app.draining)
        return Response(body=text, media=CONTENT_TYPE)

    async def openapi(self, request: HttpRequest) -> Response:
        """GET /openapi.json."""
        return Response(body=dump(make_document(__version__, bool(self._app.settings.keys))))

    async def models(self, request: HttpRequest) -> Response:
        """GET /v1/models, as OpenAI has it."""
        names = dict.fromkeys(model.name for model in self._app.repository)
        data = [self._describe(name) for name in names]
        return Response(body=dump({"object": "list", "data": data}))

    async def model(self, request: HttpRequest) -> Response:
        """GET /v1/models/NAME, as OpenAI has it."""
        return Response(body=dump(self._describe(self._app.repository.get(request.parts[0]).name)))

    def _describe(self, name: str) -> dict[str, Any]:
        started = self._started
        return {"id": name, "object": "model", "created": started, "owned_by": "edgecompile"}
