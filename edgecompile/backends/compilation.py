"""Compiling buckets: one export per bucket, one library per bucket and variant, each judged."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from edgecompile.audit.judge import AuditVerdict, baseline, judge, require
from edgecompile.backends import LIBTORCH, NATIVE
from edgecompile.backends.artifact import Artifact, TensorStore
from edgecompile.backends.inductor_cpu import InductorCpuBackend, artifact_key
from edgecompile.backends.inductor_torch import InductorTorchBackend, foreign_symbols
from edgecompile.buckets.plan import Bucket
from edgecompile.errors import CompileError
from edgecompile.export.program import ExportedModel
from edgecompile.precision import FP32, Precision
from edgecompile.progress import NULL_STEP, StepHandle
from edgecompile.runtime.format.manifest import TORCH
from edgecompile.targets.profile import TargetProfile, VariantSpec
from edgecompile.toolchain.compilers import find_toolchain
from edgecompile.toolchain.native import NativeRuntime, build_probe, build_runtime


@dataclass(frozen=True)
class CompiledModel:
    """Everything that compiling made.

    Attributes:
        variants: the variants, as the profile orders them.
        natives: runtime library by variant; none where torch is the runtime.
        artifacts: programs by variant, in the order of the buckets.
        probes: CPU probe by architecture.
        store: the tensors that the programs read.
        audit: a verdict for each library.
        compilers: version of each compiler used.
        exported: the exported program of each bucket.
        precision: of the linears' weights.
        runtime: one of :data:`edgecompile.backends.RUNTIMES`.
    """

    variants: tuple[VariantSpec, ...]
    natives: Mapping[str, NativeRuntime]
    artifacts: Mapping[str, tuple[Artifact, ...]]
    probes: Mapping[str, Path]
    store: TensorStore
    audit: tuple[AuditVerdict, ...]
    compilers: frozenset[str]
    exported: tuple[ExportedModel, ...]
    precision: Precision = FP32
    runtime: str = NATIVE

    @property
    def reused(self) -> bool:
        """Whether programs come from what an earlier process left in the work folder."""
        return any(isinstance(program.source, Path) for program in self.exported)

    def kinds(self, buckets: Sequence[Bucket]) -> dict[int, list[Mapping[str, int]]]:
        """Sizes at which the programs of ``buckets``, or the one that all of them share, have to be
        compared (:class:`Artifact`), by the bucket's index."""
        sizes: dict[int, list[Mapping[str, int]]] = {}
        for artifacts in self.artifacts.values():
            shared = artifacts * len(buckets) if len(artifacts) == 1 else artifacts
            for index, (artifact, bucket) in enumerate(zip(shared, buckets, strict=True)):
                known = sizes.setdefault(index, [])
                known += [s for s in artifact.kinds if bucket.serves(s) and s not in known]
        return sizes

    def glibc(self, variant: str) -> str:
        """The newest glibc that any library of the variant needs."""
        versions = [v.glibc for v in self.audit if v.variant == variant and v.glibc]
        return max(versions, key=lambda text: [int(x) for x in text.split(".")], default="2.17")


def compile_buckets(
    exported: Sequence[ExportedModel],
    buckets: Sequence[Bucket],
    profile: TargetProfile,
    folder: Path,
    *,
    keys: Sequence[str] = (),
    variants: Sequence[VariantSpec] | None = None,
    precision: Precision = FP32,
    runtime: str = NATIVE,
    jobs: int | None = None,
    step: StepHandle = NULL_STEP,
) -> CompiledModel:
    """Compiles every bucket for every variant and audits each library.

    Args:
        exported: one export for each bucket.
        buckets: what to compile, such as a plan's; they may overlap.
        profile: the target.
        folder: gets ``<variant>/bucket-N.so``, the runtime libraries, probes and tensors.
        keys: what identifies each export (:meth:`ExportStore.key`); with them, programs that an
            earlier call left in ``folder`` are reused.
        variants: build these instead of all of the profile's.
        precision: of the linears' weights.
        runtime: one of :data:`edgecompile.backends.RUNTIMES`.
        jobs: programs to compile side by side; None: one for each CPU.
        step: gets the progress.

    Raises:
        CompileError, ToolchainError: something could not be built.
        AuditError: a library isn't fit for the target; names every problem of every library.
    """
    made = _prepare(exported, profile, folder, variants, precision, runtime)
    backend = InductorTorchBackend() if runtime == TORCH else InductorCpuBackend()
    chosen = made.variants
    tasks = [(i, v) for i in range(len(buckets)) for v in chosen]
    done = 0

    def compile_one(task: tuple[int, VariantSpec]) -> Artifact:
        index, variant = task
        return backend.compile_program(
            exported[index],
            buckets[index],
            variant,
            made.natives.get(variant.name),
            folder / variant.name / f"bucket-{index}.so",
            scratch=folder / "inductor" / variant.name,
            store=made.store,
            index=index,
            export_key=keys[index] if keys else None,
            precision=precision,
        )

    workers = jobs or os.cpu_count() or 1
    artifacts: dict[str, list[Artifact]] = {v.name: [] for v in chosen}
    with ThreadPoolExecutor(max_workers=workers) as pool:
        try:
            for artifact in pool.map(compile_one, tasks):
                artifacts[artifact.variant].append(artifact)
                done += 1
                step.update(done, len(tasks), f"bucket {artifact.bucket}, {artifact.variant}")
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return _audited(made, artifacts, profile)


def load_compiled(
    exported: Sequence[ExportedModel],
    buckets: Sequence[Bucket],
    profile: TargetProfile,
    folder: Path,
    *,
    keys: Sequence[str],
    variants: Sequence[VariantSpec] | None = None,
    precision: Precision = FP32,
    runtime: str = NATIVE,
) -> CompiledModel:
    """Reads the programs that an earlier :func:`compile_buckets` left in ``folder``, and judges them again.

    Args:
        exported, buckets, profile, folder, variants, precision, runtime: as they were compiled.
        keys: what identifies each export; a program that was made from another is refused.

    Raises:
        CompileError: a library is missing, has changed or belongs to other buckets; says to run
            the stage again.
        AuditError: a library isn't fit for the target.
    """
    made = _prepare(exported, profile, folder, variants, precision, runtime)
    indices = range(len(buckets))
    artifacts = {
        v.name: [Artifact.load(folder / v.name / f"bucket-{index}.json") for index in indices]
        for v in made.variants
    }
    stale = [
        f"bucket {index}, {v.name}"
        for v in made.variants
        for index, (bucket, key) in enumerate(zip(buckets, keys, strict=True))
        if artifacts[v.name][index].key
        != artifact_key(key, bucket, v, made.natives.get(v.name), precision)
    ]
    if stale:
        raise CompileError(
            f"in {folder} these programs were compiled from something else: {', '.join(stale)}",
            hint="run the compile stage again",
        )
    return _audited(made, artifacts, profile)


def _prepare(
    exported: Sequence[ExportedModel],
    profile: TargetProfile,
    folder: Path,
    variants: Sequence[VariantSpec] | None,
    precision: Precision,
    runtime: str,
) -> CompiledModel:
    """All but the programs and the verdicts: what they are compiled against and kept in."""
    chosen = tuple(profile.variants if variants is None else variants)
    native = () if runtime == TORCH else chosen
    archs = sorted({variant.arch for variant in chosen})
    return CompiledModel(
        variants=chosen,
        natives={v.name: build_runtime(v, folder / v.name) for v in native},
        artifacts={},
        probes={arch: build_probe(arch, folder / arch) for arch in archs},
        store=TensorStore(folder / "tensors"),
        audit=(),
        compilers=frozenset(find_toolchain(arch).version for arch in archs),
        exported=tuple(exported),
        precision=precision,
        runtime=runtime,
    )


def _audited(
    made: CompiledModel, artifacts: Mapping[str, Sequence[Artifact]], profile: TargetProfile
) -> CompiledModel:
    """With its programs and a verdict on every library.

    Raises:
        AuditError: a library isn't fit for the target.
    """
    verdicts = [
        judge(path, baseline(arch), profile, vectorised=False) for arch, path in made.probes.items()
    ]
    for variant in made.variants:
        native = made.natives.get(variant.name)
        if native is not None:
            verdicts.append(judge(native.path, variant, profile))
        for artifact in artifacts[variant.name]:
            verdicts.append(
                judge(
                    artifact.library,
                    variant,
                    profile,
                    allowed_needed=(LIBTORCH if native is None else native.path.name,),
                    runtime_exports=_exports(artifact.library, variant, native),
                    vector_isa=artifact.isa,
                    vectorised=artifact.vectorised,
                )
            )
    require(verdicts)
    programs = {name: tuple(items) for name, items in artifacts.items()}
    return replace(made, artifacts=programs, audit=tuple(verdicts))


def _exports(library: Path, variant: VariantSpec, native: NativeRuntime | None) -> frozenset[str]:
    """The symbols that a program may expect of the library that it needs beside the system's."""
    if native is not None:
        return native.exports
    return foreign_symbols(find_toolchain(variant.arch), library)
