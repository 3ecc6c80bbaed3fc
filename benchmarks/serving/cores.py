"""Texts per second on 2, 4, 8, … cores: costs measured, streams planned by them, the plan run.

Each number of cores in a process of its own that is pinned to them; rounds interleave the numbers. Every way runs
for the same time and begins with batches of its own, all threads together; what began in that time and ended
later counts as far as it was. As the machine's own measure the same texts run one by one in as many processes as
there are cores, each pinned to one: these share neither Python nor threads, so what they don't gain no server can.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.markdown import table
from benchmarks.serving.loads.arrivals import percentiles
from edgecompile.runtime import Model, open_bundle
from edgecompile.runtime.call.inputs import make_inputs
from edgecompile.runtime.measure.serving import batch_axis, measure_serving
from edgecompile.server.schedule.compose import compose
from edgecompile.server.schedule.costs import CostTable, read_costs, read_document
from edgecompile.server.schedule.scheduler import Scheduler
from edgecompile.server.schedule.simulate import draw_trace
from edgecompile.server.schedule.streams import plan_streams

_TEXTS = 4000
#: What waits in the server's queue, for each core.
_WAITING = 32

Work = Sequence[tuple[int, int]]


def measure(bundle: str, lengths: dict[int, int], cores: int, file: Path, seconds: float) -> Any:
    """What so many cores answer: as planned, through the server's queue, and without batches."""
    pin(cores)
    if not file.exists():
        measure_serving(bundle, str(file), cpus=cores, seconds=12)
    document = read_document(str(file))
    with open_bundle(bundle, threads=cores, concurrency=cores) as model:
        axes, length = model.manifest.axes, str(model.manifest.length_axis)
        costs = read_costs(
            document, most_rows=axes[batch_axis(model.manifest)].hi, longest=axes[length].hi
        )
        planned = plan_streams(costs, cores, lengths)
        trace = draw_trace(lengths, _TEXTS, seed=1)
        ones = [(1, item.length) for item in trace]
        batches = cut(costs, lengths, planned.threads)
        run(model, batches, planned.count, planned.threads, 1.0)
        rates = {
            "planned": run(model, batches, planned.count, planned.threads, seconds),
            "one run on all cores": run(model, ones, 1, cores, seconds),
            "one thread a run": run(model, ones, cores, 1, seconds),
        }
        with contextlib.suppress(ImportError):  # the loop of servers
            import uvloop

            asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
        served, loop = asyncio.run(serve(model, document, lengths, seconds))
    rates["through the queue"] = served
    rates["processes"] = run_apart(bundle, lengths, cores, seconds)
    return {
        "cores": cores,
        "streams": planned.count,
        "threads": planned.threads,
        "texts_per_s": rates,
        "loop_cpus": loop,
        "predicted": planned.rows_per_second,
    }


def pin(cores: int) -> None:
    """To the first ones."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])


def cut(costs: CostTable, lengths: dict[int, int], threads: int) -> Work:
    """Rows and length of the best batches of many texts, in a drawn order."""
    trace = sorted(item.length for item in draw_trace(lengths, _TEXTS, seed=1))
    work = [(end - first, trace[end - 1]) for first, end in compose(costs, threads, trace)]
    random.Random(0).shuffle(work)
    return work


def run(model: Model, work: Work, streams: int, threads: int, seconds: float) -> float:
    """Texts per second of so many threads that each run batch after batch."""
    manifest = model.manifest
    names = batch_axis(manifest), str(manifest.length_axis)
    inputs = {
        size: make_inputs(manifest, dict(zip(names, size, strict=True)), 0) for size in set(work)
    }
    lock, together = threading.Lock(), threading.Barrier(streams)
    taken, texts, began = 0, 0.0, 0.0

    def loop() -> None:
        nonlocal taken, texts, began
        together.wait()
        began = began or time.perf_counter()
        while True:
            with lock:
                size = work[taken % len(work)]
                taken += 1
            before = time.perf_counter()
            model.run(inputs[size], threads=threads)
            after = time.perf_counter()
            inside = min(1.0, (began + seconds - before) / (after - before))
            with lock:
                texts += size[0] * max(0.0, inside)
            if after - began > seconds:
                return

    callers = [threading.Thread(target=loop) for _ in range(streams)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    return texts / seconds


async def serve(
    model: Model, costs: Any, lengths: dict[int, int], seconds: float
) -> tuple[float, float]:
    """Texts per second through the server's queue, in which as many come as are answered; and what its
    event loop takes of a CPU."""
    trace = [item.length for item in draw_trace(lengths, _TEXTS, seed=1)]
    plan = {**costs, "padding": "proven", "length_percentiles": percentiles(trace)}
    scheduler = Scheduler(model, queue=1 << 20, costs=plan)
    names = batch_axis(model.manifest), str(model.manifest.length_axis)
    inputs = {
        n: make_inputs(model.manifest, dict(zip(names, (1, n), strict=True)), 0) for n in set(trace)
    }
    taken = answered = 0
    stop = time.perf_counter() + seconds

    async def client() -> None:
        nonlocal taken, answered
        while time.perf_counter() < stop:
            length = trace[taken % len(trace)]
            taken += 1
            await scheduler.submit(inputs[length])
            answered += time.perf_counter() < stop

    before = time.thread_time()
    clients = [client() for _ in range(_WAITING * int(model.info["threads"]))]
    await asyncio.gather(*clients)
    cpu = time.thread_time() - before
    await scheduler.close()
    return answered / seconds, cpu / seconds


def run_apart(bundle: str, lengths: dict[int, int], cores: int, seconds: float) -> float:
    """Texts per second of a process on each core, one by one."""
    histogram = json.dumps({"lengths": [*lengths], "counts": [*lengths.values()]})
    children = []
    for core in sorted(os.sched_getaffinity(0))[:cores]:
        command = [sys.executable, "-m", "benchmarks.serving.cores", bundle, "--lengths", histogram]
        command += ["--output", ".", "--alone", str(core), "--seconds", str(seconds)]
        pipe = subprocess.PIPE
        children.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True))
    for child in children:
        assert child.stdout is not None
        child.stdout.readline()
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    return sum(float(child.communicate()[0].splitlines()[-1]) for child in children)


def alone(bundle: str, lengths: dict[int, int], core: int, seconds: float) -> None:
    """One of these: says that it is ready, waits for a line, and prints its texts per second."""
    os.sched_setaffinity(0, [core])
    ones = [(1, item.length) for item in draw_trace(lengths, _TEXTS, seed=core)]
    with open_bundle(bundle, threads=1) as model:
        run(model, ones, 1, 1, 0.5)
        print("ready", flush=True)
        sys.stdin.readline()
        print(run(model, ones, 1, 1, seconds))


def render(rows: Sequence[Any]) -> str:
    """Medians of the rounds, and how often the first number's they are."""
    ways = [*rows[0]["texts_per_s"]]
    rates = {
        (cores, way): statistics.median(
            row["texts_per_s"][way] for row in rows if row["cores"] == cores
        )
        for cores in {row["cores"] for row in rows}
        for way in ways
    }
    least = rows[0]["cores"]
    lines = []
    for cores in sorted({row["cores"] for row in rows}):
        own = [row for row in rows if row["cores"] == cores]
        plans = sorted({f"{row['streams']} x {row['threads']}" for row in own})
        cells = [
            f"{rates[cores, way]:.0f} ({rates[cores, way] / rates[least, way]:.2f})" for way in ways
        ]
        rounds = ", ".join(f"{row['texts_per_s']['planned']:.0f}" for row in own)
        loop = f"{statistics.median(row['loop_cpus'] for row in own):.2f}"
        lines.append([str(cores), ", ".join(plans), *cells, rounds, loop])
    heads = ["cores", "plan", *ways, "planned, rounds", "the queue's loop, CPUs"]
    return table(heads, lines)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle")
    parser.add_argument("--lengths", required=True, help="JSON histogram, or its file")
    parser.add_argument("--output", type=Path, required=True, help="folder of the results")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each way")
    parser.add_argument("--cores", type=int, nargs="*", default=[2, 4, 8, 16])
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--alone", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    text = options.lengths
    document = json.loads(text if text.startswith("{") else Path(text).read_text())
    lengths = dict(zip(document["lengths"], document["counts"], strict=True))
    if options.alone is not None:
        return alone(options.bundle, lengths, options.alone, options.seconds)
    if options.one:
        file = options.output / f"costs-{options.one}.json"
        print(json.dumps(measure(options.bundle, lengths, options.one, file, options.seconds)))
        return None
    every = len(os.sched_getaffinity(0))
    options.output.mkdir(parents=True, exist_ok=True)
    rows: list[Any] = []
    for number in range(options.rounds):
        for cores in options.cores:
            if cores > every:
                continue
            command = [sys.executable, "-m", "benchmarks.serving.cores", options.bundle]
            command += ["--lengths", options.lengths, "--seconds", str(options.seconds)]
            command += ["--output", str(options.output), "--one", str(cores)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            row = {"round": number, **json.loads(done.stdout.splitlines()[-1])}
            rows.append(row)
            print(row, flush=True)
            result = {"cpus": every, "load": os.getloadavg(), "rows": rows}
            (options.output / "cores.json").write_text(json.dumps(result, indent=1) + "\n")
    page = render(rows) + "\n"
    (options.output / "cores.md").write_text(page)
    print(page)
    return None


if __name__ == "__main__":
    main()
