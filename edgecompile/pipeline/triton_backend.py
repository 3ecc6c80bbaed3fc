"""The backend ``triton``: programs for NVIDIA GPUs, compiled here. The device only loads them."""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from edgecompile.backends.cuda.artifact import NUMBERS_NOTE
from edgecompile.backends.cuda.requirements import find_ptxas
from edgecompile.bundle.gpu_programs import TritonParts
from edgecompile.export.halves import tolerance_of
from edgecompile.hosts.emulator import build_replay, find_emulator
from edgecompile.models.prompts import draw_inputs
from edgecompile.pipeline.backend import Backend, Job, compiler_checks
from edgecompile.pipeline.run import Run
from edgecompile.pipeline.stages import export_programs, prove_padding
from edgecompile.planning.planning import Planned
from edgecompile.planning.request import PlanRequest
from edgecompile.planning.subject import Subject
from edgecompile.runtime.cpu.host import architecture
from edgecompile.targets.profile import TargetProfile
from edgecompile.toolchain.gpu_native import build_gpu_runtime
from edgecompile.toolchain.native import build_runtime
from edgecompile.toolchain.torch_versions import check_triton


class TritonBackend(Backend):
    """Programs of Inductor's and Triton's kernels; see :mod:`edgecompile.pipeline.backend`."""

    def checks(
        self, options: PlanRequest, profile: TargetProfile
    ) -> Sequence[Callable[[], object]]:
        """Triton, ptxas for the GPU, and compilers for the host's code."""
        assert profile.gpu is not None
        return [partial(_need_tools, profile.gpu.ptxas), *compiler_checks(profile)]

    def ahead(self, run: Run) -> Sequence[Callable[[], object]]:
        """The runtime libraries, for the GPU's hosts and their cores, and what repeats golden vectors in qemu."""
        variants = run.profile.variants if run.options.fallback else ()
        builds: list[Callable[[Path], object]] = [
            *(partial(build_gpu_runtime, arch) for arch in run.profile.archs),
            *(partial(build_runtime, variant) for variant in variants),
        ]
        for arch in run.profile.archs:
            foreign = arch != architecture(platform.machine()) and run.options.fallback
            if foreign and run.options.emulation and find_emulator(arch) is not None:
                builds.append(partial(build_replay, arch))
        return [partial(_compile_objects, build) for build in builds]

    def plan(self, job: Job) -> Job:
        """Proves that inputs may be padded, which CUDA graphs need."""
        if job.model.generation is not None:
            return job
        planned, unpadded = prove_padding(job.subject, job.planned)
        if unpadded:
            job.run.notes.add(f"The GPU runs without CUDA graphs, which pad: {unpadded}")
        return replace(job, planned=planned)

    def compile(self, job: Job) -> Job:
        """Compiles a program for each bucket and architecture of the host."""
        from edgecompile.backends.cuda.programs import compile_for_gpu  # Triton is an extra

        run, model, exports = job.run, job.model, job.subject.whole
        buckets = job.planned.plan.buckets
        exported = export_programs(run, exports, buckets)
        programs = run.stage(
            "compile for the GPU",
            lambda step: compile_for_gpu(
                exported,
                buckets,
                run.profile,
                run.options.precision_for(run.profile),
                job.work / "artifacts",
                keys=[exports.key(bucket) for bucket in buckets],
                saved=[exports.place(bucket) for bucket in buckets],
                alternatives=run.options.alternatives,
                draw=None if model.generation is None else partial(draw_inputs, model),
                step=step,
            ),
        )
        if programs.reads_numbers:
            run.notes.add(NUMBERS_NOTE)
        tolerance = tolerance_of(
            programs.precision, *(item.program.graph_module for item in exported)
        )
        parts = (*job.parts, TritonParts(programs, tolerance))
        return replace(job, exported=exported, parts=parts)


def _need_tools(ptxas: str) -> None:
    check_triton()
    find_ptxas(ptxas)


def _compile_objects(build: Callable[[Path], object]) -> None:
    """The objects stay in the compilers' cache, and what is linked of them goes."""
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder) / "linked")


def note_numbers(run: Run, subject: Subject, planned: Planned) -> list[str]:
    """A note if sizes within the model depend on values.

    It exports one program, which a build with the same work folder uses again: all are of one model.
    """
    from edgecompile.backends.cuda.lowering.values import sizes_depend_on_values

    (exported,) = export_programs(run, subject.whole, planned.plan.buckets[:1])
    return [NUMBERS_NOTE] * sizes_depend_on_values(exported.program.module())
