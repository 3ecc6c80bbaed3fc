"""Eight requests in one run, of which one is bad: it fails alone, and the others are answered rightly."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from edgecompile.runtime import Model, open_bundle
from edgecompile.runtime.base.errors import NativeError
from edgecompile.server.http.app import App
from edgecompile.server.serving import Repository, ServedModel
from edgecompile.server.settings import Settings
from tests.server.http.asgi import Reply, call, run

INFER = "/v2/models/rows/infer"
#: Eight rows cost hardly more than one.
COSTS: dict[str, Any] = {
    "points": [
        [1, rows, length, ms * (1 + rows / 100)]
        for rows in (1, 8)
        for length, ms in ((4, 1.0), (512, 100.0))
    ],
    "rows": "independent",
    "padding": "proven",
}
#: The number in x that makes the fake of a failing kernel fail.
FATAL = 77.0
#: Of bodies with binary tensors; JSON may end with spaces.
HEAD = 400


def tensors(ids: list[int], x: list[float]) -> dict[str, Any]:
    """A body of …/infer that wants the output "sum"."""
    shape = [1, len(ids)]
    return {
        "inputs": [
            {"name": "ids", "datatype": "INT64", "shape": shape, "data": ids},
            {"name": "x", "datatype": "FP32", "shape": shape, "data": x},
        ],
        "outputs": [{"name": "sum"}],
    }


def not_a_number() -> bytes:
    """A body that begins with HEAD bytes of JSON; x, which has NaN in it, is a binary tensor."""
    document = tensors([1, 2, 3], [])
    del document["inputs"][1]["data"]
    document["inputs"][1]["parameters"] = {"binary_data_size": 12}
    x = np.array([0, np.nan, 1], np.float32)
    return json.dumps(document).encode().ljust(HEAD) + x.tobytes()


class Gate:
    """The model's runs wait until they may go on; the rows of each are noted. A fake kernel fails at FATAL."""

    def __init__(self, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open, self.rows = Event(), list[int]()
        run_model = model.run

        def wait(arrays: Any, **options: Any) -> Any:
            self.rows.append(len(arrays["x"]))
            self.open.wait()
            if FATAL in arrays["x"]:
                raise NativeError("a kernel failed")
            return run_model(arrays, **options)

        monkeypatch.setattr(model, "run", wait)


async def ask_together(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, bad: dict[str, Any] | bytes
) -> tuple[Reply, list[Reply], list[int]]:
    """The answers to the bad request and to seven good ones that wait beside it; the rows of all runs."""
    with open_bundle(bundle, threads=1) as plain:
        model = open_bundle(bundle, threads=1)
        served = ServedModel(model, "rows", costs=COSTS, clock=time.monotonic)
        served.proven = True
        app = App(Repository([served]), Settings())
        with monkeypatch.context() as patch:
            gate = Gate(model, patch)
            first = asyncio.create_task(call(app, "POST", INFER, tensors([1], [1.0])))
            await until(lambda: bool(gate.rows))
            bodies: list[Any] = [tensors([n, 9 - n, n], [n / 7, 0.5, -n]) for n in range(7)]
            bodies.insert(4, bad)
            length = {"Inference-Header-Content-Length": str(HEAD)}
            tasks = [
                asyncio.create_task(
                    call(app, "POST", INFER, body, length if isinstance(body, bytes) else {})
                )
                for body in bodies
            ]
            await until(lambda: served.scheduler.waiting + sum(task.done() for task in tasks) == 8)
            gate.open.set()
            replies = await asyncio.gather(*tasks)
            assert (await first).status == 200
            for reply, body in zip(replies, bodies, strict=True):
                if body is not bad:
                    check(reply, body, plain)
            assert (await call(app, "POST", INFER, tensors([1], [1.0]))).status == 200
        await served.close()
    return replies.pop(4), replies, gate.rows[1:-1]


def check(reply: Reply, body: dict[str, Any], model: Model) -> None:
    """It is what ``run`` gives for this request alone."""
    assert reply.status == 200
    ids, x = (item["data"] for item in body["inputs"])
    wanted = model.run({"ids": np.array([ids]), "x": np.array([x], np.float32)})["sum"]
    np.testing.assert_allclose(reply.json["outputs"][0]["data"], wanted.ravel(), atol=1e-5)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bad", "status", "message", "rows"),
    [
        (tensors([1, 10, 2], [0.0] * 3), 400, "outside 0..9", [7]),
        (tensors([1] * 513, [0.0] * 513), 400, "513", [7]),
        (tensors([1, 2, 3], [0.0, 3e38, 3e38]), 422, "NaN or infinities", [8]),
        (not_a_number(), 422, "NaN or infinities", [8]),
        (tensors([1, 2, 3], [FATAL, 0.0, 0.0]), 500, "a kernel failed", [8] + [1] * 8),
    ],
    ids=["an id out of bounds", "too long", "infinities", "NaN", "a run that fails"],
)
def test_one_of_eight_fails_alone(
    rows_bundle: Path,
    monkeypatch: pytest.MonkeyPatch,
    bad: dict[str, Any] | bytes,
    status: int,
    message: str,
    rows: list[int],
) -> None:
    reply, others, seen = run(ask_together(rows_bundle, monkeypatch, bad))
    assert (reply.status, message in reply.error) == (status, True), reply.body
    assert len(others) == 7 and seen == rows
