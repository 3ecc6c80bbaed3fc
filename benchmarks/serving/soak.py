"""A million requests, good and bad: the worker's memory stays, every answer is right, the counters agree.

    benchmarks/run soak [--requests 1000000] [--bundle BUNDLE]

Without ``--bundle`` it builds the model of ours.py. Eight connections ask without a pause, in
a drawn order; bad requests are a tenth. The memory is what the worker alone holds (private pages), and its
slope is that of a line through all samples behind the first tenth of the requests. Of both processes the
table has what is resident, and the share of it that is theirs (PSS), too. The exit code is 1 where an answer
was wrong, a counter differs, or the line rises by over 1 MiB.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.markdown import table
from benchmarks.serving.connections import binary_request, connect, http_request
from benchmarks.serving.ours import build, running

CLIENTS, SAMPLES, CHUNK = 8, 50, 1000


def draw_requests(name: str, input_name: str, longest: int, run: Any) -> list[Any]:
    """Requests with the status and the output that they have to get; None where there is none."""
    path, requests = f"/v2/models/{name}/infer", list[Any]()
    draws = np.random.default_rng(7)
    for length in {1, 2, 3, 5, 8, 13, 21, 34, longest} - {0}:
        length = min(length, longest)
        for _ in range(4):
            ids = draws.integers(0, 1000, (1, length))
            expected = next(iter(run({input_name: ids}).values()))
            entry = {"name": input_name, "shape": [1, length], "datatype": "INT64"}
            data = json.dumps({"inputs": [{**entry, "data": ids.ravel().tolist()}]}).encode()
            requests.append((http_request(path, data), 200, expected))
            binary = [(input_name, ids.shape, "INT64", ids.tobytes())]
            requests.append((binary_request(path, binary), 200, expected))
    entry = {"name": input_name, "shape": [1, 2], "datatype": "INT64"}
    bad = [
        (path, b"{", 400),
        (path, json.dumps({"inputs": [{**entry, "data": [1]}]}).encode(), 400),
        (path, json.dumps({"inputs": [{**entry, "data": [1.5, 2]}]}).encode(), 400),
        (path, json.dumps({"inputs": [{**entry, "data": [1, 10**6]}]}).encode(), 400),
        (path, json.dumps({"inputs": [{**entry, "name": "x", "data": [1, 2]}]}).encode(), 400),
        ("/v2/models/absent/infer", b"{}", 404),
        ("/v2/nowhere", b"{}", 404),
    ]
    share = len(requests) // (9 * len(bad)) + 1
    return requests + [(http_request(p, body), status, None) for p, body, status in bad] * share


def memory_of(process: int) -> dict[str, int]:
    """Bytes of a process in memory: all, its share of what is shared, and what is its own alone."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()

    def total(start: str) -> int:
        return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(start))

    return {"RSS": total("Rss:"), "PSS": total("Pss:"), "private": total("Private_")}


async def load(port: int, requests: list[Any], count: int, draws: random.Random) -> Counter[str]:
    """Asks so many; how often each status came, and "wrong" answers."""
    seen = Counter[str]()

    async def run() -> None:
        client = await connect(port)
        for _ in range(count // CLIENTS):
            request, status, expected = draws.choice(requests)
            got, body = await client.ask(request)
            seen[str(got)] += 1
            if got != status:
                seen["wrong"] += 1
            elif expected is not None:
                output = json.loads(body)["outputs"][0]
                right = np.allclose(output["data"], expected.ravel(), atol=1e-4)
                seen["wrong"] += not right
        client.transport.close()

    await asyncio.gather(*[run() for _ in range(CLIENTS)])
    return seen


async def counted(port: int) -> Counter[str]:
    """What /metrics says, by status; of requests that this program makes with POST."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    text = (await reader.read()).decode()
    writer.close()
    counts = Counter[str]()
    for line in text.splitlines():
        if line.startswith("edgecompile_requests_total{") and "/metrics" not in line:
            counts[line.partition('status="')[2][:3]] += int(line.rpartition(" ")[2])
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--bundle", type=Path)
    parser.add_argument("--requests", type=int, default=1_000_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return soak(options.bundle or build(Path(folder)), options.requests)


def soak(bundle: Path, count: int) -> int:
    """Runs it and prints the record; the exit code."""
    from edgecompile.runtime import open_bundle

    with open_bundle(bundle, threads=1) as model:
        item = model.manifest.inputs[0]
        longest = min(64, model.manifest.axes[str(model.manifest.length_axis)].hi)
        requests = draw_requests(model.manifest.name, item.name, longest, model.run)
    draws, seen = random.Random(7), Counter[str]()
    samples = list[tuple[int, dict[str, int], dict[str, int]]]()
    started = time.perf_counter()
    with running(bundle) as server:
        port, worker = server.port, server.workers()[0]
        step = max(CHUNK, count // SAMPLES)
        for at in range(0, count, step):
            seen += asyncio.run(load(port, requests, step, draws))
            samples.append((at + step, memory_of(worker), memory_of(server.process.pid)))
            told = f"{at + step} requests, {samples[-1][1]['private'] / 2**20:.2f} MiB"
            print(told, file=sys.stderr, flush=True)
        counts = asyncio.run(counted(port))
    wrong = seen.pop("wrong", 0)
    later = [(n, own["private"]) for n, own, _ in samples[len(samples) // 10 :]]
    slope = np.polyfit(*zip(*later, strict=True), 1)[0] * later[-1][0] if len(later) > 2 else 0.0
    kinds = ("private", "PSS", "RSS")
    shown = samples[:: max(1, len(samples) // 10)]
    if shown[-1] is not samples[-1]:
        shown.append(samples[-1])
    rows = [
        [f"{n}", *(f"{memory[kind] / 2**20:.2f}" for memory in both for kind in kinds)]
        for n, *both in shown
    ]
    print(f"{sum(seen.values())} requests in {time.perf_counter() - started:.0f} s: {dict(seen)}\n")
    heads = [f"{kind} of the {who}, MiB" for who in ("worker", "supervisor") for kind in kinds]
    print(table(["requests", *heads], rows))
    print(f"\nThe line through them rises by {slope / 2**20:.3f} MiB over all requests.")
    print(f"Wrong answers: {wrong}. Counted by the server: {dict(counts)}.")
    return int(bool(wrong) or counts != seen or slope > 1 << 20)


if __name__ == "__main__":
    sys.exit(main())
