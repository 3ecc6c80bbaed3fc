"""A Ray cluster of this machine with two replicas, one of them killed under load; run by test_ray.py.

Prints one JSON object. Everything is on the loopback address.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray import serve

from edgecompile.runtime import open_bundle
from edgecompile.server.ray import app

ASKED, CLIENTS = 400, 4


def replicas() -> set[int]:
    """The processes of the replicas that live; other clusters' on this machine don't count."""
    parents, names = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int(
                (folder / "stat").read_text().rpartition(")")[2].split()[1]
            )
            names[int(folder.name)] = (folder / "cmdline").read_bytes()
        except OSError:
            pass  # it has ended

    def is_ours(number: int) -> bool:
        return number == os.getpid() or (number in parents and is_ours(parents[number]))

    return {n for n, name in names.items() if name.startswith(b"ray::ServeReplica") and is_ours(n)}


def ask(url: str, ids: list[int]) -> tuple[dict[str, Any], int]:
    """An answer, and how often the request had to be repeated."""
    body = json.dumps(
        {
            "inputs": [
                {"name": "input_ids", "datatype": "INT64", "shape": [1, len(ids)], "data": ids}
            ]
        }
    ).encode()
    for attempt in range(60):
        try:
            request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request) as answer:
                return json.load(answer), attempt
        except urllib.error.HTTPError as error:
            if error.code < 500:
                raise
        except OSError:
            pass
        time.sleep(0.5)
    raise SystemExit("a request was repeated for too long")


def start_ray() -> None:
    """Ray gives its own processes 30 s to start; a busy machine may take longer, once."""
    for attempt in range(5):
        try:
            ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
            return
        except Exception:
            if attempt == 4:
                raise
            ray.shutdown()


def serve_bundle(bundle: str, **options: int) -> str:
    """Serves a bundle with so many replicas, on a cluster of its own; where it is asked."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    start_ray()
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(app({"bundle": bundle, "name": "m", "threads": 1, **options}))
    return f"http://127.0.0.1:{port}"


def main(bundle: str) -> None:
    server = serve_bundle(bundle, min_replicas=2, max_replicas=3)
    url = server + "/v2/models/m/infer"
    rows = [[5 + (7 * n + i) % 20 for i in range(3 + n % 20)] for n in range(ASKED)]
    answers: list[Any] = [None] * ASKED
    repeated = [0] * ASKED

    def work(first: int) -> None:
        for index in range(first, ASKED, CLIENTS):
            answers[index], repeated[index] = ask(url, rows[index])

    victim = min(replicas())
    threads = [threading.Thread(target=work, args=(i,)) for i in range(CLIENTS)]
    for thread in threads:
        thread.start()
    while sum(answer is not None for answer in answers) < ASKED // 4:
        assert all(thread.is_alive() for thread in threads), "a request failed"
        time.sleep(0.01)
    os.kill(victim, signal.SIGKILL)
    for thread in threads:
        thread.join()
    while len(after := replicas()) < 2 or victim in after:
        time.sleep(0.2)

    wrong = 0
    with open_bundle(bundle) as model:
        for row, answer in zip(rows, answers, strict=True):
            expected = model.run({"input_ids": np.array([row])})
            for output in answer["outputs"]:
                values = np.array(output["data"]).reshape(output["shape"])
                wrong += not np.allclose(values, expected[output["name"]], atol=1e-4)
    with urllib.request.urlopen(server + "/metrics") as answer:
        metrics = answer.read().decode()
    told = {
        "asked": ASKED,
        "answered": sum(answer is not None for answer in answers),
        "wrong": wrong,
        "repeated": sum(map(bool, repeated)),
        "killed": victim,
        "after": sorted(after),
        "stats": "backlog_s" if "edgecompile_backlog_seconds" in metrics else "",
    }
    print("found " + json.dumps(told), flush=True)
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
