"""Threads that run models: calls go in, their results come back on the event loop; and which runs need none.

What ``run_in_executor`` does too, with two futures and a lock for each call less: it takes half the time.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Any, NamedTuple

#: Seconds: so long may all connections wait for a run that the event loop does itself.
LIMIT_S = 1e-3
#: Seconds of CPU that it takes to wake a thread up and to hear of it again, roughly.
_HAND_OVER_S = 150e-6
#: A run's threads, its rows, and the seconds that its costs say.
Plan = tuple[int, int, float]
#: Sizes that are remembered.
_KEPT = 4096


class _Call(NamedTuple):
    """A call for a thread, and a call on the loop with its result; ``begun``: see ``follow``."""

    call: Callable[[], Any]
    done: Callable[[Any], None]
    begun: Callable[[], None] | None
    loop: asyncio.AbstractEventLoop


class Threads:
    """``count`` threads, started here, which take calls in the order in which they came."""

    def __init__(self, count: int) -> None:
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._following: deque[_Call] = deque()
        self._threads = [
            threading.Thread(target=self._work, name=f"run-{index}", daemon=True)
            for index in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def run(self, call: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Runs ``call``, which raises nothing, on a thread, and ``done`` with its result on this loop."""
        self._calls.put(_Call(call, done, None, asyncio.get_running_loop()))

    def follow(
        self, call: Callable[[], Any], done: Callable[[Any], None], begun: Callable[[], None]
    ) -> None:
        """As ``run``, but on the thread that ends its call first, at once: it needn't wait until the loop hears
        of that. Then ``begun`` is called on the loop, before the ``done`` of the call before."""
        self._following.append(_Call(call, done, begun, asyncio.get_running_loop()))

    def lead(self) -> bool:
        """Runs a call that should follow now, as there is a thread for it; False: there is none."""
        following = self._take()
        if following is not None:
            assert following.begun is not None
            following.begun()
            self._calls.put(following)
        return following is not None

    def _take(self) -> _Call | None:
        try:
            return self._following.popleft()
        except IndexError:
            return None

    def _work(self) -> None:
        while (item := self._calls.get()) is not None:
            while item is not None:
                result, following = item.call(), self._take()
                begun = None if following is None else following.begun
                item.loop.call_soon_threadsafe(_over, item.done, result, begun)
                # Nothing of a call stays here until the next one comes.
                item = following
                del result, following, begun

    def close(self) -> None:
        """Ends the threads, after the calls that are in."""
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join()


def _over(done: Callable[[Any], None], result: Any, begun: Callable[[], None] | None) -> None:
    if begun is not None:
        begun()
    done(result)


class ShortSizes:
    """Learned from runs: of a size that wasn't seen, or was long the last time, nothing is promised."""

    def __init__(self, limit: float = LIMIT_S) -> None:
        self._limit = limit
        self._plans: dict[tuple[int, ...], Plan] = {}

    def get(self, sizes: Mapping[str, int]) -> Plan | None:
        """The plan of these sizes, if their last run was short; sizes of every axis, in the manifest's order."""
        return self._plans.get((*sizes.values(),))

    def see(self, sizes: Mapping[str, int], took: float, plan: Plan) -> None:
        """A run of these sizes took so many seconds."""
        key = (*sizes.values(),)
        if took >= self._limit:
            self._plans.pop(key, None)
        elif key not in self._plans:
            if len(self._plans) >= _KEPT:
                self._plans.clear()
            self._plans[key] = plan


def rest(took: float) -> float:
    """Seconds without a run on the event loop behind one there that took so many: it does no more than
    half of its time, apart from what a thread would cost it anyway."""
    return max(0.0, took - _HAND_OVER_S)
