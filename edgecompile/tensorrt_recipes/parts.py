"""The parts of a bundle for TensorRT: ONNX, weights and recipe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from edgecompile.audit.judge import AuditVerdict
from edgecompile.bundle.verdict import CaseResult, VerifyReport
from edgecompile.bundle.writer import BundleWriter
from edgecompile.onnx_files.report import OnnxArtifact
from edgecompile.runtime.format.manifest.schema import TENSORRT, Manifest, Variant
from edgecompile.runtime.format.recipe.parse import parse_recipe
from edgecompile.runtime.format.recipe.schema import OtherForm, Side
from edgecompile.targets.jetpack import JetPack
from edgecompile.targets.profile import TargetProfile
from edgecompile.tensorrt_recipes.recipes import make_recipe

#: Over that of any CPU's variant.
_RANK = 900
_RECIPE = "recipe.json"


@dataclass(frozen=True)
class TensorRtParts:
    """The ONNX of a model, and the device that will finish it; see :class:`~edgecompile.bundle.parts.Parts`.

    Attributes:
        profile: the target; it has a GPU.
        jetpack: the release that the device has.
        older: the release that it may have as well, if the ONNX has a form for it.
        artifact: the files, checked against eager.
    """

    profile: TargetProfile
    jetpack: JetPack
    artifact: OnnxArtifact
    older: JetPack | None = None

    @property
    def variant(self) -> str:
        """Its name in the bundle."""
        return self.profile.name

    @property
    def precision(self) -> str:
        """The precision of the ONNX."""
        return self.artifact.precision

    @property
    def audit(self) -> tuple[AuditVerdict, ...]:
        """None: the device builds its libraries."""
        return ()

    def add(self, writer: BundleWriter, manifest: Manifest) -> Manifest:
        """As :func:`add_gpu`."""
        return add_gpu(writer, manifest, self)

    def check(
        self, bundle: Path, manifest: Manifest, report: VerifyReport, tell: Callable[[str], None]
    ) -> tuple[Manifest, VerifyReport]:
        """Adds how its ONNX came out."""
        return manifest, with_gpu(report, self)

    def documents(self) -> dict[str, object]:
        """The checks of the ONNX."""
        return {"onnx.json": self.artifact.to_json()}


def add_gpu(writer: BundleWriter, manifest: Manifest, parts: TensorRtParts) -> Manifest:
    """Copies the files in and writes the recipe; returns the manifest with the variant.

    Raises:
        PlanError: a build is predicted to need more memory than the module has.
        BundleError: the recipe breaks a rule of the format.
    """
    folder = f"code/{parts.variant}"
    artifact = parts.artifact
    forms = [form.path for form in (artifact.older, *artifact.sides) if form is not None]
    for path in (artifact.path, artifact.weights, *forms):
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
        tolerance=artifact.check.tolerance,
        padding=artifact.check.padding,
        float32=artifact.float32,
        also=_forms(parts),
        sides=tuple(
            Side(form.path.name, form.opset, form.buckets, form.float32) for form in artifact.sides
        ),
    )
    data = recipe.to_bytes()
    # The device's own reader first: what it would refuse is never written.
    parse_recipe(data, manifest._replace(files=writer.files), variant)
    writer.add_bytes(data, variant.recipe)
    # What a failed self-test may be about.
    plan = {**manifest.plan, "operators": sorted(artifact.ops.operators)}
    manifest = manifest._replace(variants=(*manifest.variants, variant), plan=plan)
    if manifest.weights:
        return manifest
    # Without programs for CPUs these are all the weights that there are.
    own = f"{folder}/{artifact.weights.name}"
    return manifest._replace(precision=artifact.precision, weights={artifact.precision: own})


def _forms(parts: TensorRtParts) -> tuple[OtherForm, ...]:
    form, jetpack = parts.artifact.older, parts.older
    if form is None or jetpack is None:
        return ()
    bounds = (jetpack.tensorrt_least, jetpack.tensorrt_below)
    return (OtherForm(form.path.name, form.opset, jetpack.name, *bounds, form.float32),)


def jetpack_notes(parts: TensorRtParts) -> tuple[str, ...]:
    """A sentence for people on the releases of JetPack that a bundle is for, and the tests on them."""
    jetpack, older = parts.jetpack, parts.older
    if not jetpack.name:
        return ()
    ran = jetpack.ran or f"no TensorRT {jetpack.tensorrt} was ever run by us"
    mine = f"JetPack {jetpack.name} ({ran})"
    if older is None:
        return (f"The bundle is for {mine} alone",)
    if parts.artifact.older is None:
        return (f"The bundle is for {mine} alone, not for {older.name}: {parts.artifact.no_older}",)
    return (f"The bundle is for {mine} and {older.name} ({older.ran or 'never run by us'})",)


def with_gpu(report: VerifyReport, parts: TensorRtParts) -> VerifyReport:
    """A report with the results of the GPU variant's ONNX."""
    check = parts.artifact.check
    results = (*report.results, *onnx_results(parts))
    if not report.results:  # nothing of the CPU's was run, so the GPU's bounds are the report's
        report = replace(report, tolerance=check.tolerance, min_cosine=check.min_cosine)
    reason = (
        "the device builds its engine (finish) and tests it on the golden vectors; here "
        "onnxruntime ran its ONNX"
    )
    return replace(
        report,
        results=results,
        not_executed={**report.not_executed, parts.variant: reason},
    )


def onnx_results(parts: TensorRtParts) -> tuple[CaseResult, ...]:
    """The results of the ONNX in onnxruntime, one for each bucket and way of running."""
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
