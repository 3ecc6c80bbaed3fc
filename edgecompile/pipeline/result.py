"""Results of plans and builds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgecompile.buckets.plan import BucketPlan
from edgecompile.units import sentence

if TYPE_CHECKING:
    from edgecompile.audit.judge import AuditVerdict
    from edgecompile.buckets.assessment import PlanAssessment
    from edgecompile.buckets.limits import BucketCost
    from edgecompile.bundle.verdict import VerifyReport
    from edgecompile.narrowing.trials import PrecisionChoice
    from edgecompile.onnx.report import OnnxArtifact
    from edgecompile.pipeline.packing import PackedBundle
    from edgecompile.pipeline.run import Run
    from edgecompile.planning.costs.kits import MeasuringKit
    from edgecompile.precision import Precision
    from edgecompile.tensorrt.rtx import RtxReport
    from edgecompile.tensorrt.torch_tensorrt import BuiltEngine

__all__ = ["BuildResult", "KitResult", "PlanResult"]


@dataclass(frozen=True)
class PlanResult:
    """A plan, and how it compares.

    Attributes:
        plan: the buckets.
        assessment: the plan beside its rivals, on the traffic; None for a plan without costs.
        cost: what buckets take, if that is known.
        precision: what the costs are of; None where they were read from a file.
        choice: how the precision was chosen, if it was.
        notes: what a person should know of the model; the plan has notes of its own.
    """

    plan: BucketPlan
    assessment: PlanAssessment | None
    cost: BucketCost | None = None
    precision: Precision | None = None
    choice: PrecisionChoice | None = None
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """A dict of plain values."""
        return self.plan.to_json() if self.assessment is None else self.assessment.to_json()


@dataclass(frozen=True)
class KitResult:
    """A bundle that a device times with ``bench --calibrate``.

    Attributes:
        path: the bundle.
        kit: its programs, and at which sizes to run each.
        precision: of its weights.
        notes: what a person should know.
    """

    path: Path
    kit: MeasuringKit
    precision: Precision
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """A dict of plain values."""
        return {
            "kit": str(self.path),
            "precision": self.precision.to_json(),
            "programs": [bucket.to_json() for bucket in self.kit.buckets],
            "runs": [{"bucket": index, "sizes": dict(sizes)} for index, sizes in self.kit.runs],
        }


@dataclass(frozen=True)
class BuildResult:
    """What a build made.

    Attributes:
        bundle_path: the bundle.
        size_bytes: of all its files together.
        sha256: of its manifest, which names the hash of every other file.
        plan: the buckets.
        verify: how the bundle compared with eager; None where nothing had to be built.
        audit: a verdict for each library.
        seconds: wall time by stage.
        notes: what a person should know.
        choice: how the precision was chosen, if it was.
        gpu: the ONNX that a GPU's engine will be built from, if the target has one.
        rtx: what TensorRT-RTX made of that, where it is installed.
        engine: what torch-tensorrt made of the program, where it was asked to.
        earlier: of a bundle in which nothing has changed, the document of the build that made it.
    """

    bundle_path: Path
    size_bytes: int
    sha256: str
    plan: BucketPlan
    verify: VerifyReport | None = None
    audit: tuple[AuditVerdict, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = field(default=())
    choice: PrecisionChoice | None = None
    gpu: OnnxArtifact | None = None
    rtx: RtxReport | None = None
    engine: BuiltEngine | None = None
    earlier: Mapping[str, Any] | None = None

    @property
    def unchanged(self) -> bool:
        """Whether the bundle was there already, as it would be built."""
        return self.earlier is not None

    @classmethod
    def of(cls, packed: PackedBundle, run: Run, **parts: Any) -> BuildResult:
        """The result of a run that ends with this bundle; ``parts`` are further attributes."""
        return cls(
            bundle_path=packed.path,
            size_bytes=packed.size_bytes,
            sha256=packed.sha256,
            verify=packed.verify,
            seconds=run.seconds,
            notes=tuple(dict.fromkeys(sentence(note) for note in run.notes)),
            **parts,
        )

    @classmethod
    def from_earlier(cls, document: Mapping[str, Any], bundle: Path) -> BuildResult:
        """What an earlier build said of itself, as :meth:`to_json`.

        Raises:
            KeyError, TypeError, ValueError, PlanError: the document is damaged.
        """
        return cls(
            bundle_path=bundle,
            size_bytes=int(document["size_bytes"]),
            sha256=str(document["sha256"]),
            plan=BucketPlan.from_json(document["plan"]),
            seconds=dict(document["seconds"]),
            notes=tuple(document["notes"]),
            earlier=document,
        )

    def to_json(self) -> dict[str, Any]:
        """A dict of plain values."""
        if self.earlier is not None:
            return {**self.earlier, "unchanged": True}
        assert self.verify is not None
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
