"""A model's compiled programs for a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edgecompile.backends.artifact import Artifact, CompiledPrograms

#: Of programs that read numbers.
NUMBERS_NOTE = "Sizes in the model depend on values: each run waits for a number from the GPU, and runs without CUDA graphs."

#: A variant of a bundle: these programs on hosts of an architecture.
PREFIX = "triton-"


@dataclass(frozen=True, kw_only=True)
class CompiledGpuModel(CompiledPrograms):
    """The compiled programs for a GPU.

    Attributes:
        alternatives: the programs that compute the same with other tiles, by architecture, for each
            bucket.
        precision: the data type of weights and activations.
        capabilities: the compute capabilities that there is machine code for, such as 8.7.
        ptx: the least compute capability that can compile the rest; None: some kernel has none.
        driver: number of the oldest CUDA driver that loads the machine code.
        compiler: the compiler that made it, with versions.
    """

    precision: str
    capabilities: tuple[str, ...]
    ptx: str | None
    driver: int
    compiler: str
    alternatives: Mapping[str, tuple[tuple[Artifact, ...], ...]] = field(default_factory=dict)

    def of(self, arch: str) -> list[Artifact]:
        """All programs for an architecture."""
        more = self.alternatives.get(arch, ())
        return [*self.artifacts[arch], *(item for items in more for item in items)]

    @property
    def checks(self) -> tuple[str, ...]:
        """Names of the checks that the programs passed on the build host; ``audit`` is one."""
        kinds = [
            {item["kind"] for item in artifact.lowering["checks"]}
            for arch in self.artifacts
            for artifact in self.of(arch)
        ]
        return ("audit", *sorted(set.intersection(*kinds)))

    @property
    def reads_numbers(self) -> bool:
        """Whether any program reads numbers from the GPU in its middle, so that no graph holds its runs."""
        return any(
            item.lowering["reads_numbers"] for arch in self.artifacts for item in self.of(arch)
        )

    @property
    def cublaslt(self) -> bool:
        """Whether any program has products that cuBLASLt may compute."""
        return any(item.lowering["products"] for arch in self.artifacts for item in self.of(arch))

    def to_json(self) -> dict[str, Any]:
        """The programs' part of a report."""
        arch, some = next(iter(self.artifacts.items()))
        more = self.alternatives.get(arch, ())
        return {
            "precision": self.precision,
            "compute_capabilities": list(self.capabilities),
            "ptx": self.ptx,
            "driver": self.driver,
            "compiler": self.compiler,
            "programs": [
                {name: item.lowering[name] for name in ("kernels", "checks")} for item in some
            ],
            "alternatives": [
                [{name: item.lowering[name] for name in ("tiles", "kernels")} for item in items]
                for items in more
            ],
        }
