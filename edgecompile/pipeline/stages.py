"""The stages of plans and builds, each a function that hands its result on to the next.

load → subject (scope, length support) → precision → plan → export → compile → pack and verify.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from edgecompile.backends.compilation import CompiledModel, CompileOptions, compile_buckets
from edgecompile.buckets.ranges import Bucket
from edgecompile.bundle.staging import Staging
from edgecompile.errors import ModelError, PlanError
from edgecompile.export.padding.check import ASSUMED
from edgecompile.export.program import ExportedModel
from edgecompile.export.store import ExportStore, export_buckets
from edgecompile.files import write_json
from edgecompile.loaders.folders.prefix import read_prefix
from edgecompile.loaders.load import load_model
from edgecompile.models.loaded import LoadedModel
from edgecompile.pipeline.packing import Contents, pack_bundle
from edgecompile.pipeline.result import BuildResult
from edgecompile.pipeline.run import Run
from edgecompile.planning.padding import with_padding
from edgecompile.planning.planning import Planned, plan_model
from edgecompile.planning.subject import Subject, make_subject
from edgecompile.precision import FP32, Precision
from edgecompile.quantization.calibrated import resolving_title
from edgecompile.quantization.choice import ResolvedPrecision
from edgecompile.quantization.files import had_pairs_refused, save_precision
from edgecompile.quantization.language_choice import resolve
from edgecompile.units import sentence


def load(run: Run) -> LoadedModel:
    """Loads the model, for runs as long as are asked for."""
    request = run.request
    model = run.stage("load the model", lambda _: load_model(request.model, request.load))
    run.notes.add(*model.notes)
    run.model = model.with_longest(run.options.max_length)
    return run.model


def with_prefix(model: LoadedModel, prefix: Path | None) -> LoadedModel:
    """The model with the tokens of the prompt in a file, whose caches the bundle will hold.

    Raises:
        ModelError: it is no language model of one part, has no tokenizer, or no room for the prompt.
    """
    if prefix is None:
        return model
    made = model.generation
    if made is None or made.encoder is not None or model.tokenizer is None:
        raise ModelError(
            f"{model.name} takes no `prefix`: that is for language models without an encoder"
            if made is None or made.encoder is not None
            else f"{model.name} has no tokenizer.json, which `prefix` is read with"
        )
    tokens, room = read_prefix(prefix, model.tokenizer), made.spec.max_context
    if len(tokens) + 2 > room:
        raise ModelError(
            f"the prefix '{prefix}' has {len(tokens)} tokens, the context has {room}",
            hint="give a larger `max_context`, or a shorter prompt",
        )
    return replace(model, generation=replace(made, prefix=tokens))


def find_subject(run: Run, model: LoadedModel, work: Path, *, cut: bool = True) -> Subject:
    """The subject of a plan; leaves the traffic in ``lengths.json``.

    Args:
        run: the build or the plan.
        model: the whole, or the part of it that the lengths are about.
        work: the work folder, where the stages leave their files.
        cut: whether the device may cut texts that are too long.
    """
    exports = ExportStore(model, work / "exported")
    options = replace(run.options, cut=run.options.cut and cut)
    subject = make_subject(exports, run.profile, options, work, run.notes)
    write_json(work / "lengths.json", subject.asked.sizes.to_json())
    return subject


def choose_precision(run: Run, subject: Subject, *, rounding: bool = True) -> ResolvedPrecision:
    """The precision that was asked for, or the choice that ``auto`` is; leaves it in the work folder."""
    title = resolving_title(subject.precision, subject.model)
    if run.profile.gpu is not None:
        # What a GPU computes in is its costs' matter; the weights are those of the cores beside it.
        resolved = ResolvedPrecision(FP32)
        stored = subject.model.stored
        if stored is not None:
            subject.notes.add(
                f"the {stored.kind} checkpoint's own numbers aren't kept on a GPU: it computes in "
                + subject.precision
            )
    elif title is None or not rounding:
        resolved = resolve(subject, rounding=rounding)
    else:
        resolved = run.stage(title, lambda step: resolve(subject, step=step))
    if had_pairs_refused(subject.work, resolved.precision):
        note = "int8 adds no pairs in 16 bits, which the cases of an earlier bundle in this work folder refused"
        resolved = resolved.without_pairs(note)
        subject.notes.add(note)
    save_precision(subject.work, resolved.precision)
    return resolved


def make_plan(
    run: Run, subject: Subject, precision: Precision = FP32, *, compare: bool = False
) -> Planned:
    """The costs and the plan, which is left in ``plan.json``."""
    asked, title = subject.request, "measure and plan"
    if run.profile.gpu is not None or asked.plan is not None:
        title = "plan"
    elif asked.quick:
        title = "export and plan"  # what the bundle can serve, the whole model's export tells
    planned = run.stage(
        title,
        lambda step: plan_model(subject, precision, compare=compare, step=step),
    )
    write_json(subject.work / "plan.json", planned.plan.to_json())
    return planned


def prove_padding(subject: Subject, planned: Planned) -> tuple[Planned, str]:
    """The plan with the proof that inputs may be filled up along every axis, or as it was with the
    reason why not: a device that records graphs fills up every bucket."""
    asked, model = subject.request, subject.whole.model
    assume = asked.assume_paddable or (asked.plan is not None and asked.plan.padding == ASSUMED)
    try:
        plan = with_padding(planned.plan, model, assume=assume, also=model.axes)
    except (ModelError, PlanError) as error:
        return planned, error.message
    subject.notes.add(*plan.notes)
    return replace(planned, plan=plan), ""


def export_programs(
    run: Run, exports: ExportStore, buckets: Sequence[Bucket], *, of: str = ""
) -> tuple[ExportedModel, ...]:
    """A program for each bucket; ``of`` names the part of a model of several."""
    exported = run.stage(
        f"export {of}".strip(), lambda step: export_buckets(exports, buckets, step=step)
    )
    run.notes.add(*(note for program in exported for note in program.notes))
    return exported


def compile_programs(
    run: Run,
    keys: Iterable[str],
    exported: Sequence[ExportedModel],
    buckets: Sequence[Bucket],
    work: Path,
    *,
    precision: Precision = FP32,
    title: str = "compile",
    backend: str = "",
    variants: Sequence[str] | None = None,
    only_known: bool = False,
    padded: bool = False,
) -> CompiledModel:
    """A library for each bucket and variant, judged; see ``compile_buckets``.

    Args:
        keys: the keys of the exports, one for each bucket.
        backend: one of :data:`edgecompile.backends.CPU_BACKENDS`; empty: the request's.
        variants: names of the target's; None for all.
        padded: programs are run on padded inputs, also where their bucket's mode is ``exact``.
    """
    options = CompileOptions(
        None if variants is None else [run.profile.variant(name) for name in variants],
        precision,
        backend or run.options.backend_for(run.profile),
        run.options.jobs,
        run.options.on,
        only_known,
        padded,
    )
    folder = work / "artifacts"
    return run.stage(
        title,
        lambda step: compile_buckets(
            exported, buckets, run.profile, folder, options, keys=list(keys), step=step
        ),
    )


def pack(
    run: Run,
    packed: Contents,
    staging: Staging,
    *,
    title: str = "verify and pack",
    locate: bool = True,
) -> BuildResult:
    """The bundle, verified before it gets the name that ``staging`` claims.

    Args:
        locate: whether a failure names the layer where the difference begins, which takes long.
    """
    options = run.options
    result = run.stage(
        title,
        lambda step: pack_bundle(
            packed,
            staging,
            seed=options.seed,
            emulate=options.emulation,
            profile=run.profile if locate else None,
            step=step,
        ),
    )
    run.notes.add(*result.notes)
    notes = tuple(dict.fromkeys(sentence(note) for note in run.notes))
    if run.forecast is not None and not packed.compiled.reused:
        run.forecast.record(sum(run.seconds.values()))
    return replace(result, seconds=run.seconds, notes=notes, forecast=run.forecast)
