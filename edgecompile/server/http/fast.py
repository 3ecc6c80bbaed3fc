"""HTTP over httptools, a parser in C: uvicorn's protocol with less done for each request.

A request that came whole, as small ones do, is answered before anything else is read: without a task,
an event or a turn of the loop of its own. uvicorn's own way stays for whatever waits.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Generator
from typing import Any, cast
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.httptools_impl import (
    HIGH_WATER_LIMIT,
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from edgecompile.server.http.limited import BODY, HEADER, IDLE, RUNNING, Limited

Headers = list[tuple[bytes, bytes]]


class _Cycle(RequestResponseCycle):
    """A request and its answer, as uvicorn has them; what most never need is made when it is asked for."""

    access_log = disconnected = response_started = response_complete = False
    more_body = True
    chunked_encoding = None
    expected_content_length = 0
    body: Any = b""
    transport: Any  # a limited.Gathered
    _event: asyncio.Event | None = None
    _delivered = False  # the whole body was

    def __init__(self, protocol: HttpTools, keep_alive: bool) -> None:
        self.scope, self.keep_alive = protocol.scope, keep_alive
        self.transport, self.flow, self.logger = protocol.transport, protocol.flow, protocol.logger
        self.default_headers = protocol.server_state.default_headers
        self.on_response = protocol.on_response_complete
        self.waiting_for_100_continue = protocol.expect_100_continue

    @property
    def message_event(self) -> asyncio.Event:  # type: ignore[override]
        """Set once there is something to receive."""
        if self._event is None:
            self._event = asyncio.Event()
            if self.body or not self.more_body:
                self._event.set()
        return self._event

    def add(self, body: bytes) -> None:
        """A piece of the body has come."""
        if not self.body:
            self.body = body
        elif type(self.body) is bytes:
            self.body = bytearray(self.body + body)
        else:
            self.body += body
        if self._event is not None:
            self._event.set()

    def end(self) -> None:
        """The body has come whole."""
        self.more_body = False
        if self._event is not None:
            self._event.set()

    async def receive(self) -> Any:
        """As uvicorn's."""
        if self.more_body or self._delivered or self.disconnected or self.response_complete:
            return await super().receive()
        self._delivered, body, self.body = True, self.body, b""
        self.waiting_for_100_continue = False  # it didn't wait
        return {"type": "http.request", "body": bytes(body), "more_body": False}

    def answer(self, status: int, headers: Headers, body: bytes) -> bool:
        """Sends a whole answer at once; the headers are the server's own, and not looked at.

        False: nothing was sent, as the client is slow; whoever asks has to wait for it.
        """
        if self.flow.write_paused:
            return False
        if self.disconnected:
            return True
        if (b"connection", b"close") in headers:
            self.keep_alive = False
        elif not self.keep_alive:
            headers.append((b"connection", b"close"))
        parts = [STATUS_LINE[status]]
        for name, value in (*self.default_headers, *headers):
            parts += (name, b": ", value, b"\r\n")
        head = b"".join((*parts, b"\r\n"))
        self.response_started = self.response_complete = True
        if self._event is not None:
            self._event.set()
        self.transport.send(head, b"" if self.scope["method"] == "HEAD" else body)
        if not self.keep_alive:
            self.transport.close()
        self.on_response()
        return True


class HttpTools(Limited, HttpToolsProtocol):
    """A connection."""

    _next: _Cycle | None = None  # its headers have come, and it hasn't begun
    _begun: _Cycle | None = None  # the last one that has

    def data_received(self, data: bytes) -> None:
        """As uvicorn's and its base's; what has come whole is answered here."""
        if self._refused:
            return
        try:
            self._parse(data)
        except httptools.HttpParserError as error:
            self.send_400_response(str(error))
        cycle, self._next = self._next, None
        if cycle is None:
            self.count_head(data)
            return
        self._head = 0
        if cycle.more_body:
            self._start_asgi_task(cycle, self.app)
            return
        work: Any = cycle.run_asgi(self.app)
        try:
            first = work.send(None)
        except StopIteration:
            return
        task = self.loop.create_task(_Begun(work, first))
        scope: Any = cycle.scope
        scope["edgecompile.task"] = task
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def _parse(self, data: bytes) -> None:
        """Feeds the parser. A request that asks for an upgrade is read as if it didn't, as RFC 9110 (7.8) allows.

        Java's HttpClient asks for h2c with each request. The parser ends behind such a head and never reads a
        body; so another one gets the head without the Upgrade, and then the rest. No value of a header
        holds the end of a line, so the head can't be read in another way than before.
        """
        rest = memoryview(data)
        while True:
            try:
                self.parser.feed_data(rest)
                return
            except httptools.HttpParserUpgrade as upgrade:
                rest = rest[upgrade.args[0] :]
            ended = self.parser
            version = b"HTTP/" + ended.get_http_version().encode()
            head = [b" ".join((ended.get_method(), self.url, version))]
            head += [b"%b: %b" % item for item in self.headers if item[0] != b"upgrade"]
            self.parser = httptools.HttpRequestParser(self)
            with contextlib.suppress(AttributeError):  # httptools before 0.6.3
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            self.parser.feed_data(b"\r\n".join((*head, b"", b"")))

    def on_message_begin(self) -> None:
        """A scope with the keys that the application reads."""
        self.url = b""
        self.expect_100_continue = False
        self.headers = []
        self.scope: Any = {"type": "http", "headers": self.headers}

    def on_headers_complete(self) -> None:
        """As uvicorn's, but for upgrades; the request begins once no more of it lies here."""
        parser, scope = self.parser, self.scope
        if parser.should_upgrade():
            if parser.get_method() == b"CONNECT":
                raise ValueError("no proxy is here")
            return  # the head comes again; see _parse
        scope["method"] = parser.get_method().decode("ascii")
        scope["http_version"] = version = parser.get_http_version()
        url = httptools.parse_url(self.url)
        path = url.path.decode("ascii")
        scope["path"] = unquote(path) if "%" in path else path
        scope["raw_path"], scope["query_string"] = url.path, url.query or b""
        before: Any = self.cycle
        cycle = _Cycle(self, version != "1.0" and parser.should_keep_alive())
        scope["edgecompile.answer"] = cycle.answer
        self.cycle: Any = cycle
        if before is None or before.response_complete:
            self._next = self._begun = cycle
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))

    def on_body(self, body: bytes) -> None:
        """As uvicorn's."""
        cycle = self.cycle
        if not cycle.response_complete:
            cycle.add(body)
            if len(cycle.body) > HIGH_WATER_LIMIT:
                self.flow.pause_reading()

    def on_message_complete(self) -> None:
        """As uvicorn's; reads on, as the end of the connection couldn't be seen otherwise."""
        if self.parser.should_upgrade():
            return
        if not self.cycle.response_complete:
            self.cycle.end()
        if not self.pipeline:
            self.flow.resume_reading()

    def on_response_complete(self) -> None:
        """As uvicorn's, without a timer for each answer: the sweep closes what is idle."""
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            self.flow.resume_reading()
            if self.pipeline:
                cycle, app = self.pipeline.pop()
                self._begun = cast(_Cycle, cycle)
                self._start_asgi_task(cycle, app)

    def begun(self) -> Any:
        """See the base: others may have come behind it."""
        return self._begun

    def in_head(self) -> bool:
        """See the base."""
        scope, cycle = self.scope, self.cycle
        return scope is not None and (cycle is None or cycle.scope is not scope)

    def phase(self) -> str:
        """See the base."""
        begun = self._begun
        if begun is not None and not begun.response_complete:
            return BODY if begun.more_body else RUNNING
        return HEADER if self.in_head() else IDLE


class _Begun(Coroutine[Any, Any, None]):
    """A coroutine that began without a task, and waits for ``first``; a task goes on with it."""

    def __init__(self, work: Coroutine[Any, Any, None], first: Any) -> None:
        self._work, self._first = work, first

    def send(self, value: Any) -> Any:
        """See ``Coroutine``."""
        first, self._first = self._first, None
        return self._work.send(value) if first is None else first

    def throw(self, *error: Any) -> Any:
        """See ``Coroutine``."""
        if self._first is not None:  # the task, which would have cancelled it, has never waited
            self._first.cancel()
            self._first = None
        return self._work.throw(*error)

    def close(self) -> None:
        """See ``Coroutine``."""
        self._work.close()

    def __await__(self) -> Generator[Any, Any, None]:
        raise NotImplementedError("only for tasks")
