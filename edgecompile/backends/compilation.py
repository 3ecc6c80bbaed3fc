"""Compiling buckets: one export per bucket, one library per bucket and variant, each judged."""

from __future__ import annotations

import os
import uuid
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from edgecompile.audit.judge import AuditVerdict, baseline, judge, require
from edgecompile.backends import CPU, LIBTORCH, LOCAL, RAY
from edgecompile.backends.artifact import Artifact, CompiledPrograms, TensorStore
from edgecompile.backends.cpu.backend import InductorCpuBackend, ProgramTask
from edgecompile.backends.torch.backend import InductorTorchBackend, foreign_symbols
from edgecompile.buckets.ranges import Bucket
from edgecompile.errors import CompileError
from edgecompile.export.program import ExportedModel
from edgecompile.precision import FP32, Precision
from edgecompile.progress import NULL_STEP, StepHandle
from edgecompile.runtime.format.manifest.schema import TORCH
from edgecompile.targets.profile import TargetProfile, VariantSpec
from edgecompile.toolchain.native import NativeRuntime, build_probe, build_runtime


def find_owners(buckets: Sequence[Bucket], served: Sequence[Bucket]) -> list[int]:
    """For each bucket the index of the one in ``served`` that it lies within."""
    return [next(i for i, own in enumerate(served) if own.holds(bucket)) for bucket in buckets]


@dataclass(frozen=True, kw_only=True)
class CompiledModel(CompiledPrograms):
    """Everything that compiling for CPUs made.

    Attributes:
        variants: the variants, as the profile orders them.
        probes: CPU probe by architecture.
        compilers: versions of the compilers that made the programs.
        exported: the exported program of each bucket.
        precision: the data type of the linear layers' weights.
        backend: one of :data:`edgecompile.backends.CPU_BACKENDS`.
        batch: the program of each variant that gives several texts a token each.
    """

    variants: tuple[VariantSpec, ...]
    probes: Mapping[str, Path]
    compilers: frozenset[str]
    exported: tuple[ExportedModel, ...]
    precision: Precision = FP32
    backend: str = CPU
    batch: Mapping[str, Artifact] = field(default_factory=dict)

    def split_batch(self) -> CompiledModel:
        """The same, whose last program is none of a bucket: it runs several texts at once."""
        return replace(
            self,
            artifacts={name: made[:-1] for name, made in self.artifacts.items()},
            exported=self.exported[:-1],
            batch={name: made[-1] for name, made in self.artifacts.items()},
        )

    @property
    def reused(self) -> bool:
        """Whether programs come from files that an earlier process left in the work folder."""
        return any(isinstance(program.source, Path) for program in self.exported)

    def shared_by(self, buckets: Sequence[Bucket], served: Sequence[Bucket]) -> CompiledModel:
        """The programs of ``served``, one for each of ``buckets``, which lie within them."""
        if len(served) == 1:
            return self  # as it is, it's everybody's
        owners = find_owners(buckets, served)
        artifacts = {
            name: tuple(own[index] for index in owners) for name, own in self.artifacts.items()
        }
        return replace(self, artifacts=artifacts)

    def kinds(self, buckets: Sequence[Bucket]) -> dict[int, list[Mapping[str, int]]]:
        """Sizes at which the programs of ``buckets``, or the one that all of them share, have to be
        compared (:class:`Artifact`), by the bucket's index."""
        sizes: dict[int, list[Mapping[str, int]]] = {}
        for artifacts in self.artifacts.values():
            shared = artifacts * len(buckets) if len(artifacts) == 1 else artifacts
            for index, (artifact, bucket) in enumerate(zip(shared, buckets, strict=True)):
                bucket_sizes = sizes.setdefault(index, [])
                bucket_sizes += [
                    s for s in artifact.kinds if bucket.serves(s) and s not in bucket_sizes
                ]
        return sizes


@dataclass(frozen=True)
class CompileOptions:
    """The settings for compiling programs.

    Attributes:
        variants: build these instead of all of the profile's; () builds the probes alone.
        precision: the data type of the linear layers' weights.
        backend: one of :data:`edgecompile.backends.CPU_BACKENDS`.
        jobs: programs to compile side by side; None: one for each CPU.
        on: one of :data:`edgecompile.backends.PLACES`.
        only_known: compile nothing: every program must be left from an earlier call.
        padded: programs are run on padded inputs, also where their bucket's mode is ``exact``.
    """

    variants: Sequence[VariantSpec] | None = None
    precision: Precision = FP32
    backend: str = CPU
    jobs: int | None = None
    on: str = LOCAL
    only_known: bool = False
    padded: bool = False


def compile_buckets(
    exported: Sequence[ExportedModel],
    buckets: Sequence[Bucket],
    profile: TargetProfile,
    folder: Path,
    options: CompileOptions = CompileOptions(),
    *,
    keys: Sequence[str] = (),
    step: StepHandle = NULL_STEP,
) -> CompiledModel:
    """Compiles every bucket for every variant and audits each library.

    Args:
        exported: one export for each bucket.
        buckets: the buckets to compile, such as a plan's; they may overlap.
        profile: the target.
        folder: the folder that gets ``<variant>/bucket-N.so``, the runtime libraries, probes and
            tensors.
        options: the options of compiling.
        keys: the key of each export (:meth:`ExportStore.key`); with them, programs that an
            earlier call left in ``folder`` are reused.
        step: a function that gets the progress.

    Raises:
        CompileError, ToolchainError: something could not be built; with ``only_known``, programs are
            missing, have changed or were compiled from something else.
        MissingDependencyError, ClusterError: ``on="ray"`` can't be used.
        AuditError: a library isn't fit for the target; names every problem of every library.
    """
    variants = tuple(profile.variants if options.variants is None else options.variants)
    built = () if options.backend == TORCH else variants
    natives = {v.name: build_runtime(v, folder / v.name) for v in built}
    archs = sorted({variant.arch for variant in variants or profile.variants})
    probes = {arch: build_probe(arch, folder / arch) for arch in archs}
    store = TensorStore(folder / "tensors")
    tasks = [
        ProgramTask(
            exported[index],
            bucket,
            variant,
            natives.get(variant.name),
            folder / variant.name / f"bucket-{index}.so",
            store,
            index,
            options.precision,
            keys[index] if keys else uuid.uuid4().hex,
            options.padded,
        )
        for index, bucket in enumerate(buckets)
        for variant in variants
    ]
    artifacts: dict[str, list[Artifact]] = {v.name: [] for v in variants}
    with closing(_compile_tasks(tasks, folder, options)) as results:
        for done, artifact in enumerate(results, 1):
            artifacts[artifact.variant].append(artifact)
            step.update(done, len(tasks), f"bucket {artifact.bucket}, {artifact.variant}")
    verdicts = [
        judge(path, baseline(arch), profile, vectorised=False) for arch, path in probes.items()
    ]
    for variant in variants:
        verdicts += _judge(variant, profile, natives.get(variant.name), artifacts[variant.name])
    require(verdicts)
    return CompiledModel(
        variants=variants,
        natives=natives,
        artifacts={name: tuple(items) for name, items in artifacts.items()},
        probes=probes,
        store=store,
        audit=tuple(verdicts),
        compilers=frozenset(item.compiler[1] for made in artifacts.values() for item in made),
        exported=tuple(exported),
        precision=options.precision,
        backend=options.backend,
    )


def _compile_tasks(
    tasks: Sequence[ProgramTask], folder: Path, options: CompileOptions
) -> Generator[Artifact, None, None]:
    """Finds the programs that an earlier call left, and compiles the rest, in the order of the tasks."""
    artifacts = [task.find(any_compiler=options.only_known) for task in tasks]
    stale = [
        f"bucket {t.index}, {t.variant.name}"
        for t, a in zip(tasks, artifacts, strict=True)
        if a is None
    ]
    if stale and options.only_known:
        raise CompileError(
            f"in {folder} these programs are missing, have changed since they were built, or were made of "
            "something else: " + ", ".join(stale),
            hint="run the compile stage again",
        )
    backend = InductorTorchBackend() if options.backend == TORCH else InductorCpuBackend()
    compile_on = _compile_on_ray if options.on == RAY else _compile_here
    return compile_on(tasks, artifacts, backend, folder, options.jobs)


def _judge(
    variant: VariantSpec,
    profile: TargetProfile,
    native: NativeRuntime | None,
    artifacts: Sequence[Artifact],
) -> Iterator[AuditVerdict]:
    """Audits a variant's runtime library and programs."""
    if native is not None:
        yield judge(native.path, variant, profile)
    for artifact in artifacts:
        yield judge(
            artifact.library,
            variant,
            profile,
            allowed_needed=(LIBTORCH if native is None else native.path.name,),
            runtime_exports=_exports(artifact.library, native),
            vector_isa=artifact.isa,
            vectorised=artifact.vectorised,
        )


def _compile_here(
    tasks: Sequence[ProgramTask],
    cached: Sequence[Artifact | None],
    backend: InductorCpuBackend | InductorTorchBackend,
    folder: Path,
    jobs: int | None,
) -> Generator[Artifact, None, None]:
    """Yields known programs, and compiles the rest in threads, in the order of the tasks."""
    with ThreadPoolExecutor(max_workers=jobs or os.cpu_count() or 1) as pool:
        try:
            yield from pool.map(lambda task, a: a or backend.compile_program(task), tasks, cached)
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _compile_on_ray(
    tasks: Sequence[ProgramTask],
    cached: Sequence[Artifact | None],
    backend: InductorCpuBackend | InductorTorchBackend,
    folder: Path,
    jobs: int | None,
) -> Generator[Artifact, None, None]:
    """As :func:`_compile_here`, on a cluster, which is asked only where something isn't known."""
    from edgecompile.backends.ray import compile_on_ray

    new = [task for task, a in zip(tasks, cached, strict=True) if a is None]
    with closing(compile_on_ray(new, backend, folder, jobs)) as results:
        for artifact in cached:
            yield artifact or next(results)


def _exports(library: Path, native: NativeRuntime | None) -> frozenset[str]:
    """The symbols that a program may expect of the library that it needs beside the system's."""
    if native is not None:
        return native.exports
    return foreign_symbols(library)
