"""uvicorn's connections with limits: on their number, on headers, and on how slow a client may be.

uvicorn itself has a limit for idle connections alone (github.com/Kludex/uvicorn/issues/157).
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import logging
import socket
from collections.abc import Callable, Sequence
from email.utils import formatdate
from functools import partial
from typing import Any

from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from edgecompile.server.http.app import App
from edgecompile.server.settings import Limits

_log = logging.getLogger("edgecompile.server")
#: Seconds between two looks at all connections.
_SWEEP = 1.0

#: More bytes than so many aren't copied to be sent together.
_GATHERED = 64 << 10

Headers = list[tuple[bytes, bytes]]

IDLE, HEADER, BODY, RUNNING, CLOSING = "idle", "header", "body", "running", "closing"


def _refusal(status: int, reason: str, message: str) -> bytes:
    body = json.dumps({"error": message}).encode()
    head = (
        f"HTTP/1.1 {status} {reason}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n"
    )
    if status == 503:
        head += "retry-after: 1\r\n"
    return head.encode() + b"\r\n" + body


class _Gathered:
    """A transport that sends what is written in one turn of the loop together.

    uvicorn writes the head of an answer and its body apart: two calls of the system, and two segments.
    """

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._inner, self._later = transport, loop.call_soon
        self._held: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def write(self, data: bytes) -> None:
        """Sends it before anything is read again."""
        if not self._held:
            self._later(self._flush)
        self._held.append(data)

    def send(self, head: bytes, body: bytes) -> None:
        """Sends both at once, behind what was written before."""
        self._held += (head, body)
        self._flush()

    def close(self) -> None:
        """Closes it once all is sent."""
        self._flush()
        self._inner.close()

    def _flush(self) -> None:
        held, self._held = self._held, []
        if not held or self._inner.is_closing():
            return
        if sum(map(len, held)) <= _GATHERED:
            held = [b"".join(held)]
        for data in held:
            self._inner.write(data)


class _Limited(asyncio.Protocol):
    """What both of uvicorn's protocols get on top.

    No timer is set for a request: a sweep over all connections looks, once in a second, what each is
    waiting for, and since when. So a limit of time is met a second late at most, and costs nothing.
    """

    limits: Limits
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
        super().connection_made(_Gathered(transport, self.loop))  # type: ignore[arg-type]
        if len(self.connections) > self.limits.connections:
            self.refuse(503, "Service Unavailable", "too many connections")

    def connection_lost(self, exc: Exception | None) -> None:
        cycle = self.cycle
        super().connection_lost(exc)
        if cycle is not None and not cycle.response_complete:
            task = cycle.scope.get("edgecompile.task")
            if task is not None:
                cycle.scope["edgecompile.gone"] = True
                task.cancel()

    def refuse(self, status: int, reason: str, message: str) -> None:
        """Answers without a request having come, and closes the connection."""
        if not self._refused and not self.transport.is_closing():
            self._refused = True
            self.transport.write(_refusal(status, reason, message))
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Of both protocols, for what their parsers can't read."""
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete and not cycle.more_body:
            # The request before is whole, and is answered first.
            cycle.keep_alive = False
            self.flow.pause_reading()
        else:
            self.give_up(400, "Bad Request", "no valid HTTP request")

    def give_up(self, status: int, reason: str, message: str) -> None:
        """Answers a request that will never be whole in the application's place."""
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
            if cycle.response_started:
                self.transport.close()
                return
        self.refuse(status, reason, message)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        super().data_received(data)
        if self.phase() == HEADER:
            self._head += len(data)
            if self._head > self.limits.header_bytes:
                text = f"the headers may have at most {self.limits.header_bytes} bytes"
                self.refuse(431, "Request Header Fields Too Large", text)
        else:
            self._head = 0

    def phase(self) -> str:
        """What the connection waits for."""
        raise NotImplementedError

    def sweep(self, now: float) -> None:
        """Ends the connection if it has waited for too long."""
        phase = CLOSING if self.transport.is_closing() else self.phase()
        seen = (phase, self.cycle)
        limits = self.limits
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


class _H11(_Limited, H11Protocol):
    """Pure Python."""

    def phase(self) -> str:
        """See the base."""
        import h11

        state = self.conn.their_state
        if state is h11.IDLE:
            return HEADER if self.conn.trailing_data[0] else IDLE
        if state is h11.SEND_BODY:
            return BODY
        return RUNNING


def _make_httptools() -> type[Any]:
    from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

    class HttpTools(_Limited, HttpToolsProtocol):
        """In C."""

        def on_headers_complete(self) -> None:
            if self.parser.should_upgrade():
                # The parser leaves the body alone then, and what comes of it later would be read as
                # a request.
                scope: Any = self.scope
                scope["edgecompile.upgrade"] = True
            super().on_headers_complete()
            # Its task begins later, and finds this in the scope.
            self.cycle.scope["edgecompile.answer"] = partial(self.answer, self.cycle)

        def answer(self, cycle: Any, status: int, headers: Headers, body: bytes) -> bool:
            """Sends a whole answer at once; the headers are the server's own, and not looked at.

            False: nothing was sent, as the client is slow; whoever asks has to wait for it.
            """
            if self.flow.write_paused:
                return False
            if cycle.disconnected:
                return True
            if (b"connection", b"close") in headers:
                cycle.keep_alive = False
            elif not cycle.keep_alive:
                headers.append((b"connection", b"close"))
            lines = [b"%b: %b\r\n" % header for header in (*cycle.default_headers, *headers)]
            head = b"".join((STATUS_LINE[status], *lines, b"\r\n"))
            cycle.response_started = cycle.response_complete = True
            cycle.message_event.set()
            self.transport.send(head, b"" if cycle.scope["method"] == "HEAD" else body)
            if not cycle.keep_alive:
                self.transport.close()
            cycle.on_response()
            return True

        def on_response_complete(self) -> None:
            """As uvicorn's, without a timer for each answer: the sweep closes what is idle."""
            self.server_state.total_requests += 1
            if not self.transport.is_closing():
                self.flow.resume_reading()
                if self.pipeline:
                    self._start_asgi_task(*self.pipeline.pop())

        def phase(self) -> str:
            """See the base."""
            cycle = self.cycle
            if cycle is None:
                return IDLE if self.headers is None else HEADER
            if cycle.scope is not self.scope:
                return HEADER
            if cycle.response_complete:
                return IDLE
            return BODY if cycle.more_body else RUNNING

    return HttpTools


class Listener:
    """Accepts connections on sockets and serves an application over them."""

    def __init__(self, app: App, http: str = "auto") -> None:
        """``http``: "httptools", "h11", or "auto" for the first one where it is installed."""
        limits = app.settings.limits
        fast = importlib.util.find_spec("httptools") is not None
        base: type[Any] = (
            _make_httptools() if http == "httptools" or (http == "auto" and fast) else _H11
        )
        self._protocol = type(base.__name__, (base,), {"limits": limits})
        self._config = Config(
            app,
            lifespan="off",
            ws="none",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=int(limits.idle_s) + 5,  # the sweep's is first
            h11_max_incomplete_event_size=limits.header_bytes,
        )
        self._config.load()
        self._state = ServerState()
        self._servers: list[asyncio.Server] = []
        self._sweeper: asyncio.Task[None] | None = None
        app.connections = lambda: len(self._state.connections)
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        """Begins to accept on sockets that listen already."""
        loop = asyncio.get_running_loop()
        for item in sockets:
            self._servers.append(await loop.create_server(self._make, sock=item, backlog=2048))
        self._sweeper = loop.create_task(self._sweep(loop.time))

    def _make(self) -> asyncio.Protocol:
        loop = asyncio.get_running_loop()
        made: asyncio.Protocol = self._protocol(self._config, self._state, {}, loop)
        return made

    async def _sweep(self, clock: Callable[[], float]) -> None:
        while True:
            await asyncio.sleep(_SWEEP)
            now = clock()
            self._state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
            open_ones: list[Any] = list(self._state.connections)
            for connection in open_ones:
                try:
                    connection.sweep(now)
                except Exception:
                    _log.exception("a connection couldn't be looked at")

    def stop_listening(self) -> None:
        """Accepts no more; connections stay."""
        for server in self._servers:
            server.close()

    async def close(self, patience: float) -> bool:
        """Closes idle connections and waits until requests under way are answered.

        Args:
            patience: seconds to wait at most.

        Returns:
            Whether all of them were; the rest is cut off.
        """
        self.stop_listening()
        loop = asyncio.get_running_loop()
        end = loop.time() + patience
        for connection in list(self._state.connections):
            connection.shutdown()
        while (self._state.connections or self._state.tasks) and loop.time() < end:
            await asyncio.sleep(0.02)
        whole = not self._state.connections and not self._state.tasks
        for connection in list(self._state.connections):
            connection.transport.abort()
        for task in list(self._state.tasks):
            task.cancel()
        if self._sweeper is not None:
            self._sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeper
        return whole
