"""What a server answers within a deadline at half, all and one and a half of what it can, as its clients see it.

    benchmarks/run goodput BUNDLE --lengths lengths.json [--costs costs.json] [--cores 0,1] [--client-cores 2,3]

The server is a process of its own behind HTTP, the clients are this process; each is pinned to its cores, and the CPU
that both take is reported. What the server can is measured by the same clients just before, without deadlines:
so many connections that ask without a pause. Then requests come at random times (Poisson), each with a
``timeout``; latencies count from when a request was due, not from when a connection was free for it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.markdown import table
from benchmarks.policies import QUERIES, TRAFFICS
from benchmarks.server import connect, cpu_of, http_request, read_response
from edgecompile.runtime import open_bundle
from edgecompile.runtime.measure.serving import batch_axis
from edgecompile.server.schedule.costs import CostTable, read_costs, read_document
from edgecompile.server.schedule.simulate import draw_trace, make_queue, simulate

#: Each so manieth answer is compared with that of ``run``.
COMPARED = 20
#: Lengths are drawn once, and asked for again and again.
DRAWN = 4096
FACTORS = (0.5, 1.0, 1.5)
#: Of the simulated runs' times, as in the tests: sigma of a lognormal number.
NOISE = 0.2


class Line(asyncio.Protocol):
    """A kept-alive connection with one request under way, ``index``, which was due at ``due``."""

    def __init__(self, load: Load) -> None:
        self.load, self.index, self.due, self.rest = load, 0, 0.0, b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.rest += data
        answer = read_response(self.rest)
        if answer is not None:
            self.rest = b""
            self.load.answer(self, *answer)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.load.done.done():
            self.load.done.set_exception(exc or ConnectionResetError())


class Load:
    """Asks, and counts what came.

    Attributes:
        statuses: how often each came.
        latencies: of the answers with 200, in seconds from when they were due.
        lags: seconds from when a request was due until it was sent.
        kept: the index and the body of some of the answers.
        done: over, or the connection that was lost.
    """

    def __init__(
        self, requests: Sequence[bytes], dues: Sequence[float] | None, seconds: float
    ) -> None:
        """``dues``: when each is due, from the beginning on; None: whenever a connection is free."""
        self._loop = asyncio.get_running_loop()
        self._requests, self._dues, self._seconds = requests, dues, seconds
        self.statuses, self.kept = Counter[int](), list[tuple[int, bytes]]()
        self.latencies, self.lags = list[float](), list[float]()
        self.done: asyncio.Future[None] = self._loop.create_future()
        self._idle: list[Line] = []
        self._overdue: deque[float] = deque()
        self._next = 0  # of the dues
        self._sent = 0

    async def run(self, port: int, connections: int) -> float:
        """Seconds from the beginning to the last answer."""
        made = [
            await self._loop.create_connection(lambda: Line(self), "127.0.0.1", port)
            for _ in range(connections)
        ]
        lines = [line for _, line in made]
        self._count, self._began = connections, time.perf_counter()
        if self._dues is None:
            for line in lines:
                self._take(line, self._began)
        else:
            self._idle = lines
            self._tick()
        await self.done
        took = time.perf_counter() - self._began
        for line in lines:
            line.transport.close()
        return took

    def answer(self, line: Line, status: int, body: bytes) -> None:
        """An answer came."""
        now = time.perf_counter()
        self.statuses[status] += 1
        if status == 200:
            self.latencies.append(now - line.due)
            if self.statuses[200] % COMPARED == 1:
                self.kept.append((line.index, body))
        self._take(line, now)

    def _take(self, line: Line, now: float) -> None:
        """Gives a connection something to do, or counts it as idle."""
        if self._dues is None:
            if now < self._began + self._seconds:
                return self._send(line, now, now)
        elif self._overdue:
            return self._send(line, self._overdue.popleft(), now)
        self._idle.append(line)
        over = self._dues is None or self._next == len(self._dues)
        if over and len(self._idle) == self._count and not self.done.done():
            self.done.set_result(None)

    def _tick(self) -> None:
        assert self._dues is not None
        now = time.perf_counter()
        while self._next < len(self._dues):
            due = self._began + self._dues[self._next]
            if due > now:
                self._loop.call_later(due - now, self._tick)
                return
            self._next += 1
            if self._idle:
                self._send(self._idle.pop(), due, now)
            else:
                self._overdue.append(due)

    def _send(self, line: Line, due: float, now: float) -> None:
        line.due, line.index = due, self._sent % len(self._requests)
        self._sent += 1
        self.lags.append(now - due)
        line.transport.write(self._requests[line.index])


class Texts:
    """Requests of drawn lengths, and the answers that they should get."""

    def __init__(self, bundle: str, lengths: Mapping[int, int], slo: float) -> None:
        self.lengths = lengths
        self.drawn = [item.length for item in draw_trace(lengths, DRAWN, seed=3)]
        random = np.random.default_rng(5)
        with open_bundle(bundle) as model:
            ids = {n: random.integers(1000, 30000, (1, n), dtype=np.int64) for n in set(self.drawn)}
            named = {n: {"input_ids": a, "attention_mask": np.ones_like(a)} for n, a in ids.items()}
            self._answers = {
                n: next(iter(model.run(given).values())).ravel().copy()
                for n, given in named.items()
            }
            path = f"/v2/models/{model.manifest.name}/infer"
        self.patient = self._requests(path, named, {})
        self.timed = self._requests(path, named, {"timeout": round(slo * 1e6)})

    def _requests(self, path: str, named: Any, parameters: dict[str, Any]) -> list[bytes]:
        made = {}
        for length, given in named.items():
            inputs = [
                {
                    "name": name,
                    "shape": list(array.shape),
                    "datatype": "INT64",
                    "parameters": {"binary_data_size": array.nbytes},
                }
                for name, array in given.items()
            ]
            document = {"inputs": inputs, "parameters": {"binary_data_output": True, **parameters}}
            head = json.dumps(document).encode()
            body = head + b"".join(array.tobytes() for array in given.values())
            made[length] = http_request(
                path, body, [f"Inference-Header-Content-Length: {len(head)}"]
            )
        return [made[length] for length in self.drawn]

    def error(self, kept: Sequence[tuple[int, bytes]]) -> float:
        """The largest difference of an answer from ``run``'s, of the largest magnitude of that."""
        worst = 0.0
        for index, body in kept:
            wanted = self._answers[self.drawn[index]]
            found = np.frombuffer(body[-wanted.nbytes :], wanted.dtype)
            worst = max(worst, float(abs(found - wanted).max() / abs(wanted).max()))
        return worst


@contextlib.contextmanager
def serving(options: argparse.Namespace) -> Iterator[tuple[int, int]]:
    """The port of a server, and the number of its worker's process."""
    command = ["taskset", "--cpu-list", ",".join(map(str, options.cores)), sys.executable, "-m"]
    command += ["edgecompile.server", options.bundle, "--port", "0", "--json"]
    command += ["--costs", options.costs] if options.costs else []
    command += ["--threads", str(options.threads)] if options.threads else []
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        port = int(json.loads(server.stdout.readline())["urls"][0].rpartition(":")[2])
        children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text()
        yield port, int(children.split()[0])
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()


def loop_cpu(worker: int) -> float:
    """Seconds of CPU of a worker's main thread, which is its event loop."""
    fields = Path(f"/proc/{worker}/task/{worker}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def count_runs(port: int) -> int:
    """The runs that the server did so far."""

    async def ask() -> bytes:
        connection = await connect(port)
        _, body = await connection.ask(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        connection.transport.close()
        return body

    name, lines = "edgecompile_runs_total{", asyncio.run(ask()).decode().splitlines()
    return int(next(line for line in lines if line.startswith(name)).rpartition(" ")[2])


def measure(
    at: tuple[int, int], texts: Texts, options: argparse.Namespace, rate: float | None
) -> dict[str, Any]:
    """A closed loop, or requests at a rate a second."""
    port, worker = at
    trace = []
    if rate is not None:
        trace = draw_trace({1: 1}, int(rate * options.seconds), rate, seed=7)
    dues = [item.at for item in trace] if rate is not None else None
    requests = texts.patient if rate is None else texts.timed
    connections = options.clients if rate is None else options.connections

    async def run() -> tuple[Load, float]:
        load = Load(requests, dues, options.seconds)
        return load, await load.run(port, connections)

    runs = count_runs(port)
    before = cpu_of(worker), loop_cpu(worker), sum(os.times()[:2])
    load, took = asyncio.run(run())
    after = cpu_of(worker), loop_cpu(worker), sum(os.times()[:2])
    cpu = [(b - a) / took for a, b in zip(before, after, strict=True)]
    runs = count_runs(port) - runs
    asked = sum(load.statuses.values())
    inside = sum(latency <= options.slo for latency in load.latencies)
    marks = dict(
        zip(("p50", "p99"), np.quantile(load.latencies or [0.0], (0.5, 0.99)), strict=True)
    )
    return {
        "asked_per_s": asked / took,
        "answered_per_s": load.statuses[200] / took,
        "in_time_per_s": inside / took,
        "statuses": {str(status): n for status, n in sorted(load.statuses.items())},
        **{f"{name}_ms": float(value) * 1e3 for name, value in marks.items()},
        "texts_a_run": load.statuses[200] / max(1, runs),
        "lag_p99_ms": float(np.quantile(load.lags, 0.99)) * 1e3,
        # CPUs' worth, all the time.
        "worker_cpus": cpu[0],
        "loop_cpus": cpu[1],
        "client_cpus": cpu[2],
        "error": texts.error(load.kept),
    }


def predict(
    table: CostTable, lengths: Mapping[int, int], steps: Sequence[int], options: argparse.Namespace
) -> Any:
    """What the simulator says: in time per second, as shares of what it answers at most.

    ``steps``: percentiles of the lengths that the bundle was planned for, by which its server divides the CPUs.
    """
    cpus = options.threads or len(options.cores)
    planned = Counter(steps) or lengths

    def queue() -> Any:
        return make_queue("by-cost", table, cpus, planned, limit=1 << 20)

    most = simulate(draw_trace(lengths, 4000, seed=1), queue(), table, cpus, noise=NOISE).rate
    shares = {}
    for factor in FACTORS:
        trace = draw_trace(lengths, int(most * factor * 10), most * factor, seed=7)
        found = simulate(trace, queue(), table, cpus, slo=options.slo, noise=NOISE)
        shares[str(factor)] = found.goodput / most
    return {"texts_per_s": most, "shares": shares}


def render(result: Mapping[str, Any]) -> str:
    """A table for each traffic: medians of the rounds."""
    parts = []
    for traffic, predicted in result["predicted"].items():
        rows = [row for row in result["rows"] if row["traffic"] == traffic]
        lines = []
        for load in (None, *FACTORS):
            found = [row for row in rows if row["load"] == load]

            def middle(key: str, found: Any = found) -> float:
                return statistics.median(row[key] for row in found)

            asked = sum(sum(row["statuses"].values()) for row in found)
            missed = [
                sum(row["statuses"].get(status, 0) for row in found) / asked
                for status in ("429", "504")
            ]
            lines.append(
                [
                    "as many as it can" if load is None else f"{load:g}",
                    f"{middle('asked_per_s'):.0f}",
                    f"{middle('in_time_per_s'):.0f}",
                    ", ".join(f"{row['share']:.2f}" for row in found),
                    "" if load is None else f"{predicted['shares'][str(load)]:.2f}",
                    f"{middle('p50_ms'):.0f}",
                    f"{middle('p99_ms'):.0f}",
                    *(f"{share:.1%}" for share in missed),
                    f"{middle('texts_a_run'):.1f}",
                    f"{middle('worker_cpus'):.2f}",
                    f"{middle('loop_cpus'):.2f}",
                    f"{middle('client_cpus'):.2f}",
                    f"{middle('lag_p99_ms'):.1f}",
                ]
            )
        heads = ["load", "asked/s", "in time/s", "of capacity", "simulated", "p50 ms", "p99 ms"]
        heads += ["429", "504", "texts a run", "CPUs: worker", "its loop", "clients", "lag p99 ms"]
        parts += [f"## {traffic}", table(heads, lines)]
    worst = max(row["error"] for row in result["rows"])
    ends = f"Largest difference of an answer from `run`: {worst:.1e}."
    return "\n\n".join([*parts, ends])


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)

    def cores(text: str) -> list[int]:
        return [int(item) for item in text.split(",")]

    parser.add_argument("bundle", help="of an encoder of texts, built with --profile server")
    parser.add_argument("--lengths", required=True, help="JSON histogram of the mixed traffic")
    parser.add_argument("--traffic", nargs="+", choices=TRAFFICS, default=TRAFFICS)
    parser.add_argument("--costs", help="of bench --serving on these cores; default: the bundle's")
    parser.add_argument("--cores", type=cores, default=[0, 1], help="of the server (0,1)")
    parser.add_argument("--threads", type=int, help="of the model; default: a core each")
    parser.add_argument("--client-cores", type=cores, help="of the clients; default: the server's")
    parser.add_argument("--slo", type=float, default=0.1, help="seconds")
    parser.add_argument("--clients", type=int, default=128, help="that ask without a pause")
    parser.add_argument("--connections", type=int, default=512, help="of the open load")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each load")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, required=True, help="JSON; a page beside it")
    options = parser.parse_args()
    os.sched_setaffinity(0, options.client_cores or options.cores)
    with contextlib.suppress(ImportError):  # clients that cost less
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    document = json.loads(Path(options.lengths).read_text())
    mixed = dict(zip(document["lengths"], document["counts"], strict=True))
    lengths = {"mixed": mixed, "queries": QUERIES}
    texts = {name: Texts(options.bundle, lengths[name], options.slo) for name in options.traffic}
    with open_bundle(options.bundle) as model:
        axes, host = model.manifest.axes, model.info["host"]
        steps = model.manifest.plan["server"].get("length_percentiles") or ()
        costs = read_costs(
            read_document(options.costs) if options.costs else model.manifest.plan["server"],
            most_rows=axes[batch_axis(model.manifest)].hi,
            longest=axes[str(model.manifest.length_axis)].hi,
        )
    rows: list[dict[str, Any]] = []
    result = {
        "host": host,
        "cores": options.cores,
        "threads": options.threads or len(options.cores),
        "client_cores": options.client_cores or options.cores,
        "slo": options.slo,
        "load_before": os.getloadavg(),
        "predicted": {
            name: predict(costs, item.lengths, steps, options) for name, item in texts.items()
        },
        "rows": rows,
    }
    with serving(options) as at:
        for item in texts.values():  # what it learns of the machine's speed, and caches
            measure(at, item, options, None)
        for number in range(options.rounds):
            for name, item in texts.items():
                most = 0.0
                for load in (None, *FACTORS):
                    found = measure(at, item, options, load and load * most)
                    most = most or found["answered_per_s"]
                    share = found["in_time_per_s"] / most
                    rows.append(
                        {"round": number, "traffic": name, "load": load, "share": share, **found}
                    )
                    print(json.dumps(rows[-1]), flush=True)
            options.output.write_text(json.dumps(result, indent=1) + "\n")
    page = render(result) + "\n"
    options.output.with_suffix(".md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
