"""The protocol of backends: each turns a plan into parts of a bundle.

A build has a :class:`Job`: the model, its traffic, the plan, and what was made so far. Each backend of the build takes
the job and hands it on, in two steps:

1. ``plan`` refines the plan, before anything is exported. Triton proves here that padding is harmless, because
   CUDA graphs run padded inputs.
2. ``compile`` exports the programs that the backend needs, compiles them, and adds the result to the job:
   the programs for CPUs as ``compiled``, anything else as :class:`~edgecompile.bundle.parts.Parts`.

Packing then asks each of the parts for its files and variants (``add``), runs what this machine can run of them
(``check``), and stores their reports (``documents``). Neither packing nor the build knows the backends by name.

Every bundle has programs for CPUs, or at least the probe that tells what the CPU can do. So ``cpu`` is the last
backend of each build for a GPU, and runs where the GPU can't be used.

Two further methods save time. ``checks`` says what has to be installed, before the model is loaded. ``ahead``
names native code that any model needs; it is compiled while the model is exported.

A new backend is a class with these methods, an entry in the table (``pipeline/backends.py``), a name in
``edgecompile.backends``, and its part in the runtime: a loader of its variants (``runtime/cpu/loaders.py``,
``runtime/open/gpu.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from edgecompile.backends.compilation import CompiledModel
from edgecompile.bundle.parts import Parts
from edgecompile.export.program import ExportedModel
from edgecompile.models.loaded import LoadedModel
from edgecompile.pipeline.packing import Contents
from edgecompile.pipeline.run import Run
from edgecompile.pipeline.server import plan_server
from edgecompile.planning.options import SERVER
from edgecompile.planning.planning import Planned
from edgecompile.planning.request import PlanRequest
from edgecompile.planning.subject import Subject
from edgecompile.quantization.choice import ResolvedPrecision
from edgecompile.targets.profile import TargetProfile
from edgecompile.toolchain.compilers import find_toolchain


@dataclass(frozen=True)
class Job:
    """A build between its plan and its bundle.

    Attributes:
        run: the build.
        subject: the model to plan, with its traffic.
        planned: the plan.
        resolved: the precision of the weights for CPUs, and samples to verify with.
        work: the work folder, where the stages leave their files.
        exported: programs that were exported so far, for the last backend that needed any.
        compiled: the programs for CPUs, once they are compiled.
        parts: the parts that backends for a GPU add.
    """

    run: Run
    subject: Subject
    planned: Planned
    resolved: ResolvedPrecision
    work: Path
    exported: tuple[ExportedModel, ...] = ()
    compiled: CompiledModel | None = None
    parts: tuple[Parts, ...] = ()

    @property
    def model(self) -> LoadedModel:
        """The whole model."""
        return self.subject.whole.model

    def without_pairs(self, refusal: str) -> Job:
        """The job with int8 products that add no pairs in 16 bits, to be compiled for CPUs again.

        Args:
            refusal: the reason, for the notes.
        """
        note = f"int8 adds no pairs in 16 bits: with them {refusal}"
        costs = self.planned.plan.cost_model
        if costs is not None and costs.kind == "measured":
            note += "; the plan's times were measured with them"
        self.run.notes.add(note)
        return replace(self, resolved=self.resolved.without_pairs(note))

    def contents(self) -> Contents:
        """The stages' results, to be packed."""
        run, planned, resolved = self.run, self.planned, self.resolved
        assert self.compiled is not None
        return Contents(
            self.model,
            planned.plan,
            self.compiled,
            sizes=self.subject.asked.sizes,
            cost=planned.cost,
            texts=run.options.texts,
            samples=resolved.samples,
            choice=resolved.choice,
            quality=resolved.quality,
            parts=self.parts,
            tokenizer=run.options.keep_tokenizer,
            server=plan_server(self.subject, planned) if run.options.profile == SERVER else None,
            texts_at_once=run.options.texts_at_once or 0,
        )


def compiler_checks(profile: TargetProfile) -> list[Callable[[], object]]:
    """Checks that this machine has a C++ compiler for each architecture of a target."""
    return [partial(find_toolchain, arch) for arch in profile.archs]


class Backend:
    """Compiles a model for some of the target's processors."""

    def checks(
        self, options: PlanRequest, profile: TargetProfile
    ) -> Sequence[Callable[[], object]]:
        """Checks that this machine has what compiling needs; each raises an EdgecompileError if not."""
        return ()

    def ahead(self, run: Run) -> Sequence[Callable[[], object]]:
        """Calls that compile native code which any model needs, into the compilers' cache."""
        return ()

    def plan(self, job: Job) -> Job:
        """The job with a plan that suits the backend."""
        return job

    def compile(self, job: Job) -> Job:
        """The job with the compiled programs.

        Raises:
            EdgecompileError: a subclass for each cause.
        """
        raise NotImplementedError
