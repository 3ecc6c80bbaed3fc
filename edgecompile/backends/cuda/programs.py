"""All of a model's programs for a GPU: one library for each bucket and architecture of the host."""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from edgecompile.audit.judge import (
    GPU_LIBRARY_DISPATCHES,
    AuditVerdict,
    baseline,
    judge,
    require,
)
from edgecompile.backends.artifact import Artifact, TensorStore, hinted_sizes
from edgecompile.backends.cuda.artifact import PREFIX, CompiledGpuModel
from edgecompile.backends.cuda.checks import Draw, check_graph, check_kernels
from edgecompile.backends.cuda.cubins import (
    LEAST_DRIVER,
    Assembled,
    assemble,
    audit_kernels,
)
from edgecompile.backends.cuda.gemm.tiles import RULES
from edgecompile.backends.cuda.library import build_library
from edgecompile.backends.cuda.make_source import GpuSource, make_gpu_source
from edgecompile.backends.cuda.requirements import find_ptxas, ptxas_version
from edgecompile.backends.inductor.missing_kernels import refuse_missing_kernels
from edgecompile.buckets.ranges import Bucket
from edgecompile.export.program import ExportedModel
from edgecompile.files import file_sha256, plain_fields
from edgecompile.installation import installation_id
from edgecompile.progress import NULL_STEP, StepHandle
from edgecompile.targets.gpu import GpuSpec
from edgecompile.targets.profile import TargetProfile
from edgecompile.toolchain.compilers import find_toolchain
from edgecompile.toolchain.gpu_native import build_gpu_runtime
from edgecompile.toolchain.native import NativeRuntime
from edgecompile.toolchain.torch_versions import installed_version


def compile_for_gpu(
    exported: Sequence[ExportedModel],
    buckets: Sequence[Bucket],
    profile: TargetProfile,
    precision: str,
    folder: Path,
    *,
    keys: Sequence[str] = (),
    saved: Sequence[Path] = (),
    alternatives: int = 0,
    draw: Draw | None = None,
    step: StepHandle = NULL_STEP,
) -> CompiledGpuModel:
    """Compiles every bucket for the GPU of a target, and audits what comes out.

    Args:
        exported: one export for each bucket, in float32.
        buckets: the buckets to compile.
        profile: the target; it has a GPU.
        precision: ``fp32``, ``bf16``, ``fp16``, or ``int8``: fp16 with weights of int8, or ``fp8``: fp16 with products of e4m3.
        folder: the folder that gets ``triton-<arch>/bucket-N.so``, ``bucket-N-<rule>.so``, the
            runtime libraries and tensors.
        keys: the key of each export; with them, programs that an earlier call left there are
            reused.
        saved: the folders of the exports; with them, kernels of ours are tried in Triton's interpreter.
        alternatives: the number of further programs of each bucket, with tiles that other rules
            choose (:data:`~edgecompile.backends.cuda.gemm.tiles.RULES`). Those that come out as an
            earlier one are dropped.
        draw: a function that gives inputs of some sizes to check a graph with; None: the export's
            own examples.
        step: a function that gets the progress.

    Raises:
        TargetError: Triton makes no code for this GPU.
        MissingKernelError: a program calls what the runtime lacks; lists all of it.
        VerificationError: a lowered graph differs from the model's.
        CompileError, ToolchainError, AuditError.
    """
    gpu = profile.gpu
    assert gpu is not None
    ptxas = find_ptxas(gpu.ptxas)
    natives = {arch: build_gpu_runtime(arch, folder / arch) for arch in profile.archs}
    store = TensorStore(folder / "tensors")
    rules = RULES[: 1 + alternatives]
    compiling: list[list[_Program]] = []
    # One program's host code is compiled while the next one's kernels are generated.
    linking = ThreadPoolExecutor(max_workers=1)
    try:
        for index, (program, bucket) in enumerate(zip(exported, buckets, strict=True)):
            task = _Task(
                program, bucket, index, profile.name, gpu, precision, ptxas, store, folder, natives,
                keys[index] if keys else uuid.uuid4().hex, saved[index] if saved else None,
                ptx=profile.kind != "jetson", draw=draw,
            )  # fmt: skip
            tell = partial(
                _tell, step, (index * len(rules), len(buckets) * len(rules)), f"bucket {index}"
            )
            compiling.append(_compile_each(task, rules, tell, linking))
            for item in chain.from_iterable(compiling):
                if item.artifacts.done():
                    item.artifacts.result()  # what failed is told now
        linked = [[item.artifacts.result() for item in made] for made in compiling]
    finally:
        linking.shutdown(cancel_futures=True)
    by_arch: dict[str, list[list[Artifact]]] = {arch: [] for arch in natives}
    verdicts: list[AuditVerdict] = []
    for programs in linked:
        for arch in natives:
            by_arch[arch].append([artifacts[arch] for artifacts in programs])
        for artifacts in programs:
            for arch, artifact in artifacts.items():
                verdicts.append(_judge_program(artifact, arch, natives[arch], profile))
            # Of a reused program, too: stored with the artifact, whose hash was compared.
            verdicts.append(
                AuditVerdict.from_json(next(iter(artifacts.values())).lowering["audit"])
            )
    for arch, native in natives.items():
        verdicts.append(
            judge(
                native.path,
                baseline(arch),
                profile,
                vectorised=False,
                dispatched=GPU_LIBRARY_DISPATCHES,
            )
        )
    require(verdicts)
    result = CompiledGpuModel(
        natives=natives,
        artifacts={
            arch: tuple(programs[0] for programs in items) for arch, items in by_arch.items()
        },
        store=store,
        audit=tuple(verdicts),
        precision=precision,
        capabilities=gpu.cubins or (gpu.compute_capability,),
        ptx=None,
        driver=LEAST_DRIVER,
        compiler=f"triton {installed_version('triton')}, ptxas {ptxas_version(ptxas)}",
        alternatives={
            arch: tuple(tuple(programs[1:]) for programs in items)
            for arch, items in by_arch.items()
            if alternatives
        },
    )
    every = (
        item for artifact in result.of(next(iter(natives))) for item in artifact.lowering["kernels"]
    )
    later = all(item["ptx"] is not None for item in every)
    return replace(result, ptx=gpu.compute_capability if later else None)


def _compile_each(
    task: _Task,
    rules: Sequence[str],
    tell: Callable[..., None],
    linking: ThreadPoolExecutor,
) -> list[_Program]:
    """A program with the tiles of each rule; those that come out as an earlier one left out.

    Args:
        task: the program.
        rules: the rules for the tiles.
        tell: a function that gets the number of the rule before it is compiled.
        linking: compiles and links host code.
    """
    programs: list[_Program] = []
    for number, rule in enumerate(rules):
        tell(number=number)
        # The graph is the same with every tile, so it is checked once.
        checks = programs[0].lowering["checks"] if programs else None
        program = replace(task, rule=rule).compile(checks, linking)
        if program.lowering["code"] not in {item.lowering["code"] for item in programs}:
            programs.append(program)
    return programs


def _tell(step: StepHandle, done: tuple[int, int], bucket: str, *, number: int) -> None:
    text = f", alternative {number}" if number else ""
    step.update(done[0] + number, done[1], f"{bucket}{text}")


def _judge_program(
    artifact: Artifact, arch: str, native: NativeRuntime, profile: TargetProfile
) -> AuditVerdict:
    return judge(
        artifact.library,
        baseline(arch),
        profile,
        allowed_needed=(native.path.name,),
        runtime_exports=native.exports,
        vectorised=False,
    )


@dataclass(frozen=True)
class _Made:
    """A bucket's code before it is linked for an architecture."""

    generated: GpuSource
    kernels: tuple[Assembled, ...]
    lowering: Mapping[str, Any]
    seconds: Mapping[str, float]


@dataclass(frozen=True)
class _Program:
    """A program whose libraries, by architecture of the host, may still be compiled."""

    lowering: Mapping[str, Any]
    artifacts: Future[dict[str, Artifact]]


@dataclass(frozen=True)
class _Task:
    """A program to compile."""

    exported: ExportedModel
    bucket: Bucket
    index: int
    target: str
    gpu: GpuSpec
    precision: str
    ptxas: Path
    store: TensorStore
    folder: Path
    natives: Mapping[str, NativeRuntime]
    export_key: str
    saved: Path | None
    ptx: bool  # a Jetson's GPU is a part of it: no later one will run its bundle
    rule: str = RULES[0]
    draw: Draw | None = None

    def key(self, arch: str) -> str:
        """Identifies everything that shapes the library."""
        toolchain = find_toolchain(arch)
        parts = [
            self.export_key,
            self.bucket.program_json(),
            self.target,
            plain_fields(self.gpu),
            self.precision,
            self.rule,
            self.ptx,
            self.natives[arch].sha256,
            [toolchain.cxx, toolchain.version],
            [installed_version("triton"), ptxas_version(self.ptxas)],
            installation_id(),
        ]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def output(self, arch: str) -> Path:
        rule = "" if self.rule == RULES[0] else f"-{self.rule}"
        return self.folder / f"{PREFIX}{arch}" / f"bucket-{self.index}{rule}.so"

    def compile(
        self, checks: Sequence[Mapping[str, Any]] | None, linking: ThreadPoolExecutor
    ) -> _Program:
        """The program, or what an earlier process left of it.

        Args:
            checks: the checks of the same program with other tiles, whose graph isn't checked
                again.
            linking: compiles and links the host code.
        """
        pairs = [
            (arch, Artifact.find(self.output(arch), self.key(arch), self.store))
            for arch in self.natives
        ]
        artifacts = {arch: artifact for arch, artifact in pairs if artifact is not None}
        if len(artifacts) == len(pairs):
            lowering = next(iter(artifacts.values())).lowering
            return _Program(lowering, linking.submit(lambda: artifacts))
        made = self.make(checks)
        return _Program(
            made.lowering,
            linking.submit(lambda: {arch: self.link(arch, made) for arch in self.natives}),
        )

    def make(self, checks: Sequence[Mapping[str, Any]] | None) -> _Made:
        """Generates and assembles; refuses what the runtime lacks before anything is compiled."""
        ranges, start = self.exported.ranges, time.perf_counter()
        ends = [{axis: span[end] for axis, span in ranges.items()} for end in (0, 1)]
        # More than one key to attend to, few enough for an interpreter.
        few = {
            axis: min(hi, max(lo, 5)) if axis == self.exported.length_axis else lo
            for axis, (lo, hi) in ranges.items()
        }
        own = dict(self.bucket.program_axes)
        few = {axis: own[axis].below(size) for axis, size in few.items()}
        hints = hinted_sizes(self.bucket, ranges)
        sizes = [
            dict(items)
            for items in dict.fromkeys(tuple(s.items()) for s in [ends[0], hints, ends[1]])
        ]
        check, graph_checks = check_graph(self.exported, sizes, self.precision, self.draw)
        generated = make_gpu_source(
            self.exported,
            self.bucket,
            self.gpu.facts,
            self.precision,
            self.ptxas,
            check=check if checks is None else lambda module: None,
            rule=self.rule,
        )
        for native in self.natives.values():
            refuse_missing_kernels(generated.wrapper, generated.modules, native.exports)
        if self.saved is not None and checks is None:
            kernels_checked = check_kernels(self.saved, few, self.precision, self.gpu.facts)
            graph_checks += [] if kernels_checked is None else [kernels_checked]
        generating = time.perf_counter() - start
        archs = [
            int(name.replace(".", "")) for name in self.gpu.cubins or (self.gpu.compute_capability,)
        ]
        kernels = assemble(generated.kernels, archs, self.ptxas, ptx=self.ptx)
        private = (str(self.folder.resolve()), str(Path.home()), tempfile.gettempdir() + "/")
        audit = audit_kernels(kernels, self.gpu.facts, self.target, private)
        lowering = {
            **generated.lowering,
            "audit": audit.to_json(),
            "kernels": [item.to_json() for item in kernels],
            "checks": [item.to_json() for item in graph_checks] if checks is None else list(checks),
            "tiles": self.rule,
            "reads_numbers": generated.reads_numbers,
            "products": generated.products,
            "code": _digest(generated.wrapper, kernels),
        }
        assembling = time.perf_counter() - start - generating
        return _Made(generated, kernels, lowering, {"generate": generating, "assemble": assembling})

    def link(self, arch: str, made: _Made) -> Artifact:
        """The library for hosts of an architecture."""
        start, output = time.perf_counter(), self.output(arch)
        toolchain = find_toolchain(arch)
        objects = build_library(
            toolchain, made.generated.wrapper, made.kernels, self.natives[arch], output
        )
        artifact = Artifact(
            key=self.key(arch),
            bucket=self.index,
            variant=f"{PREFIX}{arch}",
            library=output,
            sha256=file_sha256(output),
            isa=f"sm_{self.gpu.facts.compute_capability}",
            vectorised=False,
            constants={
                name: self.store.add(tensor) for name, tensor in made.generated.constants.items()
            },
            seconds={**made.seconds, "compile": time.perf_counter() - start},
            commands=tuple(sorted({" ".join(built.command) for built in objects})),
            lowering=made.lowering,
            kinds=made.generated.kinds,
        )
        artifact.save()
        return artifact


def _digest(wrapper: str, kernels: Sequence[Assembled]) -> str:
    """Tells programs with unlike code apart."""
    digest = hashlib.sha256(wrapper.encode())
    for item in kernels:
        digest.update(item.container())
    return digest.hexdigest()
