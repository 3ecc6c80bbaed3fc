"""Probes of the application."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

from tests.server.http.asgi import call, run, serving, tensor

INFER = "/v2/models/tiny/infer"


def test_health(tiny_bundle: Path) -> None:
    async def ask() -> None:
        async with serving(tiny_bundle, stuck_s=5.0) as app:
            model = app.repository.get("tiny")
            model.proven = False
            reply = await call(app, "GET", "/v2/health/ready")
            assert reply.status == 503 and "not ready yet: tiny" in reply.error
            reply = await call(app, "POST", INFER, tensor(1, 2, 3))
            assert reply.status == 503 and reply.headers["retry-after"] == "1"
            assert (await call(app, "GET", "/v2/health/live")).status == 200
            model.proven = True
            # A run that began an hour ago, by the model's clock.
            began, release = asyncio.Event(), threading.Event()
            loop = asyncio.get_running_loop()

            def block(*_: Any, **__: Any) -> Any:
                loop.call_soon_threadsafe(began.set)
                release.wait()
                raise RuntimeError("stuck no more")

            clock, model.clock = model.clock, lambda: clock() + 3600
            model.model.run, run_once = block, model.model.run  # type: ignore[method-assign]
            task = asyncio.create_task(call(app, "POST", INFER, tensor(1, 2, 3)))
            await began.wait()
            reply = await call(app, "GET", "/v2/health/live")
            assert reply.status == 503 and "has been running for" in reply.error
            release.set()
            assert (await task).status == 500
            model.model.run, model.clock = run_once, clock  # type: ignore[method-assign]
            app.draining = True
            reply = await call(app, "GET", "/v2/health/ready")
            assert (reply.status, reply.headers["connection"]) == (503, "close")
            assert (await call(app, "POST", INFER, tensor(1, 2, 3))).status == 200

    run(ask())


def test_probes_need_no_key(tiny_bundle: Path) -> None:
    async def ask() -> None:
        async with serving(tiny_bundle, keys=(b"12345678",)) as app:
            for path in ("/", "/health", "/healthz", "/ping", "/v2/health/ready"):
                assert (await call(app, "GET", path)).json == {"ready": True, "live": True}
                assert (await call(app, "HEAD", path)).status == 200
                assert (await call(app, "POST", path)).status == 401
            app.draining = True
            assert (await call(app, "GET", "/")).status == 503

    run(ask())
