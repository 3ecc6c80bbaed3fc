"""A Ray cluster of this machine with one replica, and more work than it can do; run by test_ray.py.

Prints one JSON object: how many replicas there were before, and how many came. Everything is on the
loopback address.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import urllib.request
from collections import Counter

import numpy as np
import ray
from ray import serve

from edgecompile.runtime import open_bundle
from tests.server.clients.ray_cluster import replicas, serve_bundle

#: Clients that ask without a pause: as many requests wait, a run of some milliseconds each.
CLIENTS, ROWS, LENGTH = 32, 8, 512
MOST_S = 240


def main(bundle: str) -> None:
    url = serve_bundle(bundle, max_replicas=2, backlog_ms=5) + "/v2/models/m/infer"
    before = len(replicas())

    ids = np.arange(ROWS * LENGTH).reshape(ROWS, LENGTH) % 10
    x = (ids / 10).astype(np.float32)
    with open_bundle(bundle, threads=1) as model:
        expected = model.run({"ids": ids, "x": x})["sum"]
    inputs = [
        {"name": name, "datatype": datatype, "shape": array.shape, "data": array.ravel().tolist()}
        for name, datatype, array in (("ids", "INT64", ids), ("x", "FP32", x))
    ]
    body = json.dumps({"inputs": inputs, "outputs": [{"name": "sum"}]}).encode()
    seen, lock, stop = Counter[str](), threading.Lock(), threading.Event()

    def work() -> None:
        while not stop.is_set():
            request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request) as answer:
                (output,) = json.load(answer)["outputs"]
            values = np.array(output["data"]).reshape(output["shape"])
            with lock:
                seen["right" if np.allclose(values, expected, atol=1e-3) else "wrong"] += 1

    threads = [threading.Thread(target=work) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    started = time.monotonic()
    while len(replicas()) <= before and time.monotonic() < started + MOST_S:
        time.sleep(0.5)
    after = len(replicas())
    stop.set()
    alive = sum(thread.is_alive() for thread in threads)
    for thread in threads:
        thread.join()
    told = {"before": before, "after": after, "seen": seen, "clients": alive}
    print("found " + json.dumps(told), flush=True)
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
