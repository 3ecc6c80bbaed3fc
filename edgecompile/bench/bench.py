"""A bundle beside others on the same work: interleaved, each in a process of its own.

Machines grow faster and slower while one measures. So all processes are started at once and take
turns in rounds: in a round each runs the same lengths in the same order, the order of the processes
changes, and figures are medians over rounds (:mod:`edgecompile.bench.timings`). After each change comes
a pause, in which the threads of the last one stop spinning, and a few runs that don't count.
"""

from __future__ import annotations

import hashlib
import os
import platform
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

import edgecompile
from edgecompile.bench.agreement import Agreement, measure_agreement
from edgecompile.bench.baselines import (
    EAGER,
    bundle_baseline,
    eager_baseline,
    find_baseline,
    read_bundle,
)
from edgecompile.bench.cold_starts import measure_cold_starts
from edgecompile.bench.process import Baseline, WorkerProcess
from edgecompile.bench.report import BaselineResult, BenchReport, BenchSettings, ColdStart, Memory
from edgecompile.bench.rounds import measure_rounds
from edgecompile.bench.timings import Round, TimeSummary, compare, median_by_length, summarise
from edgecompile.bench.workload import Workload, choose_workload
from edgecompile.errors import BenchError
from edgecompile.hosts.identity import describe_machine, load_average
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.loaders.load import load_model
from edgecompile.models.options import LoadOptions
from edgecompile.precision import min_cosine
from edgecompile.progress import NULL_PROGRESS, Progress
from edgecompile.runtime.format.manifest.schema import MANIFEST_NAME
from edgecompile.units import format_share

#: The name of the bundle in reports.
SUBJECT = "edgecompile"
#: Loading may compile or hash large files.
OPEN_TIMEOUT = 1800.0
#: Means of rounds that differ by more than this share are worth a warning.
SPREAD_LIMIT = 0.05
#: CPUs kept busy by others, on average, that are worth a warning.
FOREIGN_LIMIT = 0.05
#: To eager: less is worth a warning, where the verification has no bound of its own (fp32).
LEAST_COSINE = 0.9999


def default_cache() -> Path:
    """The folder for files of benchmarks: ``$XDG_CACHE_HOME/edgecompile/bench``."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "edgecompile" / "bench"


def bench_bundle(
    bundle: Path,
    settings: BenchSettings,
    *,
    against: Sequence[str | Baseline] = (),
    model_spec: str | None = None,
    lengths: LengthDistribution | None = None,
    cache: Path | None = None,
    command: Sequence[str] = (),
    progress: Progress = NULL_PROGRESS,
) -> BenchReport:
    """Measures a bundle through its own runtime, and other ways to run the same model beside it.

    Args:
        bundle: the bundle.
        settings: threads, rounds, runs.
        against: names that :func:`edgecompile.bench.baselines.find_baseline` takes, and baselines.
        model_spec: the model that the bundle was built from; eager is made from it, and outputs are
            compared with eager's.
        lengths: the traffic; see :func:`edgecompile.bench.workload.choose_workload`.
        cache: folder for compiled Python files; None: :func:`default_cache`.
        command: recorded in the report.
        progress: shows the steps.

    Raises:
        BenchError: an argument makes no sense, or a process fails.
        EdgecompileError: the bundle or the model can't be used.
    """
    average = load_average()[0]
    cache = (cache or default_cache()).expanduser()
    manifest = read_bundle(bundle)
    with progress.step("prepare the baselines"):
        baselines = [bundle_baseline(SUBJECT, bundle, settings, cache)]
        for item in (x for i, x in enumerate(against) if x not in against[:i]):
            if isinstance(item, str):
                item = find_baseline(item, model_spec, manifest, settings, cache)
            while item.name in {other.name for other in baselines}:
                item = replace(item, name=item.name + "'")
            baselines.append(item)
    model = eager = None
    if model_spec is not None:
        batch = manifest.axes.get("batch")
        options = LoadOptions.from_json(manifest.plan.get("load"))
        model = load_model(
            model_spec, options, batch=None if batch is None else (batch.lo, batch.hi)
        )
        eager = eager_baseline(model_spec, manifest, settings.threads)
    workload = choose_workload(manifest, lengths, settings.runs, model)
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    results, rounds, load = _measure(baselines, eager, workload, settings, progress)
    load = {"average_1min": average, **load}
    return BenchReport(
        bundle=manifest.name,
        manifest_sha256=hashlib.sha256((bundle / MANIFEST_NAME).read_bytes()).hexdigest(),
        model=None if model_spec is None else _without_folders(model_spec),
        started=started,
        command=tuple(command),
        settings=settings,
        lengths=workload.figures,
        results=results,
        ratios={
            name: {other: compare(mine, rounds[other]) for other in rounds if other != name}
            for name, mine in rounds.items()
        },
        by_length={name: median_by_length(mine) for name, mine in rounds.items()},
        machine=describe_machine(),
        versions=_versions(results[1:]),
        load=load,
        model_sha256={} if model is None else _weights(model.source.sha256),
        warnings=_warnings(results, load, settings),
        notes=workload.notes,
    )


def _measure(
    baselines: Sequence[Baseline],
    eager: Baseline | None,
    workload: Workload,
    settings: BenchSettings,
    progress: Progress,
) -> tuple[tuple[BaselineResult, ...], dict[str, tuple[Round, ...]], dict[str, float]]:
    """The figures of each process, the times of the rounds, and the machine's load meanwhile."""
    workers: dict[str, WorkerProcess] = {}
    opened: dict[str, dict[str, Any]] = {}
    agreement: Mapping[str, Agreement] = {}
    with ExitStack() as stack:
        with progress.step("load the model") as step:
            for done, item in enumerate(baselines):
                step.update(done, len(baselines), item.name)
                worker = stack.enter_context(WorkerProcess(item, settings.threads))
                opened[item.name] = worker.open(workload.inputs, timeout=OPEN_TIMEOUT)
                workers[item.name] = worker
                _check_runtime(item, opened[item.name])
        if eager is not None:
            with progress.step("compare outputs with eager's"):
                agreement = _agreement(eager, workers, workload, settings)
        with progress.step("run the rounds") as step:
            rounds, load = measure_rounds(workers, workload.lengths, settings, step)
        memory = {name: worker.memory() for name, worker in workers.items()}
    cold: Mapping[str, ColdStart] = {}
    if settings.cold_runs:
        with progress.step("measure cold starts") as step:
            middle = workload.lengths[len(workload.lengths) // 2]
            cold = measure_cold_starts(baselines, workload.inputs, middle, settings, step)
    results = tuple(
        _result(
            item,
            opened[item.name],
            summarise(rounds[item.name]),
            memory[item.name],
            cold.get(item.name),
            agreement.get(item.name),
        )
        for item in baselines
    )
    return results, rounds, load


def _result(
    baseline: Baseline,
    opened: Mapping[str, Any],
    times: TimeSummary,
    memory: Mapping[str, int],
    cold: ColdStart | None,
    agreement: Agreement | None,
) -> BaselineResult:
    """The figures of one process, from its answers."""
    return BaselineResult(
        name=baseline.name,
        precision=baseline.precision,
        times=times,
        cold=cold,
        memory=None
        if not memory
        else Memory(
            resident=memory["resident"] / 1e6,
            private=memory["anonymous"] / 1e6,
            shared=memory["file"] / 1e6,
            start=opened["memory"].get("resident", 0) / 1e6,
        ),
        cosine=None if agreement is None else agreement.cosine,
        max_abs_error=None if agreement is None else agreement.max_abs_error,
        parts=baseline.measure_size(opened["facts"]),
        # Without the path, which is of this machine.
        facts={**baseline.versions, **{k: v for k, v in opened["facts"].items() if k != "runtime"}},
        notes=baseline.notes,
    )


def _check_runtime(baseline: Baseline, opened: Mapping[str, Any]) -> None:
    """Refuses to measure anything but the bundle's own runtime, with no torch beside it."""
    if baseline.bundle is None:
        return
    inside = baseline.bundle / "runtime"
    used = Path(opened["facts"]["runtime"]).resolve()
    if not used.is_relative_to(inside):
        raise BenchError(f"{baseline.name} was run by {used}, not by the runtime in {inside}")
    if opened["loaded"] and not baseline.settings["torch"]:
        names = ", ".join(opened["loaded"])
        raise BenchError(f"the process of {baseline.name} has loaded {names}")


def _agreement(
    eager: Baseline,
    workers: Mapping[str, WorkerProcess],
    workload: Workload,
    settings: BenchSettings,
) -> dict[str, Agreement]:
    """Every process' outputs against eager's at every length."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="edgecompile-bench-")))
        reference = workers.get(EAGER)
        if reference is None:
            reference = stack.enter_context(WorkerProcess(eager, settings.threads))
            reference.open(workload.inputs, timeout=OPEN_TIMEOUT)
        distinct = sorted(set(workload.lengths))
        return measure_agreement(reference, workers, distinct, folder, seed=settings.seed)


def _without_folders(spec: str) -> str:
    """The specification as records publish it."""
    where, colon, factory = spec.rpartition(":")
    return f"{Path(where).name}:{factory}" if colon else Path(spec).name


def _weights(sha256: Mapping[str, str]) -> dict[str, str]:
    """The files that identify a model, of all its files."""
    telling = (".safetensors", ".pt2", "config.json")
    return {name: digest for name, digest in sha256.items() if name.endswith(telling)}


def _versions(results: Sequence[BaselineResult]) -> dict[str, str]:
    return {
        "edgecompile": edgecompile.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        **{item.name: str(item.facts.get("version", "")) for item in results},
    }


def _warnings(
    results: Sequence[BaselineResult], load: Mapping[str, float], settings: BenchSettings
) -> tuple[str, ...]:
    warnings = [
        f"{item.name}: the means of the rounds spread by {format_share(item.times.spread)}; repeat on an idle machine"
        for item in results
        if item.times.spread > SPREAD_LIMIT
    ]
    for item in results:
        threads = item.facts.get("threads")
        if threads not in (None, settings.threads):
            warnings.append(
                f"{item.name} says that it uses {threads} threads, not {settings.threads}"
            )
        least = min_cosine(item.precision_class) or LEAST_COSINE
        if item.cosine is not None and not item.cosine >= least:
            warnings.append(f"{item.name}: cosine to eager {item.cosine:.6f}")
    for key, what in (
        ("foreign_cpus", "other processes kept {:.2f} CPUs busy"),
        ("stolen_cpus", "the hypervisor took {:.2f} CPUs away"),
    ):
        if load.get(key, 0.0) > FOREIGN_LIMIT:
            warnings.append(what.format(load[key]) + " during the rounds")
    return tuple(warnings)
