"""A bundle replaced by another version again and again under load: what is lost, wrong or refused.

    benchmarks/run swaps [--swaps 100] [--clients 4] [--bundle BUNDLE]

Without ``--bundle`` it builds the model of ours.py. Each version is the same program with
another manifest, so its answers are known; it takes the old one's place by a rename and SIGHUP, and the next one
comes once the worker of the old one has ended. Clients ask without a pause over connections that stay, and open
another one where an answer said that this one ends. The exit code is 1 where a request was lost,
answered wrongly or with another status than 200, or a version didn't come.
"""

from __future__ import annotations

import argparse
import http.client
import json
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np

from benchmarks.serving.ours import build, running

PATIENCE_S = 60


class Clients:
    """Threads that ask; each request has tokens of its own, so that answers can't be mixed up unseen."""

    def __init__(self, port: int, bundle: Path, count: int) -> None:
        from edgecompile.runtime import open_bundle

        self.seen, self.lost, self.wrong = Counter[int](), list[str](), 0
        self.versions = Counter[str]()
        self._port, self._stop, self._lock = port, threading.Event(), threading.Lock()
        draws = np.random.default_rng(7)
        with open_bundle(bundle, threads=1) as model:
            self._path = f"/v2/models/{model.manifest.name}/infer"
            item = model.manifest.inputs[0]
            self._examples = [
                (item.name, ids, next(iter(model.run({item.name: ids}).values())).ravel())
                for ids in (draws.integers(0, 1000, (1, n)) for n in range(1, 65))
            ]
        self._threads = [threading.Thread(target=self._ask, args=(n,)) for n in range(count)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Lets each end the request that it has begun."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, turn: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_S)
        while not self._stop.is_set():
            turn += 1
            name, ids, expected = self._examples[turn * 7 % len(self._examples)]
            entry = {"name": name, "shape": ids.shape, "datatype": "INT64"}
            body = json.dumps({"inputs": [{**entry, "data": ids.ravel().tolist()}]})
            try:
                connection.request("POST", self._path, body)
                answer = connection.getresponse()
                document = json.loads(answer.read())
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                with self._lock:
                    self.lost.append(repr(error))
                continue
            with self._lock:
                self.seen[answer.status] += 1
                if answer.status == 200:
                    self.versions[document["model_version"]] += 1
                    right = np.allclose(document["outputs"][0]["data"], expected, atol=1e-4)
                    self.wrong += not right
        connection.close()


def replace(served: Path, turn: int) -> None:
    """Puts the bundle's version ``turn`` in its place, whole and at once."""
    other, old = served.with_name(f"version-{turn}"), served.with_name("old")
    shutil.copytree(served, other)
    path = other / "manifest.json"
    document = json.loads(path.read_text())
    document["expected"]["turn"] = turn
    path.unlink()
    path.write_text(json.dumps(document))
    served.rename(old)
    other.rename(served)
    shutil.rmtree(old)


def swap(bundle: Path, folder: Path, swaps: int, clients: int) -> int:
    """Runs it and prints what was seen; the exit code."""
    served = folder / "served.ecb"
    shutil.copytree(bundle, served)
    with running(served, "--drain-delay", "0.2") as server:
        load = Clients(server.port, bundle, clients)
        started = time.perf_counter()
        try:
            for turn in range(swaps):
                worker = server.workers()[0]
                replace(served, turn)
                server.process.send_signal(signal.SIGHUP)
                end = time.monotonic() + PATIENCE_S
                while worker in server.workers():
                    assert time.monotonic() < end, f"version {turn} doesn't come"
                    time.sleep(0.01)
                print(f"{turn + 1} swaps, {load.seen.total()} requests", file=sys.stderr)
        finally:
            load.stop()
        took = time.perf_counter() - started
    print(
        f"{swaps} swaps under {clients} clients in {took:.0f} s: answers by status {dict(load.seen)}, of "
        f"{len(load.versions)} versions; lost {len(load.lost)}, wrong {load.wrong}"
    )
    for error in sorted(set(load.lost)):
        print(f"lost: {error}")
    whole = set(load.seen) == {200} and len(load.versions) == swaps + 1
    return int(bool(load.lost or load.wrong or not whole))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--bundle", type=Path)
    parser.add_argument("--swaps", type=int, default=100)
    parser.add_argument("--clients", type=int, default=4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bundle = options.bundle or build(folder)
        return swap(bundle, folder, options.swaps, options.clients)


if __name__ == "__main__":
    sys.exit(main())
