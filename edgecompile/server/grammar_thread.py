"""A thread on which grammars are read, with a limit on the wait for it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from edgecompile.server.errors import NotReady, Unprocessable

T = TypeVar("T")
#: Ten times that which the worst grammar within llguidance's own limits takes.
_LIMIT_S = 20.0


class _Call(Generic[T]):
    """A call for the thread; ``began`` is when the thread began with it, or None."""

    def __init__(self, call: Callable[[], T]) -> None:
        self.call = call
        self.future: Future[T] = Future()
        self.began: float | None = None


class GrammarThread:
    """One thread, for calls that can't be ended from outside. One that never ends holds up no more than this thread.

    Args:
        limit: seconds that a call may take, and that one may wait for those before it.
        clock: seconds that only go on.
    """

    def __init__(
        self, limit: float = _LIMIT_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit, self._clock = limit, clock
        self._calls: SimpleQueue[_Call[Any] | None] = SimpleQueue()
        self._now: _Call[Any] | None = None
        # No process waits at its end for a daemon.
        threading.Thread(target=self._work, name="grammar", daemon=True).start()

    async def run(self, call: Callable[[], T]) -> T:
        """The result of ``call``, or its error.

        Raises:
            Unprocessable: it takes longer than the limit.
            NotReady: those before it do.
        """
        under_way = self._now
        if under_way is not None and self._late(under_way) <= 0:
            raise self._busy()
        item = _Call(call)
        self._calls.put(item)
        future = asyncio.wrap_future(item.future)
        try:
            await asyncio.wait([future], timeout=self._limit)
            if not future.done() and item.began is not None:
                await asyncio.wait([future], timeout=max(0.0, self._late(item)))
            if future.done():
                return future.result()
        finally:
            future.cancel()  # a call that hasn't begun never does
        if item.began is None:
            raise self._busy()
        raise Unprocessable(f"the grammar can't be used: to read it takes over {self._limit:g} s")

    def _busy(self) -> NotReady:
        return NotReady("other grammars are being read, which takes long", self._limit)

    def _late(self, item: _Call[Any]) -> float:
        """The seconds that a call has left, which is under way."""
        return (item.began or 0.0) + self._limit - self._clock()

    def _work(self) -> None:
        while (item := self._calls.get()) is not None:
            if item.future.set_running_or_notify_cancel():
                item.began = self._clock()
                self._now = item
                try:
                    result = item.call()
                except BaseException as error:
                    self._now = None
                    item.future.set_exception(error)
                else:
                    self._now = None
                    item.future.set_result(result)
                    del result
            del item  # nothing of it stays until the next one comes

    def close(self) -> None:
        """Ends the thread behind a call that is under way, without a wait for it; no other call begins."""
        while True:
            try:
                item = self._calls.get_nowait()
            except Empty:
                break
            if item is not None:
                item.future.cancel()
        self._calls.put(None)
