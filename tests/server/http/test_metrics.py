"""/metrics of an application that answered requests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from edgecompile.runtime import open_bundle
from edgecompile.server.http import metrics
from edgecompile.server.http.app import App
from edgecompile.server.serving import Repository, ServedModel
from edgecompile.server.settings import Settings
from tests.server.http.asgi import call, run, serving, tensor

INFER = "/v2/models/tiny/infer"


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
