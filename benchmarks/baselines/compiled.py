"""torch as it is, and torch.compile: the model's own code, with torch on the device."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from benchmarks.baselines.sizes import eager_bytes
from benchmarks.baselines.start import REPOSITORY, worker_command
from benchmarks.baselines.workshop import Workshop
from edgecompile.bench.baselines import EAGER, absolute_spec
from edgecompile.bench.process import Baseline

__all__ = ["TorchModule"]


@dataclass(frozen=True)
class TorchModule:
    """The eager model; ``compile``: through torch.compile, with weights frozen."""

    name: str
    compile: bool = False
    needs: tuple[str, ...] = ("torch",)
    precision: str = "fp32"

    def prepare(self, workshop: Workshop) -> Baseline:
        """Nothing has to be made; the cache of torch.compile is in the workshop's."""
        _ = workshop.model  # an error appears here, not in another process
        settings = {
            "spec": absolute_spec(str(workshop.spec)),
            "batch": None if workshop.batch is None else list(workshop.batch),
            "load": workshop.load,
            "threads": workshop.threads,
        }
        if not self.compile:
            return Baseline(
                self.name,
                (sys.executable, "-m", "edgecompile.bench.worker", EAGER),
                settings,
                path=(str(REPOSITORY),),
                measure_size=lambda facts: eager_bytes(workshop),
            )
        return Baseline(
            self.name,
            worker_command("compiled"),
            settings,
            path=(str(REPOSITORY),),
            environment={
                "TORCHINDUCTOR_CACHE_DIR": str(workshop.cache.resolve() / "torch-compile")
            },
            measure_size=lambda facts: eager_bytes(workshop),
            notes=("dynamic=True, freezing; starts with a warm compile cache",),
        )
