"""Runs that the event loop does itself: which ones, and that they are answered as all others are."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from edgecompile.runtime import Model
from edgecompile.runtime.base.errors import NativeError
from edgecompile.server.errors import DeadlineExceeded, ServerError
from edgecompile.server.schedule import threads
from edgecompile.server.schedule.threads import ShortSizes, rest
from tests.server.schedule.schedulers import Clock, draw, same, scheduling

PLAN = (1, 1, 0.5e-3)


def test_sizes_are_short_once_a_run_of_them_was() -> None:
    short = ShortSizes(1e-3)
    assert short.get({"batch": 1, "length": 8}) is None
    short.see({"batch": 1, "length": 8}, 0.5e-3, PLAN)
    short.see({"batch": 1, "length": 512}, 20e-3, PLAN)
    known = [short.get({"batch": 1, "length": length}) for length in (8, 9, 512)]
    assert known == [PLAN, None, None]
    short.see({"batch": 1, "length": 8}, 2e-3, PLAN)
    assert short.get({"batch": 1, "length": 8}) is None


def test_it_remembers_so_many_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_KEPT", 8)
    short = ShortSizes()
    for length in range(100):
        short.see({"length": length}, 0.0, PLAN)
        assert short.get({"length": length}) and len(short._plans) <= 8


def watch(model: Model, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each run is on the loop's own thread, as they come; a length of 5 fails."""
    here, run, loop = list[bool](), model.run, threading.current_thread()

    def watched(arrays: dict[str, Any], **options: Any) -> Any:
        here.append(threading.current_thread() is loop)
        if arrays["input_ids"].shape[1] == 5:
            raise NativeError("a length of 5")
        return run(arrays, **options)

    monkeypatch.setattr(model, "run", watched)
    return here


@pytest.mark.parametrize("costs", [True, False])
def test_a_short_run_that_nothing_waits_for_is_done_at_once(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch, costs: bool
) -> None:
    async def ask() -> None:
        # By this clock every run takes no time.
        async with scheduling(tiny_bundle, **({} if costs else {"costs": None})) as (model, queue):
            run = model.run
            here = watch(model, monkeypatch)
            for n in range(3):
                future = queue.submit(draw(n, 9))
                assert future.done() is (n > 0)
                same(await future, run(draw(n, 9)))
            assert here == [False, True, True]
            assert queue.waiting == 0 and queue.running_since is None
            await queue.submit(draw(0, 10))
            assert not here[-1], "this length wasn't seen before"
            for n in range(2):
                with pytest.raises(ServerError) as caught:
                    await queue.submit(draw(n, 5))
                assert caught.value.status == 500 and here[-1] is (n > 0)
            with pytest.raises(DeadlineExceeded):
                await queue.submit(draw(0, 9), deadline=1.0)
            same(await queue.submit(draw(7, 9)), run(draw(7, 9)))
            assert here[-1] and queue.traffic.snapshot()["runs"] == 5

    asyncio.run(ask())


def test_the_loop_runs_for_half_of_its_time(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask() -> None:
        clock = Clock()
        async with scheduling(tiny_bundle, clock, costs=None) as (model, queue):
            await queue.submit(draw(0, 9))
            run = model.run

            def slow(arrays: dict[str, Any], **options: Any) -> Any:
                clock.now += 0.5e-3
                return run(arrays, **options)

            monkeypatch.setattr(model, "run", slow)
            here = watch(model, monkeypatch)
            for pause in (0.0, 0.3e-3, 0.0, 0.4e-3):
                clock.now += pause
                await queue.submit(draw(1, 9))
            # A thread's run took as long, so the third one comes after the pause.
            assert here == [True, False, True, True]
            assert rest(0.1e-3) == 0.0

    asyncio.run(ask())


def test_a_batch_is_a_thread_s(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask() -> None:
        async with scheduling(tiny_bundle) as (model, queue):
            await queue.submit(draw(0, 9))
            here = watch(model, monkeypatch)
            await asyncio.gather(*queue.submit_all([draw(n, 9) for n in range(2)]))
            assert here == [False] and queue.batches == {1: 1, 2: 1}

    asyncio.run(ask())


def test_a_run_waits_for_cpus(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask() -> None:
        async with scheduling(tiny_bundle, Clock(), costs=None) as (model, queue):
            await queue.submit(draw(0, 9))
            here = watch(model, monkeypatch)
            queue.cores.free -= 1  # another model's run
            future = queue.submit(draw(1, 9))
            assert not future.done() and not here
            queue.cores.free += 1
            queue.cores.freed(lambda: None)
            assert future.done() and here == [True]

    asyncio.run(ask())


def test_a_run_that_takes_long_is_a_thread_s(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask() -> None:
        async with scheduling(tiny_bundle, time.monotonic, costs=None) as (model, queue):
            here, run = watch(model, monkeypatch), model.run

            def slow(arrays: dict[str, Any], **options: Any) -> Any:
                time.sleep(0.003)
                return run(arrays, **options)

            monkeypatch.setattr(model, "run", slow)
            for n in range(4):
                await queue.submit(draw(n, 9))
            assert here == [False] * 4

    asyncio.run(ask())
