"""The backend ``tensorrt``: an ONNX file, checked against eager, and a recipe that the device finishes.

No engine of TensorRT can be built elsewhere than on the GPU that runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from edgecompile.backends.compilation import find_owners
from edgecompile.onnx_files.build import build_onnx, build_sides
from edgecompile.onnx_files.export import need_onnx
from edgecompile.onnx_files.operators import OnnxTarget, known_releases
from edgecompile.onnx_files.report import OnnxArtifact
from edgecompile.pipeline.backend import Backend, Job
from edgecompile.pipeline.stages import export_programs, prove_padding
from edgecompile.planning.planning import Planned
from edgecompile.planning.request import PlanRequest
from edgecompile.planning.subject import Subject
from edgecompile.targets.jetpack import find_jetpack, find_older
from edgecompile.targets.profile import TargetProfile
from edgecompile.tensorrt_recipes.parts import TensorRtParts, jetpack_notes


class TensorRtBackend(Backend):
    """The recipe of an engine; see :mod:`edgecompile.pipeline.backend`."""

    def checks(
        self, options: PlanRequest, profile: TargetProfile
    ) -> Sequence[Callable[[], object]]:
        """The device's release of TensorRT is known, and onnx is installed."""
        return [partial(find_jetpack, profile, options.jetpack), need_onnx]

    def compile(self, job: Job) -> Job:
        """Writes and checks the ONNX."""
        run, work, options = job.run, job.work, job.run.options
        precision = options.precision_for(run.profile)
        jetpack = find_jetpack(run.profile, options.jetpack)
        buckets, served = job.planned.plan.buckets, job.planned.scope.exact_buckets
        # The form for an older TensorRT is made of one graph alone.
        alone = options.jetpack or len(served) > 1
        older = None if alone else find_older(run.profile, jetpack)
        exported = export_programs(run, job.subject.whole, served)
        releases = [OnnxTarget(name, jetpack.opset) for name in jetpack.releases(known_releases())]
        cap, folder = OnnxTarget(jetpack.tensorrt_least, jetpack.opset), work / "onnx"
        artifact = run.stage(
            "write and check the ONNX",
            lambda step: (
                build_onnx(
                    job.model,
                    buckets,
                    precision,
                    cap,
                    job.resolved.samples,
                    folder,
                    step,
                    exported=exported[0],
                    also=releases,
                    older=None if older is None else OnnxTarget(older.tensorrt_least, older.opset),
                )
                if len(served) == 1
                else build_sides(
                    job.model,
                    buckets,
                    exported,
                    find_owners(buckets, served),
                    precision,
                    cap,
                    job.resolved.samples,
                    folder,
                    step,
                    also=releases,
                )
            ),
        )
        artifact, planned = _with_padding(artifact, job.subject, job.planned)
        parts = TensorRtParts(run.profile, jetpack, artifact, older)
        run.notes.add(*jetpack_notes(parts))
        return replace(job, planned=planned, exported=exported, parts=(*job.parts, parts))


def _with_padding(
    artifact: OnnxArtifact, subject: Subject, planned: Planned
) -> tuple[OnnxArtifact, Planned]:
    """The artifact and the plan; padding, which its own runs found harmless, is also to be proven so.

    A device that fills up every bucket does that along all axes.
    """
    if not artifact.check.padding:
        return artifact, planned
    planned, reason = prove_padding(subject, planned)
    if reason:
        check = replace(artifact.check, padding=False, padding_reason=reason)
        artifact = replace(artifact, check=check)
    return artifact, planned
