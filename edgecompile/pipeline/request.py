"""What a build is asked for, and what it made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgecompile.audit.judge import AuditVerdict
from edgecompile.backends.compilation import NATIVE
from edgecompile.buckets.plan import BucketPlan
from edgecompile.bundle.verdict import VerifyReport
from edgecompile.models.loaded import LoadOptions
from edgecompile.models.samples import SampleTexts
from edgecompile.narrowing.trials import PrecisionChoice
from edgecompile.onnx.report import OnnxArtifact
from edgecompile.pipeline.packing import PackedBundle
from edgecompile.planning.request import PlanRequest
from edgecompile.tensorrt.rtx import RtxReport
from edgecompile.tensorrt.torch_tensorrt import BuiltEngine
from edgecompile.units import sentence

__all__ = ["AUTO", "BACKENDS", "TORCH_TENSORRT", "BuildRequest", "BuildResult"]

#: What makes a GPU's engine: the device, from the bundle's ONNX; or torch-tensorrt, here and now, for
#: the very GPU of this machine.
AUTO, TORCH_TENSORRT = "auto", "torch-tensorrt"
BACKENDS = (AUTO, TORCH_TENSORRT)


@dataclass(frozen=True)
class BuildRequest:
    """Everything that decides a build.

    Attributes:
        model: a model specification as :func:`edgecompile.loaders.load.load_model` takes it.
        target: name or path of a target profile.
        plan: the traffic, and what decides the buckets.
        output: path of the bundle; ``.ecb`` is appended if it is missing.
        batch: smallest and largest batch; equal values make it fixed.
        precision: of the linears' weights on a CPU: fp32, bf16, int8, or auto, the fastest that
            stays within ``max_error``; what a GPU computes in: fp32, fp16 or int8. None: fp32 on
            CPUs, fp16 on GPUs.
        max_error: what ``auto`` may cost, of an output's scale; None: the default bound.
        texts: real texts to try and verify with.
        work_dir: where the stages leave their files; None: a temporary folder.
        seed: of verification inputs.
        force: replace a bundle of the same name.
        jetpack: the release that a Jetson has; None: the first of its profile.
        backend: one of :data:`BACKENDS`.
        tokenizer: whether the model's tokenizer travels along, if it has one.
        load: how the model is loaded; its batch is ``batch``.
        emulate: whether variants that this host can't run are verified under qemu, where it is
            installed.
        runtime: what runs the programs on a CPU: native, the library that comes with them; or
            torch, for models with kernels that it lacks, on hosts that have torch.
    """

    model: str
    target: str
    plan: PlanRequest
    output: Path
    batch: tuple[int, int] = (1, 1)
    precision: str | None = None
    max_error: float | None = None
    texts: SampleTexts | None = None
    work_dir: Path | None = None
    seed: int = 0
    force: bool = False
    jetpack: str | None = None
    backend: str = AUTO
    tokenizer: bool = True
    load: LoadOptions = field(default_factory=LoadOptions)
    runtime: str = NATIVE
    emulate: bool = True


@dataclass(frozen=True)
class BuildResult:
    """What a build made.

    Attributes:
        bundle_path: the bundle.
        size_bytes: of all its files together.
        sha256: of its manifest, which names the hash of every other file.
        plan: the buckets.
        verify: how the bundle compared with eager.
        audit: what was found in each library.
        seconds: wall time by step.
        notes: what a person should know.
        choice: how the precision was chosen, if it was.
        gpu: the ONNX that a GPU's engine will be built from, if the target has one.
        rtx: what TensorRT-RTX made of that, where it is installed.
        engine: what torch-tensorrt made of the program, where it was asked to.
    """

    bundle_path: Path
    size_bytes: int
    sha256: str
    plan: BucketPlan
    verify: VerifyReport
    audit: tuple[AuditVerdict, ...]
    seconds: Mapping[str, float]
    notes: tuple[str, ...] = field(default=())
    choice: PrecisionChoice | None = None
    gpu: OnnxArtifact | None = None
    rtx: RtxReport | None = None
    engine: BuiltEngine | None = None

    @classmethod
    def of(
        cls,
        packed: PackedBundle,
        *,
        plan: BucketPlan,
        audit: Iterable[AuditVerdict],
        seconds: Mapping[str, float],
        notes: Iterable[str],
        choice: PrecisionChoice | None = None,
        gpu: OnnxArtifact | None = None,
        rtx: RtxReport | None = None,
        engine: BuiltEngine | None = None,
    ) -> BuildResult:
        """The result that ends with this bundle; a note that several stages made is said once."""
        return cls(
            bundle_path=packed.path,
            size_bytes=packed.size_bytes,
            sha256=packed.sha256,
            plan=plan,
            verify=packed.verify,
            audit=tuple(audit),
            seconds=seconds,
            notes=tuple(dict.fromkeys(sentence(note) for note in notes)),
            choice=choice,
            gpu=gpu,
            rtx=rtx,
            engine=engine,
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "bundle": str(self.bundle_path),
            "size_bytes": self.size_bytes,
            "sha256": self.sha256,
            "plan": self.plan.to_json(),
            "precision": None if self.choice is None else self.choice.to_json(),
            "onnx": None if self.gpu is None else self.gpu.to_json(),
            "rtx": None if self.rtx is None else self.rtx.to_json(),
            "engine": None if self.engine is None else self.engine.to_json(),
            "verify": self.verify.to_json(),
            "audit": [v.to_json() for v in self.audit],
            "seconds": {k: round(v, 3) for k, v in self.seconds.items()},
            "notes": list(self.notes),
        }
