"""Times starts of processes, to the first output; see docs/benchmarks/README.md.

The C program is examples/c/run.c, which opens the bundle, runs a golden vector and compares. It is
timed from before it is started until it has ended; processes of Python until their first output is
there, as in ``edgecompile bench``.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

import numpy as np

from benchmarks.baselines.registry import prepare_baselines
from benchmarks.baselines.workshop import Workshop
from edgecompile.bench.baselines import bundle_baseline, find_baseline, read_bundle
from edgecompile.bench.bench import default_cache
from edgecompile.bench.cold_starts import measure_cold_starts
from edgecompile.bench.report import BenchSettings
from edgecompile.bench.workload import choose_workload
from edgecompile.errors import BenchError, EdgecompileError
from edgecompile.hosts.identity import describe_machine, load_average
from edgecompile.progress import NULL_PROGRESS
from tests.native.c_runtime import c_library

C_PROGRAM = "C program"


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        prog="benchmarks/run cold-start", description="Time starts, to the first output."
    )
    add = parser.add_argument
    add("--bundle", type=Path, required=True, help="to start")
    add("--model", required=True, help="that it was built from, for the others")
    add("--against", default="onnxruntime-opset23", help="others, with commas between them")
    add("--runs", type=int, default=15, help="starts of each, in turns (default 15)")
    add("--threads", type=int, default=2, help="of each (default 2)")
    add("--cache", type=Path, default=None, help=f"for artefacts; default: {default_cache()}")
    add("--json", type=Path, metavar="FILE", help="write every figure here")
    return parser.parse_args(arguments)


def build_program() -> Path:
    """The example program with the C library in it, kept while no source of theirs changes."""
    machine = c_library.MACHINES[c_library.NATIVE_ARCH]
    sources = [c_library.EXAMPLE / name for name in ("run.c", "npz.c")]
    return c_library.build(machine, "example", sources, flags=["-O2"])


def time_program(command: Sequence[str], threads: int) -> float:
    """Seconds of one process."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    begun = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    took = time.perf_counter() - begun
    if done.returncode != 0:
        raise BenchError(f"{command[0]} ended with {done.returncode}: {done.stderr.strip()}")
    return took


def measure(options: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of every start, by name."""
    bundle = options.bundle
    manifest = read_bundle(bundle)
    golden = next(iter(sorted((bundle / "golden").glob("*-hint.npz"))), None)
    if golden is None:
        raise BenchError(f"{bundle} holds no golden vector of the length that it is tuned for")
    settings = BenchSettings(threads=options.threads, cold_runs=1)
    cache = (options.cache or default_cache()).expanduser()
    workshop = Workshop.of_bundle(bundle, options.model, options.threads, cache)
    workload = choose_workload(manifest, None, 1, workshop.model)
    others = [name for name in options.against.split(",") if name]
    baselines = [bundle_baseline("edgecompile", bundle, settings, cache)]
    for item in prepare_baselines(others, workshop):
        if isinstance(item, str):
            item = find_baseline(item, options.model, manifest, settings, cache)
        baselines.append(item)
    times: dict[str, list[float]] = {name: [] for name in (C_PROGRAM, *(b.name for b in baselines))}
    command = [str(build_program()), str(bundle), str(golden)]
    with NULL_PROGRESS.step("start") as step:
        for number in range(options.runs + 1):  # the first, which reads the files, doesn't count
            once = dataclasses.replace(settings, seed=number)
            starts = measure_cold_starts(
                baselines, workload.inputs, workload.lengths[0], once, step
            )
            took = {name: start.total_s for name, start in starts.items()}
            time.sleep(settings.pause_s)
            took[C_PROGRAM] = time_program(command, options.threads)
            if number > 0:
                for name, seconds in took.items():
                    times[name].append(seconds)
    return times


def main() -> int:
    """Runs; returns the exit code."""
    options = parse_arguments()
    load = load_average()[0]
    try:
        times = measure(options)
    except EdgecompileError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(f"| | median ms | p90 ms | of {options.against.split(',')[0]}'s |")
    print("|---|---:|---:|---:|")
    base = times[options.against.split(",")[0]]
    for name, seconds in times.items():
        ratio = statistics.median(a / b for a, b in zip(seconds, base, strict=True))
        p90 = np.quantile(seconds, 0.9, method="lower")
        print(
            f"| {name} | {1e3 * statistics.median(seconds):.0f} | {1e3 * p90:.0f} | {ratio:.2f} |"
        )
    if options.json is not None:
        record = {
            "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "bundle": options.bundle.name,
            "threads": options.threads,
            "load_average": load,
            "machine": describe_machine(),
            "seconds": times,
        }
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
