"""What a server does once an assertion on the GPU has failed: that process never uses the GPU again."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from edgecompile.runtime import open_bundle
from edgecompile.server.http.app import App
from edgecompile.server.ray import Replica, read_options
from edgecompile.server.serving import Repository, ServedModel
from edgecompile.server.settings import Settings
from tests.fake_gpu.build import FakeCudart
from tests.fake_gpu.triton_bundle import DEVICE, TritonBundle
from tests.server.http import asgi
from tests.server.processes import INFER, serving


def tensors(*ids: int) -> dict[str, Any]:
    """A body of …/infer; ids from 100 on fail the kernel's assertion."""
    shape = {"shape": [1, len(ids)], "datatype": "INT64"}
    mask = {"name": "attention_mask", **shape, "data": [1] * len(ids)}
    return {"inputs": [{"name": "input_ids", **shape, "data": list(ids)}, mask]}


@pytest.fixture
def unchecked(triton_bundle: TritonBundle) -> Path:
    """A bundle whose inputs' bounds are wider than what its kernels take."""
    triton_bundle.bundle.document["inputs"][0]["bounds"] = [0, 1000]
    return Path(triton_bundle.write())


def served(driver: Path) -> dict[str, str]:
    """The environment of a server on the fake driver."""
    return {**os.environ, "EDGECOMPILE_CUDA_DRIVER": str(driver), "FAKE_CUDART_DEVICE": DEVICE}


def test_health_fails_and_requests_are_refused(fake_driver: FakeCudart, unchecked: Path) -> None:
    async def check() -> None:
        model = ServedModel(open_bundle(unchecked))
        model.proven = True
        app = App(Repository([model]), Settings())
        ask = asgi.call
        assert (await ask(app, "GET", "/v2/health/live")).status == 200
        assert (await ask(app, "POST", INFER, tensors(1, 2, 3))).status == 200
        failed = await ask(app, "POST", INFER, tensors(1, 100, 3))
        assert failed.status == 500 and "CUDA_ERROR_ASSERT (710)" in failed.error
        for path in ("/v2/health/live", "/v2/health/ready", "/health", "/v2/models/tiny/ready"):
            reply = await ask(app, "GET", path)
            assert reply.status == 503 and "CUDA_ERROR_ASSERT (710)" in reply.error, path
        refused = await ask(app, "POST", INFER, tensors(1, 2, 3))
        assert refused.status == 503 and refused.headers["retry-after"] == "1"
        await model.close()

    asyncio.run(check())
    fake_driver.reset()


def test_ray_replaces_the_replica(fake_driver: FakeCudart, unchecked: Path) -> None:
    async def check() -> None:
        replica = Replica(read_options({"bundle": str(unchecked), "threads": 1}))
        await replica.check_health()
        app = replica.__serve_build_asgi_app__()
        assert (await asgi.call(app, "POST", INFER, tensors(100))).status == 500
        with pytest.raises(RuntimeError, match=r"tiny: .*CUDA_ERROR_ASSERT \(710\)"):
            await replica.check_health()
        await replica._model.close()

    asyncio.run(check())
    fake_driver.reset()


@pytest.mark.parametrize("spare", ["none", "process", "models"])
def test_the_worker_is_replaced(fake_driver_path: Path, unchecked: Path, spare: str) -> None:
    with serving(unchecked, "--spare", spare, env=served(fake_driver_path)) as server:
        for death in range(2):
            while len(server.children()) < 1 + (spare != "none"):
                time.sleep(0.01)
            worker = server.workers()[0]
            status, answer = server.ask("POST", INFER, tensors(1, 100 + death, 3))
            assert status == 500 and "CUDA_ERROR_ASSERT (710)" in answer["error"]
            while worker in server.workers():
                time.sleep(0.01)
            # The next one answers once it has reproduced its golden vectors.
            assert server.ask("GET", "/v2/health/ready")[0] == 200
            assert server.ask("POST", INFER, tensors(1, 2, 3))[0] == 200
        assert server.end() == 0
        assert server.err.count("ended with 4") == 2
        assert "the worker ends: tiny: nothing runs on this GPU in this process" in server.err


@pytest.mark.slow
def test_a_request_that_breaks_the_gpu_again_and_again_is_refused(
    fake_driver_path: Path, unchecked: Path
) -> None:
    """Beside another client, whose request fails only if it runs in the moment of a death."""
    with serving(unchecked, env=served(fake_driver_path)) as server:
        stop, statuses = threading.Event(), list[int]()

        def ask() -> None:
            while not stop.is_set():
                try:
                    statuses.append(server.ask("POST", INFER, tensors(4, 5))[0])
                except (OSError, json.JSONDecodeError):
                    statuses.append(0)

        thread = threading.Thread(target=ask)
        thread.start()
        deadly = list[int]()
        while 422 not in deadly:
            deadly.append(server.ask("POST", INFER, tensors(1, 100, 3))[0])
            time.sleep(0.05)
        stop.set()
        thread.join()
        assert deadly.count(500) == 2 and set(deadly) <= {500, 503, 422}
        assert set(statuses) <= {200, 500, 503} and statuses.count(200) > 0
        assert statuses.count(500) <= 2
        assert server.ask("POST", INFER, tensors(4, 5))[0] == 200
        assert server.end() == 0 and server.err.count("ended with 4") == 2
