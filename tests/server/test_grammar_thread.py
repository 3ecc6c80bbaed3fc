"""The thread that reads grammars: none that takes too long holds up the end of the server, or anybody for ever."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from edgecompile.server.errors import NotReady, Unprocessable
from edgecompile.server.grammar_thread import GrammarThread


@pytest.fixture
def go_on() -> Iterator[threading.Event]:
    """Lets calls end that wait for it, at the latest behind the test."""
    event = threading.Event()
    yield event
    event.set()


def fail() -> None:
    raise ValueError("no")


async def begin(thread: GrammarThread, go_on: threading.Event) -> asyncio.Task[bool]:
    """A call that has begun, and ends with the event."""
    begun = threading.Event()

    def wait() -> bool:
        begun.set()
        return go_on.wait()

    task = asyncio.create_task(thread.run(wait))
    while not begun.is_set():
        await asyncio.sleep(0)
    return task


def test_results_and_errors_come_back(go_on: threading.Event) -> None:
    async def ask() -> None:
        thread = GrammarThread()
        assert await thread.run(lambda: 3) == 3
        with pytest.raises(ValueError, match="no"):
            await thread.run(fail)
        assert await thread.run(lambda: 4) == 4
        thread.close()

    asyncio.run(ask())


def test_what_takes_too_long_is_refused_and_so_are_those_behind_it(go_on: threading.Event) -> None:
    async def ask() -> None:
        thread = GrammarThread(limit=0.01)
        while True:
            try:
                await thread.run(go_on.wait)
            except NotReady:  # it hadn't begun yet, and never will
                continue
            except Unprocessable as error:
                assert "takes over 0.01 s" in error.message
                break
        ran: list[int] = []
        for _ in range(3):
            with pytest.raises(NotReady, match="other grammars") as caught:
                await thread.run(lambda: ran.append(1))
            assert caught.value.retry_after
        thread.close()
        assert not ran

    asyncio.run(ask())


def test_those_behind_one_wait_for_no_longer_than_the_limit(go_on: threading.Event) -> None:
    async def ask() -> None:
        now, ran = [0.0], list[int]()
        thread = GrammarThread(limit=30, clock=lambda: now[0])
        first = await begin(thread, go_on)
        gone = asyncio.create_task(thread.run(lambda: ran.append(1)))
        second = asyncio.create_task(thread.run(lambda: ran.append(2)))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.wait([gone])
        now[0] = 31
        with pytest.raises(NotReady):
            await thread.run(lambda: ran.append(3))
        go_on.set()
        assert await first
        await second
        assert ran == [2], "a client who went away costs nothing"
        thread.close()

    asyncio.run(ask())


def test_the_end_waits_for_none(go_on: threading.Event) -> None:
    async def ask() -> None:
        thread, ran = GrammarThread(), list[int]()
        first = await begin(thread, go_on)
        second = asyncio.create_task(thread.run(lambda: ran.append(1)))
        await asyncio.sleep(0)
        thread.close()
        await asyncio.wait([second])
        assert second.cancelled() and not first.done()
        go_on.set()
        assert await first and not ran

    asyncio.run(ask())
