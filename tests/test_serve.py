"""examples/serve.py, the program of docs/containers.md that answers over HTTP."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from edgecompile.runtime import open_bundle

PROGRAM = Path(__file__).resolve().parents[1] / "examples" / "serve.py"


class Server(NamedTuple):
    process: subprocess.Popen[str]
    port: int

    def ask(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, dict[str, Any]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        told = json.loads(answer.read())
        connection.close()
        return answer.status, told

    def run(self, inputs: object) -> tuple[int, dict[str, Any]]:
        return self.ask("POST", "/run", json.dumps(inputs).encode())


def start(bundle: Path, python: str) -> Server:
    process = subprocess.Popen(
        [python, str(PROGRAM), str(bundle), "0"],
        env={**os.environ, "PYTHONPATH": str(bundle / "runtime"), "PYTHONDONTWRITEBYTECODE": "1"},
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    line = process.stderr.readline()
    assert " on port " in line, line + process.stderr.read()
    return Server(process, int(line.split()[-1]))


@pytest.fixture(scope="module")
def bundle(request: pytest.FixtureRequest) -> Path:
    given = os.environ.get("EDGECOMPILE_TEST_BUNDLE")
    return Path(given) if given else request.getfixturevalue("tiny_bundle")


@pytest.fixture(scope="module")
def server(bundle: Path, device_python: str) -> Iterator[Server]:
    started = start(bundle, device_python)
    yield started
    started.process.kill()
    started.process.communicate()


def test_outputs_are_those_of_the_model(server: Server, bundle: Path) -> None:
    ids = np.array([[1, 5, 6, 2]])
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    status, told = server.run({name: array.tolist() for name, array in inputs.items()})
    assert status == 200
    with open_bundle(str(bundle)) as model:
        expected = model.run(inputs)
    assert told.keys() == expected.keys()
    for name, array in expected.items():
        # Python writes a float so that the same one is read again.
        np.testing.assert_array_equal(np.array(told[name], array.dtype), array)


@pytest.mark.parametrize(
    ("inputs", "part"),
    [
        ({"attention_mask": [[1, 1]]}, "input_ids"),
        ({"input_ids": [[1.5, 5.0]], "attention_mask": [[1, 1]]}, "input_ids"),
        ({"input_ids": [[1, 5], [1]], "attention_mask": [[1, 1]]}, "input_ids"),
        ({"input_ids": [[-1, 5]], "attention_mask": [[1, 1]]}, "input_ids"),
        ({"input_ids": [["a"]], "attention_mask": [[1]]}, "input_ids"),
        ([1], "JSON object"),
    ],
)
def test_wrong_inputs_are_refused_with_the_reason(
    server: Server, inputs: object, part: str
) -> None:
    status, told = server.run(inputs)
    assert status == 400 and part in told["error"]


def test_what_isn_t_json(server: Server) -> None:
    assert server.ask("POST", "/run", b"{")[0] == 400
    assert server.ask("POST", "/run", b"[" * 100000)[0] == 400
    assert server.ask("POST", "/run", b"\xff")[0] == 400


def test_other_addresses_and_sizes(server: Server, bundle: Path) -> None:
    name = json.loads((bundle / "manifest.json").read_text())["name"]
    assert server.ask("GET", "/healthz") == (200, {"bundle": name})
    assert server.ask("GET", "/")[0] == 404
    assert server.ask("POST", "/elsewhere", b"{}")[0] == 404
    assert server.ask("POST", "/run", **{"Content-Length": str(1 << 30)})[0] == 413
    assert server.ask("POST", "/run", **{"Transfer-Encoding": "chunked"})[0] == 413


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(bundle: Path, device_python: str, number: signal.Signals) -> None:
    server = start(bundle, device_python)
    assert server.ask("GET", "/healthz")[0] == 200
    server.process.send_signal(number)
    _, err = server.process.communicate()
    assert server.process.returncode == 0
    assert "Traceback" not in err
