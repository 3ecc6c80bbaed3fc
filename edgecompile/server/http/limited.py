"""Limits on connections: on their number, on headers, and on how slow a client may be.

uvicorn itself has a limit for idle connections alone (github.com/Kludex/uvicorn/issues/157).
"""

from __future__ import annotations

import asyncio
import json
import select
import sys
from typing import Any

from edgecompile.server.http.cors import Cors, Headers
from edgecompile.server.settings import Limits

#: More bytes than so many aren't copied to be sent together.
_GATHERED = 64 << 10

IDLE, HEADER, BODY, RUNNING, CLOSING = "idle", "header", "body", "running", "closing"


def _hung_up(transport: Any) -> bool:
    """Whether the client has closed the connection, which can be asked for without reading what lies before that."""
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))


def _refusal(status: int, reason: str, message: str, headers: Headers) -> bytes:
    body = json.dumps({"error": message}).encode()
    head = (
        f"HTTP/1.1 {status} {reason}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n"
    )
    if status == 503:
        head += "retry-after: 1\r\n"
    lines = [b"%b: %b\r\n" % item for item in headers]
    return b"".join((head.encode(), *lines, b"\r\n", body))


class Gathered:
    """A transport that sends what is written in one turn of the loop together.

    uvicorn writes the head of an answer and its body apart: two calls of the system, and two segments.
    """

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._inner, self._later = transport, loop.call_soon
        self._held: list[bytes] = []
        self.is_closing = transport.is_closing  # asked for each answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def write(self, data: bytes) -> None:
        """Sends it before anything is read again."""
        if not self._held:
            self._later(self._flush)
        self._held.append(data)

    def send(self, head: bytes, body: bytes) -> None:
        """Sends both at once, behind what was written before."""
        if self._held or len(body) > _GATHERED:
            self._held += (head, body)
            self._flush()
        elif not self.is_closing():
            self._inner.write(head + body)

    def close(self) -> None:
        """Closes it once all is sent."""
        self._flush()
        self._inner.close()

    def _flush(self) -> None:
        chunks, self._held = self._held, []
        if not chunks or self.is_closing():
            return
        if sum(map(len, chunks)) <= _GATHERED:
            chunks = [b"".join(chunks)]
        for data in chunks:
            self._inner.write(data)


class Limited(asyncio.Protocol):
    """Adds limits to both of uvicorn's protocols.

    No timer is set for a request: a sweep over all connections looks, once in a second, what each is
    waiting for, and since when. So a limit of time is met a second late at most, and costs nothing.
    """

    limits: Limits
    cors: Cors
    headers: Any  # of the request that came last, or None
    transport: Any
    flow: Any
    connections: set[Any]
    cycle: Any
    loop: asyncio.AbstractEventLoop

    _seen: tuple[str, Any] = ("", None)  # nobody has looked yet
    _since = 0.0
    _blocked_since: float | None = None
    _refused = False
    _head = 0
    _left = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(Gathered(transport, self.loop))  # type: ignore[arg-type]
        if len(self.connections) > self.limits.connections:
            self.refuse(503, "Service Unavailable", "too many connections")

    def begun(self) -> Any:
        """The last request that has begun to be answered, or None."""
        return self.cycle

    def connection_lost(self, exc: Exception | None) -> None:
        cycle = self.begun()
        super().connection_lost(exc)
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
            task = cycle.scope.get("edgecompile.task")
            if task is not None:
                cycle.scope["edgecompile.gone"] = True
                task.cancel()

    def refuse(self, status: int, reason: str, message: str) -> None:
        """Answers without a request having come, and closes the connection."""
        if not self._refused and not self.transport.is_closing():
            self._refused = True
            headers = self.cors.headers(dict(self.headers or ()))
            self.transport.write(_refusal(status, reason, message, headers))
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """The answer of both protocols to a request that their parsers can't read, or have no memory for."""
        error = sys.exc_info()[1]
        if error is not None and isinstance(error.__context__, MemoryError):
            self.give_up(503, "Service Unavailable", "there isn't the memory for this request now")
        elif not self._ends_behind_answer():
            self.give_up(400, "Bad Request", "no valid HTTP request")

    def _ends_behind_answer(self) -> bool:
        """Whether the request before is whole and not answered yet: that is done, and the connection closed then."""
        cycle = self.begun()
        if cycle is None or cycle.response_complete or cycle.more_body:
            return False
        cycle.keep_alive = False
        self.flow.pause_reading()
        return True

    def give_up(self, status: int, reason: str, message: str) -> None:
        """Answers a request that will never be whole in the application's place."""
        cycle = self.begun()
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
            if cycle.response_started:
                self.transport.close()
                return
            cycle.scope["edgecompile.refused"] = status  # the application counts it
        self.refuse(status, reason, message)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        super().data_received(data)
        self.count_head(data)

    def count_head(self, data: bytes) -> None:
        """Refuses headers that grow over the limit."""
        if self.in_head():
            self._head += len(data)
            if self._head > self.limits.header_bytes and not self._ends_behind_answer():
                text = f"the headers may have at most {self.limits.header_bytes} bytes"
                self.refuse(431, "Request Header Fields Too Large", text)
        else:
            self._head = 0

    def in_head(self) -> bool:
        """Whether a part of a head has come, and nothing behind it."""
        raise NotImplementedError

    def phase(self) -> str:
        """The event that the connection waits for."""
        raise NotImplementedError

    def sweep(self, now: float) -> None:
        """Ends the connection if it has waited for too long."""
        phase = CLOSING if self.transport.is_closing() else self.phase()
        seen = (phase, self.begun())
        limits = self.limits
        if self.flow.read_paused and phase == RUNNING and _hung_up(self.transport):
            self.transport.abort()  # what it sent behind its request hides its end
            return
        if seen[0] != self._seen[0] or seen[1] is not self._seen[1]:
            self._seen, self._since = seen, now
        if self.flow.write_paused:
            left = self.transport.get_write_buffer_size()
            if self._blocked_since is None or left != self._left:
                self._blocked_since, self._left = now, left
            elif now - self._blocked_since > limits.write_s:
                self.transport.abort()
            return
        self._blocked_since = None
        waited = now - self._since
        if phase == CLOSING and waited > limits.write_s:
            self.transport.abort()
        elif phase == IDLE and waited > limits.idle_s:
            self.transport.close()
        elif (phase == HEADER and waited > limits.header_s) or (
            phase == BODY and waited > limits.body_s
        ):
            self.give_up(408, "Request Timeout", "the request came too slowly")
