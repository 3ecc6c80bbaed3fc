"""Clients of a server that are due at certain times, or ask without a pause; and what they ask."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.serving.connections import binary_request, read_response
from edgecompile.runtime import open_bundle
from edgecompile.server.schedule.simulate import draw_trace

#: Texts are drawn once, and asked for again and again: so many.
DRAWN = 4096
#: Texts that differ: of each length at least so many, and so many of all where lengths are few.
OF_A_LENGTH, DIFFERENT = 8, 64


class Line(asyncio.Protocol):
    """A kept-alive connection with one request under way where ``asked``: ``index``, due at ``due``."""

    def __init__(self, load: Load) -> None:
        self.load, self.index, self.due, self.rest = load, 0, 0.0, b""
        self.asked = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.rest += data
        answer = read_response(self.rest)
        if answer is not None:
            self.rest = b""
            self.load.answer(self, *answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self.load.lose(self, exc or ConnectionResetError())


class Load:
    """Asks, and counts what came.

    Attributes:
        statuses: how often each came.
        latencies: of the answers with 200, in seconds from when they were due.
        lags: seconds from when a request was due until it was sent.
        kept: the index and the body of each answer with 200.
        done: over, or the connection that was lost.
    """

    def __init__(
        self, requests: Sequence[bytes], dues: Sequence[float] | None, seconds: float
    ) -> None:
        """``dues``: when each is due, from the beginning on; None: whenever a connection is free."""
        self._loop = asyncio.get_running_loop()
        self._requests, self._dues, self._seconds = requests, dues, seconds
        self.statuses, self.kept = Counter[int](), list[tuple[int, bytes]]()
        self.latencies, self.lags = list[float](), list[float]()
        self.done: asyncio.Future[None] = self._loop.create_future()
        self._idle: list[Line] = []
        self._overdue: deque[float] = deque()
        self._next = 0  # of the dues
        self._sent = 0

    async def run(self, port: int, connections: int, limit: float | None = None) -> float:
        """Seconds from the beginning to the last answer, or ``limit``: what is unanswered then never will be."""
        made = [
            await self._loop.create_connection(lambda: Line(self), "127.0.0.1", port)
            for _ in range(connections)
        ]
        lines = [line for _, line in made]
        self._count, self._began = connections, time.perf_counter()
        if self._dues is None:
            for line in lines:
                self._take(line, self._began)
        else:
            self._idle = lines
            self._tick()
        await asyncio.wait([self.done], timeout=limit)
        took = time.perf_counter() - self._began
        if not self.done.done():
            self.done.set_result(None)
        self.done.result()
        for line in lines:
            line.transport.abort()
        await asyncio.sleep(0)  # in which they are
        return took

    @property
    def asked(self) -> int:
        """The requests that were due until now, sent or not."""
        return self._sent if self._dues is None else self._next

    def answer(self, line: Line, status: int, body: bytes) -> None:
        """An answer came."""
        now = time.perf_counter()
        line.asked = False
        self.statuses[status] += 1
        if status == 200:
            self.latencies.append(now - line.due)
            self.kept.append((line.index, body))
        if not self.done.done():
            self._take(line, now)

    def lose(self, line: Line, error: Exception) -> None:
        """A connection was lost: an error where it had a request; servers close what is idle for seconds."""
        if self.done.done():
            return
        if line.asked:
            self.done.set_exception(error)
        else:
            self._idle.remove(line)
            self._count -= 1

    def _take(self, line: Line, now: float) -> None:
        """Gives a connection something to do, or counts it as idle."""
        if self._dues is None:
            if now < self._began + self._seconds:
                return self._send(line, now, now)
        elif self._overdue:
            return self._send(line, self._overdue.popleft(), now)
        self._idle.append(line)
        over = self._dues is None or self._next == len(self._dues)
        if over and len(self._idle) == self._count and not self.done.done():
            self.done.set_result(None)

    def _tick(self) -> None:
        assert self._dues is not None
        now = time.perf_counter()
        while self._next < len(self._dues) and not self.done.done():
            due = self._began + self._dues[self._next]
            if due > now:
                self._loop.call_later(due - now, self._tick)
                return
            self._next += 1
            if self._idle:
                self._send(self._idle.pop(), due, now)
            else:
                self._overdue.append(due)

    def _send(self, line: Line, due: float, now: float) -> None:
        line.asked, line.due, line.index = True, due, self._sent % len(self._requests)
        self._sent += 1
        self.lags.append(now - due)
        line.transport.write(self._requests[line.index])


class Texts:
    """Requests of drawn lengths, and the answers that they should get."""

    def __init__(
        self, bundle: str, lengths: Mapping[int, int], slo: float, drawn: int = DRAWN
    ) -> None:
        """``drawn``: so many texts, whose answers ``run`` gives here."""
        self.lengths = lengths
        variants = max(OF_A_LENGTH, DIFFERENT // len(lengths))
        trace = draw_trace(lengths, drawn, seed=3)
        self._drawn = [(item.length, i % variants) for i, item in enumerate(trace)]
        random = np.random.default_rng(5)
        with open_bundle(bundle) as model:
            ids = {key: random.integers(1000, 30000, (1, key[0])) for key in set(self._drawn)}
            named = {n: {"input_ids": a, "attention_mask": np.ones_like(a)} for n, a in ids.items()}
            self._answers = {
                n: next(iter(model.run(arrays).values())).ravel().copy()
                for n, arrays in named.items()
            }
            path = f"/v2/models/{model.manifest.name}/infer"
        self.patient = self._requests(path, named, {})
        self.timed = self._requests(path, named, {"timeout": round(slo * 1e6)})

    def _requests(self, path: str, named: Any, parameters: dict[str, Any]) -> list[bytes]:
        made = {}
        for key, arrays in named.items():
            inputs = [(name, x.shape, "INT64", x.tobytes()) for name, x in arrays.items()]
            made[key] = binary_request(path, inputs, binary_data_output=True, **parameters)
        return [made[key] for key in self._drawn]

    def error(self, answers: Sequence[tuple[int, bytes]]) -> float:
        """The largest difference of an answer from ``run``'s, of the largest magnitude of that."""
        worst = 0.0
        for index, body in answers:
            expected = self._answers[self._drawn[index]]
            answer = np.frombuffer(body[-expected.nbytes :], expected.dtype)
            worst = max(worst, float(abs(answer - expected).max() / abs(expected).max()))
        return worst
