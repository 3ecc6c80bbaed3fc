"""The application on a real bundle, spoken to as a server does: every route, every refusal."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgecompile.runtime import open_bundle
from edgecompile.runtime.errors import MemoryLimitError
from edgecompile.server.http import metrics
from edgecompile.server.http.app import App
from edgecompile.server.serving import Repository, ServedModel
from edgecompile.server.settings import Limits, Settings
from tests.server.http.asgi import call, run, serving, tensor

INFER = "/v2/models/tiny/infer"
EMBEDDINGS = "/v1/embeddings"
EMBEDDED = {"input": "a", "model": "tiny"}


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


def test_texts_through_every_protocol_are_one_answer(tiny_bundle: Path) -> None:
    texts = ["the cat sat", "the"]
    with open_bundle(tiny_bundle) as model:
        wanted = model.encode_texts(texts)["pooler_output"]
    unit = wanted / np.linalg.norm(wanted, axis=1, keepdims=True)

    async def ask() -> None:
        async with serving(tiny_bundle) as app:
            reply = await call(app, "POST", "/embed", {"inputs": texts})
            np.testing.assert_allclose(reply.json, unit, atol=1e-5)
            reply = await call(app, "POST", "/embed", {"inputs": texts, "normalize": False})
            np.testing.assert_allclose(reply.json, wanted, atol=1e-5)
            reply = await call(app, "POST", "/embed", {"inputs": texts[0], "dimensions": 4})
            short = wanted[:1, :4] / np.linalg.norm(wanted[:1, :4])
            np.testing.assert_allclose(reply.json, short, atol=1e-5)

            body: dict[str, Any] = {"model": "tiny", "input": texts}
            reply = await call(app, "POST", "/v1/embeddings", body)
            found = [item["embedding"] for item in reply.json["data"]]
            np.testing.assert_allclose(found, wanted, atol=1e-5)
            count = reply.json["usage"]["prompt_tokens"]
            assert count > 2 and [item["index"] for item in reply.json["data"]] == [0, 1]
            reply = await call(app, "POST", "/v1/embeddings", {**body, "dimensions": 4})
            found = [item["embedding"] for item in reply.json["data"]]
            short = wanted[:, :4] / np.linalg.norm(wanted[:, :4], axis=1, keepdims=True)
            np.testing.assert_allclose(found, short, atol=1e-5)
            body["encoding_format"] = "base64"
            reply = await call(app, "POST", "/v1/embeddings", {**body, "dimensions": 4})
            data = [base64.b64decode(item["embedding"]) for item in reply.json["data"]]
            np.testing.assert_allclose(np.frombuffer(data[1], np.float32), short[1], atol=1e-5)
            reply = await call(app, "POST", "/v1/embeddings", body)
            data = [base64.b64decode(item["embedding"]) for item in reply.json["data"]]
            np.testing.assert_allclose(np.frombuffer(data[1], np.float32), wanted[1], atol=1e-5)
            # The same as token ids.
            ids = app.repository.get("tiny").encoder().tokenize(texts)
            given = [list(item.ids) for item in ids]
            reply = await call(app, "POST", "/v1/embeddings", {"model": "tiny", "input": given})
            found = [item["embedding"] for item in reply.json["data"]]
            np.testing.assert_allclose(found, wanted, atol=1e-5)
            assert reply.json["usage"]["prompt_tokens"] == count

            entry = {"name": "text", "datatype": "BYTES", "shape": [2], "data": texts}
            body = {"inputs": [entry], "outputs": [{"name": "pooler_output"}]}
            reply = await call(app, "POST", INFER, body)
            found = np.array(reply.json["outputs"][0]["data"]).reshape(2, -1)
            np.testing.assert_allclose(found, wanted, atol=1e-5)

    run(ask())


def test_what_the_server_says_of_itself(tiny_bundle: Path, decoder_bundle: Path) -> None:
    async def ask() -> None:
        async with serving(tiny_bundle, decoder_bundle) as app:
            version = app.repository.get("tiny").version
            for path in ("/v2", "/v2/"):
                assert (await call(app, "GET", path)).json["extensions"] == [
                    "binary_tensor_data",
                    "parameters",
                    "model_configuration",
                    "schedule_policy",
                    "statistics",
                ]
            for path in ("/v2/models/tiny", f"/v2/models/tiny/versions/{version}"):
                found = (await call(app, "GET", path)).json
                assert found["versions"] == [version]
                assert found["inputs"][0] == {
                    "name": "input_ids",
                    "datatype": "INT64",
                    "shape": [-1, -1],
                }
            found = (await call(app, "GET", "/v2/models/tiny/ready")).json
            assert found == {"name": "tiny", "ready": True}
            models = (await call(app, "GET", "/v1/models")).json["data"]
            assert [item["id"] for item in models] == [m.name for m in app.repository]
            for item in models:
                assert (await call(app, "GET", f"/v1/models/{item['id']}")).json == item
            reply = await call(app, "GET", "/v1/models/other")
            assert reply.status == 404 and reply.json["error"]["type"] == "invalid_request_error"
            assert "no model 'other'" in reply.error
            assert (await call(app, "POST", "/v1/models/tiny")).status == 405
            for path in ("/v1/models/", "/v1/models/tiny/ready"):
                assert (await call(app, "GET", path)).status == 404
            found = (await call(app, "GET", "/info")).json
            assert found["model_id"] == found["served_model_name"] == "tiny"
            assert found["model_type"] == {"embedding": {"pooling": None}}
            assert found["model_dtype"] == "float32" and found["auto_truncate"]
            document = (await call(app, "GET", "/openapi.json")).json
            known = {path.replace("/versions/{version}", "") for path in document["paths"]}
            assert known == set(app._routes)

    run(ask())


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"),
    [
        ("GET", "/nothing", b"", 404, "nothing at"),
        ("GET", "/", b"", 404, "nothing at"),
        ("GET", "//v2", b"", 404, "nothing at"),
        ("GET", "/v2/models/%7Bmodel%7D", b"", 404, "{model}"),
        ("GET", "/v1/models/%7Bmodel%7D", b"", 404, "{model}"),
        ("GET", "/v2/../v2", b"", 404, "nothing at"),
        ("GET", "/v2/%00", b"", 404, "nothing at"),
        ("GET", "/v2/models/%ff", b"", 400, "UTF-8"),
        ("GET", "/v2/models/%F0%9F%90%88", b"", 404, "no model"),
        ("GET", "/v2/models/..%2F..", b"", 404, "no model"),
        ("GET", "/v2/models/tiny/versions/9", b"", 404, "no version"),
        ("GET", INFER, b"", 405, "takes POST"),
        ("DELETE", "/v2/models/tiny", b"", 405, "takes GET"),
        ("POST", "/v2/models/x/infer", tensor(1), 404, "no model"),
        ("POST", INFER, b"{", 400, "isn't JSON"),
        ("POST", INFER, tensor(1, 2, name="x"), 400, "x"),
        ("POST", INFER, tensor(1, 400), 400, "outside 0..39"),
        ("POST", INFER, tensor(-1, 2), 400, "outside 0..39"),
        ("POST", INFER, tensor(*[1] * 33), 400, "33"),
        ("POST", INFER, tensor(1, 2, shape=[0, 2], data=[]), 400, "batch"),
        ("POST", INFER, tensor(1, 2, shape=[1, 0], data=[]), 400, "length"),
        ("POST", INFER, tensor(1, shape=[10_000, 1], data=[1] * 10_000), 400, "10000"),
        ("POST", INFER, tensor(1, 2, datatype="FP32"), 400, "input_ids"),
        ("POST", INFER, {**tensor(1, 2, 3), "outputs": [{"name": "y"}]}, 400, "no output"),
        (
            "POST",
            INFER,
            {**tensor(1, 2, 3), "outputs": [{"name": "pooler_output"}] * 2},
            400,
            "twice",
        ),
        (
            "POST",
            INFER,
            {"inputs": [*tensor(1, 2)["inputs"], *tensor(1, name="attention_mask")["inputs"]]},
            400,
            "attention_mask",
        ),
        ("POST", INFER, {"input": []}, 400, "inputs is missing"),
        ("POST", "/embed", {"inputs": []}, 400, "empty"),
        ("POST", "/embed", {"input": "a"}, 400, "inputs is missing"),
        ("POST", "/predict", {"input": "a"}, 400, "inputs is missing"),
        ("POST", "/rerank", {"texts": ["a"]}, 400, "query is missing"),
        ("POST", "/rerank", {"query": "a", "text": ["a"]}, 400, "texts is missing"),
        ("POST", "/v1/embeddings", {"inputs": "a", "model": "tiny"}, 400, "input is missing"),
        ("POST", "/v1/completions", {"messages": [], "model": "tiny"}, 400, "prompt is missing"),
        ("POST", "/v1/chat/completions", {"prompt": "a"}, 400, "messages is missing"),
        ("POST", "/embed", {"inputs": ["a"] * 9}, 413, "the limit is 8"),
        ("POST", "/embed", {"inputs": {"a": 1}}, 400, "must be a text"),
        ("POST", "/embed", {"inputs": [["a"]]}, 400, "token ids"),
        ("POST", "/embed", {"inputs": [400]}, 400, "outside 0..39"),
        ("POST", "/embed", {"inputs": [[1] * 33]}, 400, "33"),
        ("POST", "/embed", {"inputs": "a", "dimensions": 0}, 400, "dimensions"),
        ("POST", "/embed", {"inputs": "a", "dimensions": 17}, 400, "has 16"),
        ("POST", "/embed", {"inputs": "a", "prompt_name": "x"}, 400, "no prompt"),
        ("POST", "/embed", {"inputs": ["a", [1]], "prompt_name": "x"}, 422, "token ids"),
        ("POST", "/embed", {"inputs": "a", "truncation_direction": "Left"}, 422, "at their end"),
        ("POST", "/embed", {"inputs": "the " * 99, "truncate": False}, 400, "tokens"),
        ("POST", "/embed", b'{"inputs": "\\ud800"}', 400, ""),
        ("POST", "/predict", {"inputs": "a"}, 422, "no scores"),
        ("POST", "/rerank", {"query": "a", "texts": ["b"]}, 422, "no scores"),
        ("POST", "/rerank", {"query": "a", "texts": []}, 400, "at least one"),
        ("POST", "/v1/embeddings", {"input": "a"}, 400, "model is missing"),
        ("POST", "/v1/embeddings", {"input": "a", "model": 5}, 400, "model must be"),
        ("POST", "/v1/embeddings", {"input": "a", "model": "x"}, 404, "no model"),
        (
            "POST",
            "/v1/embeddings",
            {"input": "a", "model": "tiny", "encoding_format": "x"},
            400,
            "base64",
        ),
        ("POST", EMBEDDINGS, {**EMBEDDED, "dimensions": 0}, 400, "must be an integer in 1.."),
        ("POST", EMBEDDINGS, {**EMBEDDED, "dimensions": "4"}, 400, "dimensions is '4', must be"),
        ("POST", EMBEDDINGS, {**EMBEDDED, "dimensions": 17}, 400, "has 16"),
        ("POST", EMBEDDINGS, {**EMBEDDED, "dimensions": 65537}, 400, "must be an integer in 1.."),
        ("POST", EMBEDDINGS, {**EMBEDDED, "dimensions": 4.0}, 400, "must be an integer in 1.."),
        ("POST", "/v1/completions", {"prompt": "a", "model": "tiny"}, 422, "not a language model"),
    ],
)
def test_refusals(
    tiny_bundle: Path, method: str, path: str, body: Any, status: int, message: str
) -> None:
    async def ask() -> None:
        async with serving(tiny_bundle, limits=Limits(texts=8)) as app:
            reply = await call(app, method, path, body)
            assert (reply.status, message in reply.error) == (status, True), reply.body
            assert (await call(app, "POST", INFER, tensor(1, 2, 3))).status == 200

    run(ask())


def test_keys(tiny_bundle: Path) -> None:
    async def ask() -> None:
        async with serving(tiny_bundle, keys=(b"first-key", b"second-key")) as app:
            for given in (None, "Bearer x", "Bearer ", "Basic first-key", "Bearer " + "x" * 9000):
                headers = {} if given is None else {"Authorization": given}
                reply = await call(app, "POST", INFER, tensor(1, 2, 3), headers)
                assert reply.status == 401 and reply.headers["www-authenticate"] == "Bearer"
            for key in ("first-key", "second-key"):
                headers = {"authorization": f"bearer {key}"}
                assert (await call(app, "POST", INFER, tensor(1, 2, 3), headers)).status == 200
            for path in ("/v2/health/live", "/v2/health/ready", "/health", "/metrics"):
                assert (await call(app, "GET", path)).status == 200
            assert (await call(app, "GET", "/openapi.json")).status == 401

    run(ask())


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
            release = asyncio.Event()
            clock, model.clock = model.clock, lambda: clock() + 3600
            model.model.run, run_once = (lambda *a, **k: _block(release)), model.model.run  # type: ignore[method-assign]
            task = asyncio.create_task(call(app, "POST", INFER, tensor(1, 2, 3)))
            await asyncio.sleep(0.05)
            reply = await call(app, "GET", "/v2/health/live")
            assert reply.status == 503 and "has been running for" in reply.error
            release.set()
            assert (await task).status == 500
            model.model.run, model.clock = run_once, clock  # type: ignore[method-assign]
            app.draining = True
            reply = await call(app, "GET", "/v2/health/ready")
            assert (reply.status, reply.headers["connection"]) == (503, "close")
            assert (await call(app, "POST", INFER, tensor(1, 2, 3))).status == 200

    def _block(release: asyncio.Event) -> Any:

        while not release.is_set():
            time.sleep(0.01)
        raise RuntimeError("stuck no more")

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


def test_counts_are_the_client_s(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_MOST_PENDING", 2)
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus-client")

    async def ask() -> None:
        async with serving(tiny_bundle) as app:
            for _ in range(3):
                await call(app, "POST", INFER, tensor(1, 2, 3))
            await call(app, "POST", INFER, b"x")
            await call(app, "POST", INFER, tensor(*[1] * 33))
            await call(app, "GET", "/nothing")
            text = (await call(app, "GET", "/metrics")).body.decode()
            found = {
                (sample.name, *sorted(sample.labels.items())): sample.value
                for family in parser.text_string_to_metric_families(text)
                for sample in family.samples
            }
            route = ("route", "/v2/models/{model}/infer")
            name = "edgecompile_requests_total"
            assert found[name, route, ("status", "200")] == 3
            assert found[name, route, ("status", "400")] == 2
            assert found[name, ("route", "unknown"), ("status", "404")] == 1
            assert found["edgecompile_refused_total", ("model", "tiny")] == 1
            assert found["edgecompile_run_seconds_count", ("model", "tiny")] == 3
            assert found["edgecompile_batch_rows_sum", ("model", "tiny")] == 3
            assert found[("edgecompile_requests_in_flight",)] == 1

    run(ask())


def test_the_drift_of_lengths_is_a_metric(tiny_bundle: Path) -> None:
    """Lengths from 3 to 7 were planned for, alike often; without a plan there is nothing to be told."""
    planned = {"length_percentiles": [3, 4, 5, 6, 7]}

    async def ask() -> None:
        model = open_bundle(tiny_bundle)
        served = ServedModel(model, costs=planned)
        served.proven = True
        app = App(Repository([served]), Settings())
        for drift, ids in ((None, []), (0.75, [1] * 7), (0.5, [1] * 3)):
            if ids:
                assert (await call(app, "POST", INFER, tensor(*ids))).status == 200
            text = (await call(app, "GET", "/metrics")).body.decode()
            found = re.findall(r'^edgecompile_length_drift\{model="tiny"\} (.*)$', text, re.M)
            assert [float(item) for item in found] == ([] if drift is None else [drift])
        await served.close()
        async with serving(tiny_bundle) as plain:
            assert (await call(plain, "POST", INFER, tensor(1, 2, 3))).status == 200
            assert b"length_drift{" not in (await call(plain, "GET", "/metrics")).body

    run(ask())
