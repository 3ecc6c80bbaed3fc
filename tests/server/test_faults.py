"""What befalls a server from outside: no memory, a full disk, a frozen worker, a crowd of slow clients."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgecompile.runtime import open_bundle
from tests.server.http.asgi import tensor
from tests.server.processes import INFER, Load, Server, customized, freeze, serving

pytestmark = pytest.mark.slow

MIB = 1 << 20


def ask_rows(server: Server, rows: int, length: int) -> tuple[int, bytes]:
    """Status and body of a request with binary tensors to the model of rows."""
    ids = np.arange(rows * length).reshape(rows, length) % 10
    arrays: dict[str, tuple[str, np.ndarray]] = {
        "ids": ("INT64", ids),
        "x": ("FP32", (ids / 10).astype(np.float32)),
    }
    entries = [
        {
            "name": name,
            "shape": array.shape,
            "datatype": datatype,
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, (datatype, array) in arrays.items()
    ]
    asked = {"inputs": entries, "parameters": {"binary_data_output": True}}
    head = json.dumps(asked).encode()
    body = head + b"".join(array.tobytes() for _, array in arrays.values())
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    headers = {"Inference-Header-Content-Length": str(len(head))}
    connection.request("POST", "/v2/models/rows/infer", body, headers)
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def test_a_run_that_gets_no_memory(rows_bundle: Path) -> None:
    """The outputs of the large request take 8 MiB; the worker may have 2 MiB more than it has."""
    # Arrays of some size are given back to the system, and have to be had from it again.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(128 << 10)}
    with serving(f"rows={rows_bundle}", "--threads", "1", env=environment) as server:
        (worker,) = server.workers()
        small, large = ask_rows(server, 1, 9), ask_rows(server, 8, 512)
        assert small[0] == large[0] == 200 and len(large[1]) > 8 * MIB
        pages = int(Path(f"/proc/{worker}/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + 2 * MIB
        resource.prlimit(worker, resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))
        for _ in range(3):
            status, refusal = ask_rows(server, 8, 512)
            assert status == 503 and b"isn't the memory for this request" in refusal
            assert ask_rows(server, 1, 9) == small
        assert server.ask("GET", "/v2/health/live")[0] == 200
        unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.prlimit(worker, resource.RLIMIT_AS, unlimited)
        assert ask_rows(server, 8, 512) == large
        assert server.workers() == [worker] and server.end() == 0


@pytest.mark.parametrize("more", [0, 2 * MIB, 20 * MIB])
def test_a_body_that_gets_no_memory(rows_bundle: Path, more: int) -> None:
    """It isn't called a bad one: the answer is 503, or none where there is no memory for that either."""
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(128 << 10)}
    numbers = json.dumps(tensor(*[1] * 2_000_000)).encode()
    with serving(f"rows={rows_bundle}", "--threads", "1", env=environment) as server:
        (worker,) = server.workers()
        small = ask_rows(server, 1, 9)
        pages = int(Path(f"/proc/{worker}/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + more
        resource.prlimit(worker, resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))
        for body in (numbers, bytes(15_000_000), b"{}" + b" " * 15_000_000):
            connection = http.client.HTTPConnection("127.0.0.1", server.port)
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection.request("POST", "/v2/models/rows/infer", body)
                answer = connection.getresponse()
                assert answer.status == 503 and b"isn't the memory" in answer.read()
            connection.close()
            assert ask_rows(server, 1, 9) == small
        assert server.workers() == [worker] and server.end() == 0


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A file system of 64 KiB in memory at ``folder``; skips where this user may not mount one."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("this user may not mount a file system")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


#: Statistics are written 20 times in a second.
OFTEN = """
from edgecompile.server.schedule.request_counts import RequestCounts
schedule = RequestCounts.schedule
RequestCounts.schedule = lambda self, path, every: schedule(self, path, 0.05)
"""


def test_a_full_disk_stops_nothing(tiny_bundle: Path, tmp_path: Path) -> None:
    environment = customized(tmp_path, OFTEN)
    disk, stats = tmp_path / "disk", tmp_path / "disk" / "stats.json"

    def runs() -> int:
        return int(json.loads(stats.read_text())["runs"])

    with (
        small_disk(disk),
        serving(tiny_bundle, "--stats", stats, env=environment) as server,
        Load(server.port, tiny_bundle) as load,
    ):
        while not stats.exists():
            load.wait(10)
        with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(512))
        load.wait(100)  # what was being written has ended
        before = runs()
        time.sleep(0.5)
        load.wait(200)
        assert runs() == before
        (disk / "filler").unlink()
        while runs() == before:
            load.wait(10)
        load.stop()
        assert not load.lost and not load.wrong and set(load.statuses) == {200}
        assert server.end() == 0
        assert server.err.count("the statistics are counted on, but") == 1
        assert "No space left on device" in server.err
        assert server.err.count("the statistics are written again") == 1
        assert runs() == load.answered


def test_a_worker_that_freezes_for_a_while(tiny_bundle: Path) -> None:
    """Nobody is answered meanwhile, the sign of life neither; then it goes on as if nothing had been."""
    with serving(tiny_bundle) as server, Load(server.port, tiny_bundle) as load:
        workers = server.workers()
        load.wait(50)
        freeze(workers[0])
        frozen = time.monotonic()
        for _ in range(2):
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=1)
            connection.request("GET", "/v2/health/live")
            with pytest.raises(TimeoutError):
                connection.getresponse()
            connection.close()
        time.sleep(max(0.0, frozen + 5 - time.monotonic()))
        os.kill(workers[0], signal.SIGCONT)
        assert server.ask("GET", "/v2/health/live")[0] == 200
        load.wait(50)
        load.stop()
        assert not load.lost and not load.wrong and set(load.statuses) == {200}
        assert server.workers() == workers and server.end() == 0


def test_who_waits_for_a_frozen_worker_is_answered_by_the_next(tiny_bundle: Path) -> None:
    """Nothing had begun: the worker is killed before it has taken any of these connections."""
    with serving(tiny_bundle) as server, open_bundle(tiny_bundle) as model:
        (worker,) = server.workers()
        freeze(worker)
        clients = []
        for n in range(40):
            client = http.client.HTTPConnection("127.0.0.1", server.port)
            client.request("POST", INFER, json.dumps(tensor(1 + n % 39, 1 + n // 2, 3)))
            clients.append(client)
        os.kill(worker, signal.SIGKILL)
        for n, client in enumerate(clients):
            answer = client.getresponse()
            assert answer.status == 200
            outputs = {item["name"]: item for item in json.loads(answer.read())["outputs"]}
            wanted = model.run({"input_ids": np.array([[1 + n % 39, 1 + n // 2, 3]])})
            found = outputs["pooler_output"]["data"]
            np.testing.assert_allclose(found, wanted["pooler_output"].ravel(), atol=1e-5)
            client.close()
        assert worker not in server.workers() and server.end() == 0


def test_slow_clients_do_not_slow_others(tiny_bundle: Path) -> None:
    """Of ten clients, beside 500 who never finish their headers and without them, in turn."""

    def p99(port: int) -> float:
        with Load(port, tiny_bundle, clients=10) as load:
            load.wait(300)
        assert not load.lost and not load.wrong and set(load.statuses) == {200}
        return float(np.percentile(load.seconds, 99))

    with serving(tiny_bundle, "--header-timeout", "600") as server:
        alone, beside = [], []
        for _ in range(3):
            alone.append(p99(server.port))
            slow = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(500)]
            for client in slow:
                client.sendall(b"POST " + INFER.encode() + b" HTTP/1.1\r\nHost: x\r\nContent-Len")
            beside.append(p99(server.port))
            for client in slow:
                client.close()
        # The least of one and the most of the other: machines have moments of their own.
        assert min(beside) < 2 * max(alone)
        assert server.end() == 0
