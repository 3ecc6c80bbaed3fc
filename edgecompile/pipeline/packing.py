"""Packing: stages a bundle, verifies it through its own runtime, and only then names it."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from edgecompile.backends.compilation import CompiledModel
from edgecompile.backends.cpu.lowering.windows import common_windows
from edgecompile.buckets.assessment import assess_plan
from edgecompile.buckets.limits import BucketCost
from edgecompile.buckets.plan import BucketPlan
from edgecompile.bundle.assembly import built_by, stage
from edgecompile.bundle.cases import (
    GOLDEN_CASES,
    Case,
    length_cases,
    make_cases,
    rows_cases,
    sample_cases,
)
from edgecompile.bundle.generation import golden_texts, prefix_caches
from edgecompile.bundle.margins import allow_rounding, usual_share, widest_share
from edgecompile.bundle.parts import Parts
from edgecompile.bundle.staging import Staging
from edgecompile.bundle.steps import step_cases
from edgecompile.bundle.verdict import VerifyReport, check_report
from edgecompile.bundle.verify import verify_bundle
from edgecompile.bundle.writer import BundleWriter
from edgecompile.errors import VerificationError
from edgecompile.files import file_sha256
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.lengths.joint import JointDistribution
from edgecompile.loaders.folders.chat import read_chat
from edgecompile.loaders.folders.text_settings import (
    TOKENIZER_PATH,
    checked_tokenizer,
    describe_texts,
)
from edgecompile.models.loaded import ENCODER, LoadedModel
from edgecompile.models.samples import Samples, SampleTexts
from edgecompile.pipeline.origin import find_origin
from edgecompile.pipeline.result import BuildResult
from edgecompile.pipeline.server import ServerPlan, measure_server
from edgecompile.precision import FP32, TOLERANCES, Precision, min_cosine
from edgecompile.progress import NULL_STEP, StepHandle
from edgecompile.quantization.embeddings import find_ranges
from edgecompile.quantization.quality import Quality
from edgecompile.quantization.reference import RoundedCases, round_cases
from edgecompile.quantization.rounded_model import ReferenceModel, find_reference_model
from edgecompile.quantization.trials import PrecisionChoice
from edgecompile.report.pages import build_header, build_page
from edgecompile.runtime.cpu.host import architecture
from edgecompile.runtime.format.manifest.schema import (
    AOTI_CPU,
    MANIFEST_NAME,
    SEQ2SEQ,
    TORCH,
    BatchSpec,
    GenerationSpec,
    Manifest,
    Tolerance,
)
from edgecompile.runtime.format.manifest.text import CHAT_FILE
from edgecompile.runtime.generation.golden import FILE as GENERATION_FILE
from edgecompile.runtime.generation.prefix import FILE as PREFIX_FILE
from edgecompile.targets.profile import TargetProfile


@dataclass(frozen=True)
class Contents:
    """The contents of a bundle.

    Attributes:
        model: the compiled model.
        plan: its buckets.
        compiled: the programs of these buckets, or of one that all of them share.
        sizes: the traffic that the plan was made for, for the reports.
        cost: the cost of a bucket, for the reports.
        texts: the user's texts, for the ranges of embeddings.
        samples: inputs to verify with beside those of :func:`edgecompile.bundle.cases.make_cases`.
        choice: the record of choosing the precision, for the reports.
        quality: the figures of a language model's narrow weights; None: they aren't known yet.
        parts: parts that backends for a GPU add.
        tokenizer: whether the model's tokenizer travels along, if it has one.
        encoder: the bundle that reads its sources, if it goes on from some.
        server: the data for a server, if the bundle is for one.
        texts_at_once: the largest number of texts that the program for several of them takes.
    """

    model: LoadedModel
    plan: BucketPlan
    compiled: CompiledModel
    sizes: LengthDistribution | JointDistribution | None = None
    cost: BucketCost | None = None
    texts: SampleTexts | None = None
    samples: Samples | None = None
    choice: PrecisionChoice | None = None
    quality: Quality | None = None
    parts: tuple[Parts, ...] = ()
    tokenizer: bool = True
    encoder: Path | None = None
    server: ServerPlan | None = None
    texts_at_once: int = 0

    def without_folders(self) -> Contents:
        """The same; what names the files of the lengths names no folders.

        The same file in another folder makes the same bundle, and nobody learns where it was.
        """
        plan = replace(self.plan, source=_file_names(self.plan.source))
        sizes = self.sizes
        if sizes is not None:
            sizes = replace(sizes, source=_file_names(sizes.source))
        return replace(self, plan=plan, sizes=sizes)


def pack_bundle(
    contents: Contents,
    claim: Staging,
    *,
    seed: int = 0,
    emulate: bool = True,
    profile: TargetProfile | None = None,
    step: StepHandle = NULL_STEP,
) -> BuildResult:
    """Writes a bundle and verifies it before it gets its name.

    Args:
        contents: the contents of the bundle.
        claim: the claim on the bundle's path, entered.
        seed: the seed of the drawn inputs.
        emulate: whether variants that this host can't run are run under an emulator; see
            :func:`edgecompile.bundle.verify.verify_bundle`.
        profile: the target; with it, a failure names the layer where the difference begins.
        step: told what is being done.

    Raises:
        ModelError: the tokenizer's file isn't one.
        VerificationError: an output differs from eager; nothing stands under the final name.
        BundleWriteError, DiskFullError: it could not be written.
    """
    contents = contents.without_folders()
    writer = BundleWriter(claim)
    step.update(text="copying")
    manifest, notes = _fill(writer, contents)
    reference = find_reference_model(
        contents.model, contents.compiled, contents.quality, seed=seed, step=step
    )
    quality = reference.quality or contents.quality  # float32 has those of narrow caches alone
    if quality is not None:
        manifest = manifest._replace(plan={**manifest.plan, "quality": quality.to_json()})
    if contents.texts is not None:
        step.update(text="running texts")
    found = find_ranges(contents.model, manifest, contents.texts, contents.plan.max_length)
    if found is not None:
        manifest = manifest._replace(
            ranges={found.output: (found.low, found.high)},
            plan={**manifest.plan, "embeddings": found.to_json()},
        )
        notes = (*notes, found.describe())
    chief = contents.model.outputs[0].name
    with reference.running(), ExitStack() as rounding:
        step.update(text="running eager")
        cases, always = _cases(contents, manifest.tolerance, seed)
        margin = widest_share(cases, chief)
        count = len(cases)
        if reference.needs_activations(
            cases, lambda done: step.update(done, count, "rounding activations")
        ):
            step.update(text="running eager")
            reference = replace(reference, activations=True)
            rounding.enter_context(reference.rounding_activations())
            cases, always = _cases(contents, manifest.tolerance, seed)
            margin = widest_share(cases, chief)
            count = len(cases)  # as many, unless the time for them ran out
            cases = reference.allow_motion(
                cases, seed, lambda done: step.update(done, count, "moving the rounded model")
            )
            # One case that moves far doesn't make ties of the tokens of all texts.
            margin = max(margin, usual_share(cases, chief))
        golden = tuple(
            writer.add_golden(c.bucket, c.name, c.inputs, c.outputs, c.margins, c.ties)
            for c in cases
            if c.name in always
        )
        made = contents.model.generation
        manifest = manifest._replace(golden=golden)
        texts = None
        if made is not None:
            step.update(text="generating with transformers")
            texts = golden_texts(contents.model, seed=seed, margin=margin)
            writer.add_bytes(texts, GENERATION_FILE)
            if made.prefix:
                writer.add_bytes(prefix_caches(contents.model), PREFIX_FILE)
        writer.write_manifest(manifest)
        manifest, report = _verify(
            writer, contents, manifest, cases, texts, reference, emulate, profile, step
        )
    manifest = manifest._replace(built_by={**manifest.built_by, "verified": report.summary})
    if contents.server is not None:
        step.update(text="measuring batches")
        serving = measure_server(
            contents.server, writer.staging, manifest, lambda text: step.update(text=text)
        )
        manifest = manifest._replace(plan={**manifest.plan, "server": serving})
    for name, data in _reports(manifest, contents, report).items():
        writer.add_bytes(data, f"reports/{name}")
    writer.write_manifest(manifest)
    step.update(text="naming it")
    path = writer.commit()
    size = sum(p.stat().st_size for p in path.rglob("*") if p.is_file())
    sha256 = file_sha256(path / MANIFEST_NAME)
    return BuildResult(
        path,
        size,
        sha256,
        contents.plan,
        report,
        contents.compiled.audit,
        notes=(*notes, *run_notes(report)),
        choice=contents.choice,
        quality=quality,
        parts=contents.parts,
    )


def _fill(writer: BundleWriter, contents: Contents) -> tuple[Manifest, tuple[str, ...]]:
    """Adds code, weights, tokenizer and parts; gives the manifest so far, and notes on texts."""
    model, plan, compiled = contents.model, contents.plan, contents.compiled
    staged = stage(writer, plan.buckets, compiled, built_by(model, compiled))
    manifest = staged._replace(
        plan={
            **_plan_summary(plan, compiled.precision),
            "operators": _operators(model),
            **({"load": dict(model.load)} if model.load else {}),
        },
        expected=_expected(plan),
        labels=model.labels,
        state=model.state,
        policy=model.policy,
    )
    if model.generation is not None:
        programs = {
            name: writer.add_file(made.library, f"code/{name}/texts.so")
            for name, made in compiled.batch.items()
        }
        batch = BatchSpec(contents.texts_at_once, programs) if programs else None
        generation = model.generation.spec._replace(
            batch=batch,
            masked_head=_have_masked_heads(compiled),
            windows=_common_windows(compiled, model.generation.spec),
        )
        manifest = manifest._replace(generation=generation)
    notes: tuple[str, ...] = ()
    if contents.tokenizer:
        text, notes = describe_texts(model, manifest.axes)
        if text is not None and model.tokenizer is not None:
            writer.add_file(model.tokenizer, text.tokenizer)
            manifest = manifest._replace(text=text)
            chat = read_chat(model.tokenizer.parent) if model.generation is not None else None
            if chat is not None:
                writer.add_bytes(chat, CHAT_FILE)
    speech = model.speech
    if speech is not None:
        spec = speech.spec
        for name, data in speech.files.items():
            writer.add_bytes(data, name)
        if contents.tokenizer and speech.tokenizer is not None:
            spec = spec._replace(tokenizer=TOKENIZER_PATH)
            if isinstance(speech.tokenizer, bytes):
                writer.add_bytes(speech.tokenizer, TOKENIZER_PATH)
            else:
                writer.add_file(checked_tokenizer(speech.tokenizer), TOKENIZER_PATH)
        manifest = manifest._replace(speech=spec)
    for parts in contents.parts:
        manifest = parts.add(writer, manifest)
    if contents.encoder is not None:
        writer.add_bundle(contents.encoder, ENCODER)
    return manifest, notes


def _have_masked_heads(compiled: CompiledModel) -> bool:
    """Whether each program can leave out logits that nobody reads."""
    made = [artifact for own in compiled.artifacts.values() for artifact in own]
    return bool(made) and all(item.lowering.get("counts", {}).get("heads") for item in made)


def _common_windows(compiled: CompiledModel, spec: GenerationSpec) -> dict[str, int]:
    """The windows of those caches that every program reads through windows alone, less than the context."""
    if spec.kind == SEQ2SEQ:
        return {}
    made = [artifact for own in compiled.artifacts.values() for artifact in own]
    programs, joint = (
        [item.lowering.get("windows", {}) for item in items]
        for items in (made, compiled.batch.values())
    )
    found = common_windows(programs, joint, spec.caches)
    return {name: window for name, window in found.items() if window < spec.max_context}


def _cases(contents: Contents, tolerance: Tolerance, seed: int) -> tuple[list[Case], Sequence[str]]:
    """The cases that the bundle is compared on, and the names of those that are its golden vectors."""
    narrower = [parts.precision for parts in contents.parts]
    rtol = max([tolerance.rtol, *(TOLERANCES[name].rtol for name in narrower)])
    model, compiled, buckets = contents.model, contents.compiled, contents.plan.buckets
    runs = list(rows_cases(model, buckets, seed=seed, rtol=rtol))
    runs += step_cases(model, buckets, seed=seed, rtol=rtol)
    always = (*GOLDEN_CASES, *{case.name for case in runs})
    if model.generation is not None:
        always = GOLDEN_CASES[1:2]
    if architecture(platform.machine()) not in {variant.arch for variant in compiled.variants}:
        # An emulator repeats the golden vectors, and nothing runs the rest.
        golden = [*make_cases(model, buckets, seed=seed, golden=True, rtol=rtol), *runs]
        return allow_rounding(golden), always
    cases = [*make_cases(model, buckets, seed=seed, rtol=rtol), *runs]
    # Of narrower weights the bounds are those of the usual cases; places in a cache are drawn
    # for the usual lengths.
    sweep = compiled.precision == FP32 and model.generation is None
    swept = buckets if sweep else ()
    cases += length_cases(model, swept, also=compiled.kinds(buckets), seed=seed)
    if contents.samples is not None and contents.samples.real:
        cases += sample_cases(model, buckets, contents.samples, rtol=rtol)
    return allow_rounding(cases), always


def _verify(
    writer: BundleWriter,
    contents: Contents,
    manifest: Manifest,
    cases: Sequence[Case],
    texts: bytes | None,
    reference: ReferenceModel,
    emulate: bool,
    profile: TargetProfile | None,
    step: StepHandle,
) -> tuple[Manifest, VerifyReport]:
    """Runs the staged bundle; raises VerificationError where it differs from eager."""

    def show(text: str) -> None:
        step.update(text=text)

    compiled, rounded = contents.compiled, RoundedCases()
    if reference.rounded:
        count = len(cases)
        cases = reference.limit(
            cases, lambda done: step.update(done, count, "running the rounded model")
        )
    elif compiled.precision.name != FP32.name:
        show("running the rounded model")
        rounded = round_cases(contents.model, compiled, cases)
    cases = [*cases, *rounded.cases]
    show("running the bundle")
    report = verify_bundle(
        writer.staging,
        cases,
        [v.name for v in manifest.variants if v.backend in (AOTI_CPU, TORCH)],
        manifest.tolerance,
        min_cosine=None if reference.rounded else min_cosine(manifest.precision),
        texts=texts,
        emulate=emulate,
        tell=show,
    )
    for parts in contents.parts:
        manifest, report = parts.check(writer.staging, manifest, report, show)
    note = (*rounded.describe(compiled.precision.name), *reference.notes)
    report = replace(report, notes=(*report.notes, *note))
    try:
        check_report(report, reused=compiled.reused, packing=True)
    except VerificationError as error:
        origin = ""
        if profile is not None:
            buckets = contents.plan.buckets
            origin = find_origin(
                contents.model, compiled, buckets, cases, report, profile, step=step
            )
        error.message = "\n".join(filter(None, (error.message, *note, origin)))
        raise
    return manifest, report


def run_notes(report: VerifyReport) -> tuple[str, ...]:
    """The notes on variants that this host didn't run itself."""
    emulated = [
        f"{name} passed the golden vectors under {how}, which proves its results, not its speed."
        for name, how in report.emulated.items()
    ]
    unrun = [text.removesuffix(".") + "; run selftest on the device." for text in report.not_run()]
    return (*emulated, *unrun)


def _file_names(source: str) -> str:
    """The origin of lengths, without the folders of its files."""
    return ", ".join(part.rpartition("/")[2] for part in source.split(", "))


def _reports(manifest: Manifest, contents: Contents, report: VerifyReport) -> dict[str, bytes]:
    """The reports inside the bundle: JSON for programs, one page for people."""
    plan, choice, audit = contents.plan, contents.choice, contents.compiled.audit
    for parts in contents.parts:
        audit = (*audit, *parts.audit)
    files: dict[str, object] = {
        "verify.json": report.to_json(),
        "audit.json": [verdict.to_json() for verdict in audit],
        "plan.json": plan.to_json(),
    }
    if choice is not None:
        files["precision.json"] = choice.to_json()
    for parts in contents.parts:
        files.update(parts.documents())
    page, sizes = None, contents.sizes
    if sizes is not None:
        joint = sizes if isinstance(sizes, JointDistribution) else None
        lengths = sizes.marginal(sizes.axes[0]) if isinstance(sizes, JointDistribution) else sizes
        # What the plan was made for: edgecompile drift compares the traffic with it.
        files["lengths.json"] = lengths.to_json()
        if joint is not None:
            files["sizes.json"] = joint.to_json()
        measured = plan.cost_model is not None and plan.cost_model.kind == "measured"
        header = build_header(manifest, contents.model.source, audit, measured=measured)
        assessment = None
        if plan.cost_model is not None:
            modes = tuple(dict.fromkeys(bucket.mode for bucket in plan.buckets))
            assessment = assess_plan(plan, sizes, modes=modes, cost=contents.cost)
            files["plan.json"] = assessment.to_json()
        page = build_page(manifest.name, plan, sizes, assessment, report, choice, header=header)
    result = {file: (json.dumps(value, indent=1) + "\n").encode() for file, value in files.items()}
    if page is not None:
        result["report.html"] = page.encode()
    return result


def _plan_summary(plan: BucketPlan, precision: Precision) -> dict[str, object]:
    # The label has a hash of the weights that stay wider, and nothing of pairs.
    chosen = {"precision": precision.to_json()} if precision.kept or precision.pairs else {}
    return {
        **chosen,
        "policy": plan.policy,
        "expected_ms": plan.expected_ms,
        "source": plan.source,
        "notes": list(plan.notes),
        **({"padding": plan.padding} if plan.padding else {}),
    }


def _operators(model: LoadedModel) -> list[str]:
    """torch's layers in the model: what a failed self-test may be about."""
    kinds = {type(module) for module in model.module.modules()}
    return sorted(kind.__name__ for kind in kinds if kind.__module__.startswith("torch.nn.modules"))


def _expected(plan: BucketPlan) -> dict[str, object]:
    """Milliseconds by length as planned with, so that a device can say how far it is off."""
    costs = plan.cost_model
    if costs is None or len(costs.axes) > 1:
        return {}
    points = {str(p.length): p.exact_ms for p in costs.points if p.exact_ms is not None}
    return {"kind": costs.kind, "ms_by_length": points, **dict(costs.provenance)}
