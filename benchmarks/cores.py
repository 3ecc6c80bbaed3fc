"""Texts per second on 2, 4, 8, … cores: costs measured, streams planned by them, the plan run.

Each number of cores in a process of its own that is pinned to them; rounds interleave the numbers.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from edgecompile.runtime import Model, open_bundle
from edgecompile.runtime.call.inputs import make_inputs
from edgecompile.runtime.measure.serving import batch_axis, measure_serving
from edgecompile.server.schedule.compose import compose
from edgecompile.server.schedule.costs import CostTable, read_costs
from edgecompile.server.schedule.simulate import draw_trace
from edgecompile.server.schedule.streams import plan_streams

_TEXTS = 4000
_SECONDS = 4.0


def measure(bundle: str, lengths: dict[int, int], cores: int, file: Path) -> dict[str, Any]:
    """What so many cores answer: as planned, one run at a time, and one thread a run."""
    os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:cores]))
    if not file.exists():
        measure_serving(bundle, str(file), cpus=cores, seconds=12)
    with open_bundle(bundle, threads=cores, concurrency=cores) as model:
        axes, length = model.manifest.axes, str(model.manifest.length_axis)
        costs = read_costs(
            json.loads(file.read_text()),
            most_rows=axes[batch_axis(model.manifest)].hi,
            longest=axes[length].hi,
        )
        planned = plan_streams(costs, cores, lengths)
        ways = {
            "planned": (planned.count, planned.threads, True),
            "one run on all cores": (1, cores, False),
            "one thread a run": (cores, 1, False),
        }
        run(model, costs, lengths, *ways["planned"], 1.0)
        rates = {name: run(model, costs, lengths, *way, _SECONDS) for name, way in ways.items()}
    return {
        "cores": cores,
        "streams": planned.count,
        "threads": planned.threads,
        "texts_per_s": rates,
    }


def run(
    model: Model,
    costs: CostTable,
    lengths: dict[int, int],
    streams: int,
    threads: int,
    batched: bool,
    seconds: float,
) -> float:
    """Texts per second of so many threads that each run batch after batch."""
    manifest = model.manifest
    trace = sorted(item.length for item in draw_trace(lengths, _TEXTS, seed=1))
    cuts = compose(costs, threads, trace) if batched else [(i, i + 1) for i in range(_TEXTS)]
    work = [(end - first, trace[end - 1]) for first, end in cuts]
    random.Random(0).shuffle(work)
    names = batch_axis(manifest), str(manifest.length_axis)
    inputs = {
        size: make_inputs(manifest, dict(zip(names, size, strict=True)), 0) for size in set(work)
    }
    lock, taken, texts = threading.Lock(), 0, 0
    stop = time.perf_counter() + seconds

    def loop() -> None:
        nonlocal taken, texts
        while True:
            with lock:
                size = work[taken % len(work)]
                taken += 1
            model.run(inputs[size], threads=threads)
            with lock:
                texts += size[0]
            if time.perf_counter() > stop:
                return

    began = time.perf_counter()
    callers = [threading.Thread(target=loop) for _ in range(streams)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    return texts / (time.perf_counter() - began)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle")
    parser.add_argument("--lengths", required=True, help="JSON histogram")
    parser.add_argument("--output", type=Path, required=True, help="folder of the results")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--cores", type=int, nargs="*", default=[2, 4, 8, 16])
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    document = json.loads(Path(options.lengths).read_text())
    lengths = dict(zip(document["lengths"], document["counts"], strict=True))
    if options.one:
        file = options.output / f"costs-{options.one}.json"
        print(json.dumps(measure(options.bundle, lengths, options.one, file)))
        return
    every = len(os.sched_getaffinity(0))
    rows = []
    for number in range(options.rounds):
        for cores in options.cores:
            if cores > every:
                continue
            command = [
                sys.executable,
                "-m",
                "benchmarks.cores",
                options.bundle,
                "--lengths",
                options.lengths,
            ]
            command += ["--output", str(options.output), "--one", str(cores)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            row = {"round": number, **json.loads(done.stdout.splitlines()[-1])}
            rows.append(row)
            print(row, flush=True)
            result = {"cpus": every, "load": os.getloadavg(), "rows": rows}
            (options.output / "cores.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
