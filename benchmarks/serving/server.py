"""The costs of the server beside the model: CPU a request, latency at idle, and under an open load.

    benchmarks/run server [--bundle BUNDLE] [--rounds 5]

Without ``--bundle`` it builds a model that computes next to nothing, 64 token ids to 384 floats, so that
what is measured is the server. Rounds of the ways to ask follow each other in turn. Requests of the open
load have their times before it begins, and latencies count from those times, whether or not a connection
was free (no coordinated omission). The load generator runs in this process; its own CPU is reported.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.markdown import table
from benchmarks.serving.connections import Connection, binary_request, connect, http_request
from benchmarks.serving.ours import TOKENS, Server, build, cpu_of, running


@dataclass
class Ask:
    """One way to ask: the bytes of a request, and what each answer took."""

    name: str
    request: bytes
    latencies: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


async def closed_load(port: int, request: bytes, count: int, clients: int) -> None:
    """``clients`` connections that ask one request after the other, ``count`` in all."""

    async def run(connection: Connection) -> None:
        for _ in range(count // clients):
            await connection.succeed(request)
        connection.transport.close()

    await asyncio.gather(*[run(await connect(port)) for _ in range(clients)])


async def open_load(port: int, request: bytes, rate: float, seconds: float) -> list[float]:
    """Poisson arrivals of ``rate`` a second; each latency from the scheduled time on."""
    draws = random.Random(7)
    loop = asyncio.get_running_loop()
    free = [await connect(port) for _ in range(64)]
    waiting: asyncio.Queue[Connection] = asyncio.Queue()
    for connection in free:
        waiting.put_nowait(connection)
    latencies: list[float] = []

    async def one(at: float) -> None:
        connection = await waiting.get()
        await connection.succeed(request)
        latencies.append(loop.time() - at)
        waiting.put_nowait(connection)

    at = loop.time() + 0.1
    end = at + seconds
    tasks = []
    while at < end:
        await asyncio.sleep(max(0.0, at - loop.time()))
        tasks.append(loop.create_task(one(at)))
        at += draws.expovariate(rate)
    await asyncio.gather(*tasks)
    for connection in free:
        connection.transport.close()
    return latencies


async def idle_load(port: int, request: bytes, count: int) -> list[float]:
    """Requests far apart, over one connection."""
    connection = await connect(port)
    latencies = []
    for _ in range(count):
        await asyncio.sleep(0.004)
        started = time.perf_counter()
        await connection.ask(request)
        latencies.append(time.perf_counter() - started)
    connection.transport.close()
    return latencies


def make_asks(name: str, inputs: dict[str, np.ndarray]) -> list[Ask]:
    path = f"/v2/models/{name}/infer"
    plain = [
        {"name": key, "shape": array.shape, "datatype": "INT64", "data": array.ravel().tolist()}
        for key, array in inputs.items()
    ]
    binary = [(key, array.shape, "INT64", array.tobytes()) for key, array in inputs.items()]
    return [
        Ask("binary", binary_request(path, binary, binary_data_output=True)),
        Ask("JSON", http_request(path, json.dumps({"inputs": plain}).encode())),
    ]


def measure_run(run: Callable[[], Any], count: int) -> tuple[float, list[float]]:
    """CPU seconds of a call, and the times of ``count`` calls far apart."""
    started = time.process_time()
    for _ in range(count):
        run()
    cpu = (time.process_time() - started) / count
    times = []
    for _ in range(count // 10):
        time.sleep(0.004)
        before = time.perf_counter()
        run()
        times.append(time.perf_counter() - before)
    return cpu, times


def kill_worker(server: Server, request: bytes) -> float:
    """Kills the worker; seconds until the next client has its answer."""
    started = time.perf_counter()
    os.kill(server.workers()[0], signal.SIGKILL)

    async def ask() -> None:
        while True:
            try:
                connection = await connect(server.port)
                await asyncio.wait_for(connection.ask(request), 30)
            except (OSError, asyncio.TimeoutError):  # the dead worker had taken it
                continue
            connection.transport.close()
            return

    asyncio.run(ask())
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--bundle", type=Path, help="whose further inputs can be ones (a mask)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=2000, help="of a round of each kind")
    parser.add_argument("--rates", type=float, nargs="*", default=[200, 1000], metavar="R")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bundle = options.bundle or build(Path(folder))
        report(bundle, options)


def report(bundle: Path, options: argparse.Namespace) -> None:
    """Measures and prints the record."""
    from edgecompile.runtime import open_bundle

    model = open_bundle(bundle, threads=1)
    manifest = model.manifest
    tokens = min(TOKENS, manifest.axes[manifest.length_axis].hi if manifest.length_axis else TOKENS)
    most = manifest.inputs[0].bounds[1] if manifest.inputs[0].bounds else 1000
    ids = (np.arange(tokens, dtype=np.int64) % int(most))[None]
    inputs = {item.name: np.ones_like(ids) if i else ids for i, item in enumerate(manifest.inputs)}
    asks = make_asks(model.manifest.name, inputs)
    model_outputs = model.run(inputs)
    own_cpu, own_times = [], []
    opened: dict[tuple[str, float], list[float]] = {}
    generator = 0.0
    with model, running(bundle, "--threads", "1") as server:
        port, worker = server.port, server.workers()[0]
        for ask in asks:
            asyncio.run(closed_load(port, ask.request, 400, 4))
        for _ in range(options.rounds):
            cpu, times = measure_run(lambda: model.run(inputs), options.requests)
            own_cpu.append(cpu)
            own_times += times
            for ask in asks:
                before, own = cpu_of(worker), time.process_time()
                asyncio.run(closed_load(port, ask.request, options.requests, 4))
                ask.cpu.append((cpu_of(worker) - before) / options.requests)
                generator = (time.process_time() - own) / options.requests
                ask.latencies += asyncio.run(idle_load(port, ask.request, options.requests // 10))
                for rate in options.rates:
                    latencies = asyncio.run(open_load(port, ask.request, rate, 1.0))
                    opened.setdefault((ask.name, rate), []).extend(latencies)
        restarts = [kill_worker(server, asks[0].request) for _ in range(5)]
    run_cpu, run_p50 = np.median(own_cpu), np.median(own_times)
    rows = [["`run`", f"{run_cpu * 1e6:.0f}", "", f"{run_p50 * 1e3:.3f}", ""]]
    for ask in asks:
        cpu, p50 = np.median(ask.cpu), np.median(ask.latencies)
        net, over = (cpu - run_cpu) * 1e6, (p50 - run_p50) * 1e3
        rows.append([ask.name, f"{cpu * 1e6:.0f}", f"{net:.0f}", f"{p50 * 1e3:.3f}", f"{over:.3f}"])
    outputs = sum(array.size for array in model_outputs.values())
    print(
        f"{tokens} token ids to {outputs} floats, one thread, {options.rounds} rounds of "
        f"{options.requests} requests.\n"
    )
    heads = ["way", "CPU a request, us", "less `run`", "p50 at idle, ms", "less `run`"]
    print(table(heads, rows))
    print(f"\nThe load generator takes {generator * 1e6:.0f} us a request of its own.\n")
    print(
        f"kill -9 of the worker to the next answer: {np.median(restarts):.2f} s, "
        f"at most {max(restarts):.2f} s (5 times).\n"
    )
    rows = []
    for (name, rate), latencies in opened.items():
        ordered = sorted(latencies)
        marks = [ordered[math.ceil(q * len(ordered)) - 1] * 1e3 for q in (0.5, 0.99)]
        rows.append([f"{name}, {rate:g}/s", str(len(latencies)), *(f"{m:.2f}" for m in marks)])
    print(table(["open load", "requests", "p50, ms", "p99, ms"], rows))


if __name__ == "__main__":
    main()
