"""A request as handlers see it, and their answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from edgecompile.server.body_budget import SMALL, BodyBudget
from edgecompile.server.errors import BadRequest, ServerError, TooLarge
from edgecompile.server.http.coding import Inflate
from edgecompile.server.protocol.documents import dump

JSON = b"application/json"
#: A body over the limit is read on and dropped up to so many bytes, for a client that is cut off in
#: the midst of it may never read why.
_DROPPED = 64 << 20

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


@dataclass
class Response:
    """An answer; a ``stream`` is sent behind ``body`` as it comes."""

    status: int = 200
    body: bytes = b""
    media: bytes = JSON
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    stream: AsyncIterator[bytes] | None = None


class Gone(Exception):
    """The client went away before its request was whole."""


class HttpRequest:
    """One request; made by the application."""

    __slots__ = ("_receive", "_room", "headers", "held", "method", "parts", "path")

    def __init__(self, scope: Scope, receive: Receive, room: BodyBudget) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers: Mapping[bytes, bytes] = dict(scope["headers"])
        #: The parts of the path, decoded one by one, where a pattern has a place for them.
        self.parts: list[str] = []
        self._receive, self._room = receive, room
        #: Bytes of the room that its body takes.
        self.held = 0

    def _hold(self, size: int) -> None:
        """The body has grown to ``size`` bytes."""
        if size > SMALL:
            self._room.take(size - self.held)
            self.held = size

    def release(self) -> None:
        """The request is over: others may have the room of its body."""
        self._room.held -= self.held
        self.held = 0

    async def body(self, most: int) -> bytes:
        """The whole body, decompressed.

        Raises:
            TooLarge: it has over ``most`` bytes; nothing of it was kept or read by a parser.
            Overloaded: there is no room for it beside those of others; told before it is read where
                its length was declared.
            WrongMedia: it is compressed in a way that isn't known.
            BadRequest: it can't be decompressed.
            Gone: it never came whole.
        """
        coding = self.headers.get(b"content-encoding", b"").lower()
        inflate = None if coding in (b"", b"identity") else Inflate(coding)
        declared = self.headers.get(b"content-length", b"0")
        announced = int(declared) if declared.isdigit() else 0
        if announced > most and b"expect" in self.headers:
            raise _too_large(most)
        if SMALL < announced <= most:
            self._room.check(announced)
        chunks: list[bytes] = []
        came = size = 0  # as it comes, and decompressed
        more = True
        while more:
            message = await self._receive()
            if message["type"] != "http.request":
                raise Gone
            piece: bytes = message.get("body", b"")
            more = bool(message.get("more_body"))
            came += len(piece)
            if inflate is not None and max(came, size) <= most:
                piece = inflate.feed(piece, most - size)
            size += len(piece)
            if max(came, size) <= most:
                self._hold(size)
                chunks.append(piece)
            else:
                chunks.clear()
                if came > most + _DROPPED:
                    raise _too_large(most)
        if max(came, size) > most:
            raise _too_large(most)
        if inflate is not None:
            inflate.end()
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _too_large(most: int) -> TooLarge:
    return TooLarge(f"the body may have at most {most} bytes")


Handler = Callable[[HttpRequest], Awaitable[Response]]


def split(raw_path: bytes) -> list[str]:
    """The parts of a path, percent signs decoded within each.

    Raises:
        BadRequest: they aren't UTF-8.
    """
    try:
        return [
            unquote(part, errors="strict") if "%" in part else part
            for part in raw_path.decode("ascii").strip("/").split("/")
        ]
    except UnicodeDecodeError:
        raise BadRequest("the path isn't UTF-8") from None


def plain_error(error: ServerError) -> bytes:
    """The Open Inference Protocol's form."""
    return dump({"error": error.message})


def openai_error(error: ServerError) -> bytes:
    """OpenAI's form."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    return dump(
        {"error": {"message": error.message, "type": kind, "param": None, "code": error.code}}
    )


_TEI = {429: "Overloaded", 503: "Unhealthy", 504: "Overloaded"}


def tei_error(error: ServerError) -> bytes:
    """The form of text-embeddings-inference."""
    other = "Validation" if error.status < 500 else "Backend"
    return dump({"error": error.message, "error_type": _TEI.get(error.status, other)})
