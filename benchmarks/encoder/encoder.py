"""Measures an encoder beside other runtimes and writes a record; see docs/benchmarks/README.md."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.baselines.registry import prepare_baselines
from benchmarks.baselines.workshop import Workshop
from benchmarks.encoder.models import PRESETS, Preset
from benchmarks.encoder.record import render_record
from edgecompile.bench.bench import bench_bundle, default_cache
from edgecompile.bench.report import BenchReport, BenchSettings
from edgecompile.cli.terminal.console import Console
from edgecompile.cli.terminal.failures import describe_failure
from edgecompile.errors import BenchError
from edgecompile.files import write_document, write_text
from edgecompile.hosts.identity import load_average
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.pipeline.build import build
from edgecompile.pipeline.request import BuildRequest
from edgecompile.planning.request import PlanRequest
from edgecompile.precision import PRECISIONS

REPOSITORY = Path(__file__).resolve().parents[2]
LOAD_LIMIT = 0.5
AGAINST = "eager,torch-compile,aoti,onnxruntime,onnxruntime-opset23,openvino,executorch"
#: Beside these, for a bundle of the precision.
AGAINST_NARROW = {
    "fp32": "",
    "bf16": "",
    "int8": ",onnxruntime-int8,onnxruntime-int8-reduced,openvino-int8",
}


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        prog="benchmarks/run encoder",
        description="Measure an encoder against others and write a record to docs/benchmarks/.",
    )
    add = parser.add_argument
    add(
        "--preset",
        choices=list(PRESETS),
        default="minilm",
        help="minilm: all-MiniLM-L6-v2 on the lengths of docstrings (default); bert-base: 110 "
        "million random weights at 16, 32, 64 and 128",
    )
    add("--bundle", type=Path, help="measure this bundle instead of building one")
    add("--precision", choices=PRECISIONS, default="fp32", help="of the bundle built here")
    add("--model", type=Path, help="folder of the model; default: the preset's")
    add(
        "--against",
        help=f"baselines; default: {AGAINST}, and with --precision int8 those of int8, with bf16 "
        "openvino-bf16 where the CPU has it",
    )
    add("--target", default="cpu-x86-64", help="of the bundle built here (default cpu-x86-64)")
    add("--threads", type=int, default=2, help="for each process (default 2)")
    add("--rounds", type=int, default=16, help="that count (default 16)")
    add("--runs", type=int, default=100, help="of each process in a round (default 100)")
    add("--cold-runs", type=int, default=9, help="fresh processes of each (default 9)")
    add("--busy", type=int, default=0, help="keep so many CPUs busy meanwhile (default 0)")
    add("--seed", type=int, default=0, help="of orders and inputs (default 0)")
    add("--cache", type=Path, default=None, help=f"for artefacts; default: {default_cache()}")
    add("--output", type=Path, default=REPOSITORY / "docs" / "benchmarks", help="folder")
    add("--name", help="of the record, behind the date; default: the preset and the precision")
    add("--remark", action="append", default=[], help="a paragraph for the record; repeatable")
    add("--force", action="store_true", help="measure on a machine that isn't idle, too")
    return parser.parse_args(arguments)


def default_baselines(precision: str) -> str:
    """Names with commas between them."""
    names = AGAINST + AGAINST_NARROW[precision]
    if precision == "bf16" and "bf16" in Path("/proc/cpuinfo").read_text():
        names += ",openvino-bf16"
    return names


def check_idle(force: bool) -> None:
    """Refuses a machine on which others are at work.

    Raises:
        BenchError: the load average over a minute is too high, and nobody insists.
    """
    load = load_average()[0]
    if load > LOAD_LIMIT and not force:
        raise BenchError(
            f"the load average is {load:.2f}, over {LOAD_LIMIT}: others are using this machine",
            hint="wait until it is idle (a minute after the last work), or give --force",
        )


def settle() -> None:
    """Waits until the load of this script's own build has left the average, at most 4 minutes."""
    end = time.monotonic() + 240
    while load_average()[0] > LOAD_LIMIT and time.monotonic() < end:
        time.sleep(5)


def build_bundle(
    model: Path,
    lengths: LengthDistribution,
    options: argparse.Namespace,
    folder: Path,
    console: Console,
) -> Path:
    """Builds the bundle to measure."""
    request = BuildRequest(
        model=str(model),
        target=options.target,
        plan=PlanRequest(
            lengths, max_length=PRESETS[options.preset].max_length, precision=options.precision
        ),
        output=folder / f"{options.preset}-{options.precision}.ecb",
        force=True,
    )
    return build(request, console).bundle_path


def measure(options: argparse.Namespace, console: Console) -> BenchReport:
    """Builds if need be, and measures."""
    preset: Preset = PRESETS[options.preset]
    cache = options.cache or default_cache()
    model = options.model or preset.find(cache)
    with console.step("read the lengths") as step:
        traffic = preset.read(model)
        clipped, _ = traffic.clip(preset.max_length)
        step.note(f"{clipped.n} of them, mean {clipped.mean:.1f}, p90 {clipped.quantile(0.9)}")
    against = options.against or default_baselines(options.precision)
    bundle = options.bundle
    if bundle is None:
        cache.mkdir(parents=True, exist_ok=True)
        bundle = build_bundle(model, clipped, options, cache, console)
        if not options.force:
            with console.step("rest after building"):
                settle()
    settings = BenchSettings(
        threads=options.threads,
        rounds=options.rounds,
        runs=options.runs,
        cold_runs=options.cold_runs,
        seed=options.seed,
    )
    with console.step("make the baselines"):
        workshop = Workshop.of_bundle(bundle, str(model), options.threads, cache)
        names = [name for name in against.split(",") if name]
        baselines = prepare_baselines(names, workshop)
    with keep_busy(options.busy):
        return bench_bundle(
            bundle,
            settings,
            against=baselines,
            model_spec=str(model),
            lengths=traffic,
            cache=cache,
            command=["benchmarks/run", "encoder", *without_folders(sys.argv[1:])],
            progress=console,
        )


@contextmanager
def keep_busy(count: int) -> Iterator[None]:
    """Runs processes that keep a CPU each busy, the last CPUs first."""
    with ExitStack() as stack:
        cpus = sorted(os.sched_getaffinity(0))
        for index in range(count):
            process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            stack.callback(process.wait)
            stack.callback(process.kill)
            os.sched_setaffinity(process.pid, {cpus[-1 - index % len(cpus)]})
        yield


def write_record(report: BenchReport, options: argparse.Namespace) -> Path:
    """Writes ``<date>-<name>.md`` and ``.json``; returns the first."""
    folder: Path = options.output
    folder.mkdir(parents=True, exist_ok=True)
    date, precision = report.started[:10], report.subject.precision
    stem = f"{date}-{options.name or f'{options.preset}-{report.subject.precision_class}'}"
    model = options.model.name if options.model else PRESETS[options.preset].title
    title = f"{model}, {precision}, {report.settings.threads} threads, {date}"
    write_document(folder / f"{stem}.json", report.to_json())
    path = folder / f"{stem}.md"
    write_text(path, render_record(report, title, remarks=options.remark))
    return path


def main() -> int:
    """Runs; returns the exit code."""
    options = parse_arguments()
    console = Console()
    try:
        check_idle(options.force)
        report = measure(options, console)
        path = write_record(report, options)
        for warning in report.warnings:
            console.warn(warning)
        console.say(f"wrote {path} and {path.with_suffix('.json').name}")
        figures = {item.name: item.times.mean_ms for item in report.results}
        print(json.dumps({"record": str(path), "mean_ms": figures}, indent=1))
    except (Exception, KeyboardInterrupt) as error:
        failure = describe_failure(error)
        console.failure(failure.message, failure.hint)
        return failure.exit_code
    return 0


def without_folders(arguments: list[str]) -> list[str]:
    """Paths shortened to their names: the record is published."""
    return [item.rsplit("/", 1)[-1] if "/" in item else item for item in arguments]


if __name__ == "__main__":
    sys.exit(main())
