"""A listener in a thread of the test, and what is sent to it byte for byte."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgecompile.runtime import open_bundle
from edgecompile.server.http.app import App
from edgecompile.server.http.connections import Listener
from edgecompile.server.schedule.threads import ShortSizes
from edgecompile.server.serving import Repository, ServedModel
from edgecompile.server.settings import Limits, Settings
from tests.server.http.asgi import tensor

LIMITS = Limits(body_bytes=100_000, header_bytes=4096, connections=20, elements=10_000)
BODY = json.dumps(tensor(1, 2, 3)).encode()
HEAD = b"POST /v2/models/tiny/infer HTTP/1.1\r\nHost: x\r\n"
GOOD = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY


class Served:
    """A listener in a thread.

    Args:
        bundle: what it serves, as ``model``.
        http: the parser, as in ``Listener``.
        others: served beside it.
        limits: of requests and connections.
        listening: what it accepts connections of; a free port of this machine otherwise.
    """

    def __init__(
        self,
        bundle: Path,
        http: str,
        others: Sequence[Path] = (),
        limits: Limits = LIMITS,
        listening: socket.socket | None = None,
    ) -> None:
        self._bundles, self.http, self._limits = (bundle, *others), http, limits
        self.socket = listening or socket.create_server(("127.0.0.1", 0), backlog=100)
        self.port = self.socket.getsockname()[1]
        self._started = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self._run(),))
        self._thread.start()
        self._started.wait()

    async def _run(self) -> None:
        self.loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        models = [ServedModel(open_bundle(item), limits=self._limits) for item in self._bundles]
        self.model = models[0]
        for model in models:
            model.proven = True
        self.app = App(Repository(models), Settings(limits=self._limits))
        self.listener = Listener(self.app, self.http)
        await self.listener.start([self.socket])
        self._started.set()
        await self._end.wait()
        self.whole = await self.listener.close(5)
        for model in models:
            await model.close()

    def wait_for_sweeps(self, count: int) -> None:
        """Until all connections were looked at so many times."""
        state: Any = self.listener._state
        for _ in range(count):
            before = state.default_headers
            wait_until(lambda: state.default_headers is not before)  # noqa: B023

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    @contextmanager
    def limited(self, **changes: float) -> Iterator[None]:
        """With other limits meanwhile; those of time are long, as machines may be slow."""
        protocol: Any = self.listener._protocol
        protocol.limits = replace(self._limits, **changes)
        yield
        protocol.limits = self._limits

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port))

    def ask(self, data: bytes) -> bytes:
        """Everything that comes back for ``data`` until the server closes or has answered it."""
        with self.connect() as client:
            client.sendall(data)
            return read_all(client)

    def check(self) -> None:
        """A good request is answered right."""
        answer = self.ask(GOOD.replace(b"Host: x", b"Host: x\r\nConnection: close"))
        assert answer.startswith(b"HTTP/1.1 200 ") and b'"pooler_output"' in answer


@contextmanager
def held(served: Served) -> Iterator[tuple[threading.Event, list[Any]]]:
    """Runs of the model wait for an event meanwhile, on threads alone; also gives the inputs of those that ran."""
    scheduler, model = served.model.scheduler, served.model.model
    gate, ran, run, short = threading.Event(), [], model.run, scheduler._short

    def wait(inputs: Any, **how: Any) -> Any:
        gate.wait()
        ran.append(inputs)
        return run(inputs, **how)

    scheduler._short = ShortSizes(0.0)  # the event loop runs none itself, where it would wait
    model.run = wait  # type: ignore[method-assign]
    try:
        yield gate, ran
    finally:
        gate.set()
        wait_until(lambda: scheduler.running_since is None)
        del model.run
        scheduler._short = short


def counts(served: Served) -> Counter[str]:
    """How many requests to …/infer /metrics has by status."""
    text = served.ask(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").decode()
    pattern = r'requests_total\{route="/v2/models/\{model\}/infer",status="(\d+)"\} (\d+)'
    return Counter({status: int(count) for status, count in re.findall(pattern, text)})


def read_all(client: socket.socket) -> bytes:
    """Reads until the other side closes."""
    received = b""
    try:
        while data := client.recv(65536):
            received += data
    except ConnectionResetError:
        pass
    return received


def read_answer(client: socket.socket) -> tuple[int, bytes]:
    """One answer with a length: its status and body."""
    received = b""
    while b"\r\n\r\n" not in received:
        data = client.recv(65536)
        assert data, received
        received += data
    head, _, body = received.partition(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1])
        for line in head.lower().split(b"\r\n")
        if line.startswith(b"content-length")
    )
    while len(body) < length:
        body += client.recv(65536)
    return int(head.split()[1]), body


def with_length(value: bytes, body: bytes = BODY) -> bytes:
    return HEAD + b"Content-Length: " + value + b"\r\n\r\n" + body


def wait_until(condition: Any) -> None:
    """Waits for what is about to become true."""
    while not condition():
        time.sleep(0.01)
