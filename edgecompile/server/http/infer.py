"""The routes of the Open Inference Protocol."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from edgecompile.server.answers import Answer, TextAnswer
from edgecompile.server.errors import NotReady
from edgecompile.server.http.messages import JSON, HttpRequest, Response
from edgecompile.server.http.state import State
from edgecompile.server.protocol.documents import dump, load_object
from edgecompile.server.protocol.fields import Fields
from edgecompile.server.protocol.inference import infer
from edgecompile.server.protocol.texts import flag
from edgecompile.server.protocol.triton import (
    describe_config,
    describe_index,
    describe_statistics,
)
from edgecompile.server.protocol.v1 import (
    format_predictions,
    group_rows,
    join_rows,
    read_instances,
)
from edgecompile.server.protocol.v2 import describe, format_answer, read_request
from edgecompile.server.serving import ServedModel

_HEADER_LENGTH = b"inference-header-content-length"
_BINARY = b"application/octet-stream"
_INDEX = Fields("ready")


class InferRoutes:
    """/v2/models/NAME[/versions/VERSION]…"""

    def __init__(self, app: State) -> None:
        self._app = app

    def _model(self, request: HttpRequest) -> ServedModel:
        name, version = request.parts
        return self._app.repository.get(name, version)

    async def metadata(self, request: HttpRequest) -> Response:
        """GET: inputs and outputs."""
        model = self._model(request)
        versions = self._app.repository.versions(model.name)
        return Response(body=dump(describe(model.name, versions, model.model.manifest)))

    async def ready(self, request: HttpRequest) -> Response:
        """GET …/ready."""
        model = self._model(request)
        if self._app.draining:
            raise NotReady("the server is about to end", 1.0)
        model.check_ready()
        return Response(body=dump({"name": model.name, "ready": True}))

    async def config(self, request: HttpRequest) -> Response:
        """GET …/config, as Triton has it."""
        model = self._model(request)
        return Response(body=dump(describe_config(model.name, model.model.manifest)))

    async def statistics(self, request: HttpRequest) -> Response:
        """GET …/stats, as Triton has it: of all versions where none is named."""
        return self._statistics(self._app.repository.every(*request.parts))

    async def all_statistics(self, request: HttpRequest) -> Response:
        """GET /v2/models/stats: of all models."""
        return self._statistics(self._app.repository)

    def _statistics(self, models: Iterable[ServedModel]) -> Response:
        stats = [describe_statistics(item.name, item.version, item.scheduler) for item in models]
        return Response(body=dump({"model_stats": stats}))

    async def index(self, request: HttpRequest) -> Response:
        """POST /v2/repository/index, as Triton has it; nothing can be loaded or unloaded."""
        body = await request.body(self._app.settings.limits.body_bytes)
        document = load_object(body) if body else {}
        _INDEX.check(document)
        ready = flag(document, "ready", False)
        return Response(body=dump(describe_index(self._app.repository, ready)))

    async def infer(self, request: HttpRequest) -> Response:
        """POST …/infer: tensors, or texts as one tensor of BYTES."""
        limits = self._app.settings.limits
        model = self._model(request)
        body = await request.body(limits.body_bytes)
        params = read_request(body, request.headers.get(_HEADER_LENGTH), limits.elements)
        timeout = self._app.settings.slo_s if params.timeout_s is None else params.timeout_s
        deadline = None if timeout is None else model.clock() + timeout
        answer, outputs = await infer(
            model,
            params.inputs,
            params.outputs,
            deadline=deadline,
            priority=params.priority,
            most=limits.texts,
        )
        self._app.metrics.answer(model.name, answer)
        content, length = format_answer(model.name, model.version, params, outputs)
        headers = timing(answer)
        if length is None:
            return Response(body=content, media=JSON, headers=headers)
        headers.append((_HEADER_LENGTH, b"%d" % length))
        return Response(body=content, media=_BINARY, headers=headers)

    async def predict(self, request: HttpRequest) -> Response:
        """POST /v1/models/NAME:predict, KServe's protocol V1."""
        settings, model = self._app.settings, self._app.repository.get(request.parts[0])
        limits, manifest = settings.limits, model.model.manifest
        body = await request.body(limits.body_bytes)
        instances = read_instances(
            body, manifest, limits.texts, limits.elements, settings.token_ids
        )
        deadline = None if settings.slo_s is None else model.clock() + settings.slo_s
        if isinstance(instances[0], str):
            texts = await model.encode(instances, deadline=deadline)
            self._app.metrics.answer(model.name, texts)
            return Response(body=format_predictions(texts.outputs), headers=timing(texts))
        groups = group_rows(instances, manifest)
        batches = [join_rows([instances[index] for index in group]) for group in groups]
        answers = await model.infer_all(batches, deadline=deadline)
        rows: list[dict[str, Any]] = [{}] * len(instances)
        for group, answer in zip(groups, answers, strict=True):
            self._app.metrics.answer(model.name, answer)
            for place, index in enumerate(group):
                rows[index] = {name: array[place] for name, array in answer.outputs.items()}
        last = max(answers, key=lambda answer: answer.queue_s + answer.run_s)
        return Response(body=format_predictions(rows), headers=timing(last))


def timing(answer: Answer | TextAnswer) -> list[tuple[bytes, bytes]]:
    """Milliseconds in the queue and of the run, named as text-embeddings-inference does; and how many
    texts were cut, if any."""
    headers = [
        (b"x-queue-time", b"%.3f" % (answer.queue_s * 1e3)),
        (b"x-inference-time", b"%.3f" % (answer.run_s * 1e3)),
    ]
    if isinstance(answer, TextAnswer) and answer.truncated:
        headers.append((b"x-truncated-texts", b"%d" % len(answer.truncated)))
    return headers
