"""torch as it is, and torch.compile: the model's own code, with torch on the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgecompile.bench.contenders.base import Launch, Parts, Workshop
from edgecompile.bench.contenders.sizes import package_bytes

__all__ = ["PACKAGE_ROOT", "Eager", "absolute_spec"]

#: The folder to put on the path of a process that imports this package.
PACKAGE_ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Eager:
    """The eager model; ``compile``: through torch.compile with weights frozen."""

    name: str
    compile: bool = False
    needs: tuple[str, ...] = ("torch",)
    needs_model: bool = True
    precision: str = "fp32"

    def prepare(self, workshop: Workshop) -> Launch:
        """Nothing has to be made; torch.compile's own cache lies in the workshop's."""
        _ = workshop.model  # says here, not in another process, what is wrong with it
        batch = workshop.batch
        settings = {
            "spec": absolute_spec(str(workshop.spec)),
            "batch": None if batch is None else list(batch),
            "load": workshop.load,
            "threads": workshop.threads,
            "compile": self.compile,
        }
        inductor = workshop.cache.resolve() / "torch-compile"
        environment = {"TORCHINDUCTOR_CACHE_DIR": str(inductor)} if self.compile else {}
        notes = (
            ("dynamic=True, freezing; starts with a warm compile cache",) if self.compile else ()
        )
        return Launch(
            "eager",
            settings,
            workshop.python,
            (str(PACKAGE_ROOT),),
            environment,
            notes=notes,
        )

    def measure_size(self, workshop: Workshop, launch: Launch, facts: Mapping[str, Any]) -> Parts:
        """torch with its requirements, transformers where the model is made by it, the weights."""
        names = ["torch"]
        if workshop.model.source.kind == "folder":
            names.append("transformers")
        return {**package_bytes(*names), "weights": workshop.weight_bytes}


def absolute_spec(spec: str) -> str:
    """The specification with its path, if it has one, made absolute: processes run elsewhere."""
    where, colon, factory = spec.rpartition(":")
    if colon and Path(where).expanduser().is_file():
        return f"{Path(where).expanduser().resolve()}:{factory}"
    path = Path(spec).expanduser()
    return str(path.resolve()) if path.exists() else spec
