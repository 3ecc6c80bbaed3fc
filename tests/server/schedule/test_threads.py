"""Threads that run models, without a model."""

from __future__ import annotations

import asyncio

from edgecompile.server.schedule.threads import Threads


def test_what_should_follow_is_led_where_nothing_is_left_to_follow() -> None:
    """A call that ended before the loop knew of the one to follow it."""
    seen: list[str] = []

    async def follow() -> None:
        threads = Threads(1)
        over = asyncio.Event()
        threads.run(lambda: 1, lambda _: (seen.append("first"), over.set()))
        await over.wait()
        over.clear()
        threads.follow(
            lambda: 2, lambda _: (seen.append("second"), over.set()), lambda: seen.append("begun")
        )
        await asyncio.sleep(0.05)
        assert seen == ["first"]
        assert threads.lead() and not threads.lead()
        await over.wait()
        threads.close()

    asyncio.run(follow())
    assert seen == ["first", "begun", "second"]
