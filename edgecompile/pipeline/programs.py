"""The two stages between a plan and a bundle: programs exported, and compiled."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgecompile.backends.compilation import CompiledModel, compile_buckets
from edgecompile.buckets.plan import BucketPlan
from edgecompile.export.store import ExportStore, export_buckets
from edgecompile.pipeline.request import BuildRequest
from edgecompile.pipeline.stages import Stages
from edgecompile.precision import Precision
from edgecompile.targets.profile import TargetProfile

__all__ = ["Programs", "make_programs"]


@dataclass(frozen=True)
class Programs:
    """A plan's programs.

    Attributes:
        compiled: a library for each bucket and variant.
        notes: what exporting them has to say.
    """

    compiled: CompiledModel
    notes: tuple[str, ...]


def make_programs(
    exports: ExportStore,
    plan: BucketPlan,
    request: BuildRequest,
    profile: TargetProfile,
    precision: Precision,
    work: Path,
    stages: Stages,
    *,
    of: str = "",
) -> Programs:
    """Exports and compiles a plan's buckets for a CPU.

    Args:
        exports: the model, and where its programs are left.
        plan: the buckets.
        request: names the runtime and the processes.
        profile: the target.
        precision: of the weights.
        work: the libraries are left in its folder ``artifacts``.
        stages: runs the two steps.
        of: the part's name in their titles, where a model has several.

    Raises:
        ExportError, CompileError: a program can't be built.
    """
    title = f" {of}" if of else ""
    exported = stages.run(
        "export" + title, lambda step: export_buckets(exports, plan.buckets, step=step)
    )
    compiled: CompiledModel = stages.run(
        "compile" + title,
        lambda step: compile_buckets(
            exported,
            plan.buckets,
            profile,
            work / "artifacts",
            keys=[exports.key(bucket) for bucket in plan.buckets],
            precision=precision,
            runtime=request.runtime,
            jobs=request.plan.jobs,
            step=step,
        ),
    )
    return Programs(compiled, tuple(note for program in exported for note in program.notes))
