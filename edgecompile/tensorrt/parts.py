"""The parts of a bundle for a GPU: ONNX, weights and recipe, and an engine where the build host has that
very GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from edgecompile.bundle.verdict import CaseResult, VerifyReport
from edgecompile.bundle.writer import BundleWriter
from edgecompile.onnx.report import OnnxArtifact
from edgecompile.runtime.finish.finish import finish_bundle
from edgecompile.runtime.finish.maker import Options
from edgecompile.runtime.format.recipe import parse_recipe
from edgecompile.runtime.format.schema import TENSORRT, Manifest, Variant
from edgecompile.targets.jetpack import JetPack
from edgecompile.targets.profile import TargetProfile
from edgecompile.tensorrt.recipes import make_recipe
from edgecompile.tensorrt.rtx import RtxReport
from edgecompile.tensorrt.torch_tensorrt import BuiltEngine

#: Over that of any CPU's variant.
_RANK = 900
_RECIPE = "recipe.json"


@dataclass(frozen=True)
class GpuParts:
    """The ONNX of a model, and the device that will finish it.

    Attributes:
        profile: the target; it has a GPU.
        jetpack: the release that the device has.
        artifact: the files, checked against eager.
        rtx: what TensorRT-RTX made of them, where it is installed.
        engine: what torch-tensorrt made of the program, for this machine.
    """

    profile: TargetProfile
    jetpack: JetPack
    artifact: OnnxArtifact
    rtx: RtxReport | None = None
    engine: BuiltEngine | None = None

    @property
    def variant(self) -> str:
        """Its name in the bundle."""
        return self.profile.name


def add_gpu(writer: BundleWriter, manifest: Manifest, parts: GpuParts) -> Manifest:
    """Copies the files in and writes the recipe; returns the manifest with the variant.

    Raises:
        PlanError: a build is predicted to need more memory than the module has.
        BundleError: the recipe breaks a rule of the format.
    """
    folder = f"code/{parts.variant}"
    artifact = parts.artifact
    for path in (artifact.path, artifact.weights):
        writer.add_file(path, f"{folder}/{path.name}")
    variant = Variant(
        name=parts.variant,
        arch=parts.profile.archs[0],
        backend=TENSORRT,
        requires=(),
        glibc=None,
        rank=_RANK,
        recipe=f"{folder}/{_RECIPE}",
    )
    recipe = make_recipe(
        manifest,
        parts.profile,
        parts.jetpack,
        artifact.path,
        artifact.weights,
        opset=artifact.opset,
        precision=artifact.precision,
        padding=artifact.check.padding,
        float32=artifact.float32,
    )
    if parts.engine is not None:
        shipped = parts.engine.shipped
        writer.add_file(parts.engine.path, f"{folder}/{shipped.file}")
        recipe = replace(recipe, engine=shipped)
    data = recipe.to_bytes()
    # The device's own reader first: what it would refuse is never written.
    parse_recipe(data, manifest._replace(files=writer.files), variant)
    writer.add_bytes(data, variant.recipe)
    return manifest._replace(variants=(*manifest.variants, variant))


def try_engine(
    bundle: Path, parts: GpuParts, tell: Callable[[str], None]
) -> tuple[CaseResult, ...]:
    """Finishes a bundle on this machine, whose engine it brings: runs it on the golden vectors.

    Returns:
        How each case came out, () where the bundle brings no engine.

    Raises:
        SelftestError: it doesn't reproduce them.
        EdgecompileError: as :func:`edgecompile.runtime.finish.finish.finish_bundle` says.
    """
    if parts.engine is None:
        return ()
    report = finish_bundle(str(bundle), Options(variant=parts.variant), tell)
    return tuple(
        CaseResult(
            variant=parts.variant,
            bucket=item["bucket"],
            case=f"{item['case']}, mode {item['mode']}",
            max_abs_error=item["max_abs_error"],
            scale=item["scale"],
            ok=item["ok"],
            cosine=item["cosine"],
        )
        for item in report["selftest"]["cases"]
    )


def engine_notes(engine: BuiltEngine | None) -> tuple[str, ...]:
    """Notes for people on the engine in the bundle."""
    if engine is None:
        return ()
    text = (
        f"{engine.shipped.made_by} made an engine with {engine.profiles} profiles, "
        f"{engine.size_bytes / 2**20:,.1f} MiB, for {engine.device}: it passed the golden vectors here, "
        "other devices build theirs from the ONNX"
    )
    return (text, *engine.notes)


def with_gpu(
    report: VerifyReport, parts: GpuParts, tested: tuple[CaseResult, ...] = ()
) -> VerifyReport:
    """A report with what is known of the GPU's variant: of its ONNX, and of an engine if there is one
    that was ``tested``."""
    check = parts.artifact.check
    results = (*report.results, *tested, *onnx_results(parts))
    if not report.results:  # nothing of the CPU's was run, so the GPU's bounds are the report's
        report = replace(report, tolerance=check.tolerance, min_cosine=check.min_cosine)
    if tested:
        return replace(report, results=results)
    reason = (
        "the device builds its engine (finish) and tests it on the golden vectors; here "
        "onnxruntime ran its ONNX"
    )
    return replace(
        report,
        results=results,
        not_executed={**report.not_executed, parts.variant: reason},
    )


def rtx_notes(report: RtxReport | None) -> tuple[str, ...]:
    """Notes for people on TensorRT-RTX's build, a sentence or none."""
    if report is None:
        return ()
    if report.ok:
        missing = ", ".join(report.missing_inputs)
        return (
            f"TensorRT-RTX {report.version} took the ONNX with {report.profiles} profiles: "
            + report.status
            + (f"; its network lacks the inputs {missing}" if missing else ""),
        )
    # It is another TensorRT than the device's: what it refuses is a warning.
    reasons = "; ".join(str(error) for error in report.errors[:3]) or "it said nothing"
    return (f"TensorRT-RTX {report.version} didn't take the ONNX, {report.status}: {reasons}",)


def onnx_results(parts: GpuParts) -> tuple[CaseResult, ...]:
    """How the ONNX came out in onnxruntime, one result for each bucket and way of running."""
    check = parts.artifact.check
    return tuple(
        CaseResult(
            variant=f"{parts.variant} (ONNX)",
            bucket=item.bucket,
            case=f"{item.worst}, padded" if item.padded else item.worst,
            max_abs_error=item.max_abs_error,
            scale=item.scale,
            ok=item.ok,
            error="; ".join(item.reasons),
            cosine=item.cosine,
        )
        for item in check.results
        # Where padding changes results but nothing has to pad, the recipe says so and nothing does.
        if item.counts or check.padding
    )
