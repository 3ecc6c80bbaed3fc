"""Single stages, run from the files that the stages before left in the work folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edgecompile.backends.compilation import CompiledModel
from edgecompile.buckets.plan import BucketPlan
from edgecompile.bundle.staging import Staging
from edgecompile.errors import UsageError, VerificationError
from edgecompile.export.program import ExportedModel
from edgecompile.export.store import ExportStore
from edgecompile.pipeline import stages
from edgecompile.pipeline.packing import Contents
from edgecompile.pipeline.request import BuildRequest
from edgecompile.pipeline.result import BuildResult
from edgecompile.pipeline.run import Run
from edgecompile.pipeline.work_files import find_exports, left_sizes, settle_precision
from edgecompile.planning.generation_plan import require_generation
from edgecompile.planning.padding import with_padding
from edgecompile.progress import NULL_PROGRESS, Progress
from edgecompile.quantization.files import load_precision, refuse_pairs


@dataclass(frozen=True)
class ExportedPlan:
    """A plan's programs.

    Attributes:
        model: the model's name.
        plan: the buckets.
        programs: one for each.
        folders: the folder of each.
        notes: remarks for the user.
    """

    model: str
    plan: BucketPlan
    programs: tuple[ExportedModel, ...]
    folders: tuple[Path, ...]
    notes: tuple[str, ...]


def export_plan(request: BuildRequest, progress: Progress = NULL_PROGRESS) -> ExportedPlan:
    """Exports the model for each bucket of the request's plan.

    Raises:
        PlanError: its buckets can't be padded.
        EdgecompileError: a subclass for each cause.
    """
    run, work, plan = _begin(request, progress)
    model = stages.load(run)
    notes = tuple(run.notes)
    with_padding(plan, model)  # what can't be padded is refused before it is exported
    exports = ExportStore(model, work / "exported")
    programs = stages.export_programs(run, exports, plan.buckets)
    folders = tuple(exports.folder / exports.key(bucket) for bucket in plan.buckets)
    return ExportedPlan(model.name, plan, programs, folders, notes)


def compile_exports(
    request: BuildRequest, variants: Sequence[str] = (), progress: Progress = NULL_PROGRESS
) -> CompiledModel:
    """Compiles and audits what was exported; the model itself isn't needed.

    Args:
        request: its plan's precision is left for the next stages; without one, that of the plan.
        variants: names of the target's that are built for; () for all.
        progress: the display of the stages.

    Raises:
        EdgecompileError: a subclass for each cause.
    """
    run, work, plan = _begin(request, progress)
    precision = settle_precision(run.options.precision, work)
    replace(run.options, precision=precision.name).check_target(run.profile)
    folders = find_exports(plan, work)
    exported = run.stage(
        "load the exported programs", lambda _: [ExportedModel.load(path) for path in folders]
    )
    keys = [path.name for path in folders]
    return stages.compile_programs(
        run, keys, exported, plan.buckets, work, precision=precision, variants=variants or None
    )


def pack_libraries(
    request: BuildRequest, variants: Sequence[str] = (), progress: Progress = NULL_PROGRESS
) -> BuildResult:
    """Packs and verifies what was compiled.

    Args:
        request: the request.
        variants: names of the target's that were built for; () for all.
        progress: the display of the stages.

    Raises:
        EdgecompileError: a subclass for each cause.
    """
    run, work, plan = _begin(request, progress)
    folders = find_exports(plan, work)
    keys = [path.name for path in folders]
    exported = [ExportedModel.load(path) for path in folders]
    precision = load_precision(work)
    compiled = stages.compile_programs(
        run,
        keys,
        exported,
        plan.buckets,
        work,
        precision=precision,
        title="load what was compiled",
        variants=variants or None,
        only_known=True,
    )
    model = stages.load(run)
    ExportStore(model, work / "exported").require(plan.buckets, keys)
    require_generation(model, run.options.backend_for(run.profile))
    sizes, tokenizer = left_sizes(work), run.options.keep_tokenizer
    plan = with_padding(plan, model)
    with Staging(request.bundle, force=request.force) as staging:
        contents = Contents(
            model, plan, compiled, sizes=sizes, texts=run.options.texts, tokenizer=tokenizer
        )
        try:
            return stages.pack(run, contents, staging, locate=not precision.pairs)
        except VerificationError as error:
            if precision.pairs and error.differs:
                refuse_pairs(work, precision)
                error.hint = "no bundle was written; compile and pack again: int8 adds no pairs in 16 bits then"
            raise


def _begin(request: BuildRequest, progress: Progress) -> tuple[Run, Path, BucketPlan]:
    """The run, the work folder and its plan, up to whose longest length the model is loaded."""
    profile, work = request.check_stage(), request.work_dir
    plan = request.plan.plan
    if work is None or plan is None:
        raise UsageError("A stage that is run alone needs `work_dir` and a plan")
    longest = replace(request.plan, max_length=plan.max_length)
    return Run(replace(request, plan=longest), profile, progress), work, plan
