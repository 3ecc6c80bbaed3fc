"""Tensors through …/infer on a real bundle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgecompile.runtime.base.errors import MemoryLimitError
from tests.server.http.asgi import call, run, serving, tensor

INFER = "/v2/models/tiny/infer"


def test_infer_gives_what_run_gives(tiny_bundle: Path) -> None:
    async def ask() -> None:
        async with serving(tiny_bundle) as app:
            model = app.repository.get("tiny")
            wanted = model.model.run({"input_ids": np.array([[5, 6, 7, 8]])})
            body = {**tensor(5, 6, 7, 8), "id": "me", "outputs": [{"name": "pooler_output"}]}
            reply = await call(app, "POST", INFER, body)
            assert reply.status == 200 and float(reply.headers["x-inference-time"]) > 0
            (output,) = reply.json["outputs"]
            assert (reply.json["id"], output["name"]) == ("me", "pooler_output")
            assert reply.json["model_version"] == model.version
            found = np.array(output["data"], np.float32).reshape(output["shape"])
            np.testing.assert_allclose(found, wanted["pooler_output"], atol=1e-5)

            ids = np.array([[5, 6, 7, 8]])
            entry = {"name": "input_ids", "shape": [1, 4], "datatype": "INT64"}
            entry["parameters"] = {"binary_data_size": ids.nbytes}
            asked = {"inputs": [entry], "parameters": {"binary_data_output": True}}
            head = json.dumps(asked).encode()
            name = "Inference-Header-Content-Length"
            path = f"/v2/models/tiny/versions/{model.version}/infer"
            reply = await call(app, "POST", path, head + ids.tobytes(), {name: str(len(head))})
            assert reply.status == 200
            assert reply.headers["content-type"] == "application/octet-stream"
            length = int(reply.headers[name.lower()])
            at = length
            for output in json.loads(reply.body[:length])["outputs"]:
                size = output["parameters"]["binary_data_size"]
                found = np.frombuffer(reply.body[at : at + size], np.float32)
                np.testing.assert_allclose(found, wanted[output["name"]].ravel(), atol=1e-5)
                at += size
            assert at == len(reply.body)

    run(ask())


def test_parameters_may_be_null(tiny_bundle: Path) -> None:
    async def ask() -> None:
        async with serving(tiny_bundle) as app:
            nothing = {"priority": None, "timeout": None, "binary_data_output": None}
            reply = await call(app, "POST", INFER, {**tensor(1, 2, 3), "parameters": nothing})
            assert reply.status == 200

    run(ask())


def test_a_run_without_memory_is_to_be_asked_again(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise MemoryLimitError("no memory")

    async def ask() -> None:
        async with serving(tiny_bundle) as app:
            with monkeypatch.context() as without:
                without.setattr(app.repository.get("tiny").model, "run", fail)
                reply = await call(app, "POST", INFER, tensor(1, 2, 3))
            assert reply.status == 503 and reply.headers["retry-after"] == "1"
            assert (await call(app, "POST", INFER, tensor(1, 2, 3))).status == 200

    run(ask())
