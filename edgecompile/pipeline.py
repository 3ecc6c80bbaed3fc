"""build(): the stages in order, from a model and its lengths to a verified bundle.

Every stage leaves its file in the work folder, and each can be run alone from the files of those
before it: ``lengths.json``, ``plan.json``, ``exported/``, ``artifacts/``.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from edgecompile.audit import AuditVerdict
from edgecompile.buckets import BucketPlan
from edgecompile.bundle import bundle_path
from edgecompile.compilation import CompiledModel, ExportStore, compile_buckets, export_buckets
from edgecompile.errors import BundleWriteError
from edgecompile.packing import pack_bundle
from edgecompile.plan_request import PlanRequest
from edgecompile.planning import plan_model
from edgecompile.precision_choice import ResolvedPrecision, resolve_precision
from edgecompile.precision_trials import PrecisionChoice
from edgecompile.progress import NULL_PROGRESS, Progress, StepHandle
from edgecompile.samples import SampleTexts
from edgecompile.targets import load_target
from edgecompile.verify import VerifyReport

T = TypeVar("T")


@dataclass(frozen=True)
class BuildRequest:
    """Everything that decides a build.

    Attributes:
        model: a model specification as :func:`edgecompile.models.load_model` takes it.
        target: name or path of a target profile.
        plan: the traffic, and what decides the buckets.
        output: path of the bundle; ``.ecb`` is appended if it is missing.
        batch: smallest and largest batch; equal values make it fixed.
        precision: of the linears' weights: fp32, bf16, int8, or auto, the fastest that stays within
            ``max_error``.
        max_error: what ``auto`` may cost, of an output's scale; None: the default bound.
        texts: real texts to try and verify with.
        work_dir: where the stages leave their files; None: a temporary folder.
        seed: of verification inputs.
        force: replace a bundle of the same name.
    """

    model: str
    target: str
    plan: PlanRequest
    output: Path
    batch: tuple[int, int] = (1, 1)
    precision: str = "fp32"
    max_error: float | None = None
    texts: SampleTexts | None = None
    work_dir: Path | None = None
    seed: int = 0
    force: bool = False


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

    def to_json(self) -> dict[str, Any]:
        return {
            "bundle": str(self.bundle_path),
            "size_bytes": self.size_bytes,
            "sha256": self.sha256,
            "plan": self.plan.to_json(),
            "precision": None if self.choice is None else self.choice.to_json(),
            "verify": self.verify.to_json(),
            "audit": [v.to_json() for v in self.audit],
            "seconds": {k: round(v, 3) for k, v in self.seconds.items()},
            "notes": list(self.notes),
        }


def build(request: BuildRequest, progress: Progress = NULL_PROGRESS) -> BuildResult:
    """Builds, verifies and writes a bundle.

    Raises:
        EdgecompileError: a subclass for each cause; nothing stands under the final name then.
    """
    from edgecompile.models import load_model

    output = bundle_path(request.output)
    if os.path.lexists(output) and not request.force:
        raise BundleWriteError(
            f"{output} is already there", hint="name another --output, or give --force"
        )
    profile = load_target(request.target)
    traffic = request.plan.joint or request.plan.lengths
    seconds: dict[str, float] = {}

    def timed(title: str, action: Callable[[Any], T]) -> T:
        start = time.perf_counter()
        with progress.step(title) as step:
            result = action(step)
        seconds[title] = time.perf_counter() - start
        return result

    with _work_folder(request.work_dir) as work:
        _write_json(work / "lengths.json", traffic.to_json())
        model = timed("load the model", lambda _: load_model(request.model, batch=request.batch))
        exports = ExportStore(model, work / "exported")

        def resolve(step: StepHandle | None = None) -> ResolvedPrecision:
            return resolve_precision(
                request.precision,
                exports,
                profile,
                request.plan,
                request.texts,
                work,
                max_error=request.max_error,
                seed=request.seed,
                step=step,
            )

        auto = request.precision == "auto"
        resolved = timed("choose the precision", resolve) if auto else resolve()
        precision, choice, samples = resolved
        _write_json(work / "precision.json", precision.to_json())
        wanted = replace(request.plan, precision=precision)
        planned = timed(
            "measure and plan",
            lambda step: plan_model(exports, profile, wanted, work, step=step),
        )
        _write_json(work / "plan.json", planned.plan.to_json())
        exported = timed(
            "export",
            lambda step: export_buckets(exports, planned.plan.buckets, step=step),
        )
        compiled: CompiledModel = timed(
            "compile",
            lambda step: compile_buckets(
                exported,
                planned.plan.buckets,
                profile,
                work / "artifacts",
                keys=[exports.key(b) for b in planned.plan.buckets],
                precision=precision,
                jobs=request.plan.jobs,
                step=step,
            ),
        )
        packed = timed(
            "verify and pack",
            lambda step: pack_bundle(
                model,
                planned.plan,
                compiled,
                output,
                lengths=traffic,
                cost=planned.cost,
                samples=samples,
                choice=choice,
                seed=request.seed,
                force=request.force,
                step=step,
            ),
        )
    return BuildResult(
        bundle_path=packed.path,
        size_bytes=packed.size_bytes,
        sha256=packed.sha256,
        plan=planned.plan,
        verify=packed.verify,
        audit=compiled.audit,
        seconds=seconds,
        notes=(*(choice.notes if choice else ()), *planned.notes, *packed.notes),
        choice=choice,
    )


@contextmanager
def _work_folder(given: Path | None) -> Iterator[Path]:
    """The work folder that was named, or a temporary one that goes when the build ends."""
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given
        return
    folder = Path(tempfile.mkdtemp(prefix="edgecompile-work-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write_json(path: Path, value: object) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(value, indent=1) + "\n")
    os.replace(partial, path)


__all__ = ["BuildRequest", "BuildResult", "build"]
