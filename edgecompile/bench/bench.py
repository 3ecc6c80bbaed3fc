"""A bundle against others on the same work: interleaved, each in a process of its own.

Machines grow faster and slower while one measures. So all contenders are loaded at once and take
turns in rounds: in a round each runs the same lengths in the same order, the contenders' own order
is drawn anew, and figures are medians over rounds (:mod:`edgecompile.bench.timings`). After a change of
contender comes a pause, in which the threads of the last one stop spinning, and a few runs that
don't count.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

import edgecompile
from edgecompile.bench.agreement import Agreement, measure_agreement
from edgecompile.bench.cold_starts import measure_cold_starts
from edgecompile.bench.contenders import (
    CONTENDERS,
    BundleContender,
    Contender,
    Launch,
    Workshop,
    check_needs,
    read_bundle,
    resolve_contenders,
)
from edgecompile.bench.contenders.process import WorkerProcess
from edgecompile.bench.report import BenchReport, BenchSettings, ColdStart, ContenderResult, Memory
from edgecompile.bench.rounds import Measured, measure_rounds
from edgecompile.bench.timings import compare, median_by_length, summarise
from edgecompile.bench.workload import Workload, choose_workload
from edgecompile.errors import BenchError
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.machines.identity import describe_machine, load_average, usable_cpus
from edgecompile.models.loaded import LoadOptions
from edgecompile.precision import min_cosine
from edgecompile.progress import NULL_PROGRESS, Progress
from edgecompile.runtime.format.manifest import MANIFEST_NAME
from edgecompile.units import format_share

__all__ = ["SUBJECT", "BenchReport", "BenchSettings", "bench_bundle", "default_cache"]

#: What the bundle is called among the contenders.
SUBJECT = "edgecompile"
#: Loading may compile (torch.compile) or hash and unpack large files.
OPEN_TIMEOUT = 1800.0
#: Means of rounds that differ by more than this share are worth a warning.
SPREAD_LIMIT = 0.05
#: CPUs kept busy by others, on average, that are worth a warning.
FOREIGN_LIMIT = 0.05
#: To eager: less is worth a warning, where the verification has no bound of its own (fp32).
LEAST_COSINE = 0.9999


def default_cache() -> Path:
    """Where artefacts of other contenders are kept: ``$XDG_CACHE_HOME/edgecompile/bench``."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "edgecompile" / "bench"


def bench_bundle(
    bundle: Path,
    *,
    against: Sequence[str] = (),
    model_spec: str | None = None,
    lengths: LengthDistribution | None = None,
    threads: int | None = None,
    rounds: int = 12,
    runs: int = 100,
    warmup_rounds: int = 2,
    cold_runs: int = 7,
    pause: float = 0.3,
    busy: int = 0,
    variant: str | None = None,
    seed: int = 0,
    cache: Path | None = None,
    python: str = sys.executable,
    command: Sequence[str] = (),
    progress: Progress = NULL_PROGRESS,
) -> BenchReport:
    """Measures a bundle through its own runtime, and other ways to run the same model beside it.

    Args:
        bundle: the bundle.
        against: names of :data:`edgecompile.bench.contenders.CONTENDERS`, and paths of other bundles.
        model_spec: the model that the bundle was built from; needed by every contender that isn't
            a bundle, and to compare outputs with eager.
        lengths: the traffic; see :func:`edgecompile.bench.workload.choose_workload`.
        threads: for each contender; None: all CPUs that the process may use.
        rounds, runs, warmup_rounds, cold_runs, pause, busy, seed: see :class:`BenchSettings`.
        variant: of the bundles; None: the best that this CPU can run.
        cache: folder for the contenders' artefacts; None: :func:`default_cache`.
        python: interpreter for the processes.
        command: recorded in the report.
        progress: told about the steps.

    Raises:
        BenchError: an argument makes no sense, or a contender fails.
        MissingDependencyError: contenders lack packages; all are named.
        EdgecompileError: the bundle or the model can't be used.
    """
    settings = BenchSettings(
        threads=usable_cpus() if threads is None else threads,
        rounds=rounds,
        warmup_rounds=warmup_rounds,
        runs=runs,
        pause_s=pause,
        cold_runs=cold_runs,
        busy=busy,
        seed=seed,
    )
    _check(settings)
    # Before the contenders are prepared: compiling them is work, too.
    average = load_average()[0]
    manifest = read_bundle(bundle)
    contenders = (BundleContender(SUBJECT, bundle), *resolve_contenders(against))
    _check_model(contenders, model_spec)
    check_needs(contenders)
    workshop = Workshop(
        model_spec,
        {name: (extent.lo, extent.hi) for name, extent in manifest.axes.items()},
        threads=settings.threads,
        cache=(cache or default_cache()).expanduser(),
        python=python,
        variant=variant,
        load=LoadOptions.from_json(manifest.plan.get("load")).to_json(),
    )
    model = None if model_spec is None else workshop.model
    workload = choose_workload(manifest, lengths, settings.runs, model)
    launches = {}
    for contender in contenders:
        with progress.step(f"prepare {contender.name}"):
            launches[contender.name] = contender.prepare(workshop)
    found = _measure(contenders, launches, workshop, workload, settings, progress)
    results = tuple(_result(item, launches[item.name], workshop, found) for item in contenders)
    load = _load(average, found.measured)
    return BenchReport(
        bundle=manifest.name,
        manifest_sha256=hashlib.sha256((bundle / MANIFEST_NAME).read_bytes()).hexdigest(),
        model=None if model_spec is None else _short(model_spec),
        started=found.started,
        command=tuple(command),
        settings=settings,
        lengths=workload.figures,
        contenders=results,
        ratios={
            name: {
                other: compare(mine, theirs)
                for other, theirs in found.measured.rounds.items()
                if other != name
            }
            for name, mine in found.measured.rounds.items()
        },
        by_length={name: median_by_length(mine) for name, mine in found.measured.rounds.items()},
        machine=describe_machine(),
        versions=_versions(results),
        load=load,
        model_sha256={} if model is None else _weights(model.source.sha256),
        warnings=_warnings(results, load, settings),
        notes=workload.notes,
    )


@dataclass(frozen=True)
class _Found:
    """What the processes told."""

    started: str
    opened: Mapping[str, Mapping[str, Any]]
    agreement: Mapping[str, Agreement]
    measured: Measured
    memory: Mapping[str, Memory | None]
    cold: Mapping[str, ColdStart]


def _measure(
    contenders: Sequence[Contender],
    launches: Mapping[str, Launch],
    workshop: Workshop,
    workload: Workload,
    settings: BenchSettings,
    progress: Progress,
) -> _Found:
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    workers: dict[str, WorkerProcess] = {}
    opened: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:
        with progress.step("load the contenders") as step:
            for done, item in enumerate(contenders):
                step.update(done, len(contenders), item.name)
                launch = launches[item.name]
                worker = stack.enter_context(WorkerProcess(item.name, launch, settings.threads))
                opened[item.name] = worker.open(launch, workload.inputs, timeout=OPEN_TIMEOUT)
                workers[item.name] = worker
                if isinstance(item, BundleContender):
                    _check_bundle_process(item, worker, opened[item.name])
        with progress.step("compare outputs with eager's"):
            agreement = _agreement(workshop, workers, workload, settings)
        with progress.step("run the rounds") as step:
            measured = measure_rounds(workers, workload.lengths, settings, step)
        memory = {name: _memory(opened[name], item.facts()) for name, item in workers.items()}
    cold: dict[str, ColdStart] = {}
    if settings.cold_runs:
        with progress.step("start afresh") as step:
            middle = workload.lengths[len(workload.lengths) // 2]
            cold = measure_cold_starts(launches, workload.inputs, middle, settings, step)
    return _Found(started, opened, agreement, measured, memory, cold)


def _result(
    contender: Contender, launch: Launch, workshop: Workshop, found: _Found
) -> ContenderResult:
    name = contender.name
    facts = found.opened[name]["facts"]
    agreement = found.agreement.get(name)
    return ContenderResult(
        name=name,
        precision=contender.precision,
        times=summarise(found.measured.rounds[name]),
        cold=found.cold.get(name),
        memory=found.memory[name],
        cosine=None if agreement is None else agreement.cosine,
        max_abs_error=None if agreement is None else agreement.max_abs_error,
        parts=contender.measure_size(workshop, launch, facts),
        # Without the path, which is of this machine.
        facts={**launch.versions, **{k: v for k, v in facts.items() if k != "runtime"}},
        notes=launch.notes,
    )


def _check(settings: BenchSettings) -> None:
    least = {"threads": 1, "rounds": 1, "runs": 1, "warmup_rounds": 0, "cold_runs": 0, "busy": 0}
    problems = [
        f"{name.replace('_', ' ')}: {getattr(settings, name)}, at least {low} is needed"
        for name, low in least.items()
        if getattr(settings, name) < low
    ]
    if settings.pause_s < 0:
        problems.append(f"pause: {settings.pause_s} s, at least 0 is needed")
    if problems:
        raise BenchError("; ".join(problems))


def _check_model(contenders: Sequence[Contender], model_spec: str | None) -> None:
    names = [item.name for item in contenders if item.needs_model]
    if model_spec is None and names:
        raise BenchError(
            f"{', '.join(names)}: made from the model, which a bundle doesn't hold",
            hint="name the model that the bundle was built from with --model",
        )


def _check_bundle_process(
    contender: BundleContender, worker: WorkerProcess, opened: Mapping[str, Any]
) -> None:
    """What is measured must be what ships: the bundle's own runtime, and no torch beside it."""
    inside = contender.path.resolve() / "runtime"
    used = Path(opened["facts"]["runtime"]).resolve()
    if not used.is_relative_to(inside):
        raise BenchError(f"{contender.name} was run by {used}, not by the runtime in {inside}")
    loaded = worker.facts()["loaded"]
    if loaded:
        raise BenchError(f"the process of {contender.name} has loaded {', '.join(loaded)}")


def _agreement(
    workshop: Workshop,
    workers: Mapping[str, WorkerProcess],
    workload: Workload,
    settings: BenchSettings,
) -> dict[str, Agreement]:
    """Every contender's outputs against eager's at every length; empty where there is no model."""
    if workshop.spec is None:
        return {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="edgecompile-bench-")))
        reference = workers.get("eager")
        if reference is None:
            launch = CONTENDERS["eager"].prepare(workshop)
            reference = stack.enter_context(WorkerProcess("eager", launch, settings.threads))
            reference.open(launch, workload.inputs, timeout=OPEN_TIMEOUT)
        distinct = sorted(set(workload.lengths))
        return measure_agreement(reference, workers, distinct, folder, seed=settings.seed)


def _memory(opened: Mapping[str, Any], facts: Mapping[str, Any]) -> Memory | None:
    now, before = facts["memory"], opened["before"]["memory"]
    if not now:
        return None
    return Memory(
        resident=now["resident"] / 1e6,
        private=now["anonymous"] / 1e6,
        shared=now["file"] / 1e6,
        start=before["resident"] / 1e6,
    )


def _load(average: float, measured: Measured) -> dict[str, float]:
    found = {
        "average_1min": average,
        "foreign_cpus": measured.foreign_cpus,
        "stolen_cpus": measured.stolen_cpus,
    }
    return {name: value for name, value in found.items() if value is not None}


def _short(spec: str) -> str:
    """The specification without folders: records are published."""
    where, colon, factory = spec.rpartition(":")
    return f"{Path(where).name}:{factory}" if colon else Path(spec).name


def _weights(sha256: Mapping[str, str]) -> dict[str, str]:
    """Of a model's files those that tell which one it is."""
    telling = (".safetensors", ".pt2", "config.json")
    return {name: digest for name, digest in sha256.items() if name.endswith(telling)}


def _versions(results: Sequence[ContenderResult]) -> dict[str, str]:
    found = {
        "edgecompile": edgecompile.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
    for item in results:
        if item.name in CONTENDERS:
            found[item.name] = str(item.facts.get("version", ""))
    return found


def _warnings(
    results: Sequence[ContenderResult], load: Mapping[str, float], settings: BenchSettings
) -> tuple[str, ...]:
    found = [
        f"{item.name}: the means of the rounds spread by {format_share(item.times.spread)}; repeat on an idle machine"
        for item in results
        if item.times.spread > SPREAD_LIMIT
    ]
    for item in results:
        threads = item.facts.get("threads")
        if threads != settings.threads:
            found.append(f"{item.name} says that it uses {threads} threads, not {settings.threads}")
        least = min_cosine(item.precision_class) or LEAST_COSINE
        if item.cosine is not None and not item.cosine >= least:
            found.append(f"{item.name}: cosine to eager {item.cosine:.6f}")
    foreign = load.get("foreign_cpus", 0.0)
    if foreign > FOREIGN_LIMIT:
        found.append(f"other processes kept {foreign:.2f} CPUs busy during the rounds")
    stolen = load.get("stolen_cpus", 0.0)
    if stolen > FOREIGN_LIMIT:
        found.append(f"the hypervisor took {stolen:.2f} CPUs away during the rounds")
    return tuple(found)
