"""The supervisor and its worker as processes: started, killed, hung, swapped and ended, under load."""

from __future__ import annotations

import http.client
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.server.http.asgi import tensor
from tests.server.processes import (
    INFER,
    DrainDelay,
    Load,
    check_inference,
    customized,
    freeze,
    serving,
    waits,
    write_costs,
)


@pytest.mark.parametrize("words", [["edgecompile.server"], ["edgecompile", "serve"]])
def test_it_serves_until_it_is_told_to_end(tiny_bundle: Path, words: list[str]) -> None:
    with serving(f"mine={tiny_bundle}", words=words) as server:
        assert server.ask("GET", "/v2/health/ready")[0] == 200
        answer = check_inference(server, tiny_bundle, "/v2/models/mine/infer")
        assert answer["model_name"] == "mine"
        (worker,) = server.workers()
        assert server.end() == 0
        assert not Path(f"/proc/{worker}").exists()
        with pytest.raises(ConnectionRefusedError):
            server.ask("GET", "/v2")


def test_what_is_wrong_is_told_before_anything_serves(tiny_bundle: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# none\n")
    stats = tmp_path / "stats-{pid}.json"
    damaged = tmp_path / "damaged.ecb"
    shutil.copytree(tiny_bundle, damaged)
    (damaged / "weights.fp32").write_bytes(b"x") if (damaged / "weights.fp32").exists() else (
        damaged / "manifest.json"
    ).write_text("{}")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for arguments, code, message in (
            (["absent.ecb", "--slo", "-1"], 24, "--slo is -1.0"),
            (["absent.ecb"], 24, "absent.ecb isn't a bundle's folder"),
            ([tiny_bundle, "--max-queue", "0"], 24, "--max-queue is 0, must be over 0"),
            ([tiny_bundle, "--idle-timeout", "0"], 24, "--idle-timeout is 0.0, must be over 0"),
            ([tiny_bundle, "--drain-delay", "-1"], 24, "--drain-delay is -1.0, must be from 0 on"),
            ([tiny_bundle, "--host", "", "--port", "0"], 24, "--host is empty"),
            ([tiny_bundle, "--host", "host.invalid", "--port", "0"], 50, "hint: see --host"),
            (["--help"], 0, "(default: 1024)"),
            (
                [f"a={tiny_bundle}", f"b={tiny_bundle}", "--port", "0", "--stats", stats],
                3,
                "two models would write the same file",
            ),
            ([tiny_bundle, "--api-keys", keys], 24, "holds no key"),
            ([tiny_bundle, "--port", port], 50, f"can't listen on 127.0.0.1 port {port}"),
            ([damaged, "--port", "0"], 3, "error: "),
        ):
            command = [sys.executable, "-m", "edgecompile.server", *map(str, arguments)]
            done = subprocess.run(command, capture_output=True, text=True)
            told = done.stdout + done.stderr
            assert (done.returncode, message in told) == (code, True), told


def test_costs_of_another_build_are_named(tiny_bundle: Path, tmp_path: Path) -> None:
    own, other = tmp_path / "own.json", tmp_path / "other.json"
    write_costs(own, tiny_bundle, COSTS)
    other.write_text(json.dumps({**COSTS, "manifest_sha256": "0" * 64}))
    options = ("--costs", own, "--costs", other, "--spare", "none")
    with serving(tiny_bundle, *options) as server:
        assert server.end() == 0
    assert f"--costs {other} isn't used" in server.err and str(own) not in server.err


@pytest.mark.slow
def test_a_killed_worker_is_replaced(tiny_bundle: Path) -> None:
    with serving(tiny_bundle) as server, Load(server.port, tiny_bundle) as load:
        for _ in range(3):
            load.wait(50)
            (worker,) = server.workers()
            os.kill(worker, signal.SIGKILL)
            load.wait(50)
            assert server.workers() != [worker]
        load.stop()
        # Each kill may cut off what was under way at its moment: a request for each client at most. Nothing
        # is answered twice: its second answer would be taken for the next request's.
        assert len(load.lost) <= 3 * 4 and not load.wrong
        assert set(load.statuses) == {200}
        assert server.end() == 0 and server.err.count("ended with -9") == 3


#: Workers in which some requests do harm: token 37 kills them, and 36 never comes to an end.
DEADLY = """
import os, time
from edgecompile.runtime import Model
run = Model.run
def harmful(self, inputs, **options):
    token = inputs["input_ids"].flat[0]
    if token == 37:
        os.kill(os.getpid(), 9)
    while token == 36:
        time.sleep(1)
    return run(self, inputs, **options)
Model.run = harmful
"""


@pytest.mark.slow
def test_a_request_that_kills_workers_is_refused(tiny_bundle: Path, tmp_path: Path) -> None:
    with serving(tiny_bundle, env=customized(tmp_path, DEADLY)) as server:
        for _ in range(2):
            (worker,) = server.workers()
            with pytest.raises((OSError, http.client.HTTPException)):
                server.ask("POST", INFER, tensor(37, 2, 3))
            assert server.ask("POST", INFER, tensor(4, 2, 3))[0] == 200
            assert server.workers() != [worker]
        (worker,) = server.workers()
        status, answer = server.ask("POST", INFER, tensor(37, 2, 3))
        assert (
            status == 422 and "2 processes died while they ran this very request" in answer["error"]
        )
        assert server.ask("POST", INFER, tensor(4, 2, 3))[0] == 200
        assert server.workers() == [worker]
        assert server.end() == 0 and "1 requests are refused" in server.err


#: Each run takes 200 ms, and no batch pays.
COSTS = {
    "points": [[1, 1, 3, 200.0], [1, 1, 32, 200.0]],
    "rows": "independent",
    "padding": "proven",
}
SLOW = """
import time
from edgecompile.runtime import Model
run = Model.run
def slow(self, inputs, **options):
    time.sleep(0.2)
    return run(self, inputs, **options)
Model.run = slow
"""


@pytest.mark.slow
def test_who_was_refused_is_taken_after_retry_after(tiny_bundle: Path, tmp_path: Path) -> None:
    """Of 40 clients at once, whose runs would take four seconds of two CPUs, within 800 ms."""
    write_costs(tmp_path / "costs.json", tiny_bundle, COSTS)
    options = ("--slo", "800", "--threads", "2", "--costs", tmp_path / "costs.json")
    with serving(tiny_bundle, *options, env=customized(tmp_path, SLOW)) as server:
        clients = [http.client.HTTPConnection("127.0.0.1", server.port) for _ in range(40)]
        for client in clients:
            client.request("POST", INFER, json.dumps(tensor(4, 5, 6)))
        waits = list[int]()
        for client in clients:
            answer = client.getresponse()
            assert answer.status in (200, 429, 504)
            if answer.status == 429:
                waits.append(int(answer.headers["retry-after"]))
            client.close()
        assert len(waits) >= 10 and min(waits) >= 1
        time.sleep(max(waits))
        for _ in range(10):
            assert server.ask("POST", INFER, tensor(4, 5, 6))[0] == 200


@pytest.mark.slow
@pytest.mark.parametrize("spare", ["process", "models"])
def test_a_spare_worker_takes_over(tiny_bundle: Path, spare: str) -> None:
    with serving(tiny_bundle, "--spare", spare) as server, Load(server.port, tiny_bundle) as load:
        for _ in range(3):
            while len(server.children()) < 2:
                time.sleep(0.01)
            first, second = server.children()
            assert waits(second) == (spare == "process")
            load.wait(50)
            os.kill(first, signal.SIGKILL)
            load.wait(50)
            assert second in server.children() and first not in server.children()
        load.stop()
        assert len(load.lost) <= 3 * 4 and not load.wrong and set(load.statuses) == {200}
        assert server.end() == 0


@pytest.mark.slow
def test_a_worker_that_was_replaced_and_hangs_is_killed(tiny_bundle: Path, tmp_path: Path) -> None:
    options = ("--drain-delay", "0", "--drain-timeout", "0.1")
    with serving(tiny_bundle, *options, env=customized(tmp_path, DEADLY)) as server:
        (worker,) = server.workers()
        client = socket.create_connection(("127.0.0.1", server.port))
        body = json.dumps(tensor(36, 2, 3)).encode()
        head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body)
        server.process.send_signal(signal.SIGHUP)
        while worker in server.workers():
            time.sleep(0.05)
        assert server.ask("POST", INFER, tensor(4, 2, 3))[0] == 200
        client.close()
        assert server.end() == 0 and f"worker {worker} doesn't end and is killed" in server.err


@pytest.mark.slow
def test_nothing_is_lost_when_it_ends(tiny_bundle: Path, tmp_path: Path) -> None:
    delay = DrainDelay(tmp_path)
    with serving(tiny_bundle, *delay.options, env=delay.env) as server:
        with Load(server.port, tiny_bundle) as load:
            load.wait(50)
            server.process.send_signal(signal.SIGTERM)
            while server.ask("GET", "/v2/health/ready")[0] == 200:
                time.sleep(0.005)
            load.wait(50)  # it isn't ready any more, and yet takes what comes
        delay.end()
        assert server.process.wait() == 0
        assert not load.lost and not load.wrong and set(load.statuses) == {200}


@pytest.mark.slow
def test_a_stopped_worker_is_replaced_and_its_life_sign_fails_meanwhile(tiny_bundle: Path) -> None:
    with serving(tiny_bundle) as server:
        (worker,) = server.workers()
        freeze(worker)
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=2)
        connection.request("GET", "/v2/health/live")
        with pytest.raises(TimeoutError):
            connection.getresponse()
        connection.close()
        # Whoever asks now waits for the next worker.
        assert server.ask("GET", "/v2/health/live")[0] == 200
        assert worker not in server.workers()
        assert server.end() == 0 and "is stuck and is killed" in server.err


@pytest.mark.slow
@pytest.mark.parametrize("spare", ["process", "models"])
def test_a_killed_supervisor_leaves_no_worker(tiny_bundle: Path, spare: str) -> None:
    """Under load: what its worker had begun is answered rightly, and the address is free again."""
    with serving(tiny_bundle, "--spare", spare) as server:
        while len(workers := server.children()) < 2:
            time.sleep(0.01)
        with Load(server.port, tiny_bundle) as load:
            load.wait(50)
            server.process.kill()
            while any(map(worker_alive, workers)):
                time.sleep(0.05)
            load.stop()
        assert not load.wrong and set(load.statuses) <= {200, 503}
        with socket.create_server(("127.0.0.1", server.port)):
            pass


def worker_alive(number: int) -> bool:
    try:
        return "edgecompile" in Path(f"/proc/{number}/cmdline").read_text()
    except OSError:
        return False


@pytest.mark.slow
def test_more_connections_than_files_may_be_open(tiny_bundle: Path) -> None:
    def few_files() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    with serving(tiny_bundle, preexec_fn=few_files) as server:
        crowd = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(100)]
        for client in crowd:
            client.sendall(b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert crowd[0].recv(15) == b"HTTP/1.1 200 OK"
        for client in crowd:
            client.close()
        while (status := server.ask("POST", INFER, tensor(1, 2, 3))[0]) == 503:
            time.sleep(0.05)  # it hasn't noticed yet that they are gone
        assert status == 200
        assert server.end() == 0 and "no more files" in server.err


@pytest.mark.slow
def test_a_bundle_that_is_damaged_in_place_is_not_served(tiny_bundle: Path, tmp_path: Path) -> None:
    """Its weights are cut off under a worker that has them mapped: it dies at its next run."""
    bundle = tmp_path / "served.ecb"
    shutil.copytree(tiny_bundle, bundle)
    with serving(bundle) as server:
        (worker,) = server.workers()
        weights = next(bundle.glob("weights*"))
        os.truncate(weights, 0)
        with pytest.raises((OSError, http.client.HTTPException)):
            server.ask("POST", INFER, tensor(1, 2, 3))
        bundle.rename(tmp_path / "damaged")
        shutil.copytree(tiny_bundle, bundle)
        assert server.ask("POST", INFER, tensor(1, 2, 3))[0] == 200
        assert worker not in server.workers()
        assert server.end() == 0 and "ended with -7" in server.err


@pytest.mark.slow
def test_the_clock_on_the_wall_may_jump(tiny_bundle: Path, tmp_path: Path) -> None:
    """Days forth and back at every look: deadlines are by another clock."""
    environment = customized(
        tmp_path,
        "import itertools, time\n"
        "wall, days = time.time, itertools.cycle([0, 3, -5])\n"
        "time.time = lambda: wall() + 86400 * next(days)\n",
    )
    with serving(tiny_bundle, "--slo", "20000", env=environment) as server:
        workers = server.workers()
        with Load(server.port, tiny_bundle) as load:
            load.wait(400)
        assert not load.lost and not load.wrong and set(load.statuses) == {200}
        assert server.workers() == workers and server.ask("GET", "/v2/health/live")[0] == 200
        assert server.end() == 0
