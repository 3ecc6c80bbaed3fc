"""Triton's own client against a whole server: ``python -m edgecompile.server --grpc-port``."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgecompile.runtime import open_bundle
from tests.needs import need_variable

CLIENT = Path(__file__).parent / "triton_client.py"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def address(tiny_bundle: Path) -> Iterator[str]:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    command = [sys.executable, "-m", "edgecompile.server", f"tiny={tiny_bundle}", "--port", "0"]
    server = subprocess.Popen(
        [*command, "--grpc-port", str(port), "--json"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None and server.stdout.readline(), "the server ended"
        yield f"127.0.0.1:{port}"
        server.send_signal(signal.SIGTERM)
        assert server.wait() == 0
    finally:
        server.kill()
        server.wait()


@pytest.fixture(scope="module")
def told(address: str) -> dict[str, Any]:
    python = need_variable("EDGECOMPILE_CLIENTS_PYTHON")
    variables = {**os.environ, "no_proxy": "127.0.0.1"}
    done = subprocess.run(
        [python, str(CLIENT), address], capture_output=True, text=True, env=variables
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_it_is_told_what_there_is(told: dict[str, Any]) -> None:
    assert told["live"] and told["ready"] and told["model_ready"] == [True, False]
    assert told["server"]["name"] == "edgecompile"
    assert told["model"]["inputs"][0] == {
        "name": "input_ids", "datatype": "INT64", "shape": ["-1", "-1"]
    }  # fmt: skip


def test_it_reads_configuration_and_statistics(told: dict[str, Any]) -> None:
    config = told["config"]["config"]
    assert config["input"][0] == {
        "name": "input_ids", "data_type": "TYPE_INT64", "dims": ["-1", "-1"]
    }  # fmt: skip
    assert config["backend"] == "edgecompile" and config["output"][0]["data_type"] == "TYPE_FP32"
    (found,) = told["statistics"]["model_stats"]
    times = found["inference_stats"]
    count = str(len(told["answers"]) + len(told["texts"]))
    assert found["inference_count"] == times["success"]["count"] == count
    assert int(times["success"]["ns"]) >= int(times["compute_infer"]["ns"]) > 0


def test_its_answers_are_those_of_run(told: dict[str, Any], tiny_bundle: Path) -> None:
    with open_bundle(tiny_bundle) as model:
        for answer in told["answers"]:
            assert answer["id"] == "me"
            wanted = model.run({"input_ids": np.array([answer["row"]])})
            assert answer["outputs"].keys() == wanted.keys()
            for name, array in wanted.items():
                np.testing.assert_allclose(answer["outputs"][name], array, atol=1e-5)


def test_it_asks_for_texts(told: dict[str, Any], tiny_bundle: Path) -> None:
    with open_bundle(tiny_bundle) as model:
        wanted = model.encode_texts(["the cat sat", "the"])["pooler_output"]
    np.testing.assert_allclose(told["texts"], wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("wrong", "code", "words"),
    [
        ("model", "NOT_FOUND", "no model 'other'"),
        ("version", "NOT_FOUND", "no version '9'"),
        ("missing", "INVALID_ARGUMENT", "input_ids"),
        ("datatype", "INVALID_ARGUMENT", "input_ids"),
        ("output", "INVALID_ARGUMENT", "no output 'x'"),
        ("classes", "INVALID_ARGUMENT", "classification isn't supported"),
        ("vocabulary", "INVALID_ARGUMENT", "1000000000"),
    ],
)
def test_it_is_refused_with_the_right_code(
    told: dict[str, Any], wrong: str, code: str, words: str
) -> None:
    assert told["refusals"][wrong][0] == f"StatusCode.{code}"
    assert words in told["refusals"][wrong][1]
