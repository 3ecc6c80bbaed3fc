"""build(): the stages in order, from a model and its lengths to a verified bundle.

Every stage leaves its file in the work folder, and each can be run alone from the files of those
before it: ``lengths.json``, ``plan.json``, ``exported/``, ``artifacts/``.
"""

from __future__ import annotations

from dataclasses import replace

from edgecompile.bundle.staging import Staging
from edgecompile.export.store import ExportStore
from edgecompile.files import write_json
from edgecompile.narrowing.choice import ResolvedPrecision, resolve_precision
from edgecompile.narrowing.files import save_precision
from edgecompile.narrowing.rounded import resolving_title, rounding_notes
from edgecompile.pipeline.packing import pack_bundle
from edgecompile.pipeline.preflight import begin_build
from edgecompile.pipeline.programs import make_programs
from edgecompile.pipeline.request import BuildRequest, BuildResult
from edgecompile.pipeline.seq2seq import build_seq2seq
from edgecompile.pipeline.stages import Stages, work_folder
from edgecompile.planning.generation_plan import require_native
from edgecompile.planning.planning import plan_model
from edgecompile.progress import NULL_PROGRESS, NULL_STEP, Progress, StepHandle
from edgecompile.targets.profile import TargetProfile, load_target


def build(request: BuildRequest, progress: Progress = NULL_PROGRESS) -> BuildResult:
    """Builds, verifies and writes a bundle.

    Raises:
        EdgecompileError: a subclass for each cause; nothing stands under the final name then.
    """
    profile = load_target(request.target)
    stages = Stages(progress)
    with begin_build(request, profile, stages) as staging:
        if profile.gpu is not None:
            from edgecompile.pipeline.gpu import build_for_gpu

            return build_for_gpu(request, profile, staging, stages)
        return _build_for_cpu(request, profile, staging, stages)


def _build_for_cpu(
    request: BuildRequest, profile: TargetProfile, staging: Staging, stages: Stages
) -> BuildResult:
    from edgecompile.loaders.load import load_model

    asked = request.precision or "fp32"
    traffic = request.plan.joint or request.plan.lengths
    timed = stages.run

    model = timed(
        "load the model", lambda _: load_model(request.model, request.load, batch=request.batch)
    )
    with work_folder(request.work_dir, model.source) as work:
        write_json(work / "lengths.json", traffic.to_json())
        require_native(model, runtime=request.runtime)
        if model.generation is not None and model.generation.encoder is not None:
            return build_seq2seq(
                model, model.generation.encoder, request, profile, staging, work, stages
            )
        model = model.with_longest(request.plan.max_length)
        exports = ExportStore(model, work / "exported")

        def resolve(step: StepHandle = NULL_STEP) -> ResolvedPrecision:
            return resolve_precision(
                asked,
                exports,
                profile,
                request.plan,
                request.texts,
                work,
                max_error=request.max_error,
                seed=request.seed,
                step=step,
            )

        title = resolving_title(asked, model)
        resolved = resolve() if title is None else timed(title, resolve)
        precision, choice, samples = resolved
        save_precision(work, precision)
        wanted = replace(request.plan, precision=precision, runtime=request.runtime)
        planned = timed(
            "measure and plan",
            lambda step: plan_model(exports, profile, wanted, work, step=step),
        )
        write_json(work / "plan.json", planned.plan.to_json())
        programs = make_programs(exports, planned.plan, request, profile, precision, work, stages)
        packed = timed(
            "verify and pack",
            lambda step: pack_bundle(
                model,
                planned.plan,
                programs.compiled,
                staging.output,
                claimed=staging,
                emulate=request.emulate,
                lengths=traffic,
                cost=planned.cost,
                samples=samples,
                choice=choice,
                seed=request.seed,
                tokenizer=request.tokenizer,
                force=request.force,
                step=step,
            ),
        )
    return BuildResult.of(
        packed,
        plan=planned.plan,
        audit=programs.compiled.audit,
        seconds=stages.seconds,
        notes=(
            *model.notes,
            *programs.notes,
            *(choice.notes if choice else ()),
            *rounding_notes(precision),
            *planned.notes,
            *packed.notes,
        ),
        choice=choice,
    )


__all__ = ["BuildRequest", "BuildResult", "build"]
