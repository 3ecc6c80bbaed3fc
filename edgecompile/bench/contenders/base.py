"""What a contender is: something that turns a model into a process which runs it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from edgecompile.errors import BenchError

if TYPE_CHECKING:
    from edgecompile.export.program import ExportedModel
    from edgecompile.models.loaded import LoadedModel

__all__ = ["Contender", "Launch", "Parts", "Workshop"]

Parts = Mapping[str, int]


@dataclass(frozen=True)
class Launch:
    """How to start a contender's process.

    Attributes:
        kind: the module of :mod:`edgecompile.bench.contenders.worker` that runs it.
        settings: what that module is given; plain JSON values.
        python: the interpreter.
        path: folders for its PYTHONPATH.
        environment: further variables.
        versions: of what made the artefact, as far as the process can't tell itself.
        notes: choices that a reader of the figures should know.
    """

    kind: str
    settings: Mapping[str, Any]
    python: str
    path: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class Contender(Protocol):
    """One way to run a model."""

    @property
    def name(self) -> str:
        """What reports call it."""

    @property
    def needs(self) -> tuple[str, ...]:
        """Python packages that must be importable, by the names they are imported by."""

    @property
    def needs_model(self) -> bool:
        """Whether it starts from the model rather than from a bundle."""

    @property
    def precision(self) -> str:
        """What it multiplies weights in: ``fp32``, ``bf16``, ``int8``, or a bundle's own label."""

    def prepare(self, workshop: Workshop) -> Launch:
        """Makes what its process will load, or finds it in the cache.

        Raises:
            EdgecompileError: the model can't be exported or compiled this way.
        """

    def measure_size(self, workshop: Workshop, launch: Launch, facts: Mapping[str, Any]) -> Parts:
        """Bytes that a device needs beside Python and numpy, by what they are.

        Args:
            workshop, launch: as prepared.
            facts: what its open session said about itself.
        """


class Workshop:
    """What contenders are prepared from, loaded when the first one asks.

    Args:
        spec: the model's specification; None: there is only a bundle.
        ranges: smallest and largest size of every axis.
        threads: threads that each contender may use.
        cache: folder for what is expensive to make; kept between benchmarks.
        python: interpreter for the contenders' processes.
        variant: of the bundles; None: the best that the CPU can run.
        load: how the model is loaded, as :meth:`edgecompile.models.loaded.LoadOptions.to_json` has it.
    """

    def __init__(
        self,
        spec: str | None,
        ranges: Mapping[str, tuple[int, int]],
        *,
        threads: int,
        cache: Path,
        python: str,
        variant: str | None = None,
        load: Mapping[str, Any] | None = None,
    ) -> None:
        self.spec = spec
        self.ranges = dict(ranges)
        self.threads = threads
        self.cache = cache
        self.python = python
        self.variant = variant
        self.load = dict(load or {})

    @property
    def batch(self) -> tuple[int, int] | None:
        """The batch range to load the model with."""
        return self.ranges.get("batch")

    @cached_property
    def model(self) -> LoadedModel:
        """The model.

        Raises:
            BenchError: none was named.
            ModelError: it can't be loaded.
        """
        from edgecompile.loaders.load import load_model
        from edgecompile.models.loaded import LoadOptions

        if self.spec is None:
            raise BenchError(
                "the other contenders are made from the model, and a bundle doesn't hold it",
                hint="name the model that the bundle was built from",
            )
        return load_model(self.spec, LoadOptions.from_json(self.load), batch=self.batch)

    @cached_property
    def exported(self) -> ExportedModel:
        """The model exported for ``ranges``, one dynamic program.

        Raises:
            ExportError: it can't be.
        """
        from edgecompile.export.export import export_model

        ranges = {name: span for name, span in self.ranges.items() if name in self.model.axes}
        return export_model(self.model, ranges)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the exported graph, its ranges and its weights: what an artefact is made from."""
        program = self.exported.program
        digest = hashlib.sha256(str(program.graph_module.code).encode())
        digest.update(repr(sorted(self.ranges.items())).encode())
        for tensors in (program.state_dict, program.constants):
            for name, tensor in sorted(tensors.items()):
                digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
                digest.update(tensor.detach().contiguous().cpu().reshape(-1).numpy().tobytes())
        return digest.hexdigest()

    @cached_property
    def weight_bytes(self) -> int:
        """Size of the model's parameters and buffers, each counted once."""
        tensors = [*self.model.module.parameters(), *self.model.module.buffers()]
        return sum(t.numel() * t.element_size() for t in {id(t): t for t in tensors}.values())

    def artefact(self, kind: str, request: Mapping[str, Any], make: Callable[[Path], None]) -> Path:
        """A folder of the cache that holds what ``make`` made for this model and ``request``.

        Args:
            kind: names the folder for people.
            request: everything beside the model that shapes the result, versions included.
            make: fills an empty folder; the result gets its name only when it returns.
        """
        key = json.dumps({"model": self.fingerprint, **request}, sort_keys=True)
        folder = self.cache / f"{kind}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
        if folder.is_dir():
            return folder
        self.cache.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{kind}-", dir=self.cache))
        try:
            make(scratch)
            (scratch / "request.json").write_text(key + "\n", encoding="utf-8")
            try:
                os.rename(scratch, folder)
            except OSError:
                if not folder.is_dir():  # else another process was first with the same
                    raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        return folder
