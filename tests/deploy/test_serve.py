"""examples/serve.py, the program of docs/containers.md that answers over HTTP."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from edgecompile.runtime import open_bundle
from edgecompile.runtime.store.disk import point
from tests.runtime.bundles import make_case
from tests.runtime.store.device import Device

PROGRAM = Path(__file__).resolve().parents[2] / "examples" / "serve.py"


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


def start(bundle: Path, *python: str) -> Server:
    """A server; ``python`` is the interpreter, and perhaps the bundle whose runtime it takes."""
    command = [*python, str(PROGRAM), str(bundle), "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
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
    started = start(bundle, device_python, str(bundle))
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
    assert server.ask("POST", "/run", **{"Content-Length": "two"})[0] == 400


def test_only_the_first_request_of_a_connection_is_read(server: Server) -> None:
    """So a body of unclear length can't be taken for a request."""
    request = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(request + request)
        told = b""
        while data := connection.recv(1 << 16):
            told += data
    assert told.count(b"HTTP/1.0 200") == 1


def test_texts_are_those_of_encode_texts(tiny_bundle: Path) -> None:
    pytest.importorskip("tokenizers")
    texts = ["the cat sat", "the"]
    server = start(tiny_bundle, sys.executable, str(tiny_bundle))
    try:
        status, told = server.run({"texts": texts})
    finally:
        server.process.kill()
        server.process.communicate()
    with open_bundle(tiny_bundle) as model:
        expected = model.encode_texts(texts)
    assert status == 200 and told.keys() == expected.keys()
    for name, arrays in expected.items():
        for found, array in zip(told[name], arrays, strict=True):
            np.testing.assert_allclose(np.array(found, array.dtype), array, atol=1e-5)


def test_a_request_that_has_begun_is_answered_before_the_end(
    bundle: Path, device_python: str
) -> None:
    server = start(bundle, device_python, str(bundle))
    body = b'{"input_ids": [[1, 5, 2]]}'
    with socket.create_connection(("127.0.0.1", server.port)) as busy:
        busy.sendall(b"POST /run HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body))
        assert server.ask("GET", "/healthz")[0] == 200  # so the one before it was accepted
        server.process.send_signal(signal.SIGTERM)
        busy.sendall(body)
        told = b""
        while data := busy.recv(1 << 16):
            told += data
    assert b" 200 " in told, told
    _, err = server.process.communicate()
    assert server.process.returncode == 0 and "Traceback" not in err


def test_a_new_version_serves_from_a_signal_on(tmp_path: Path) -> None:
    device, link = Device(tmp_path), tmp_path / "current"
    inputs = {name: array.tolist() for name, array in make_case(7)[0].items()}
    point(str(link), str(device.release(1, answer=1)))
    server = start(link, sys.executable)
    try:
        assert server.run(inputs)[1]["embedding"] == [[1.0] * 4]
        point(str(link), str(device.release(2, answer=2)))
        server.process.send_signal(signal.SIGHUP)
        while server.run(inputs)[1]["embedding"] != [[2.0] * 4]:
            assert server.process.poll() is None
    finally:
        server.process.kill()
        server.process.communicate()
