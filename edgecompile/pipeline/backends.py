"""The table of backends, with those for CPUs; ``pipeline/backend.py`` describes the protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from edgecompile.backends import BOTH, CPU
from edgecompile.export.store import ExportStore
from edgecompile.pipeline.backend import Backend, Job, compiler_checks
from edgecompile.pipeline.stages import compile_programs, export_programs
from edgecompile.pipeline.tensorrt_backend import TensorRtBackend
from edgecompile.pipeline.triton_backend import TritonBackend
from edgecompile.planning.request import PlanRequest
from edgecompile.runtime.format.manifest.schema import TENSORRT, TORCH, TRITON
from edgecompile.targets.profile import TargetProfile


@dataclass(frozen=True)
class CpuBackend(Backend):
    """Programs for CPUs: AOTInductor's C++, which calls the bundle's library or torch's kernels.

    Attributes:
        name: one of :data:`edgecompile.backends.CPU_BACKENDS`.
    """

    name: str

    def checks(
        self, options: PlanRequest, profile: TargetProfile
    ) -> Sequence[Callable[[], object]]:
        """The compilers, unless the probe is all that is built."""
        return compiler_checks(profile) if profile.gpu is None or options.fallback else ()

    def compile(self, job: Job) -> Job:
        """Compiles a program for each bucket; beside a GPU the fewest that serve all sizes, or the probe alone."""
        run, planned, exports = job.run, job.planned, job.subject.whole
        buckets, exported = planned.plan.buckets, job.exported
        served, of, title = buckets, "", "compile"
        variants: tuple[str, ...] | None = None
        if run.profile.gpu is not None:
            of = "for the machine's own cores"
            title = f"compile {of}"
            # Of a model that generates every bucket has its own program: those of prompts begin at two tokens.
            if job.model.generation is None:
                served = planned.scope.exact_buckets
            if not run.options.fallback:
                title, variants = "compile the probe", ()
        if variants is None:
            exported = export_programs(run, exports, served, of=of)
        keys, together = [exports.key(bucket) for bucket in served], run.options.texts_at_once
        programs = served
        if together is not None:
            from edgecompile.loaders.generators.texts_step import (  # needs transformers
                texts_buckets,
                texts_model,
            )

            texts = texts_model(job.model, together)
            batches, store = texts_buckets(texts), ExportStore(texts, exports.folder)
            exported = (
                *exported,
                *export_programs(run, store, batches, of="several texts at once"),
            )
            keys, programs = keys + [store.key(item) for item in batches], (*served, *batches)
        compiled = compile_programs(
            run,
            keys,
            exported,
            programs,
            job.work,
            precision=job.resolved.precision,
            title=title,
            backend=self.name,
            variants=variants,
            padded=served is not buckets and any(item.mode == "pad" for item in buckets),
        )
        if together is not None:
            compiled = compiled.split_batch()
        if served is not buckets:
            compiled = compiled.shared_by(buckets, served)
        return replace(job, compiled=compiled)


#: Every backend, by name.
BACKENDS: Mapping[str, Backend] = {
    CPU: CpuBackend(CPU),
    TORCH: CpuBackend(TORCH),
    TRITON: TritonBackend(),
    TENSORRT: TensorRtBackend(),
}
#: The values of the option ``backend`` that stand for other backends.
_STANDS_FOR = {BOTH: (TENSORRT, TRITON)}


def find_backends(options: PlanRequest, profile: TargetProfile) -> list[Backend]:
    """The backends of a build, in the order in which they compile."""
    name = options.backend_for(profile)
    names = _STANDS_FOR.get(name, (name,))
    return [BACKENDS[item] for item in (*names, *(() if profile.gpu is None else (CPU,)))]
