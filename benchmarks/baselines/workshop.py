"""The model that other runtimes are made from, loaded and exported when the first one asks."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from edgecompile.bench.baselines import read_bundle
from edgecompile.errors import BenchError
from edgecompile.export.export import export_model
from edgecompile.export.program import ExportedModel
from edgecompile.loaders.load import load_model
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.options import LoadOptions

__all__ = ["Workshop"]


class Workshop:
    """The model and options that baselines are prepared from.

    Args:
        spec: the model's specification; None: there is only a bundle.
        ranges: smallest and largest size of every axis.
        threads: of each process.
        cache: folder for what is expensive to make; kept between benchmarks.
        load: how the model is loaded, as :meth:`edgecompile.models.loaded.LoadOptions.to_json` has it.
    """

    def __init__(
        self,
        spec: str | None,
        ranges: Mapping[str, tuple[int, int]],
        *,
        threads: int,
        cache: Path,
        load: Mapping[str, Any] | None = None,
    ) -> None:
        self.spec = spec
        self.ranges = dict(ranges)
        self.threads = threads
        self.cache = cache
        self.load = dict(load or {})

    @classmethod
    def of_bundle(cls, bundle: Path, spec: str | None, threads: int, cache: Path) -> Workshop:
        """For the ranges that a bundle was built for, and the model as it was loaded for it."""
        manifest = read_bundle(bundle)
        return cls(
            spec,
            {name: (extent.lo, extent.hi) for name, extent in manifest.axes.items()},
            threads=threads,
            cache=cache.expanduser(),
            load=LoadOptions.from_json(manifest.plan.get("load")).to_json(),
        )

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
        if self.spec is None:
            raise BenchError(
                "the other baselines are made from the model, and a bundle doesn't hold it",
                hint="name the model that the bundle was built from",
            )
        return load_model(self.spec, LoadOptions.from_json(self.load), batch=self.batch)

    @cached_property
    def exported(self) -> ExportedModel:
        """The model exported for ``ranges``, one dynamic program.

        Raises:
            ExportError: it can't be.
        """
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
