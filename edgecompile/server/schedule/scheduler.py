"""The queue of a model: requests go in on the event loop and run in a thread, one by one."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from edgecompile.runtime import Model
from edgecompile.runtime.errors import EdgecompileError
from edgecompile.server.answers import Answer
from edgecompile.server.errors import DeadlineExceeded, Draining, Overloaded, translate

Inputs = Mapping[str, NDArray[Any]]


@dataclass(eq=False)
class _Item:
    inputs: Inputs
    outputs: Sequence[str] | None
    deadline: float | None
    arrived: float
    future: asyncio.Future[Answer]


class Scheduler:
    """Runs the requests of one model. Everything but its runs happens on one event loop.

    Args:
        model: an open model.
        queue: how many requests may wait; further ones are refused.
        clock: seconds that only go on; deadlines are its times.
    """

    def __init__(
        self, model: Model, *, queue: int = 1024, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._model = model
        self._clock = clock
        self._limit = queue
        self._queue: deque[_Item] = deque()
        self._began: float | None = None
        self._closed = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="run")
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def waiting(self) -> int:
        """How many requests are in the queue."""
        return len(self._queue)

    @property
    def running_since(self) -> float | None:
        """When the oldest run under way began, by the clock; None: nothing runs."""
        return self._began

    def submit(
        self,
        inputs: Inputs,
        *,
        outputs: Sequence[str] | None = None,
        deadline: float | None = None,
        priority: int = 0,
    ) -> asyncio.Future[Answer]:
        """Puts a request into the queue; call it on the event loop.

        Args:
            inputs: whole batches, as ``Model.run`` takes them; not changed until the answer.
            outputs: the outputs that are wanted; None: all.
            deadline: when the answer is of no more use, by the clock.
            priority: higher ones go first. Not looked at yet.

        Returns:
            The answer to come. Cancelling it takes the request out of the queue.

        Raises:
            Overloaded: the queue is full.
            Draining: ``close`` was called.
        """
        if self._closed:
            raise Draining("the server is about to end", 1.0)
        if len(self._queue) >= self._limit:
            raise Overloaded(f"{len(self._queue)} requests wait, that is the limit", 1.0)
        loop = asyncio.get_running_loop()
        item = _Item(inputs, outputs, deadline, self._clock(), loop.create_future())
        self._queue.append(item)
        if self._began is None:
            self._next()
        return item.future

    def _next(self) -> None:
        while self._queue:
            item = self._queue.popleft()
            if item.future.done():
                continue
            now = self._clock()
            if item.deadline is not None and now >= item.deadline:
                item.future.set_exception(DeadlineExceeded("the deadline passed in the queue"))
                continue
            self._began = now
            self._idle.clear()
            run = item.future.get_loop().run_in_executor(self._thread, self._run, item.inputs)
            run.add_done_callback(lambda run, item=item, now=now: self._done(item, now, run))  # type: ignore[misc]
            return
        self._idle.set()

    def _run(self, inputs: Inputs) -> dict[str, NDArray[Any]]:
        return self._model.run(inputs)

    def _done(self, item: _Item, began: float, run: asyncio.Future[Any]) -> None:
        self._began = None
        error = run.exception()
        if not item.future.done():
            if error is None:
                found = run.result()
                if item.outputs is not None:
                    found = {name: found[name] for name in item.outputs}
                rows = len(next(iter(item.inputs.values()), ()))
                waited = began - item.arrived
                item.future.set_result(Answer(found, waited, self._clock() - began, rows))
            elif isinstance(error, EdgecompileError):
                item.future.set_exception(translate(error))
            else:
                item.future.set_exception(error)
        self._next()

    async def close(self) -> None:
        """Refuses further requests and waits for those that are in."""
        self._closed = True
        await self._idle.wait()
        self._thread.shutdown()
