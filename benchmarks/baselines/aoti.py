"""torch's own ahead-of-time compiler, AOTInductor, with frozen weights; torch on the device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.baselines.sizes import package_bytes
from benchmarks.baselines.start import REPOSITORY, worker_command
from benchmarks.baselines.workshop import Workshop
from edgecompile.bench.process import Baseline
from edgecompile.errors import BenchError
from edgecompile.hosts.identity import cpu_identity

__all__ = ["Aoti"]

_FILE = "model.pt2"


@dataclass(frozen=True)
class Aoti:
    """A package made by AOTInductor for this machine's CPU."""

    name: str = "aoti"
    needs: tuple[str, ...] = ("torch",)
    precision: str = "fp32"

    def prepare(self, workshop: Workshop) -> Baseline:
        """Compiles one program for the whole range, the weights packed for oneDNN.

        Raises:
            BenchError: AOTInductor fails.
        """
        import torch

        # The code is for the instructions of this CPU.
        request = {"torch": torch.__version__, "cpu": cpu_identity(), "freezing": True}
        folder = workshop.artefact("aoti", request, lambda path: _compile(workshop, path / _FILE))
        settings = {"path": str((folder / _FILE).resolve()), "threads": workshop.threads}
        path = folder / _FILE
        return Baseline(
            self.name,
            worker_command("aoti"),
            settings,
            path=(str(REPOSITORY),),
            # The package holds the weights.
            measure_size=lambda facts: {**package_bytes("torch"), "model": path.stat().st_size},
            notes=("freezing",),
        )


def _compile(workshop: Workshop, target: Path) -> None:
    import torch
    from torch._inductor import aoti_compile_and_package

    try:
        # Outside no_grad, freezing is ignored without a word.
        with torch.no_grad():
            aoti_compile_and_package(
                workshop.exported.program,
                package_path=str(target),
                inductor_configs={"freezing": True},
            )
    except Exception as error:  # Inductor raises whatever its passes or g++ raise
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise BenchError(
            f"AOTInductor can't compile {workshop.model.name}: {lines[0]}",
            hint="leave aoti out of the baselines",
        ) from error
