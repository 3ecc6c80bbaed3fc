"""``edgecompile plan``: the buckets that are worth building, and what others would have chosen."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgecompile.cli.options.common import (
    batch_option,
    check_max_error,
    check_precision,
    check_runtime_options,
    jobs_option,
    precision_options,
    runtime_option,
    sample_texts,
    seed_option,
    target_option,
    threads_option,
)
from edgecompile.cli.options.model import model_options
from edgecompile.cli.options.plan import plan_options, read_sizes, traffic_options
from edgecompile.cli.stages import load_for_plan
from edgecompile.cli.terminal.session import Command, Session, output_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from edgecompile.buckets.assessment import PlanAssessment
    from edgecompile.buckets.costs.grid import CostGrid, Mode
    from edgecompile.buckets.limits import BucketCost
    from edgecompile.buckets.plan import BucketPlan
    from edgecompile.export.store import ExportStore
    from edgecompile.lengths.distribution import LengthDistribution
    from edgecompile.lengths.joint import JointDistribution
    from edgecompile.models.loaded import LoadOptions
    from edgecompile.models.samples import SampleTexts
    from edgecompile.planning.request import PlanRequest
    from edgecompile.precision import Precision
    from edgecompile.targets.profile import TargetProfile

__all__ = ["command"]

_EPILOG = """\b
Examples:
  edgecompile plan lengths.json --model ./minilm --report plan.html
  edgecompile plan lengths.csv --cost-points costs.csv --max-buckets 6 --json
  edgecompile plan --from-stats stats.json --model ./minilm --work-dir minilm.work
  edgecompile plan lengths.json --model ./minilm --kit minilm-kit.ecb --precision int8
  edgecompile plan lengths.json --model ./minilm --calibration device.json --precision int8
"""


@click.command("plan", cls=Command, epilog=_EPILOG, short_help="Choose the buckets to build.")
@click.argument("file", metavar="[LENGTHS]", type=click.Path(allow_dash=True), required=False)
@traffic_options
@click.option("--model", metavar="MODEL", help="Measure the costs on this model.")
@click.option(
    "--cost-points",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Take the costs from length,exact_ms,pad_ms rows instead of a model; with a column more, "
    "such as batch, over two axes.",
)
@target_option
@plan_options
@batch_option
@model_options
@precision_options
@runtime_option
@threads_option
@jobs_option
@seed_option
@click.option(
    "--work-dir",
    "-w",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Read lengths.json and leave plan.json here, for the stages that follow.",
)
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the plan as JSON.",
)
@click.option(
    "--report",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a page with the histogram, the cost curve and the comparison.",
)
@click.option(
    "--kit",
    type=click.Path(path_type=Path),
    metavar="NAME.ecb",
    help="Make no plan, but a bundle of programs that the device is to time: bench --calibrate.",
)
@output_options
@click.pass_obj
def command(
    session: Session,
    /,
    file: str | None,
    lengths: str | None,
    texts: str | None,
    tokenizer: Path | None,
    stats: tuple[Path, ...],
    model: str | None,
    cost_points: Path | None,
    target: str,
    batch: tuple[int, int],
    load: LoadOptions,
    precision: str | None,
    max_error: float | None,
    seed: int,
    work_dir: Path | None,
    output: Path | None,
    report: Path | None,
    kit: Path | None,
    **wanted: Any,
) -> None:
    """Choose the buckets of least expected cost for the lengths of the traffic.

    The costs are measured on a model here or by the device, or read from a file; where this
    machine can't run the target's code, they are modelled. The plan says which. The table
    compares the plan with the usual rules, by the same costs on the same lengths.
    """
    if (model is None) == (cost_points is None):
        raise click.UsageError("Give either --model MODEL or --cost-points FILE.")
    if file is not None and lengths is not None:
        raise click.UsageError("LENGTHS and --lengths are the same thing; give one of them.")
    if cost_points is not None:
        _refuse_model_options(wanted, kit, precision, load)
    check_max_error(precision, max_error)
    gpu = model is not None and _check_target(target, precision, kit)
    check_runtime_options(wanted["runtime"], precision, gpu=gpu)
    if model is not None:
        from edgecompile.loaders.load import check_model

        check_model(model, load)
    source = file or lengths
    if source is None and texts is None and not stats and work_dir is not None:
        left = work_dir / "lengths.json"
        source = str(left) if left.exists() or model is None else None
    from edgecompile.buckets.assessment import assess_plan

    costs = None
    if cost_points is not None:
        from edgecompile.buckets.costs.files import read_costs

        costs = read_costs(cost_points)
    axes = None if costs is None or len(costs.axes) == 1 else (costs.axes[0], costs.axes[1])
    traffic, joint = read_sizes(
        source,
        texts,
        tokenizer,
        model,
        stats,
        axes=axes,
        max_length=wanted["max_length"],
        load=(load, batch) if model is not None else None,
    )
    if costs is not None:
        made = _plan_from_points(traffic, joint, costs, wanted)
    else:
        from edgecompile.planning.request import PlanRequest

        if gpu:
            from edgecompile.targets.gpu import GPU_PRECISION

            wanted["gpu_precision"] = precision or GPU_PRECISION
        request = PlanRequest(traffic, joint, cut=texts is not None, **wanted)
        samples = sample_texts(texts, tokenizer, model)
        asked = _Asked("fp32" if gpu else precision or "fp32", max_error, samples, seed)
        files = [work_dir and work_dir / "plan.json", output, report]
        written = tuple(path for path in files if path is not None)
        subject = _Subject(str(model), target, batch, work_dir, asked, load, written)
        if kit is not None:
            _write_kit(session, request, subject, kit)
            return
        made = _plan_from_model(session, request, subject)
    modes = _modes(wanted["mode"])
    assessment = assess_plan(made.plan, joint or traffic, modes=modes, seed=seed, cost=made.cost)
    _write(session, assessment, joint or traffic, model, work_dir, output, report)


def _check_target(target: str, precision: str | None, kit: Path | None) -> bool:
    """Whether the target is a GPU; refuses what isn't there for it."""
    from edgecompile.targets.profile import load_target

    gpu = load_target(target).gpu is not None
    check_precision(precision, gpu=gpu, target=target)
    if gpu and kit is not None:
        raise click.UsageError(
            "--kit is for CPUs: what a GPU takes is measured with a bundle of several padded buckets "
            "(build --mode pad --buckets K, on the device finish and bench --calibrate)."
        )
    return gpu


@dataclass(frozen=True)
class _Subject:
    """What is planned for, and where the stages leave their files."""

    model: str
    target: str
    batch: tuple[int, int]
    work_dir: Path | None
    asked: _Asked
    load: LoadOptions
    files: tuple[Path, ...] = ()


@dataclass(frozen=True)
class _Asked:
    """Which precision was asked for, and what to try it on."""

    precision: str
    max_error: float | None
    texts: SampleTexts | None
    seed: int


@dataclass(frozen=True)
class _Made:
    """A plan, and what its buckets take if that is known."""

    plan: BucketPlan
    cost: BucketCost | None = None


def _modes(mode: str) -> tuple[Mode, ...]:
    if mode == "auto":
        return ("exact", "pad")
    return ("pad",) if mode == "pad" else ("exact",)


def _refuse_model_options(
    wanted: dict[str, Any], kit: Path | None, precision: str | None, load: LoadOptions
) -> None:
    """Options that mean nothing without a model, all at once."""
    names = {
        "runs": "--runs",
        "max_size": "--max-size",
        "max_build_s": "--max-build-time",
        "calibration": "--calibration",
    }
    given = [option for name, option in names.items() if wanted[name] is not None]
    given += ["--measure-again"] if wanted["measure_again"] else []
    given += ["--kit"] if kit is not None else []
    given += ["--precision"] if precision is not None else []
    given += ["--runtime"] if wanted["runtime"] != "native" else []
    given += ["--assume-paddable"] if wanted["assume_paddable"] else []
    given += ["--" + name.replace("_", "-") for name in load.to_json()]
    if given:
        raise click.UsageError(
            f"{', '.join(given)}: only with --model, as cost points don't say what programs take."
        )


def _plan_from_points(
    traffic: LengthDistribution,
    joint: JointDistribution | None,
    costs: CostGrid,
    wanted: dict[str, Any],
) -> _Made:
    from edgecompile.buckets.limits import DEFAULT_MAX_BUCKETS, BucketLimits
    from edgecompile.buckets.planner import plan_buckets
    from edgecompile.errors import LengthsError

    BucketLimits().most(wanted["max_buckets"], wanted["buckets"])
    price = wanted["price_per_bucket"] or 0.0
    bounded = wanted["buckets"] is not None or price > 0
    options = {
        "buckets": wanted["buckets"],
        "max_buckets": wanted["max_buckets"] or (None if bounded else DEFAULT_MAX_BUCKETS),
        "price_per_bucket": price,
        "modes": _modes(wanted["mode"]),
    }
    longest = wanted["max_length"]
    if len(costs.axes) == 1:
        joint = None
    elif joint is None:
        raise LengthsError(
            f"the cost points are over {' and '.join(costs.axes)}, the sample only tells "
            f"{costs.axes[0]}",
            hint=f"give rows {','.join(costs.axes)},count",
        )
    max_sizes = None if longest is None else {costs.axes[0]: longest}
    return _Made(plan_buckets(joint or traffic, costs, max_sizes=max_sizes, **options))


def _write_precision(work_dir: Path, precision: Precision) -> None:
    """Leaves what the plan is made for, for the stages that follow."""
    from edgecompile.narrowing.files import save_precision

    work_dir.mkdir(parents=True, exist_ok=True)
    save_precision(work_dir, precision)


def _plan_from_model(session: Session, request: PlanRequest, subject: _Subject) -> _Made:
    from edgecompile.export.store import ExportStore
    from edgecompile.pipeline.preflight import check_plan
    from edgecompile.planning.planning import plan_model
    from edgecompile.targets.profile import load_target

    profile = load_target(subject.target)
    check_plan(
        subject.model,
        subject.load,
        profile,
        request,
        precision=subject.asked.precision,
        files=subject.files,
    )
    longest = request.max_length
    loaded = load_for_plan(session.console, subject.model, subject.load, subject.batch, longest)
    with _folder(subject.work_dir) as work:
        exports = ExportStore(loaded, work / "exported")
        request, notes = _with_precision(session, request, subject, exports, profile, work)
        with session.console.step("measure and plan") as step:
            planned = plan_model(exports, profile, request, work, compare=True, step=step)
    if subject.work_dir is not None:
        _write_precision(subject.work_dir, request.precision)
    return _Made(replace(planned.plan, notes=(*notes, *planned.notes)), planned.cost)


def _with_precision(
    session: Session,
    request: PlanRequest,
    subject: _Subject,
    exports: ExportStore,
    profile: TargetProfile,
    work: Path,
) -> tuple[PlanRequest, tuple[str, ...]]:
    """The request with the precision that was asked for or chosen, and what to say of that."""
    from edgecompile.narrowing.rounded import resolving_title, rounding_notes
    from edgecompile.precision import Precision

    asked = subject.asked
    title = resolving_title(asked.precision, exports.model)
    if title is None:
        return replace(request, precision=Precision(asked.precision)), ()
    from edgecompile.cli.terminal.plan_table import precision_table
    from edgecompile.narrowing.choice import resolve_precision

    with session.console.step(title) as step:
        precision, choice, _ = resolve_precision(
            asked.precision,
            exports,
            profile,
            request,
            asked.texts,
            work,
            max_error=asked.max_error,
            seed=asked.seed,
            step=step,
        )
    notes = rounding_notes(precision)
    if choice is None:
        return replace(request, precision=precision), notes
    session.console.show(precision_table(choice))
    return replace(request, precision=precision), (*choice.notes, *notes)


def _write_kit(session: Session, request: PlanRequest, subject: _Subject, kit: Path) -> None:
    from edgecompile.bundle.staging import bundle_path
    from edgecompile.export.store import ExportStore
    from edgecompile.planning.cost_sources import make_measuring_kit
    from edgecompile.targets.profile import load_target

    profile = load_target(subject.target)
    longest = request.max_length
    loaded = load_for_plan(session.console, subject.model, subject.load, subject.batch, longest)
    with _folder(subject.work_dir) as work:
        exports = ExportStore(loaded, work / "exported")
        request, notes = _with_precision(session, request, subject, exports, profile, work)
        with session.console.step("build the kit") as step:
            built = make_measuring_kit(exports, profile, request, bundle_path(kit), work, step=step)
    session.console.say_notes(notes)
    session.console.say(
        f"on the device: python3 {built.path.name} bench --calibrate calibration.json"
    )
    document = {
        "kit": str(built.path),
        "precision": request.precision.to_json(),
        "programs": [bucket.to_json() for bucket in built.kit.buckets],
        "runs": [{"bucket": index, "sizes": dict(sizes)} for index, sizes in built.kit.runs],
    }
    session.emit(document, lambda: str(built.path))


@contextmanager
def _folder(work_dir: Path | None) -> Iterator[Path]:
    if work_dir is not None:
        work_dir.mkdir(parents=True, exist_ok=True)
        yield work_dir
        return
    with tempfile.TemporaryDirectory(prefix="edgecompile-plan-") as name:
        yield Path(name)


def _write(
    session: Session,
    assessment: PlanAssessment,
    sizes: LengthDistribution | JointDistribution,
    model: str | None,
    work_dir: Path | None,
    output: Path | None,
    report: Path | None,
) -> None:
    from edgecompile.cli.terminal.output import write_json, write_text
    from edgecompile.cli.terminal.plan_table import plan_page, plan_table

    document = assessment.to_json()
    if work_dir is not None:
        work_dir.mkdir(parents=True, exist_ok=True)
        write_json(work_dir / "lengths.json", sizes.to_json())
        write_json(work_dir / "plan.json", document)
        session.console.say(f"wrote {work_dir / 'plan.json'}")
    if output is not None:
        write_json(output, document)
        session.console.say(f"wrote {output}")
    if report is not None:
        write_text(report, plan_page(assessment, model))
        session.console.say(f"wrote {report}")
    session.emit(document, lambda: plan_table(assessment))
