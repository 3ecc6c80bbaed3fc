"""Triton's extensions over HTTP: configurations, statistics, and what isn't done of them."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from edgecompile.runtime.base.errors import NativeError
from tests.generative import replace_files
from tests.server.http.asgi import call, run, serving, tensor

INFER = "/v2/models/tiny/infer"


def test_configuration_and_statistics_are_as_triton_s(tiny_bundle: Path) -> None:
    async def ask() -> None:
        async with serving(tiny_bundle) as app:
            found = (await call(app, "GET", "/v2/models/tiny/config")).json
            assert found["name"] == "tiny" and found["max_batch_size"] == 0
            assert found["input"][0] == {
                "name": "input_ids",
                "data_type": "TYPE_INT64",
                "dims": [-1, -1],
            }
            for ids in ((1, 2, 3), (4, 5), (6,)):
                assert (await call(app, "POST", INFER, tensor(*ids))).status == 200
            await call(app, "POST", INFER, tensor(*[1] * 33))
            version = app.repository.get("tiny").version
            for path in ("/v2/models/stats", f"/v2/models/tiny/versions/{version}/stats"):
                (found,) = (await call(app, "GET", path)).json["model_stats"]
                assert found["version"] == str(int(version, 16))
                assert (found["inference_count"], found["execution_count"]) == (3, 3)
                times = found["inference_stats"]
                assert times["success"]["count"] == times["queue"]["count"] == 3
                assert times["fail"]["count"] == 1
                assert times["success"]["ns"] >= times["compute_infer"]["ns"] > 0
                (batch,) = found["batch_stats"]
                assert (batch["batch_size"], batch["compute_infer"]["count"]) == (1, 3)
                assert abs(batch["compute_infer"]["ns"] - times["compute_infer"]["ns"]) <= 3
                assert abs(found["last_inference"] / 1e3 - time.time()) < 3600
            assert (await call(app, "GET", "/v2/models/other/stats")).status == 404

    run(ask())


def test_runs_that_fail_are_counted_as_such(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise NativeError("it broke")

    async def ask() -> None:
        async with serving(tiny_bundle) as app:
            assert (await call(app, "POST", INFER, tensor(1, 2, 3))).status == 200
            with monkeypatch.context() as broken:
                broken.setattr(app.repository.get("tiny").model, "run", fail)
                for _ in range(2):
                    assert (await call(app, "POST", INFER, tensor(1, 2, 3))).status == 500
            (found,) = (await call(app, "GET", "/v2/models/stats")).json["model_stats"]
            assert (found["inference_count"], found["execution_count"]) == (1, 1)
            times = found["inference_stats"]
            assert (times["success"]["count"], times["fail"]["count"]) == (1, 2)

    run(ask())


def test_statistics_without_a_version_are_those_of_all(tiny_bundle: Path, tmp_path: Path) -> None:
    other = tmp_path / "tiny.ecb"
    shutil.copytree(tiny_bundle, other, copy_function=os.link)
    document = json.loads((other / "manifest.json").read_bytes())
    document["built_by"] = {**document["built_by"], "edgecompile": "another"}
    replace_files(other, document, {})

    async def ask() -> None:
        async with serving(tiny_bundle, other) as app:
            await call(app, "POST", INFER, tensor(1, 2, 3))
            old, new = (await call(app, "GET", "/v2/models/tiny/stats")).json["model_stats"]
            assert old["version"] != new["version"]
            assert (old["inference_count"], new["inference_count"]) == (0, 1)
            for version, stats in zip(app.repository.versions("tiny"), (old, new), strict=True):
                path = f"/v2/models/tiny/versions/{version}/stats"
                assert (await call(app, "GET", path)).json["model_stats"] == [stats]

    run(ask())


@pytest.mark.parametrize("asked", [{"classification": 2}, {"shared_memory_region": "r"}])
def test_outputs_in_another_form_are_refused(tiny_bundle: Path, asked: dict[str, Any]) -> None:
    """A client would take the tensor for what it asked for."""

    async def ask() -> None:
        async with serving(tiny_bundle) as app:
            body = {**tensor(1, 2), "outputs": [{"name": "pooler_output", "parameters": asked}]}
            reply = await call(app, "POST", INFER, body)
            assert reply.status == 422 and f"{next(iter(asked))} isn't supported" in reply.error

    run(ask())


def test_the_index_lists_the_models(tiny_bundle: Path) -> None:
    path = "/v2/repository/index"

    async def ask() -> None:
        async with serving(tiny_bundle) as app:
            model = app.repository.get("tiny")
            entry = {"name": "tiny", "version": model.version, "state": "READY", "reason": ""}
            for body in (b"", {}, {"ready": True}):
                assert (await call(app, "POST", path, body)).json == [entry]
            reply = await call(app, "POST", path, {"ready": 1})
            assert reply.status == 400 and "ready must be true or false" in reply.error
            reply = await call(app, "POST", path, {"reddy": True})
            assert reply.status == 422 and "reddy isn't supported" in reply.error
            model.proven = False
            assert (await call(app, "POST", path, {"ready": True})).json == []
            (found,) = (await call(app, "POST", path)).json
            assert (found["state"], found["reason"]) == ("UNAVAILABLE", "it isn't ready")
            assert (await call(app, "GET", path)).status == 405

    run(ask())
