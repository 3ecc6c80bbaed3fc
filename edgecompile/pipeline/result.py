"""Results of plans and builds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgecompile.buckets.plan import BucketPlan

if TYPE_CHECKING:
    from edgecompile.audit.judge import AuditVerdict
    from edgecompile.buckets.assessment import PlanAssessment
    from edgecompile.bundle.parts import Parts
    from edgecompile.bundle.verdict import VerifyReport
    from edgecompile.pipeline.forecast import BuildForecast
    from edgecompile.planning.costs.calibration_bundle import CalibrationSpec
    from edgecompile.precision import Precision
    from edgecompile.quantization.quality import Quality
    from edgecompile.quantization.trials import PrecisionChoice


@dataclass(frozen=True)
class PlanResult:
    """A plan, and how it compares.

    Attributes:
        plan: the buckets.
        assessment: the plan beside its rivals, on the traffic; None for a plan without costs.
        choice: the record of choosing the precision; None if it wasn't chosen.
        notes: remarks on the model for the user; the plan has notes of its own.
    """

    plan: BucketPlan
    assessment: PlanAssessment | None
    choice: PrecisionChoice | None = None
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """A dict of plain values."""
        return (self.assessment or self.plan).to_json()


@dataclass(frozen=True)
class CalibrationBundleResult:
    """A bundle that a device times with ``bench --calibrate``.

    Attributes:
        path: the bundle.
        spec: its programs, and at which sizes to run each.
        precision: the data type of its weights.
        notes: remarks for the user.
    """

    path: Path
    spec: CalibrationSpec
    precision: Precision
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """A dict of plain values."""
        return {
            "bundle": str(self.path),
            "precision": self.precision.to_json(),
            "programs": [bucket.to_json() for bucket in self.spec.buckets],
            "runs": [{"bucket": index, "sizes": dict(sizes)} for index, sizes in self.spec.runs],
        }


@dataclass(frozen=True)
class BuildResult:
    """A bundle that was verified and named, and how it was made.

    Attributes:
        bundle_path: the bundle.
        size_bytes: the size of all its files together.
        sha256: the SHA-256 of its manifest, which names the hash of every other file.
        plan: the buckets.
        verify: the comparison of the bundle with eager; None where nothing had to be built.
        audit: a verdict for each library.
        seconds: wall time by stage.
        notes: remarks for the user.
        choice: the record of choosing the precision; None if it wasn't chosen.
        quality: the figures of a language model's narrow weights, or of its caches alone; None: there are none.
        parts: parts that backends for a GPU added.
        forecast: the forecast of a language model's build; None: there was none.
        earlier: the document of the earlier build, if nothing in the bundle has changed since.
    """

    bundle_path: Path
    size_bytes: int
    sha256: str
    plan: BucketPlan
    verify: VerifyReport | None = None
    audit: tuple[AuditVerdict, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    choice: PrecisionChoice | None = None
    quality: Quality | None = None
    parts: tuple[Parts, ...] = ()
    forecast: BuildForecast | None = None
    earlier: Mapping[str, Any] | None = None

    @property
    def unchanged(self) -> bool:
        """Whether the bundle was there already, as it would be built."""
        return self.earlier is not None

    @classmethod
    def from_earlier(cls, document: Mapping[str, Any], bundle: Path) -> BuildResult:
        """Reads the result of an earlier build, as :meth:`to_json` wrote it.

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
        documents = {name: item for parts in self.parts for name, item in parts.documents().items()}
        return {
            "bundle": str(self.bundle_path),
            "size_bytes": self.size_bytes,
            "sha256": self.sha256,
            "plan": self.plan.to_json(),
            "precision": None if self.choice is None else self.choice.to_json(),
            "quality": None if self.quality is None else self.quality.to_json(),
            "onnx": documents.get("onnx.json"),
            "forecast": None if self.forecast is None else self.forecast.to_json(),
            "verify": None if self.verify is None else self.verify.to_json(),
            "audit": [verdict.to_json() for verdict in self.audit],
            "seconds": {name: round(seconds, 3) for name, seconds in self.seconds.items()},
            "notes": list(self.notes),
        }
