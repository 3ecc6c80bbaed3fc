"""Compiling buckets: one export per bucket, one library per bucket and variant, each judged."""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from edgecompile.audit.judge import AuditVerdict, baseline, judge, require
from edgecompile.backends import LIBTORCH, get_backend
from edgecompile.backends.artifact import Artifact, TensorStore
from edgecompile.backends.inductor_cpu import artifact_key
from edgecompile.buckets.plan import Bucket
from edgecompile.errors import CompileError, ExportError, PlanError
from edgecompile.export.export import ExportedModel, export_model
from edgecompile.installation import installation_id
from edgecompile.models.loaded import LoadedModel
from edgecompile.precision import FP32, Precision
from edgecompile.progress import StepHandle
from edgecompile.runtime.manifest import AOTI_CPU, TORCH
from edgecompile.targets.profile import TargetProfile, VariantSpec
from edgecompile.toolchain.compilers import find_toolchain
from edgecompile.toolchain.native import NativeRuntime, build_probe, build_runtime

#: What runs the programs: the library that comes with them, or torch where the host has it.
NATIVE = "native"
RUNTIMES = (NATIVE, TORCH)

#: Written last into an export's folder: without it the export is half-made.
_EXPORT_DONE = "done.json"


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
        runtime: one of :data:`RUNTIMES`.
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
        found: dict[int, list[Mapping[str, int]]] = {}
        for artifacts in self.artifacts.values():
            shared = artifacts * len(buckets) if len(artifacts) == 1 else artifacts
            for index, (artifact, bucket) in enumerate(zip(shared, buckets, strict=True)):
                known = found.setdefault(index, [])
                known += [s for s in artifact.kinds if bucket.serves(s) and s not in known]
        return found

    def glibc(self, variant: str) -> str:
        """The newest glibc that any library of the variant needs."""
        versions = [v.glibc for v in self.audit if v.variant == variant and v.glibc]
        return max(versions, key=lambda text: [int(x) for x in text.split(".")], default="2.17")


def check_runtime(runtime: str, profile: TargetProfile, precision: str) -> None:
    """Refuses what a runtime can't do, before anything is built.

    Raises:
        PlanError: there is no such runtime, or it doesn't go with the target or the precision.
    """
    if runtime not in RUNTIMES:
        raise PlanError(f"there is no runtime '{runtime}'", hint=f"one of: {', '.join(RUNTIMES)}")
    if runtime == NATIVE:
        return
    if profile.gpu is not None:
        raise PlanError(
            f"--runtime {runtime} is for CPUs, and {profile.name} has a GPU",
            hint="leave --runtime out, or name a target without a GPU",
        )
    if precision != FP32.name:
        raise PlanError(
            f"--precision {precision} is of the native runtime's kernels; torch's run fp32",
            hint="leave --precision out",
        )


def export_bucket(model: LoadedModel, bucket: Bucket) -> ExportedModel:
    """Exports the model for one bucket: its range, or its upper edge alone in ``pad`` mode.

    Raises:
        PlanError: the bucket lacks an axis of the model.
        ExportError: the model can't be exported for it.
    """
    ranges = {name: (extent.lo, extent.hi) for name, extent in bucket.program_axes}
    missing = [name for name in model.axes if name not in ranges]
    if missing:
        raise PlanError(
            f"the plan says nothing about the axis {', '.join(missing)} of {model.name}",
            hint='make the plan with --model, or give every bucket "axes" in the plan\'s file',
        )
    hint = {name: extent.hint for name, extent in bucket.program_axes}
    return export_model(model, ranges, hint=hint)


class ExportStore:
    """Exports of one model, each made once: kept in memory and, for other processes, on disk.

    Args:
        model: what is exported.
        folder: gets one folder for each request.
    """

    def __init__(self, model: LoadedModel, folder: Path) -> None:
        self.model = model
        self.folder = folder
        self._made: dict[str, ExportedModel] = {}
        self._refused: dict[str, ExportError] = {}
        #: Whether another process would find the same exports. What a factory's code does can't be
        #: hashed: its exports are this store's alone.
        self.lasting = model.source.kind in ("folder", "pt2")
        self._token = "" if self.lasting else uuid.uuid4().hex

    def of(self, model: LoadedModel) -> ExportStore:
        """The exports of the same model within other limits; they lie in the same folder."""
        store = ExportStore(model, self.folder)
        store._made, store._token = self._made, self._token
        return store

    def key(self, bucket: Bucket) -> str:
        """Identifies the export for ``bucket``: equal keys mean equal programs."""
        model = model_fingerprint(self.model) + self._token
        request = {"program": bucket.program_json(), "model": model}
        return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()[:16]

    def get(self, bucket: Bucket) -> ExportedModel:
        """The export for ``bucket``.

        Raises:
            ExportError: the model can't be exported for it.
        """
        key = self.key(bucket)
        if key in self._refused:
            # Climbing the ladder in vain takes long, and several stages ask.
            raise self._refused[key]
        if key not in self._made:
            place = self.folder / key
            exported = _load_export(place)
            if exported is None:
                try:
                    exported = export_bucket(self.model, bucket)
                except ExportError as error:
                    self._refused[key] = error
                    raise
                exported.save(place)
            # Also where it was there: of several, the stages take what was asked for last.
            (place / _EXPORT_DONE).write_text(json.dumps(bucket.program_json()) + "\n")
            self._made[key] = exported
        return self._made[key]

    def require(self, buckets: Sequence[Bucket], keys: Sequence[str]) -> None:
        """Refuses programs that were exported from something else than the model.

        Raises:
            CompileError: a key isn't the one of its bucket; never of a factory's model.
        """
        stale = [
            f"{bucket.lo}..{bucket.hi}"
            for bucket, key in zip(buckets, keys, strict=True)
            if self.lasting and self.key(bucket) != key
        ]
        if stale:
            raise CompileError(
                f"in {self.folder} these programs were exported from other files, with other options "
                f"or another version: {', '.join(stale)}",
                hint="run the stages export and compile again",
            )


def _load_export(place: Path) -> ExportedModel | None:
    """What an earlier process left there; None if that is nothing, or damaged."""
    if not (place / _EXPORT_DONE).is_file():
        return None
    try:
        return ExportedModel.load(place)
    except ExportError:
        return None


def export_buckets(
    exports: ExportStore, buckets: Sequence[Bucket], *, step: StepHandle | None = None
) -> tuple[ExportedModel, ...]:
    """Exports every bucket; what was exported before is reused.

    Raises:
        ExportError: a bucket can't be exported.
    """
    result = []
    for index, bucket in enumerate(buckets):
        if step is not None:
            step.update(index, len(buckets), f"bucket {index}: {bucket.lo}..{bucket.hi}")
        result.append(exports.get(bucket))
    return tuple(result)


def model_fingerprint(model: LoadedModel) -> str:
    """Identifies what is exported, across processes: the model, how it is loaded, and by what.

    A folder counts by every file in it, hashed whole, a saved program by its file. Nothing is left
    out because it seems not to matter: which files a loader reads depends on the model. Of a factory
    there are no hashes (see :class:`ExportStore`).
    """
    source = model.source
    text = json.dumps(
        [
            [model.name, source.kind, dict(source.sha256), dict(source.details)],
            dict(model.load),
            [spec.to_json() for spec in model.inputs],
            [spec.to_json() for spec in model.outputs],
            installation_id(),
        ],
        sort_keys=True,
    )
    return hashlib.sha256(text.encode()).hexdigest()


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
    step: StepHandle | None = None,
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
        runtime: one of :data:`RUNTIMES`.
        jobs: programs to compile side by side; None: one for each CPU.
        step: told what is being built.

    Raises:
        CompileError, ToolchainError: something could not be built.
        AuditError: a library isn't fit for the target; names every problem of every library.
    """
    chosen = tuple(variants if variants is not None else profile.variants)
    store = TensorStore(folder / "tensors")
    natives = _natives(chosen, folder, runtime)
    archs = sorted({v.arch for v in chosen})
    probes = {arch: build_probe(arch, folder / arch) for arch in archs}
    backend = get_backend(TORCH if runtime == TORCH else AOTI_CPU)
    tasks = [(i, v) for i in range(len(buckets)) for v in chosen]
    done = 0

    def compile_one(task: tuple[int, VariantSpec]) -> Artifact:
        index, variant = task
        return backend.compile_program(
            exported[index],
            buckets[index],
            variant,
            natives.get(variant.name),
            folder / variant.name / f"bucket-{index}.so",
            scratch=folder / "inductor" / variant.name,
            store=store,
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
                if step is not None:
                    step.update(done, len(tasks), f"bucket {artifact.bucket}, {artifact.variant}")
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return _assemble(
        chosen, natives, artifacts, probes, store, profile, exported, precision, runtime
    )


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
    """What an earlier :func:`compile_buckets` left in ``folder``, judged anew.

    Args:
        exported, buckets, profile, folder, variants, precision, runtime: as they were compiled.
        keys: what identifies each export; a program that was made from another is refused.

    Raises:
        CompileError: a library is missing, has changed or belongs to other buckets; says to run
            the stage again.
        AuditError: a library isn't fit for the target.
    """
    chosen = tuple(variants if variants is not None else profile.variants)
    natives = _natives(chosen, folder, runtime)
    probes = {arch: build_probe(arch, folder / arch) for arch in sorted({v.arch for v in chosen})}
    artifacts = {
        v.name: [
            Artifact.load(folder / v.name / f"bucket-{index}.json") for index in range(len(buckets))
        ]
        for v in chosen
    }
    stale = [
        f"bucket {index}, {v.name}"
        for v in chosen
        for index, (bucket, key) in enumerate(zip(buckets, keys, strict=True))
        if artifacts[v.name][index].key
        != artifact_key(key, bucket, v, natives.get(v.name), precision)
    ]
    if stale:
        raise CompileError(
            f"in {folder} these programs were compiled from something else: {', '.join(stale)}",
            hint="run the compile stage again",
        )
    store = TensorStore(folder / "tensors")
    return _assemble(
        chosen, natives, artifacts, probes, store, profile, exported, precision, runtime
    )


def _assemble(
    variants: tuple[VariantSpec, ...],
    natives: Mapping[str, NativeRuntime],
    artifacts: Mapping[str, Sequence[Artifact]],
    probes: Mapping[str, Path],
    store: TensorStore,
    profile: TargetProfile,
    exported: Sequence[ExportedModel],
    precision: Precision,
    runtime: str,
) -> CompiledModel:
    verdicts = _audit(variants, natives, artifacts, probes, profile)
    require(verdicts)
    return CompiledModel(
        variants=variants,
        natives=natives,
        artifacts={name: tuple(items) for name, items in artifacts.items()},
        probes=probes,
        store=store,
        audit=tuple(verdicts),
        compilers=frozenset(find_toolchain(arch).version for arch in probes),
        exported=tuple(exported),
        precision=precision,
        runtime=runtime,
    )


def _natives(
    variants: Sequence[VariantSpec], folder: Path, runtime: str
) -> dict[str, NativeRuntime]:
    if runtime == TORCH:
        return {}
    return {v.name: build_runtime(v, folder / v.name) for v in variants}


def _audit(
    variants: Sequence[VariantSpec],
    natives: Mapping[str, NativeRuntime],
    artifacts: Mapping[str, Sequence[Artifact]],
    probes: Mapping[str, Path],
    profile: TargetProfile,
) -> list[AuditVerdict]:
    verdicts = [
        judge(path, baseline(arch), profile, vectorised=False) for arch, path in probes.items()
    ]
    for variant in variants:
        native = natives.get(variant.name)
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
    return verdicts


def _exports(library: Path, variant: VariantSpec, native: NativeRuntime | None) -> frozenset[str]:
    """What a program may expect of the library that it needs beside the system's."""
    if native is not None:
        return native.exports
    from edgecompile.backends.inductor_torch import foreign_symbols

    return foreign_symbols(find_toolchain(variant.arch), library)
