"""Deadlines over HTTP: what can't be in time is refused, and Retry-After says when it can."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from edgecompile.runtime import open_bundle
from edgecompile.server.http.app import App
from edgecompile.server.serving import Repository, ServedModel
from edgecompile.server.settings import Settings
from tests.server.http.asgi import call, run, tensor
from tests.server.schedule.schedulers import Clock, Held

INFER = "/v2/models/tiny/infer"
#: On the one CPU a request of 3 tokens takes a millisecond, and one of 32 takes 1.5 s.
COSTS: dict[str, Any] = {
    "points": [[1, 1, 3, 1.0], [1, 1, 32, 1500.0]],
    "rows": "independent",
    "padding": "proven",
    "length_percentiles": [3, 3, 3, 3, 32],
}
#: Milliseconds.
ALLOWED = 50


@asynccontextmanager
async def planned(bundle: Path, clock: Clock, slo: bool) -> AsyncIterator[tuple[App, ServedModel]]:
    """A server of one CPU whose costs and clock are given."""
    model = open_bundle(bundle, threads=1, concurrency=1)
    served = ServedModel(model, costs=COSTS, clock=clock)
    served.proven = True
    yield (
        App(Repository([served]), Settings(slo_s=ALLOWED / 1e3 if slo else None, token_ids=True)),
        served,
    )
    await served.close()


def timed(milliseconds: int | None, *ids: int) -> dict[str, Any]:
    """A body with a deadline, or with the server's."""
    parameters = {} if milliseconds is None else {"timeout": milliseconds * 1000}
    return {**tensor(*ids), "parameters": parameters}


@pytest.mark.parametrize("slo", [False, True], ids=["timeout", "slo"])
def test_asked_again_after_retry_after_it_is_taken(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch, slo: bool
) -> None:
    short = timed(None if slo else ALLOWED, 1, 2, 3)

    async def ask() -> None:
        clock = Clock()
        async with planned(tiny_bundle, clock, slo) as (app, served):
            assert (await call(app, "POST", INFER, short)).status == 200
            with Held(served.model, monkeypatch) as held:
                body = timed(60_000, *[1] * 32)
                long = asyncio.ensure_future(call(app, "POST", INFER, body))
                while not held.runs:
                    await asyncio.sleep(0.001)
                began = clock.now
                reply = await call(app, "POST", INFER, short)
                assert reply.status == 429 and "too late" in reply.error
                assert reply.headers["retry-after"] == "2"
                if slo:
                    embed = {"inputs": "the"}
                    for path in ("/embed", "/v1/embeddings"):
                        body = {"model": "tiny", "input": "the"} if "v1" in path else embed
                        reply = await call(app, "POST", path, body)
                        assert (reply.status, reply.headers["retry-after"]) == (429, "2")
                clock.now = began + 1
                reply = await call(app, "POST", INFER, short)
                assert (reply.status, reply.headers["retry-after"]) == (429, "1")
                assert not long.done() and len(held.runs) == 1
                clock.now = began + 1.5
                held.go.set()
                assert (await long).status == 200
            clock.now = began + 2
            assert (await call(app, "POST", INFER, short)).status == 200
            if slo:
                assert (await call(app, "POST", "/embed", embed)).status == 200

    run(ask())


def test_a_deadline_may_be_far_away(tiny_bundle: Path) -> None:
    """The longest that the protocol's integers say: 292,000 years."""

    async def ask() -> None:
        async with planned(tiny_bundle, Clock(), True) as (app, _):
            body = {**tensor(1, 2, 3), "parameters": {"timeout": 2**63 - 1}}
            many = [call(app, "POST", INFER, body) for _ in range(8)]
            assert {reply.status for reply in await asyncio.gather(*many)} == {200}

    run(ask())


@pytest.mark.parametrize("slo", [False, True], ids=["timeout", "slo"])
def test_what_an_idle_server_is_too_slow_for_is_504(tiny_bundle: Path, slo: bool) -> None:
    allowed = None if slo else ALLOWED

    async def ask() -> None:
        async with planned(tiny_bundle, Clock(), slo) as (app, served):
            for _ in range(2):
                reply = await call(app, "POST", INFER, timed(allowed, *[1] * 32))
                assert reply.status == 504 and "takes 1.5e+03 ms here" in reply.error
                assert "retry-after" not in reply.headers
            assert not served.scheduler.batches
            assert (await call(app, "POST", INFER, timed(allowed, 1, 2, 3))).status == 200

    run(ask())


def test_a_list_that_an_idle_server_is_too_slow_for_is_504(tiny_bundle: Path) -> None:
    """Each of its texts alone would be in time."""

    async def ask() -> None:
        async with planned(tiny_bundle, Clock(), True) as (app, served):
            for count, status in ((1, 200), (32, 200), (200, 504), (1, 200)):
                ran = sum(served.scheduler.batches.values())
                reply = await call(app, "POST", "/embed", {"inputs": [[1, 2, 3]] * count})
                assert reply.status == status, reply.body
                if status == 504:
                    assert "what came with it" in reply.error
                    assert "retry-after" not in reply.headers
                    assert sum(served.scheduler.batches.values()) == ran

    run(ask())
