"""The routes that generate: /v1/completions and /v1/chat/completions, plain and as events."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator

from edgecompile.runtime.text.tools import Call
from edgecompile.server.errors import ServerError, Unprocessable
from edgecompile.server.generation_request import Piece
from edgecompile.server.http.messages import HttpRequest, Response, openai_error
from edgecompile.server.http.state import State
from edgecompile.server.protocol.completions import (
    DONE,
    CompletionRequest,
    Frame,
    read_completion,
    usage,
)
from edgecompile.server.protocol.texts import refuse_ids
from edgecompile.server.protocol.tools import divide_calls
from edgecompile.server.serving import ServedModel

_EVENTS = b"text/event-stream"


class CompletionRoutes:
    """OpenAI's routes of texts that go on."""

    def __init__(self, app: State) -> None:
        self._app = app

    async def complete(self, request: HttpRequest) -> Response:
        """POST /v1/completions."""
        return await self._answer(request, chat=False)

    async def chat(self, request: HttpRequest) -> Response:
        """POST /v1/chat/completions."""
        return await self._answer(request, chat=True)

    async def _answer(self, request: HttpRequest, chat: bool) -> Response:
        body = await request.body(self._app.settings.limits.body_bytes)
        params = read_completion(body, chat)
        prompt = params.generation.prompt
        ids = not isinstance(prompt, str) and isinstance(prompt[0], int)
        if ids and not self._app.settings.token_ids:
            refuse_ids()
        model = self._app.repository.get(params.model)
        model.check_ready()
        generator = model.generator
        if generator is None:
            raise Unprocessable(f"{model.name} is not a language model, so it cannot generate text")
        tokens = await generator.read(params.generation)
        pieces = generator.run(tokens, params.generation)
        # What is wrong with the options is reported before the status is sent.
        first = await anext(pieces)
        frame = Frame(
            f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}",
            int(time.time()),
            model.name,
            chat,
        )
        follow: AsyncIterator[Piece] = self._count(model, first, pieces)
        tools = params.generation.tools
        if tools is not None:
            follow = divide_calls(follow, generator.call_reader(tools), tools.several)
        if params.stream:
            headers = [(b"cache-control", b"no-cache")]
            stream = _events(frame, params, follow, len(tokens))
            return Response(media=_EVENTS, headers=headers, stream=stream)
        text, last = "", first
        calls: list[Call] = []
        async for last in follow:
            text += last.text
            calls += last.calls
        assert last.finish_reason is not None
        counts = usage(len(tokens), last.tokens)
        return Response(body=frame.whole(text, last.finish_reason, counts, calls))

    async def _count(
        self, model: ServedModel, first: Piece, pieces: AsyncIterator[Piece]
    ) -> AsyncIterator[Piece]:
        """The pieces from the first one on; their tokens are counted."""
        last = first
        try:
            yield first
            async for piece in pieces:
                last = piece
                yield piece
        finally:
            self._app.metrics.tokens(model.name, last.tokens)
            await pieces.aclose()  # type: ignore[attr-defined]


async def _events(
    frame: Frame, params: CompletionRequest, pieces: AsyncIterator[Piece], prompt: int
) -> AsyncIterator[bytes]:
    tokens, first, calls = 0, True, 0
    try:
        async for piece in pieces:
            tokens = piece.tokens
            if piece.text or piece.finish_reason or piece.calls or first:
                yield frame.event(piece.text, piece.finish_reason, first, piece.calls, calls)
            first, calls = False, calls + len(piece.calls)
        if params.with_usage:
            yield frame.usage(usage(prompt, tokens))
        yield DONE
    except ServerError as error:  # the status is out already
        yield b"data: %b\n\n" % openai_error(error)
    finally:
        await pieces.aclose()  # type: ignore[attr-defined]
