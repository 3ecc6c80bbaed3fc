"""Calls of an ASGI application as a server makes them, without a server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgecompile.runtime import open_bundle
from edgecompile.server.http.app import App
from edgecompile.server.serving import Repository, ServedModel
from edgecompile.server.settings import Settings


@dataclass
class Reply:
    """What came back."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The message, in any protocol's form."""
        error = self.json["error"]
        return error["message"] if isinstance(error, dict) else error


async def call(
    app: App,
    method: str,
    path: str,
    body: bytes | Any = b"",
    headers: dict[str, str] | None = None,
    chunk: int = 1 << 20,
) -> Reply:
    """One request; ``body`` that isn't bytes goes as JSON, in chunks."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    pairs = [(k.lower().encode(), v.encode()) for k, v in (headers or {}).items()]
    pieces = [data[at : at + chunk] for at in range(0, len(data), chunk)] or [b""]
    messages = [
        {"type": "http.request", "body": piece, "more_body": index + 1 < len(pieces)}
        for index, piece in enumerate(pieces)
    ]
    reply = Reply()

    async def receive() -> dict[str, Any]:
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            assert not reply.status
            reply.status = message["status"]
            reply.headers = {k.decode(): v.decode() for k, v in message["headers"]}
        else:
            reply.body += message.get("body", b"")

    raw = path.encode()
    from urllib.parse import unquote

    scope = {
        "type": "http",
        "method": method,
        "path": unquote(path),
        "raw_path": raw,
        "headers": pairs,
    }
    await app(scope, receive, send)
    return reply


@asynccontextmanager
async def serving(*bundles: Path, **settings: Any) -> AsyncIterator[App]:
    """An application over open bundles that are ready."""
    chosen = Settings(**settings)
    models = [
        ServedModel(open_bundle(path), limits=chosen.limits, lookup=chosen.lookup)
        for path in bundles
    ]
    for model in models:
        model.proven = True
    yield App(Repository(models), chosen)
    for model in models:
        await model.close()


def tensor(*ids: int, **changes: Any) -> dict[str, Any]:
    """A body of …/infer."""
    entry = {"name": "input_ids", "shape": [1, len(ids)], "datatype": "INT64", "data": list(ids)}
    return {"inputs": [{**entry, **changes}]}


def run(task: Any) -> Any:
    """Runs a coroutine to its end."""
    return asyncio.run(task)
