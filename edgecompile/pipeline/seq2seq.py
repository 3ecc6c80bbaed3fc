"""Building an encoder-decoder model: a bundle of the encoder within the bundle of the decoder.

The lengths are those of sources, so the encoder is what is planned; the decoder has a program for one
token and one for the few that a text begins with.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from edgecompile.buckets.plan import BucketPlan
from edgecompile.bundle.generation import ENCODER
from edgecompile.bundle.staging import SUFFIX, Staging
from edgecompile.errors import PlanError
from edgecompile.export.store import ExportStore
from edgecompile.files import write_json
from edgecompile.models.loaded import LoadedModel
from edgecompile.narrowing.choice import resolve_precision
from edgecompile.pipeline.packing import PackedBundle, pack_bundle
from edgecompile.pipeline.programs import Programs, make_programs
from edgecompile.pipeline.request import BuildRequest, BuildResult
from edgecompile.pipeline.stages import Stages
from edgecompile.planning.generation_plan import decoder_buckets
from edgecompile.planning.planning import plan_model
from edgecompile.targets.profile import TargetProfile

__all__ = ["build_seq2seq", "refuse_auto"]


def refuse_auto(precision: str) -> None:
    """Refuses to choose the precision of a model of two parts.

    Raises:
        PlanError: it was to be chosen.
    """
    if precision == "auto":
        raise PlanError(
            "--precision auto compares one run of a model, and this one generates by two parts",
            hint="name a precision: --precision bf16 or int8",
        )


def build_seq2seq(
    model: LoadedModel,
    encoder: LoadedModel,
    request: BuildRequest,
    profile: TargetProfile,
    staging: Staging,
    work: Path,
    stages: Stages,
) -> BuildResult:
    """Builds both parts, verifies each, and packs the encoder into the decoder's bundle.

    Args:
        model: the decoder's step; ``encoder`` makes what it attends to.
        request: what is asked for; its lengths are those of sources.
        profile: the target.
        staging: where the bundle goes, claimed.
        work: where the stages leave their files, the encoder's in a folder of their own.
        stages: runs the steps.

    Raises:
        EdgecompileError: a subclass for each cause; nothing stands under the final name then.
    """
    asked = request.precision or "fp32"
    refuse_auto(asked)
    # Sources over the limit are refused on the device, not cut.
    request = replace(request, plan=replace(request.plan, cut=False))
    inner = work / ENCODER
    inner.mkdir(exist_ok=True)
    exports = ExportStore(encoder, inner / "exported")
    precision, _, samples = resolve_precision(
        asked,
        exports,
        profile,
        request.plan,
        request.texts,
        inner,
        rounding=False,  # the encoder's inputs tell nothing of the decoder's
        seed=request.seed,
    )
    wanted = replace(request.plan, precision=precision, runtime=request.runtime)
    planned = stages.run(
        "measure and plan",
        lambda step: plan_model(exports, profile, wanted, inner, step=step),
    )
    write_json(inner / "plan.json", planned.plan.to_json())
    served = planned.scope.axes[0][1]
    decoder = model.with_sources(served.lo, served.hi)
    plan = decoder_buckets(decoder)
    write_json(work / "plan.json", plan.to_json())
    own = ExportStore(decoder, work / "exported")

    def make(part: ExportStore, buckets: BucketPlan, folder: Path) -> Programs:
        name = part.model.name
        return make_programs(part, buckets, request, profile, precision, folder, stages, of=name)

    steps = make(own, plan, work)
    sources = make(exports, planned.plan, inner)
    packed_encoder: PackedBundle = stages.run(
        "verify and pack the encoder",
        lambda step: pack_bundle(
            encoder,
            planned.plan,
            sources.compiled,
            inner / (ENCODER + SUFFIX),
            lengths=request.plan.joint or request.plan.lengths,
            cost=planned.cost,
            samples=samples,
            seed=request.seed,
            tokenizer=request.tokenizer,
            force=True,
            emulate=request.emulate,
            step=step,
        ),
    )
    packed: PackedBundle = stages.run(
        "verify and pack",
        lambda step: pack_bundle(
            decoder,
            plan,
            steps.compiled,
            staging.output,
            claimed=staging,
            encoder=packed_encoder.path,
            emulate=request.emulate,
            seed=request.seed,
            tokenizer=False,
            force=request.force,
            step=step,
        ),
    )
    return BuildResult.of(
        packed,
        plan=planned.plan,
        audit=(*sources.compiled.audit, *steps.compiled.audit),
        seconds=stages.seconds,
        notes=(
            *model.notes,
            *encoder.notes,
            *steps.notes,
            *sources.notes,
            f"the plan is the encoder's; the decoder has {len(plan.buckets)} programs beside",
            *planned.notes,
            *packed_encoder.notes,
            *packed.notes,
        ),
    )
