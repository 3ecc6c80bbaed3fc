"""build(): the stages in order, from a model and its lengths to a verified bundle.

Every stage leaves its file in the work folder, and each can be run alone from the files of those
before it: ``lengths.json``, ``plan.json``, ``exported/``, ``artifacts/``.
"""

from __future__ import annotations

import os
from dataclasses import replace

from edgecompile.build_request import AUTO, BuildRequest, BuildResult
from edgecompile.bundle import bundle_path
from edgecompile.compilation import ExportStore, check_runtime
from edgecompile.compile_stages import make_programs
from edgecompile.errors import BundleWriteError
from edgecompile.generation_plan import require_native
from edgecompile.packing import pack_bundle
from edgecompile.planning import plan_model
from edgecompile.precision_choice import ResolvedPrecision, resolve_precision
from edgecompile.precision_files import save_precision
from edgecompile.progress import NULL_PROGRESS, Progress, StepHandle
from edgecompile.rounded_precision import resolving_title, rounding_notes
from edgecompile.seq2seq_build import build_seq2seq, refuse_auto
from edgecompile.stages import Stages, work_folder, write_json
from edgecompile.targets import load_target
from edgecompile.tasks import SEQ2SEQ_LM
from edgecompile.torch_tensorrt_check import need_torch_tensorrt


def build(request: BuildRequest, progress: Progress = NULL_PROGRESS) -> BuildResult:
    """Builds, verifies and writes a bundle.

    Raises:
        EdgecompileError: a subclass for each cause; nothing stands under the final name then.
    """
    from edgecompile.models import load_model

    output = bundle_path(request.output)
    if os.path.lexists(output) and not request.force:
        raise BundleWriteError(
            f"{output} is already there", hint="name another --output, or give --force"
        )
    profile = load_target(request.target)
    if profile.gpu is not None:
        check_runtime(request.runtime, profile, request.precision or "fp32")
        from edgecompile.gpu_pipeline import build_for_gpu

        return build_for_gpu(request, profile, output, progress)
    if request.backend != AUTO:
        need_torch_tensorrt(profile, request.precision or "fp32")  # refuses: there is no GPU
    asked = request.precision or "fp32"
    check_runtime(request.runtime, profile, asked)
    if request.load.task == SEQ2SEQ_LM:
        refuse_auto(asked)  # before anything is loaded
    traffic = request.plan.joint or request.plan.lengths
    stages = Stages(progress)
    timed = stages.run

    with work_folder(request.work_dir) as work:
        write_json(work / "lengths.json", traffic.to_json())
        model = timed(
            "load the model", lambda _: load_model(request.model, request.load, batch=request.batch)
        )
        require_native(model, runtime=request.runtime)
        if model.generation is not None and model.generation.encoder is not None:
            return build_seq2seq(model, model.generation.encoder, request, profile, work, stages)
        model = model.with_longest(request.plan.max_length)
        exports = ExportStore(model, work / "exported")

        def resolve(step: StepHandle | None = None) -> ResolvedPrecision:
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
                output,
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
