#!/usr/bin/env python3
"""What scripts/bench-cold-start runs in its environment; see docs/benchmarks/README.md.

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
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

import edgecompile.runtime
from edgecompile.bench import default_cache
from edgecompile.bench_report import BenchSettings
from edgecompile.cold_starts import measure_cold_starts
from edgecompile.contenders import resolve_contenders
from edgecompile.contenders.base import Workshop
from edgecompile.contenders.bundle import BundleContender, read_bundle
from edgecompile.errors import BenchError, EdgecompileError
from edgecompile.machine import describe_machine, load_average
from edgecompile.progress import NULL_PROGRESS
from edgecompile.toolchain import find_toolchain
from edgecompile.workload import choose_workload

REPOSITORY = Path(__file__).resolve().parent.parent
C_PROGRAM = "C program"


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench-cold-start", description="Time starts, to the first output."
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


def build_program(folder: Path) -> Path:
    """The example program and its library, as docs/c-interface.md builds them."""
    host = Path(next(iter(edgecompile.runtime.__path__))) / "native" / "host"
    library = folder / "libedgecompile_runtime.so"
    cxx = find_toolchain("x86-64" if os.uname().machine == "x86_64" else "aarch64").cxx
    flags = ["-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-shared"]
    links = ["-static-libstdc++", "-static-libgcc", "-Wl,-z,nodelete", "-pthread", "-ldl"]
    links.append(f"-Wl,--version-script={host / 'edgecompile_runtime.map'}")
    sources = map(str, sorted(host.glob("*.cpp")))
    subprocess.run([cxx, *flags, *sources, "-o", str(library), *links], check=True)
    program = folder / "run"
    example = REPOSITORY / "examples" / "c"
    sources = [str(example / name) for name in ("run.c", "npz.c")]
    found = [f"-L{folder}", "-ledgecompile_runtime", "-lm", "-Wl,-rpath,$ORIGIN"]
    command = ["gcc", "-std=c99", "-O2", f"-I{host}", *sources, "-o", str(program), *found]
    subprocess.run(command, check=True)
    return program


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
    """Seconds of every start, by contender."""
    bundle = options.bundle
    manifest = read_bundle(bundle)
    golden = next(iter(sorted((bundle / "golden").glob("*-hint.npz"))), None)
    if golden is None:
        raise BenchError(f"{bundle} holds no golden vector of the length that it is tuned for")
    settings = BenchSettings(threads=options.threads, cold_runs=1)
    workshop = Workshop(
        options.model,
        {name: (extent.lo, extent.hi) for name, extent in manifest.axes.items()},
        threads=settings.threads,
        cache=(options.cache or default_cache()).expanduser(),
        python=sys.executable,
    )
    workload = choose_workload(manifest, None, 1, workshop.model)
    others = [name for name in options.against.split(",") if name]
    contenders = (BundleContender("edgecompile", bundle), *resolve_contenders(others))
    launches = {item.name: item.prepare(workshop) for item in contenders}
    found: dict[str, list[float]] = {name: [] for name in (C_PROGRAM, *launches)}
    with tempfile.TemporaryDirectory() as folder, NULL_PROGRESS.step("start") as step:
        command = [str(build_program(Path(folder))), str(bundle), str(golden)]
        for number in range(options.runs + 1):  # the first, which reads the files, doesn't count
            once = dataclasses.replace(settings, seed=number)
            starts = measure_cold_starts(launches, workload.inputs, workload.lengths[0], once, step)
            took = {name: start.total_s for name, start in starts.items()}
            time.sleep(settings.pause_s)
            took[C_PROGRAM] = time_program(command, options.threads)
            if number > 0:
                for name, seconds in took.items():
                    found[name].append(seconds)
    return found


def main() -> int:
    """Runs; returns the exit code."""
    options = parse_arguments()
    load = load_average()[0]
    try:
        found = measure(options)
    except EdgecompileError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(f"| | median ms | p90 ms | of {options.against.split(',')[0]}'s |")
    print("|---|---:|---:|---:|")
    base = found[options.against.split(",")[0]]
    for name, seconds in found.items():
        ratio = statistics.median(a / b for a, b in zip(seconds, base, strict=True))
        p90 = sorted(seconds)[int(0.9 * (len(seconds) - 1))]
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
            "seconds": found,
        }
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
