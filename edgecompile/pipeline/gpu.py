"""build() for a GPU: all that can be done away from the device.

With Triton that is everything: the device only loads the programs. No TensorRT engine can be built
elsewhere than on the GPU that runs it: the bundle holds the ONNX, checked against eager, and a recipe that
the device finishes. A bundle may have both. Either way there is a program for the machine's own cores to fall
back to.
"""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgecompile.backends.cuda.compiled import NUMBERS_NOTE, GpuPrograms
from edgecompile.buckets.ranges import Bucket
from edgecompile.bundle.staging import Staging
from edgecompile.export.program import ExportedModel
from edgecompile.machines.emulator import build_replay, find_emulator
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.samples import text_samples
from edgecompile.narrowing.choice import ResolvedPrecision
from edgecompile.onnx.build import build_onnx
from edgecompile.onnx.operators import OnnxTarget, known_releases
from edgecompile.onnx.report import OnnxArtifact
from edgecompile.pipeline.result import BuildResult
from edgecompile.pipeline.run import Run
from edgecompile.pipeline.stages import (
    compile_programs,
    contents,
    export_programs,
    find_subject,
    make_plan,
    pack,
    prove_padding,
)
from edgecompile.planning.generation_plan import refuse_two_parts
from edgecompile.planning.options import BOTH, TORCH_TENSORRT, TRITON
from edgecompile.planning.planning import Planned
from edgecompile.planning.subject import Subject
from edgecompile.precision import FP32
from edgecompile.runtime.cpu.host import architecture
from edgecompile.runtime.gpu.device import DeviceIdentity
from edgecompile.targets.jetpack import find_jetpack
from edgecompile.tensorrt.parts import GpuParts, engine_notes, rtx_notes
from edgecompile.tensorrt.rtx import RtxReport, bucket_profiles, check_rtx, has_rtx
from edgecompile.tensorrt.torch_tensorrt import BuiltEngine, build_engine
from edgecompile.tensorrt.torch_tensorrt_check import need_torch_tensorrt
from edgecompile.toolchain.gpu_native import build_gpu_runtime
from edgecompile.toolchain.native import build_runtime

#: Of compilers that run ahead, above the build's own: on Linux it is of the thread that starts them. What the
#: build waits for gets ten times the time.
_NICENESS = 10


def build_for_gpu(run: Run, model: LoadedModel, staging: Staging, work: Path) -> BuildResult:
    """Builds, verifies and writes a bundle that a device with a GPU finishes.

    Args:
        run: the build; its target has a GPU.
        model: what is built.
        staging: where the bundle goes, claimed.
        work: where the stages leave their files.

    Raises:
        EdgecompileError: a subclass for each cause; nothing stands under the final name then.
    """
    options = run.options
    if model.encoder is not None:
        refuse_two_parts(model.name)
    if options.backend == TRITON:
        return _build_with_triton(run, model, staging, work)
    jetpack = find_jetpack(run.profile, options.jetpack)
    precision = options.precision_for(run.profile)
    device: DeviceIdentity | None = None
    if options.backend == TORCH_TENSORRT:
        device = need_torch_tensorrt(run.profile, precision)
    subject = find_subject(run, model, work)
    planned = make_plan(run, subject)
    buckets, whole = planned.plan.buckets, planned.scope.whole_bucket
    exported = export_programs(run, subject.whole, [whole])
    samples = text_samples(model, options.texts, planned.plan.max_length)
    releases = [OnnxTarget(name, jetpack.opset) for name in jetpack.releases(known_releases())]
    artifact = run.stage(
        "write and check the ONNX",
        lambda step: build_onnx(
            model,
            buckets,
            precision,
            OnnxTarget(jetpack.tensorrt_least, jetpack.opset),
            samples,
            work / "onnx",
            step,
            exported=exported[0],
            also=releases,
        ),
    )
    artifact, planned = _with_padding(artifact, subject, planned)
    rtx: RtxReport | None = None
    if has_rtx():
        profiles = bucket_profiles(buckets, model.inputs)
        rtx = run.stage(
            "parse and build it with TensorRT-RTX", lambda _: check_rtx(artifact.path, profiles)
        )
    keys, title = [subject.whole.key(whole)], "compile for the module's own cores"
    compiled = compile_programs(run, keys, exported, [whole], work, title=title)
    engine: BuiltEngine | None = None
    if device is not None:
        here = device
        engine = run.stage(
            "convert with torch-tensorrt",
            lambda _: build_engine(exported[0], buckets, precision, here, work / "torch-tensorrt"),
        )
    programs = None
    if options.backend == BOTH:
        own = export_programs(run, subject.whole, buckets)
        programs = _compile_for_gpu(run, subject, own, buckets, precision, work)
    run.notes.add(*rtx_notes(rtx), *engine_notes(engine))
    packed = contents(run, subject, planned, compiled, ResolvedPrecision(FP32, samples=samples))
    gpu = GpuParts(run.profile, jetpack, artifact, rtx, engine)
    return pack(run, replace(packed, gpu=gpu, programs=programs), staging)


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


def _build_with_triton(run: Run, model: LoadedModel, staging: Staging, work: Path) -> BuildResult:
    """As :func:`build_for_gpu`, with programs that need no TensorRT and nothing to finish."""
    with _compiling_ahead(run):
        return _build_in_turn(run, model, staging, work)


@contextmanager
def _compiling_ahead(run: Run) -> Iterator[None]:
    """Compiles beside the first stages, which keep one core busy, what later ones need of any model.

    Those find the objects in the compilers' cache, and say what is wrong where one can't be compiled.
    """
    pool = ThreadPoolExecutor(max_workers=1, initializer=_give_way)
    try:
        for arch in run.profile.archs:
            pool.submit(_compile_objects, build_gpu_runtime, arch)
        for variant in run.profile.variants:
            pool.submit(_compile_objects, build_runtime, variant)
        for arch in run.profile.archs:
            foreign = arch != architecture(platform.machine())
            if foreign and run.options.emulation and find_emulator(arch) is not None:
                pool.submit(_compile_objects, build_replay, arch)
        yield
    finally:
        # Where a stage failed nobody waits for compilers before that is told.
        pool.shutdown(wait=False, cancel_futures=True)


def _give_way() -> None:
    with suppress(OSError):  # it only takes longer
        os.nice(_NICENESS)


def _compile_objects(build: Callable[[Any, Path], object], what: Any) -> None:
    """The objects stay in the compilers' cache, and what is linked of them goes."""
    with tempfile.TemporaryDirectory() as folder:
        build(what, Path(folder) / "linked")


def _build_in_turn(run: Run, model: LoadedModel, staging: Staging, work: Path) -> BuildResult:
    options = run.options
    precision = options.precision_for(run.profile)
    subject = find_subject(run, model, work)
    planned = make_plan(run, subject)
    generates = model.generation is not None
    if not generates:
        planned, unpadded = prove_padding(subject, planned)
        if unpadded:
            run.notes.add(f"The GPU runs without CUDA graphs, which pad: {unpadded}")
    buckets = planned.plan.buckets
    exported = export_programs(run, subject.whole, buckets)
    programs = _compile_for_gpu(run, subject, exported, buckets, precision, work)
    # Of a model that generates every bucket has its own program: those of prompts begin at two tokens.
    served = buckets if generates else (planned.scope.whole_bucket,)
    own = exported
    if not generates:
        own = export_programs(run, subject.whole, served, of="for the machine's own cores")
    keys, title = map(subject.whole.key, served), "compile for the machine's own cores"
    compiled = compile_programs(run, keys, own, served, work, title=title)
    samples = text_samples(model, options.texts, planned.plan.max_length)
    resolved = ResolvedPrecision(FP32, samples=samples)
    packed = contents(run, subject, planned, compiled, resolved)
    return pack(run, replace(packed, programs=programs), staging)


def note_numbers(run: Run, subject: Subject, planned: Planned) -> list[str]:
    """A note if sizes within the model depend on values.

    It exports one program, which a build with the same work folder uses again: all are of one model.
    """
    from edgecompile.backends.cuda.lowering.values import sizes_depend_on_values

    (exported,) = export_programs(run, subject.whole, planned.plan.buckets[:1])
    return [NUMBERS_NOTE] * sizes_depend_on_values(exported.program.module())


def _compile_for_gpu(
    run: Run,
    subject: Subject,
    exported: Sequence[ExportedModel],
    buckets: Sequence[Bucket],
    precision: str,
    work: Path,
) -> GpuPrograms:
    from edgecompile.backends.cuda.programs import compile_for_gpu  # Triton is an extra

    programs = run.stage(
        "compile for the GPU",
        lambda step: compile_for_gpu(
            exported,
            buckets,
            run.profile,
            precision,
            work / "artifacts",
            keys=[subject.whole.key(bucket) for bucket in buckets],
            saved=[subject.whole.place(bucket) for bucket in buckets],
            alternatives=run.options.alternatives,
            step=step,
        ),
    )
    if programs.reads_numbers:
        run.notes.add(NUMBERS_NOTE)
    return programs
