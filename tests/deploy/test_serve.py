"""examples/serve.py, the program of docs/containers.md that answers over HTTP."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from edgecompile.runtime import open_bundle

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


def start(bundle: Path, python: str, *options: str) -> Server:
    # A busy machine may let a request, or its answer, wait for longer than a client may in earnest.
    options = ("--patience", "1e6", *options)
    process = subprocess.Popen(
        [python, str(bundle), str(PROGRAM), str(bundle), "--port", "0", *options],
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
    assert server.ask("PUT", "/run", b"{}")[0] == 405
    assert server.ask("GET", "/run") == (405, {"error": "/run takes POST"})
    assert server.ask("POST", "/run", **{"Content-Length": str(1 << 30)})[0] == 413
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("HEAD", "/healthz")
    answer = connection.getresponse()
    assert (answer.status, answer.read()) == (200, b"")
    connection.close()


def exchange(server: Server, *parts: bytes) -> bytes:
    """All that the server answers to what is sent, until it closes the connection."""
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        for part in parts:
            connection.sendall(part)
        told = b""
        while data := connection.recv(1 << 16):
            told += data
        return told


BEGIN = b"POST /run HTTP/1.1\r\nHost: x\r\n"
SMUGGLED = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
LAST = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ("Content-Length: 5\r\nTransfer-Encoding: chunked", 501),
        ("Transfer-Encoding: chunked", 501),
        ("Content-Length: 2\r\nContent-Length: 40", 400),
        ("Content-Length: \u00b2", 400),
        ("Content-Length: +2", 400),
        ("Content-Length: -1", 400),
        ("Content-Length: 2, 2", 400),
        ("Content-Length: 1_0", 400),
        ("X: y", 411),
        ("Content-Length: 99999999999", 413),
        ("X" * 70000, 431),
        ("Content-Length: 2\r\nX : y\r\nTransfer-Encoding: chunked", 400),
        ("Content-Length: 2\r\n: y\r\nTransfer-Encoding: chunked", 400),
        ("A: b\rContent-Length: 2", 400),
        ("Content-Length: 2\r\r\nA: b", 400),
    ],
)
def test_a_body_of_unclear_length_ends_the_connection(
    server: Server, headers: str, status: int
) -> None:
    request = BEGIN + headers.encode("latin-1") + b"\r\n\r\n"
    told = exchange(server, request + (b"" if status == 431 else b"{}" + SMUGGLED))
    assert told.startswith(b"HTTP/1.1 %d " % status), told
    assert told.count(b"HTTP/1.1") == 1 and b"Connection: close" in told
    assert json.loads(told.partition(b"\r\n\r\n")[2])["error"]


@pytest.mark.parametrize("line", [b"X : y\r\n", b"X\r\n", b"X: y\r", b": y\r\n"])
def test_a_body_behind_a_malformed_header_is_no_request(server: Server, line: bytes) -> None:
    """Its length is in a header that the parser drops, or finds where others see none."""
    length = b"Content-Length: %d\r\n\r\n" % len(LAST)
    told = exchange(server, b"GET /healthz HTTP/1.1\r\n" + line + length + LAST)
    assert told.startswith(b"HTTP/1.1 400 ") and told.count(b"HTTP/1.1") == 1, told


def test_numbers_that_json_lacks(server: Server) -> None:
    status, told = server.ask("POST", "/run", b'{"input_ids": [[NaN]]}')
    assert status == 400 and "NaN isn't JSON" in told["error"]


def test_texts_where_the_bundle_has_a_tokenizer(server: Server) -> None:
    status, told = server.run({"texts": ["a b", "c"]})
    assert status in (200, 400, 500), "the bundle decides"
    assert status == 200 or "token" in told["error"]


def test_texts_are_those_of_encode_texts(tiny_bundle: Path) -> None:
    pytest.importorskip("tokenizers")
    texts = ["the cat sat", "the"]
    server = start(tiny_bundle, sys.executable)
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


def test_many_connections_at_once_are_all_answered(server: Server) -> None:
    """All are made before one is accepted: a short queue of the listening socket refuses some."""
    with contextlib.ExitStack() as stack:
        server.process.send_signal(signal.SIGSTOP)
        stack.callback(server.process.send_signal, signal.SIGCONT)
        os.waitid(os.P_PID, server.process.pid, os.WSTOPPED)
        open_ones = []
        for _ in range(200):
            connection = stack.enter_context(socket.socket())
            # The kernel asks twice, then connect() raises TimeoutError.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_SYNCNT, 1)
            connection.connect(("127.0.0.1", server.port))
            open_ones.append(connection)
        server.process.send_signal(signal.SIGCONT)
        for connection in open_ones:
            connection.sendall(LAST)
        assert [connection.recv(12) for connection in open_ones] == [b"HTTP/1.1 200"] * 200


def test_more_connections_than_it_takes_are_told_so(bundle: Path, device_python: str) -> None:
    server = start(bundle, device_python, "--connections", "1")
    try:
        with socket.create_connection(("127.0.0.1", server.port)) as first:
            first.sendall(SMUGGLED)
            assert first.recv(12) == b"HTTP/1.1 200"
            assert exchange(server).startswith(b"HTTP/1.1 503 ")
    finally:
        server.process.kill()
        server.process.communicate()


def test_a_client_that_sends_byte_by_byte_is_let_go() -> None:
    """Each byte comes in time, the request never does: its whole has a deadline."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        reader = runpy.run_path(str(PROGRAM))["Timed"](ours)
        reader.deadline = time.monotonic() + 0.2
        theirs.sendall(b"ab")
        assert reader.readinto(bytearray(1)) == 1
        with pytest.raises(TimeoutError):
            while True:
                theirs.sendall(b"x")
                assert reader.readinto(bytearray(1)) == 1


def test_a_thread_that_cannot_be_started_takes_no_slot() -> None:
    server = runpy.run_path(str(PROGRAM))["Server"](("127.0.0.1", 0), None, 1)
    size = threading.stack_size(1 << 60)  # more than a process can address
    try:
        with socket.create_connection(server.server_address) as connection:
            server.handle_request()
            assert connection.recv(1) == b""
        threading.stack_size(size)
        with socket.create_connection(server.server_address) as connection:
            connection.sendall(LAST.replace(b"/healthz", b"/"))
            server.handle_request()
            assert connection.recv(12) == b"HTTP/1.1 404"
    finally:
        threading.stack_size(size)
        server.socket.close()


def test_an_answer_is_one_segment(server: Server) -> None:
    """Headers and body in two writes wait for an acknowledgement, 40 ms of a kept connection."""
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        for _ in range(3):
            connection.sendall(SMUGGLED)
            told = connection.recv(1 << 16)
            assert told.startswith(b"HTTP/1.1 200") and told.endswith(b"}"), told


def test_it_listens_to_this_machine_alone_unless_told(bundle: Path, device_python: str) -> None:
    done = subprocess.run(
        [device_python, str(bundle), str(PROGRAM), "--help"], capture_output=True, text=True
    )
    assert done.returncode == 0 and "--host" in done.stdout
    server = start(bundle, device_python)
    try:
        listening = Path(f"/proc/{server.process.pid}/net/tcp").read_text()
        assert f" 0100007F:{server.port:04X} 00000000:0000 0A" in listening
    finally:
        server.process.kill()
        server.process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(bundle: Path, device_python: str, number: signal.Signals) -> None:
    server = start(bundle, device_python)
    assert server.ask("GET", "/healthz")[0] == 200
    server.process.send_signal(number)
    _, err = server.process.communicate()
    assert server.process.returncode == 0
    assert "Traceback" not in err


def test_a_request_that_has_begun_is_answered_before_the_end(
    bundle: Path, device_python: str
) -> None:
    server = start(bundle, device_python)
    body = b'{"input_ids": [[1, 5, 2]]}'
    address = ("127.0.0.1", server.port)
    with socket.create_connection(address) as busy, socket.create_connection(address) as idle:
        idle.sendall(SMUGGLED)
        assert idle.recv(1 << 16).startswith(b"HTTP/1.1 200")
        busy.sendall(BEGIN + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body))
        assert busy.recv(1 << 16).startswith(b"HTTP/1.1 100")
        server.process.send_signal(signal.SIGTERM)
        assert idle.recv(1) == b""
        busy.sendall(body)
        told = b""
        while data := busy.recv(1 << 16):
            told += data
    assert told.startswith(b"HTTP/1.1 200") and b"Connection: close" in told, told
    _, err = server.process.communicate()
    assert server.process.returncode == 0
    assert "timed out" not in err, "the idle connection was waited for"
