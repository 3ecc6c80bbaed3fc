"""What servers answer within a deadline under loads of several shapes, as their clients see it.

    benchmarks/run goodput BUNDLE... --lengths lengths.json [--costs costs.json...] [--cores 0,1] [--client-cores 2,3]

Each bundle's server is a process of its own behind HTTP, the clients are this process; each is pinned to its cores, and
the CPU that both take is reported. What a server can is measured by the same clients just before, without deadlines:
so many connections that ask without a pause. Then requests come in each of the SHAPES at several parts of
that, each with a ``timeout``; latencies count from when a request was due, not from when a connection was free for it.
Rounds interleave bundles, traffics, shapes and loads; in each, requests come at other times. With --code the same
bundle is served by several versions of the package. With --patient no request has a deadline: nothing is refused, and
the page tells the highest rates whose latencies stay within bounds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import heapq
import json
import os
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.serving.connections import connect
from benchmarks.serving.loads.arrivals import SHAPES, STEP, draw_times, mixtures, read_lengths
from benchmarks.serving.loads.clients import DRAWN, Load, Texts
from benchmarks.serving.loads.goodput_page import write_page
from benchmarks.serving.ours import cpu_of, running
from edgecompile.runtime import open_bundle
from edgecompile.runtime.measure.serving import batch_axis
from edgecompile.server.schedule.costs import CostTable, read_costs, read_document
from edgecompile.server.schedule.jobs import Job, Run
from edgecompile.server.schedule.queue import Queue
from edgecompile.server.schedule.simulate import Arrival, draw_trace, make_queue, simulate

#: Of the simulated runs' times, as in the tests: sigma of a lognormal number.
NOISE = 0.2
#: Seconds of a simulated load: in fewer, admission hasn't learned yet by how much runs are late.
SIMULATED = 10.0


@contextlib.contextmanager
def serving(
    bundle: str, costs: str | None, code: str | None, options: argparse.Namespace, *more: str
) -> Iterator[tuple[int, int]]:
    """The port of a server with the options ``more``, and the number of its worker's process."""
    words = [*more]
    words += ["--costs", os.path.abspath(costs)] if costs else []
    words += ["--threads", str(options.threads)] if options.threads else []
    paths = filter(None, [code, os.environ.get("PYTHONPATH")])
    with running(
        os.path.abspath(bundle),
        *words,
        before=["taskset", "--cpu-list", ",".join(map(str, options.cores))],
        cwd=code,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    ) as server:
        yield server.port, server.workers()[0]


def cpu_seconds(worker: int) -> tuple[float, float, float]:
    """Seconds of CPU of a worker, of its main thread, which is its event loop, and of this process."""
    return cpu_of(worker), cpu_of(worker, worker), sum(os.times()[:2])


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
    at: tuple[int, int], texts: Texts, options: argparse.Namespace, dues: Sequence[float] | None
) -> dict[str, Any]:
    """Requests that are due at such times, or of connections that ask without a pause."""
    port, worker = at
    requests = texts.patient if dues is None or options.patient else texts.timed
    connections = options.clients if dues is None else options.connections

    async def run() -> tuple[Load, float]:
        load = Load(requests, dues, options.seconds)
        return load, await load.run(port, connections)

    runs = count_runs(port)
    before = cpu_seconds(worker)
    load, took = asyncio.run(run())
    after = cpu_seconds(worker)
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


def answer_patient(queue: Queue, lengths: Mapping[int, int], clients: int) -> float:
    """Texts per second of a simulated server whose clients ask without a pause, each one text at a time."""
    draw, texts = random.Random(1), draw_trace(lengths, 1 << 14, seed=2)
    ends: list[tuple[float, int, Run]] = []
    now, asked, answered, begun = 0.0, 0, 0, 0
    idle = clients
    while now < SIMULATED:
        for _ in range(idle):
            queue.offer([Job(texts[asked % len(texts)].length, arrived=now)], now)
            asked += 1
        while (run := queue.next(now)[0]) is not None:
            begun += 1
            took = run.predicted * draw.lognormvariate(0.0, NOISE)
            heapq.heappush(ends, (now + took, begun, run))
        now, _, run = heapq.heappop(ends)
        queue.end(run, now)
        idle = len(run.jobs)
        answered += idle
    return answered / now


def predict(
    table: CostTable, lengths: Mapping[int, int], steps: Sequence[int], options: argparse.Namespace
) -> Any:
    """What the simulator says: in time per second, as shares of what it answers clients without a pause.

    ``steps``: percentiles of the lengths that the bundle was planned for, by which its server divides the CPUs.
    """
    cpus = options.threads or len(options.cores)
    planned = Counter(steps) or lengths

    def queue() -> Queue:
        return make_queue("by-cost", table, cpus, planned, limit=1 << 20)

    most = answer_patient(queue(), lengths, options.clients)
    shares: dict[str, dict[str, float]] = {}
    for shape, load in options.loads:
        dues = draw_times(shape, most * load, SIMULATED, seed=7)
        # Of one seed, long gaps would come before long texts.
        drawn = draw_trace(lengths, len(dues), seed=8)
        trace = [Arrival(at, item.length) for at, item in zip(dues, drawn, strict=True)]
        # Without deadlines our rule is one of those that know none.
        policy = "patient" if options.patient else "by-cost"
        outcome = simulate(trace, queue(), cpus, policy=policy, slo=options.slo, noise=NOISE)
        shares.setdefault(shape, {})[str(load)] = outcome.goodput / most
    return {"texts_per_s": most, "shares": shares}


def read_table(bundle: str, costs: str | None) -> tuple[CostTable, Sequence[int], str]:
    """The costs of a bundle, the percentiles of the lengths that it was planned for, and this machine."""
    with open_bundle(bundle) as model:
        manifest = model.manifest
        own = manifest.plan["server"]
        table = read_costs(
            read_document(costs) if costs else own,
            most_rows=manifest.axes[batch_axis(manifest)].hi,
            longest=manifest.axes[str(manifest.length_axis)].hi,
        )
        return table, own.get("length_percentiles") or (), str(model.info["host"])


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)

    def cores(text: str) -> list[int]:
        return [int(item) for item in text.split(",")]

    add = parser.add_argument
    add("bundles", nargs="+", help="of encoders of texts, built with --profile server")
    add("--lengths", required=True, help="JSON histogram of the mixed traffic")
    add("--traffic", nargs="+", choices=list(mixtures({1: 1}, 1)), default=["mixed", "queries"])
    add("--shapes", nargs="+", choices=[*SHAPES, STEP], default=[*SHAPES, STEP])
    add("--factors", nargs="+", type=float, default=[0.5, 1.0, 1.5], help="of what it can")
    add("--costs", nargs="+", help="of bench --serving on these cores, of each; default: its own")
    add("--code", nargs="+", help="a folder with the package that serves each; default: this one")
    add("--cores", type=cores, default=[0, 1], help="of the servers (0,1)")
    add("--threads", type=int, help="of the models; default: a core each")
    add("--client-cores", type=cores, help="of the clients; default: the servers'")
    add("--slo", type=float, default=0.1, help="seconds")
    add("--patient", action="store_true", help="requests have no deadline")
    add("--texts", type=int, default=DRAWN, help="so many are drawn, and asked for again and again")
    add("--clients", type=int, default=128, help="that ask without a pause")
    add("--connections", type=int, default=512, help="of the open load")
    add("--seconds", type=float, default=6.0, help="of each load")
    add("--rounds", type=int, default=3)
    add("--output", type=Path, required=True, help="JSON; a page and drawings beside it")
    options = parser.parse_args()
    os.sched_setaffinity(0, options.client_cores or options.cores)
    with contextlib.suppress(ImportError):  # clients that cost less
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    # The mean of a step is the capacity.
    options.loads = [
        (shape, load)
        for shape in options.shapes
        for load in ([1.0] if shape == STEP else options.factors)
    ]
    mixed = read_lengths(options.lengths)
    run(mixed, options)


def run(mixed: Mapping[int, int], options: argparse.Namespace) -> None:
    """Serves, measures all rounds, and writes after each."""
    rows: list[dict[str, Any]] = []
    result: dict[str, Any] = {
        "cores": options.cores,
        "threads": options.threads or len(options.cores),
        "client_cores": options.client_cores or options.cores,
        "slo": options.slo,
        "seconds": options.seconds,
        "patient": options.patient,
        "load_before": os.getloadavg(),
        "predicted": {},
        "rows": rows,
    }
    every = []
    with contextlib.ExitStack() as stack:
        none = [None] * len(options.bundles)
        every_code = options.code or none
        for bundle, costs, code in zip(
            options.bundles, options.costs or none, every_code, strict=True
        ):
            table, steps, result["host"] = read_table(bundle, costs)
            named = mixtures(mixed, table.longest)
            texts = {
                name: Texts(bundle, named[name], options.slo, options.texts)
                for name in options.traffic
            }
            name = f"{Path(bundle).stem}, {Path(code).name}" if code else Path(bundle).stem
            result["predicted"][name] = {
                traffic: predict(table, item.lengths, steps, options)
                for traffic, item in texts.items()
            }
            every.append((name, texts, stack.enter_context(serving(bundle, costs, code, options))))
        for _, texts, at in every:
            for item in texts.values():  # what it learns of the machine's speed, and caches
                measure(at, item, options, None)
        for number in range(options.rounds):
            for traffic in options.traffic:
                for name, texts, at in every:
                    head = {"round": number, "bundle": name, "traffic": traffic}
                    for row in turn(at, texts[traffic], options, number):
                        rows.append({**head, **row})
                        print(json.dumps(rows[-1]), flush=True)
            options.output.write_text(json.dumps(result, indent=1) + "\n")
    print(write_page(result, options.output))


def turn(
    at: tuple[int, int], texts: Texts, options: argparse.Namespace, number: int
) -> Iterator[dict[str, Any]]:
    """What a server can, and all loads."""
    result = measure(at, texts, options, None)
    most = result["answered_per_s"]
    yield {"shape": "", "load": None, "share": result["in_time_per_s"] / most, **result}
    for shape, load in options.loads:
        dues = draw_times(shape, load * most, options.seconds, seed=100 * number)
        result = measure(at, texts, options, dues)
        yield {"shape": shape, "load": load, "share": result["in_time_per_s"] / most, **result}


if __name__ == "__main__":
    main()
