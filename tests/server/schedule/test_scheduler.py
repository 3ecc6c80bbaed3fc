"""The scheduler over a real bundle, with costs that are given and a clock of its own."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from threading import Semaphore
from typing import Any, cast

import numpy as np
import pytest

from edgecompile.runtime import Model, open_bundle
from edgecompile.runtime.base.errors import NativeError
from edgecompile.runtime.format.manifest.schema import TensorSpec
from edgecompile.server.errors import (
    BadRequest,
    DeadlineExceeded,
    Draining,
    Overloaded,
    ServerError,
)
from edgecompile.server.schedule.batches import Batches
from edgecompile.server.schedule.scheduler import Scheduler
from edgecompile.server.schedule.simulate import POLICIES
from edgecompile.server.schedule.streams import Cores
from tests.server.schedule.schedulers import (
    COSTS,
    PLAN,
    Clock,
    Held,
    draw,
    inputs,
    same,
    scheduling,
)


@pytest.mark.parametrize("policy", list(POLICIES))
def test_answers_are_those_of_run_whatever_they_ran_with(tiny_bundle: Path, policy: str) -> None:
    async def ask() -> None:
        async with scheduling(tiny_bundle, policy=policy) as (model, scheduler):
            requests = [draw(n, 3 + n * 7 % 29) for n in range(24)]
            futures = scheduler.submit_all(requests)
            for request, answer in zip(requests, await asyncio.gather(*futures), strict=True):
                same(answer, model.run(request))
            rows = sum(rows * count for rows, count in scheduler.batches.items())
            assert rows == 24 and scheduler.waiting == 0 and scheduler.running_since is None
            if policy == "by-cost":
                assert scheduler.batches.keys() >= {2}

    asyncio.run(ask())


def test_requests_of_several_rows_and_left_out_masks(tiny_bundle: Path) -> None:
    async def ask() -> None:
        async with scheduling(tiny_bundle) as (model, scheduler):
            double = inputs(7, 8, 9, 10, rows=2)
            bare = {"input_ids": np.array([[5, 6, 7]], np.int64)}
            answers = await asyncio.gather(*map(scheduler.submit, [double, bare, draw(1, 9)]))
            for request, answer in zip([double, bare, draw(1, 9)], answers, strict=True):
                same(answer, model.run(request))

    asyncio.run(ask())


def test_lengths_are_not_mixed_without_proof(tiny_bundle: Path) -> None:
    async def ask() -> None:
        costs = {key: value for key, value in COSTS.items() if key != "padding"}
        async with scheduling(tiny_bundle, costs=costs) as (model, scheduler):
            assert not Batches(model.manifest, costs).mixes and Batches(model.manifest, PLAN).mixes
            answers = await asyncio.gather(
                *scheduler.submit_all([draw(n, 4 + n % 2) for n in range(8)])
            )
            for n, answer in enumerate(answers):
                same(answer, model.run(draw(n, 4 + n % 2)))

    asyncio.run(ask())


def test_the_culprit_fails_alone(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask() -> None:
        async with scheduling(tiny_bundle) as (model, scheduler):
            run, runs = model.run, []

            def fail(arrays: dict[str, Any], **options: Any) -> Any:
                runs.append(len(arrays["input_ids"]))
                if 29 in arrays["input_ids"]:
                    raise NativeError("it is the 29")
                return run(arrays, **options)

            monkeypatch.setattr(model, "run", fail)
            requests = [inputs(5, 6, 7), inputs(5, 29, 7)]
            good, bad = await asyncio.gather(
                *scheduler.submit_all(requests), return_exceptions=True
            )
            same(good, run(requests[0]))
            assert isinstance(bad, ServerError) and bad.status == 500
            assert sorted(runs) == [1, 1, 2]
            same(await scheduler.submit(inputs(8, 9, 10)), run(inputs(8, 9, 10)))

    asyncio.run(ask())


def test_who_has_gone_is_not_run(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask() -> None:
        async with scheduling(tiny_bundle) as (model, scheduler):
            with Held(model, monkeypatch) as held:
                first, *others = scheduler.submit_all([draw(n, 9 + 9 * n) for n in range(3)])
                await asyncio.sleep(0)
                under_way = len(scheduler._queue.running)
                waiting = [future for future in others if not future.done()]
                assert under_way >= 1 and scheduler.waiting >= 1
                for future in [first, *waiting]:
                    future.cancel()
                await asyncio.sleep(0)
                assert scheduler.waiting == 0
                held.go.set()
        assert len(held.runs) == under_way

    asyncio.run(ask())


def test_deadlines(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask() -> None:
        clock = Clock()
        async with scheduling(tiny_bundle, clock, slo=0.025) as (model, scheduler):
            with Held(model, monkeypatch) as held:
                with pytest.raises(DeadlineExceeded, match=r"takes .* ms here"):
                    scheduler.submit(draw(0, 32), deadline=clock.now + 0.005)
                running = scheduler.submit(draw(0, 32))
                waiting = scheduler.submit(draw(1, 32))
                with pytest.raises(Overloaded, match="too late") as caught:
                    scheduler.submit_all([draw(2, 32)] * 2)
                assert caught.value.retry_after is not None and caught.value.retry_after < 1
                assert scheduler.backlog > 0
                # Later than the deadline: the run's thread may have begun or not, and tells how fast the machine is.
                clock.now += 0.03
                held.go.set()
                await running
                with pytest.raises(DeadlineExceeded, match="any more"):
                    await waiting
                assert scheduler.traffic.snapshot()["refused"] == 4

    asyncio.run(ask())


def test_refusals(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask() -> None:
        async with scheduling(tiny_bundle, queue=2) as (model, scheduler):
            with Held(model, monkeypatch) as held:
                with pytest.raises(BadRequest, match="input_ids"):
                    scheduler.submit(inputs(10**6))
                with pytest.raises(BadRequest, match="no bucket"):
                    scheduler.submit(draw(0, 33))
                futures = [scheduler.submit(draw(0, 3)), scheduler.submit(draw(1, 3))]
                futures += scheduler.submit_all([draw(0, 3)] * 3)
                assert (scheduler.requests, scheduler.waiting) == (2, 4)
                with pytest.raises(Overloaded, match="the limit is 2"):
                    scheduler.submit(draw(5, 3))
                held.go.set()
                await asyncio.gather(*futures)
                assert scheduler.traffic.snapshot()["outside"] == {"33": 1}
                await scheduler.close()
                with pytest.raises(Draining):
                    scheduler.submit(draw(0, 3))

    asyncio.run(ask())


def test_without_costs_requests_run_one_by_one(tiny_bundle: Path) -> None:
    async def ask() -> None:
        async with scheduling(tiny_bundle, costs=None) as (_model, scheduler):
            assert scheduler.streams is None
            answers = await asyncio.gather(*scheduler.submit_all([draw(n, 9) for n in range(5)]))
            assert scheduler.batches == {1: 5} and [a.batch for a in answers] == [1] * 5
            with pytest.raises(DeadlineExceeded):
                await scheduler.submit(draw(0, 3), deadline=1.0)

    asyncio.run(ask())


def test_rows_that_are_compared_with_each_other_are_not_joined(tiny_bundle: Path) -> None:
    """An output [batch, batch] would show a client how its rows are to another client's."""
    with open_bundle(tiny_bundle) as model:
        manifest = model.manifest
    assert Batches(manifest, PLAN).joins
    rows = manifest.inputs[0].shape[0]
    similarity = TensorSpec("similarity", "float32", (rows, rows))
    compared = manifest._replace(outputs=(*manifest.outputs, similarity))
    layout = Batches(compared, PLAN)
    assert not layout.joins and not layout.mixes


@pytest.mark.parametrize("rows", ["mixed", None])
def test_rows_are_joined_only_where_they_are_known_to_be_independent(
    tiny_bundle: Path, rows: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    async def ask() -> None:
        async with scheduling(tiny_bundle, costs={**COSTS, "rows": rows}) as (model, scheduler):
            requests = [draw(n, 9) for n in range(8)]
            answers = await asyncio.gather(*scheduler.submit_all(requests))
            for request, answer in zip(requests, answers, strict=True):
                same(answer, model.run(request))
            assert scheduler.batches == {1: 8} and scheduler.streams is None

    asyncio.run(ask())
    assert "requests run one by one" in caplog.text


def test_costs_of_this_machine_leave_the_rest_of_the_plan(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``bench --serving`` measures, and says nothing of padding and traffic."""

    async def ask() -> None:
        with open_bundle(tiny_bundle, threads=1, concurrency=4) as model:
            built = {**PLAN, "length_percentiles": [9] * 101}
            monkeypatch.setitem(cast("dict[str, Any]", model.manifest.plan), "server", built)
            for costs, division in (({"points": COSTS["points"]}, True), (None, False)):
                # One that was built where nothing could be measured has no points.
                scheduler = Scheduler(model, costs=costs)
                assert (scheduler.streams is not None) is division and scheduler._layout.mixes
                same(await scheduler.submit(draw(1, 9)), model.run(draw(1, 9)))
                assert scheduler.traffic.drift == 0.0
                await scheduler.close()

    asyncio.run(ask())


@pytest.mark.parametrize("costs", [COSTS, None])
def test_models_share_the_cpus(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch, costs: dict[str, Any] | None
) -> None:
    """Of runs side by side there are never more threads than CPUs, and each model takes its turn."""

    async def ask() -> None:
        cores = Cores(2)
        options: dict[str, Any] = {"costs": costs, "cores": cores, "clock": time.monotonic}
        async with (
            scheduling(tiny_bundle, **options) as (one, first),
            scheduling(tiny_bundle, **options) as (other, second),
        ):
            order, used = list[Model](), list[int]()
            for model in (one, other):

                def run(arrays: Any, threads: int, model: Any = model, run: Any = model.run) -> Any:
                    order.append(model)
                    used.append(cores.count - cores.free)
                    return run(arrays, threads=threads)

                monkeypatch.setattr(model, "run", run)
            requests = [draw(n, 3 + n) for n in range(12)]
            futures = [*first.submit_all(requests), *second.submit_all(requests)]
            answers = await asyncio.gather(*futures)
            for request, answer in zip(requests * 2, answers, strict=True):
                same(answer, one.run(request, threads=1))
            assert max(used) <= 2 and cores.free == 2
            assert order.index(other) <= 3  # it does not wait until the first one has ended

    asyncio.run(ask())


def test_a_deadline_passes_while_others_run(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask() -> None:
        async with scheduling(tiny_bundle, costs=None, clock=time.monotonic) as (model, scheduler):
            with Held(model, monkeypatch) as held:
                running = scheduler.submit(draw(0, 9))
                late = scheduler.submit(draw(1, 9), deadline=time.monotonic() + 0.02)
                with pytest.raises(DeadlineExceeded):
                    await late  # nothing has ended
                assert not running.done() and scheduler.waiting == 0
                held.go.set()
                same(await running, model.run(draw(0, 9)))
        assert len(held.runs) == 2

    asyncio.run(ask())


@pytest.mark.parametrize("shared", [False, True])
def test_a_run_follows_another_without_the_loop(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    """Four runs at once, one that follows whichever ends first, one that waits; no batches."""
    costs = {**COSTS, "points": [[1, 1, 3, 1.0], [1, 1, 32, 10.0]]}
    begun, go = Semaphore(0), Semaphore(0)

    async def ask() -> None:
        with open_bundle(tiny_bundle, threads=4, concurrency=4) as model:
            requests = [draw(n, 3 + n) for n in range(6)]
            wanted = [model.run(request) for request in requests]
            run = model.run

            def held(arrays: dict[str, Any], **options: Any) -> Any:
                begun.release()
                go.acquire()
                return run(arrays, **options)

            monkeypatch.setattr(model, "run", held)
            clock, cores = Clock(), Cores(4)
            if shared:
                cores.share(Clock().__call__)
            scheduler = Scheduler(model, clock=clock, costs=costs, cores=cores)
            futures = [scheduler.submit(request) for request in requests]
            try:
                assert scheduler.waiting == (2 if shared else 1) and cores.free == 0
                for _ in range(4):
                    begun.acquire()
                go.release()
                # The loop does nothing meanwhile.
                assert begun.acquire(timeout=0.2 if shared else None) is not shared
                assert cores.free == 0
            finally:
                go.release(5)
            for answer, each in zip(await asyncio.gather(*futures), wanted, strict=True):
                same(answer, each)
            assert scheduler.batches == {1: 6} and cores.free == 4
            await scheduler.close()

    asyncio.run(ask())
