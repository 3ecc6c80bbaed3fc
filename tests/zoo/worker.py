"""One architecture of the zoo through edgecompile: load, export, generate, build, verify, compare.

Every stage is the library's own function; what a build would choose (exact or padded, the range
that is served) is chosen by the same code that ``edgecompile build`` uses.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from edgecompile.backends.artifact import TensorStore
from edgecompile.backends.compilation import CompileOptions, compile_buckets
from edgecompile.backends.cpu.backend import InductorCpuBackend, ProgramTask
from edgecompile.backends.inductor.compat.generation import GeneratedCpp
from edgecompile.buckets.plan import BucketPlan
from edgecompile.buckets.ranges import Bucket
from edgecompile.bundle.cases import Case
from edgecompile.bundle.margins import allow_rounding
from edgecompile.bundle.reference import find_reference
from edgecompile.bundle.staging import Staging
from edgecompile.bundle.verdict import VerifyReport
from edgecompile.bundle.verify import verify_bundle
from edgecompile.errors import EdgecompileError, ExportError, MissingKernelError
from edgecompile.export.program import ExportedModel
from edgecompile.export.store import ExportStore
from edgecompile.hosts.detection import runnable_variants
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.loaders.load import load_model
from edgecompile.models.arrays import to_numpy
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.rounding import FACTOR
from edgecompile.pipeline.packing import Contents, pack_bundle
from edgecompile.planning.length_support import find_length_support
from edgecompile.planning.request import PlanRequest
from edgecompile.planning.scope import plan_scope
from edgecompile.precision import TOLERANCES
from edgecompile.targets.profile import TargetProfile, VariantSpec, load_target
from edgecompile.toolchain.native import build_runtime
from tests.zoo.entry import Entry

__all__ = ["GOAL", "STAGES", "TARGET", "Outcome", "run_entry"]

STAGES = ("load", "export", "generate", "build")
TARGET = "cpu-x86-64"
#: Largest |got - eager| of an output over its largest |eager|, beside what float32 takes from eager itself.
GOAL = 1e-5

T = TypeVar("T")
_CALLED = re.compile(r"\b(aoti_torch_\w+|Sleef_\w+)\(")


@dataclass
class Outcome:
    """The result of one architecture, as plain values.

    Attributes:
        status: ok, refused (in words), wrong (an output differs), failed (another exception).
        stage: the last one that was reached.
        reason: why not ok.
        facts: rung, mode, served range, notes, kernels, worst error …
        seconds: by stage.
    """

    status: str = "ok"
    stage: str = ""
    reason: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """A dict of plain values."""
        return dict(vars(self))


def run_entry(entry: Entry, upto: str, work: Path, device_python: str) -> Outcome:
    """Takes ``entry`` through the stages up to ``upto``; never raises an Exception.

    Args:
        entry: the architecture.
        upto: one of :data:`STAGES`.
        work: an empty folder of its own.
        device_python: an interpreter with numpy and without torch, that runs the bundle.
    """
    outcome = Outcome()
    try:
        _Run(entry, work, outcome).through(upto, device_python)
    except EdgecompileError as error:
        outcome.status = "refused"
        outcome.reason = error.message
        outcome.facts["error"] = type(error).__name__
        outcome.facts["hint"] = error.hint
        cause = error if isinstance(error, ExportError) else error.__cause__
        if isinstance(cause, ExportError):
            outcome.facts["details"] = cause.details[:20_000]
        if isinstance(error, MissingKernelError):
            outcome.facts["missing"] = error.message.splitlines()[1:]
    except Exception as error:
        import traceback

        outcome.status = "failed"
        outcome.reason = f"{type(error).__name__}: {error}"[:2000]
        outcome.facts["traceback"] = traceback.format_exc()[-4000:]
    return outcome


class _Generated(Exception):
    """Ends a compilation when the code is there."""

    def __init__(self, code: GeneratedCpp) -> None:
        super().__init__()
        self.code = code


class _CodeOnly(InductorCpuBackend):
    """The backend up to the compiler, missing kernels looked for."""

    def support(self, generated: GeneratedCpp) -> bytes:
        raise _Generated(generated)


class _Run:
    def __init__(self, entry: Entry, work: Path, outcome: Outcome) -> None:
        self.entry, self.work, self.outcome = entry, work, outcome
        self.facts = outcome.facts

    def through(self, upto: str, device_python: str) -> None:
        last = STAGES.index(upto)
        model = self._stage("load", self._load)
        if last < 1:
            return
        exported, bucket, exports = self._stage("export", lambda: self._export(model))
        if last < 2:
            return
        profile, variant = _host_target(self.work)
        if last == 2:
            self._stage("generate", lambda: self._generate(exported, bucket, variant))
        if last < 3:
            return
        path = self._stage(
            "build", lambda: self._build(model, exports, exported, bucket, profile, variant)
        )
        self._stage("compare", lambda: self._compare(model, bucket, path, variant, device_python))

    def _stage(self, name: str, action: Callable[[], T]) -> T:
        self.outcome.stage = name
        started = time.perf_counter()
        try:
            return action()
        finally:
            self.outcome.seconds[name] = round(time.perf_counter() - started, 2)

    def _load(self) -> LoadedModel:
        model = load_model(self.entry.make(), name=self.entry.name)
        assert model.length_axis is not None
        limits = model.axes[model.length_axis]
        self.facts["axis"] = model.length_axis
        self.facts["allowed"] = [limits.lo, limits.hi]
        self.facts["parameters"] = sum(p.numel() for p in model.module.parameters())
        # Eager has to work at every length: the mark counts those models only.
        for length in _five(limits.lo, limits.hi or limits.lo):
            model.run(model.make_example({**_smallest(model), model.length_axis: length}))
        return model

    def _export(self, model: LoadedModel) -> tuple[ExportedModel, Bucket, ExportStore]:
        axis = model.length_axis
        assert axis is not None
        limits = model.axes[axis]
        lengths = _five(limits.lo, limits.hi or limits.lo)
        traffic = LengthDistribution.from_samples(lengths)
        request = PlanRequest(traffic, mode="auto")
        exports = ExportStore(model, self.work / "exported")
        serving = find_length_support(exports, request, plan_scope(model, request))
        bucket = serving.bucket
        exported = exports.get(bucket)
        self.facts["mode"] = bucket.mode
        self.facts["rung"] = exported.strategy
        self.facts["served"] = [bucket.lo, bucket.hi]
        self.facts["lengths"] = lengths
        self.facts["notes"] = [
            *model.notes,
            *exported.notes,
            *([serving.note] if serving.note else []),
        ]
        return exported, bucket, exports

    def _generate(self, exported: ExportedModel, bucket: Bucket, variant: VariantSpec) -> None:
        """Code generation without the compiler: finds what the runtime lacks in a few seconds."""
        try:
            native = build_runtime(variant, self.work / variant.name)
            library, store = self.work / "program.so", TensorStore(self.work / "tensors")
            task = ProgramTask(exported, bucket, variant, native, library, store)
            _CodeOnly().compile_program(task)
        except _Generated as done:
            called = set(_CALLED.findall(done.code.wrapper + done.code.kernels))
            self.facts["kernels"] = sorted(n for n in called if not _HANDLES.match(n))

    def _build(
        self,
        model: LoadedModel,
        exports: ExportStore,
        exported: ExportedModel,
        bucket: Bucket,
        profile: TargetProfile,
        variant: VariantSpec,
    ) -> Path:
        compiled = compile_buckets(
            [exported],
            [bucket],
            profile,
            self.work / "artifacts",
            CompileOptions(variants=[variant], jobs=1),
            keys=[exports.key(bucket)],
        )
        plan = BucketPlan(bucket.length_axis, (bucket,), policy="manual")
        with Staging(self.work / f"{self.entry.name}.ecb") as claim:
            packed = pack_bundle(Contents(model, plan, compiled), claim, profile=profile)
        self.facts["bytes"] = packed.size_bytes
        self._note_errors(packed.verify)
        return packed.bundle_path

    def _compare(
        self,
        model: LoadedModel,
        bucket: Bucket,
        path: Path,
        variant: VariantSpec,
        device_python: str,
    ) -> None:
        """Five lengths and their padded forms in a process that can't import torch."""
        cases = list(_cases(model, bucket, self.facts["lengths"]))
        report = verify_bundle(
            path, cases, [variant.name], TOLERANCES["fp32"], python=device_python
        )
        # The build's own cases have harder inputs, and their own tolerance.
        error = self._note_errors(report)
        self.facts["compared"] = sorted({case.name for case in cases})
        beyond = [
            r
            for r in report.results
            if r.max_abs_error > GOAL * r.scale + FACTOR * (r.rounding or 0)
        ]
        if not report.ok or beyond:
            worst = report.worst
            self.outcome.status = "wrong"
            self.outcome.reason = (
                "torch was loaded"
                if report.torch_loaded
                else f"differs from eager by {error:.2g} of its scale"
                + (f"; {worst.case}: {worst.error}" if worst is not None and worst.error else "")
            )

    def _note_errors(self, report: VerifyReport) -> float:
        """Keeps the largest error relative to its scale, and returns that of this report."""
        errors = [
            r.max_abs_error / r.scale if r.scale > 0 else r.max_abs_error for r in report.results
        ]
        worst = max((e for e in errors if e == e), default=0.0)
        self.facts["error_of_scale"] = max(float(self.facts.get("error_of_scale", 0.0)), worst)
        return worst


_HANDLES = re.compile(
    r"aoti_torch_(create_tensor|empty_strided|get_|delete|new_|_reinterpret|device|dtype|layout|"
    r"check|grad_mode|assign|reinterpret|clone|copy_|zero|scalar|item)"
)


def _host_target(work: Path) -> tuple[TargetProfile, VariantSpec]:
    """The target with the best variant that this host can run."""

    profile = load_target(TARGET)
    return profile, runnable_variants(profile, work)[-1]


def _smallest(model: LoadedModel) -> dict[str, int]:
    return {name: limits.lo for name, limits in model.axes.items()}


def _five(lo: int, hi: int) -> list[int]:
    """Five lengths of a range, odd and even ones, the longest among them; fewer if there are."""
    span = hi - lo
    lengths = [lo + round(span * part) for part in (0.12, 0.31, 0.5, 0.77)]
    return sorted({*lengths, hi})


def _cases(model: LoadedModel, bucket: Bucket, lengths: Sequence[int]) -> list[Case]:
    """A case for each length, and for models with a mask the same padded by three."""
    made = []
    for number, length in enumerate(lengths):
        sizes = {name: extent.hint for name, extent in bucket.axes}
        sizes[bucket.length_axis] = length
        for padding in (0, 3) if model.has_mask and bucket.mode == "exact" else (0,):
            if padding >= length:
                continue
            inputs = to_numpy(model.make_example(sizes, seed=100 + number, padding=padding))
            name = f"length{length}" + (f"masked{padding}" if padding else "")
            found = find_reference(model, inputs)
            made.append(Case(0, name, inputs, found.outputs, found.rounding, found.problem))
    return allow_rounding(made)
