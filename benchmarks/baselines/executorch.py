"""ExecuTorch with XNNPACK, through its Python bindings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.baselines.sizes import package_bytes
from benchmarks.baselines.start import REPOSITORY, worker_command
from benchmarks.baselines.workshop import Workshop
from edgecompile.bench.baselines import absolute_spec
from edgecompile.bench.process import Baseline, clean_environment
from edgecompile.errors import BenchError, MissingDependencyError

__all__ = ["PYTHON_VARIABLE", "Executorch"]

#: Names an interpreter that has the package ``executorch``. It brings torchao along, which
#: transformers imports where it finds it: in an environment of its own it can't slow eager down.
PYTHON_VARIABLE: Final = "EDGECOMPILE_EXECUTORCH_PYTHON"

_FILE = "model.pte"
_LOWER = "benchmarks.baselines.executorch_lower"
_VERSIONS = """
import json
from importlib import metadata
print(json.dumps({name: metadata.version(name) for name in ("executorch", "torch")}))
"""
_INSTALL = (
    "pip install 'edgecompile[hf,executorch]', best into an environment of its own whose "
    f"interpreter ${PYTHON_VARIABLE} then names"
)


@dataclass(frozen=True)
class Executorch:
    """One dynamic program for the whole range; what XNNPACK takes is delegated to it."""

    name: str = "executorch"
    precision: str = "fp32"

    @property
    def needs(self) -> tuple[str, ...]:
        """``executorch`` itself where no other interpreter is named for it."""
        return ("torch",) if os.environ.get(PYTHON_VARIABLE) else ("torch", "executorch")

    def prepare(self, workshop: Workshop) -> Baseline:
        """Lowers the exported program for XNNPACK, in the interpreter that has the package.

        Raises:
            MissingDependencyError: that interpreter lacks the package.
            BenchError: ExecuTorch can't lower the model.
        """
        python = os.environ.get(PYTHON_VARIABLE) or sys.executable
        versions = _versions(python)

        def lower(folder: Path) -> None:
            _lower(workshop, python, folder / _FILE)

        folder = workshop.artefact("executorch", {**versions, "backend": "xnnpack"}, lower)
        settings = {
            "path": str((folder / _FILE).resolve()),
            "threads": workshop.threads,
            "inputs": [spec.name for spec in workshop.exported.inputs],
            "outputs": [spec.name for spec in workshop.exported.outputs],
        }
        notes = (
            "XNNPACK, one dynamic program; its Python bindings need torch, a C++ program wouldn't",
        )
        path = folder / _FILE
        return Baseline(
            self.name,
            worker_command("execu_torch", python),
            settings,
            path=(str(REPOSITORY),),
            # The bindings and what they can't be imported without.
            measure_size=lambda facts: {
                **package_bytes("torch"),
                "bindings": int(facts["bindings_bytes"]),
                "model": path.stat().st_size,
            },
            versions={"torch": versions["torch"]},
            notes=notes,
        )


def _versions(python: str) -> dict[str, str]:
    try:
        done = subprocess.run(
            [python, "-c", _VERSIONS], capture_output=True, text=True, cwd=tempfile.gettempdir()
        )
    except OSError as error:
        raise MissingDependencyError(f"{python} can't be run: {error}", hint=_INSTALL) from error
    if done.returncode != 0:
        raise MissingDependencyError(
            f"{python} has no ExecuTorch: {_reason(done.stderr)}", hint=_INSTALL
        )
    versions: dict[str, str] = json.loads(done.stdout)
    return versions


def _reason(stderr: str) -> str:
    """The last line that a process wrote, which is what its exception says."""
    return (stderr.strip().splitlines() or ["no reason given"])[-1]


def _lower(workshop: Workshop, python: str, target: Path) -> None:
    request = {
        "spec": absolute_spec(str(workshop.spec)),
        "ranges": workshop.ranges,
        "load": workshop.load,
    }
    baseline = Baseline("", (), {}, path=(str(REPOSITORY),))
    done = subprocess.run(
        [python, "-m", _LOWER, str(target.resolve())],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        env=clean_environment(baseline, workshop.threads),
        cwd=tempfile.gettempdir(),
    )
    if done.returncode != 0 or not target.is_file():
        raise BenchError(
            f"ExecuTorch can't lower {workshop.model.name}: {_reason(done.stderr)}",
            hint="leave executorch out of the baselines",
        )
