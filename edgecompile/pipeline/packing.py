"""Packing: stages a bundle, verifies it through its own runtime, and only then names it."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgecompile.backends.compilation import CompiledModel
from edgecompile.buckets.assessment import assess_plan
from edgecompile.buckets.limits import BucketCost
from edgecompile.buckets.plan import BucketPlan
from edgecompile.bundle.assembly import built_by, stage
from edgecompile.bundle.cases import GOLDEN_CASES, length_cases, make_cases, sample_cases
from edgecompile.bundle.generation import ENCODER, golden_texts, manifest_generation
from edgecompile.bundle.staging import Staging
from edgecompile.bundle.verdict import VerifyReport, check_report
from edgecompile.bundle.verify import verify_bundle
from edgecompile.bundle.writer import BundleWriter
from edgecompile.files import file_sha256
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.lengths.joint import JointDistribution
from edgecompile.loaders.folders.text_settings import describe_texts
from edgecompile.models.loaded import LoadedModel, ModelSource
from edgecompile.models.samples import Samples
from edgecompile.precision import FP32, Precision, min_cosine
from edgecompile.progress import NULL_STEP, StepHandle
from edgecompile.report.pages import build_header, build_page, plain_page
from edgecompile.runtime.format.manifest import AOTI_CPU, MANIFEST_NAME, TORCH, Manifest
from edgecompile.runtime.generation.golden import FILE as GENERATION_FILE
from edgecompile.tensorrt.parts import GpuParts, add_gpu, try_engine, with_gpu

if TYPE_CHECKING:
    from edgecompile.narrowing.trials import PrecisionChoice


@dataclass(frozen=True)
class PackedBundle:
    """A bundle that was verified and named."""

    path: Path
    size_bytes: int
    sha256: str
    verify: VerifyReport
    notes: tuple[str, ...]


def pack_bundle(
    model: LoadedModel,
    plan: BucketPlan,
    compiled: CompiledModel,
    output: Path,
    *,
    lengths: LengthDistribution | JointDistribution | None = None,
    cost: BucketCost | None = None,
    samples: Samples | None = None,
    choice: PrecisionChoice | None = None,
    gpu: GpuParts | None = None,
    seed: int = 0,
    force: bool = False,
    tokenizer: bool = True,
    encoder: Path | None = None,
    claimed: Staging | None = None,
    emulate: bool = True,
    step: StepHandle = NULL_STEP,
) -> PackedBundle:
    """Writes a bundle and verifies it before it gets its name.

    Args:
        model: what was compiled.
        plan: its buckets.
        compiled: of these buckets; or of one that all of them share.
        output: the bundle to write.
        lengths: what the plan was made for, for the reports.
        cost: what buckets take, likewise.
        samples: inputs to verify with beside those of :func:`edgecompile.bundle.cases.make_cases`.
        choice: how the precision was chosen, for the reports.
        gpu: what a GPU's engine will be built from, verified.
        seed: of the inputs that are drawn.
        force: replace a bundle of the same name.
        tokenizer: whether the model's tokenizer travels along, if it has one.
        encoder: the bundle that reads its sources, if it goes on from some.
        claimed: the place of ``output``, where a build has claimed it.
        emulate: whether variants that this host can't run are run under an emulator; see
            :func:`edgecompile.bundle.verify.verify_bundle`.
        step: told what is being done.

    Raises:
        ModelError: the tokenizer's file isn't one.
        VerificationError: an output differs from eager; nothing stands under the final name.
        BundleWriteError, DiskFullError: it could not be written.
    """

    def tell(text: str) -> None:
        step.update(text=text)

    # The same file in another folder makes the same bundle, and nobody learns where it lay.
    plan = replace(plan, source=_file_names(plan.source))
    lengths = None if lengths is None else replace(lengths, source=_file_names(lengths.source))
    with BundleWriter(output, force=force, claimed=claimed) as writer:
        tell("copying")
        manifest = replace(
            stage(writer, model, plan.buckets, compiled, built_by(model, compiled)),
            plan={
                **_plan_summary(plan, compiled.precision),
                **({"load": dict(model.load)} if model.load else {}),
            },
            expected=_expected(plan),
            labels=model.labels,
        )
        said: tuple[str, ...] = ()
        if tokenizer:
            text, said = describe_texts(model, manifest.axes)
            if text is not None and model.tokenizer is not None:
                writer.add_file(model.tokenizer, text.tokenizer)
                manifest = replace(manifest, text=text)
        if gpu is not None:
            manifest = add_gpu(writer, manifest, gpu)
        if encoder is not None:
            writer.add_bundle(encoder, ENCODER)
        tell("running eager")
        cases = list(make_cases(model, plan.buckets, seed=seed))
        # Of narrower weights the bounds are those of the usual cases; places in a cache are drawn
        # for the usual lengths.
        sweep = compiled.precision == FP32 and model.generation is None
        swept = plan.buckets if sweep else ()
        cases += length_cases(model, swept, also=compiled.kinds(plan.buckets), seed=seed)
        if samples is not None and samples.real:
            cases += sample_cases(model, plan.buckets, samples)
        golden = tuple(
            writer.add_golden(c.bucket, c.name, c.inputs, c.outputs)
            for c in cases
            if c.name in (GOLDEN_CASES if model.generation is None else GOLDEN_CASES[1:2])
        )
        manifest = replace(manifest, golden=golden, generation=manifest_generation(model))
        texts = None
        if model.generation is not None:
            tell("generating with transformers")
            texts = golden_texts(model, seed=seed)
            writer.add_bytes(texts, GENERATION_FILE)
        writer.write_manifest(manifest)
        tested = () if gpu is None else try_engine(writer.staging, gpu, tell)
        tell("running the bundle")
        report = verify_bundle(
            writer.staging,
            cases,
            [v.name for v in manifest.variants if v.backend in (AOTI_CPU, TORCH)],
            manifest.tolerance,
            min_cosine=min_cosine(manifest.precision),
            texts=texts,
            emulate=emulate,
            tell=tell,
        )
        if gpu is not None:
            report = with_gpu(report, gpu, tested)
        check_report(report, reused=compiled.reused, unrun=True)
        manifest = replace(manifest, built_by={**manifest.built_by, "verified": report.summary})
        found = _reports(manifest, model.source, plan, lengths, cost, compiled, report, choice, gpu)
        for name, data in found.items():
            writer.add_bytes(data, f"reports/{name}")
        writer.write_manifest(manifest)
        tell("naming it")
        path = writer.commit()
    notes = (*said, *run_notes(report))
    size = sum(p.stat().st_size for p in path.rglob("*") if p.is_file())
    return PackedBundle(path, size, file_sha256(path / MANIFEST_NAME), report, notes)


def run_notes(report: VerifyReport) -> tuple[str, ...]:
    """What a person should know of variants that this host didn't run itself."""
    emulated = [
        f"{name} passed the golden vectors under {how}, which proves its results, not its speed."
        for name, how in report.emulated.items()
    ]
    unrun = [text.removesuffix(".") + "; run selftest on the device." for text in report.not_run()]
    return (*emulated, *unrun)


def _file_names(source: str) -> str:
    """Where lengths come from, without the folders of the files that it names."""
    return ", ".join(part.rpartition("/")[2] for part in source.split(", "))


def _reports(
    manifest: Manifest,
    source: ModelSource,
    plan: BucketPlan,
    sizes: LengthDistribution | JointDistribution | None,
    cost: BucketCost | None,
    compiled: CompiledModel,
    report: VerifyReport,
    choice: PrecisionChoice | None,
    gpu: GpuParts | None,
) -> dict[str, bytes]:
    """What the bundle says about itself: JSON for programs, one page for people."""
    files: dict[str, object] = {
        "verify.json": report.to_json(),
        "audit.json": [verdict.to_json() for verdict in compiled.audit],
        "plan.json": plan.to_json(),
    }
    if choice is not None:
        files["precision.json"] = choice.to_json()
    if gpu is not None:
        files["onnx.json"] = gpu.artifact.to_json()
        if gpu.rtx is not None:
            files["rtx.json"] = gpu.rtx.to_json()
        if gpu.engine is not None:
            files["engine.json"] = gpu.engine.to_json()
    joint = sizes if isinstance(sizes, JointDistribution) else None
    lengths = joint.marginal(joint.axes[0]) if joint is not None else sizes
    page = None
    if isinstance(lengths, LengthDistribution):
        # What the plan was made for: edgecompile drift compares the traffic with it.
        files["lengths.json"] = lengths.to_json()
        if joint is not None:
            files["sizes.json"] = joint.to_json()
        if plan.cost_model is not None:
            assessment = assess_plan(
                plan,
                joint or lengths,
                modes=tuple(dict.fromkeys(bucket.mode for bucket in plan.buckets)),
                cost=cost,
            )
            files["plan.json"] = assessment.to_json()
            header = build_header(
                manifest, source, compiled.audit, measured=plan.cost_model.kind == "measured"
            )
            page = build_page(manifest.name, assessment, report, choice, header=header)
        else:
            header = build_header(manifest, source, compiled.audit, measured=False)
            page = plain_page(manifest.name, plan, lengths, report, choice, header=header)
    result = {file: (json.dumps(value, indent=1) + "\n").encode() for file, value in files.items()}
    if page is not None:
        result["report.html"] = page.encode()
    return result


def _plan_summary(plan: BucketPlan, precision: Precision) -> dict[str, object]:
    # Which weights stay wider is part of what a mixed precision is called, but can't be read in it.
    mixed = {"precision": precision.to_json()} if precision.kept else {}
    return {
        **mixed,
        "policy": plan.policy,
        "expected_ms": plan.expected_ms,
        "source": plan.source,
        "notes": list(plan.notes),
        **({"padding": plan.padding} if plan.padding else {}),
    }


def _expected(plan: BucketPlan) -> dict[str, object]:
    """Milliseconds by length as planned with, so that a device can say how far it is off."""
    costs = plan.cost_model
    if costs is None or len(costs.axes) > 1:
        return {}
    points = {str(p.length): p.exact_ms for p in costs.points if p.exact_ms is not None}
    return {"kind": costs.kind, "ms_by_length": points, **dict(costs.provenance)}


__all__ = [
    "PackedBundle",
    "pack_bundle",
]
