"""Building an encoder-decoder model: a bundle of the encoder within the bundle of the decoder.

The lengths are those of sources, so the encoder is what is planned; the decoder has a program for one
token and one for the few that a text begins with.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from edgecompile.backends.compilation import CompiledModel
from edgecompile.buckets.plan import BucketPlan
from edgecompile.bundle.names import SUFFIX
from edgecompile.bundle.staging import Staging
from edgecompile.errors import PlanError
from edgecompile.export.store import ExportStore
from edgecompile.files import write_json
from edgecompile.models.loaded import ENCODER, LoadedModel
from edgecompile.pipeline.backend import Job
from edgecompile.pipeline.packing import Contents
from edgecompile.pipeline.result import BuildResult
from edgecompile.pipeline.run import Run
from edgecompile.pipeline.stages import (
    choose_precision,
    compile_programs,
    export_programs,
    find_subject,
    make_plan,
    pack,
)
from edgecompile.planning.generation_plan import (
    decoder_buckets,
    refuse_two_parts,
    require_generation,
)
from edgecompile.planning.request import AUTO_PRECISION


def refuse_auto(precision: str) -> None:
    """Refuses to choose the precision of a model of two parts.

    Raises:
        PlanError: it was to be chosen.
    """
    if precision == AUTO_PRECISION:
        raise PlanError(
            '`precision="auto"` compares one run of a model, and this one generates by two parts',
            hint='name one: `precision="bf16"` or `precision="int8"`',
        )


def build_seq2seq(run: Run, model: LoadedModel, staging: Staging, work: Path) -> BuildResult:
    """Builds both parts, verifies each, and packs the encoder into the decoder's bundle.

    Args:
        run: the build; its lengths are those of sources.
        model: the decoder's step; its encoder makes what it attends to.
        staging: the claimed path of the bundle.
        work: the work folder, where the stages leave their files, the encoder's in a folder of
            their own.

    Raises:
        EdgecompileError: a subclass for each cause; nothing stands under the final name then.
    """
    if run.profile.gpu is not None:
        refuse_two_parts(model.name)
    refuse_auto(run.options.precision_for(run.profile))
    require_generation(model, run.options.backend_for(run.profile))
    encoder = model.encoder
    assert encoder is not None  # that is why this list of stages was chosen
    run.notes.add(*encoder.notes)
    inner = work / ENCODER
    inner.mkdir(exist_ok=True)
    # Sources over the limit are refused on the device, not cut.
    subject = find_subject(run, encoder, inner, cut=False)
    write_json(work / "lengths.json", subject.asked.sizes.to_json())
    # The encoder's inputs tell nothing of the decoder's, so weights are rounded to the nearest, and activations of
    # neither as coarsely as in pairs.
    resolved = choose_precision(run, subject, rounding=False)
    planned = make_plan(run, subject, resolved.precision)
    served = planned.scope.axes[0][1]
    decoder = model.with_sources(served.lo, served.hi)
    plan = decoder_buckets(decoder)
    write_json(work / "plan.json", plan.to_json())

    def programs(exports: ExportStore, part: BucketPlan, folder: Path) -> CompiledModel:
        name, buckets = exports.model.name, part.buckets
        exported = export_programs(run, exports, buckets, of=name)
        keys, precision, title = map(exports.key, buckets), resolved.precision, f"compile {name}"
        return compile_programs(
            run, keys, exported, buckets, folder, precision=precision, title=title
        )

    steps = programs(ExportStore(decoder, work / "exported"), plan, work)
    sources = programs(subject.whole, planned.plan, inner)
    run.notes.add(f"the plan is the encoder's; the decoder has {len(plan.buckets)} programs beside")
    job = Job(run, subject, planned, resolved, inner, compiled=sources)
    with Staging(inner / (ENCODER + SUFFIX), force=True) as inside:
        packed = pack(run, job.contents(), inside, title="verify and pack the encoder")
    # The encoder's bundle has the tokenizer of sources, this one that of a recording's text.
    keeps = job.contents().tokenizer and decoder.speech is not None
    parts = Contents(decoder, plan, steps, encoder=packed.bundle_path, tokenizer=keeps)
    result = pack(run, parts, staging)
    return replace(result, plan=planned.plan, audit=(*sources.audit, *steps.audit))
