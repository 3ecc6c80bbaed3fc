"""Puts programs for a GPU into a bundle, beside those for its machine's own cores."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edgecompile.audit.judge import AuditVerdict, baseline
from edgecompile.backends.cuda.artifact import PREFIX, CompiledGpuModel
from edgecompile.bundle.rehearsal import REHEARSAL, rehearse
from edgecompile.bundle.verdict import VerifyReport
from edgecompile.bundle.writer import BundleWriter, merge_constants
from edgecompile.precision import FP32, INT8, min_cosine
from edgecompile.runtime.cpu.host import architecture
from edgecompile.runtime.format.manifest.schema import TRITON, GpuSpec, Manifest, Tolerance, Variant

#: Variants for a GPU come before those for CPUs, and behind an engine of TensorRT.
RANK = 800


@dataclass(frozen=True)
class TritonParts:
    """Programs that a GPU runs without TensorRT; see :class:`~edgecompile.bundle.parts.Parts`.

    Attributes:
        programs: the compiled programs.
        tolerance: difference from eager that they are allowed.
    """

    programs: CompiledGpuModel
    tolerance: Tolerance

    @property
    def precision(self) -> str:
        """The precision of weights and activations."""
        return self.programs.precision

    @property
    def audit(self) -> tuple[AuditVerdict, ...]:
        """Verdicts on kernels and libraries."""
        return self.programs.audit

    def add(self, writer: BundleWriter, manifest: Manifest) -> Manifest:
        """Adds libraries and weights; returns the manifest with a variant for each architecture."""
        programs = self.programs
        label = weights_label(programs.precision)
        constants = merge_constants([a for arch in programs.artifacts for a in programs.of(arch)])
        weights = writer.add_weights(constants, programs.store, label)
        gpu = GpuSpec(
            compute_capabilities=programs.capabilities,
            ptx=programs.ptx,
            driver=programs.driver,
            precision=label,
            tolerance=self.tolerance,
            min_cosine=min_cosine(programs.precision),
            padding=bool(manifest.plan.get("padding")),
            checks=programs.checks,
            graphs=not programs.reads_numbers,
            cublaslt=programs.cublaslt,
        )
        variants = [_variant(writer, programs, arch, gpu) for arch in programs.natives]
        return manifest._replace(
            variants=(*manifest.variants, *variants),
            precision=manifest.precision if manifest.weights else label,
            weights={**manifest.weights, label: weights},
            built_by={**manifest.built_by, "gpu": programs.compiler},
        )

    def check(
        self, bundle: Path, manifest: Manifest, report: VerifyReport, tell: Callable[[str], None]
    ) -> tuple[Manifest, VerifyReport]:
        """Rehearses the host code; the report says what was checked of the rest."""
        tell("rehearsing the GPU's programs")
        manifest = rehearse_programs(bundle, manifest)
        return manifest, with_programs(report, manifest)

    def documents(self) -> dict[str, object]:
        """Kernels, images and checks of every program."""
        return {"gpu.json": self.programs.to_json()}


def weights_label(precision: str) -> str:
    """The name of a GPU's weights in a bundle: those of CPUs are stored in another order."""
    return f"{precision}-gpu" if precision in (FP32.name, INT8) else precision


def _variant(writer: BundleWriter, programs: CompiledGpuModel, arch: str, gpu: GpuSpec) -> Variant:
    name, native = f"{PREFIX}{arch}", programs.natives[arch]
    folder = f"code/{name}"
    runtime = writer.add_file(native.path, f"{folder}/{native.path.name}")
    paths: Sequence[str] = [
        writer.add_file(artifact.library, f"{folder}/bucket-{index}.so")
        for index, artifact in enumerate(programs.artifacts[arch])
    ]
    alternatives = tuple(
        tuple(writer.add_file(item.library, f"{folder}/{item.library.name}") for item in items)
        for items in programs.alternatives.get(arch, ())
    )
    return Variant(
        name=name,
        arch=arch,
        backend=TRITON,
        requires=baseline(arch).requires,
        glibc=programs.glibc(arch),
        rank=RANK,
        runtime=runtime,
        programs=tuple(paths),
        gpu=gpu,
        alternatives=alternatives,
    )


def rehearse_programs(bundle: Path, manifest: Manifest) -> Manifest:
    """Rehearses the programs for hosts of this one's architecture; the manifest says so then.

    Args:
        bundle: staged, with this manifest.
        manifest: the manifest of the bundle.

    Raises:
        VerificationError: a program refuses a size, or does something else there than the loader expects.
    """
    own = architecture(platform.machine())
    variants = []
    for variant in manifest.variants:
        if variant.gpu is not None and variant.backend == TRITON and variant.arch == own:
            rehearse(bundle, variant.name)
            gpu = variant.gpu._replace(checks=(*variant.gpu.checks, REHEARSAL))
            variant = variant._replace(gpu=gpu)
        variants.append(variant)
    return manifest._replace(variants=tuple(variants))


def with_programs(report: VerifyReport, manifest: Manifest) -> VerifyReport:
    """A report with what is known of the variants for a GPU, which this host lacks."""
    names = {
        "graph": "its graph ran on the CPU",
        "interpreter": "its kernels in Triton's interpreter",
        REHEARSAL: "its host code was rehearsed",
    }
    unrun = {}
    for variant in manifest.variants:
        if variant.gpu is None or variant.backend != TRITON:
            continue
        ran = [text for name, text in names.items() if name in variant.gpu.checks]
        done = "".join(f"{text}, " for text in ran) + "its machine code was audited"
        unrun[variant.name] = f"it needs a GPU; here {done}"
    return replace(report, not_executed={**report.not_executed, **unrun})
