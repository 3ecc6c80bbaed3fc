"""ExecuTorch with XNNPACK, through its Python bindings."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from edgecompile.bench.contenders.base import Launch, Parts, Workshop
from edgecompile.bench.contenders.eager import PACKAGE_ROOT, absolute_spec
from edgecompile.bench.contenders.process import clean_environment
from edgecompile.bench.contenders.sizes import package_bytes
from edgecompile.errors import BenchError, MissingDependencyError

__all__ = ["PYTHON_VARIABLE", "Executorch"]

#: Names an interpreter that has the package ``executorch``. It brings torchao along, which
#: transformers imports where it finds it: in an environment of its own it can't slow eager down.
PYTHON_VARIABLE: Final = "EDGECOMPILE_EXECUTORCH_PYTHON"

_FILE = "model.pte"
_LOWER = "edgecompile.bench.contenders.executorch_lower"
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
    needs_model: bool = True

    @property
    def needs(self) -> tuple[str, ...]:
        """``executorch`` itself where no other interpreter is named for it."""
        return ("torch",) if os.environ.get(PYTHON_VARIABLE) else ("torch", "executorch")

    def prepare(self, workshop: Workshop) -> Launch:
        """Lowers the exported program for XNNPACK, in the interpreter that has the package.

        Raises:
            MissingDependencyError: that interpreter lacks the package.
            BenchError: ExecuTorch can't lower the model.
        """
        python = os.environ.get(PYTHON_VARIABLE) or workshop.python
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
        return Launch(
            "execu_torch", settings, python, versions={"torch": versions["torch"]}, notes=notes
        )

    def measure_size(self, workshop: Workshop, launch: Launch, facts: Mapping[str, Any]) -> Parts:
        """The bindings and what they can't be imported without, and the model."""
        return {
            **package_bytes("torch"),
            "bindings": int(facts["bindings_bytes"]),
            "model": Path(launch.settings["path"]).stat().st_size,
        }


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
    found: dict[str, str] = json.loads(done.stdout)
    return found


def _reason(stderr: str) -> str:
    """The last line that a process wrote, which is what its exception says."""
    return (stderr.strip().splitlines() or ["no reason given"])[-1]


def _lower(workshop: Workshop, python: str, target: Path) -> None:
    request = {
        "spec": absolute_spec(str(workshop.spec)),
        "ranges": workshop.ranges,
        "load": workshop.load,
    }
    launch = Launch("", {}, python, (str(PACKAGE_ROOT),))
    done = subprocess.run(
        [python, "-m", _LOWER, str(target.resolve())],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        env=clean_environment(launch, workshop.threads),
        cwd=tempfile.gettempdir(),
    )
    if done.returncode != 0 or not target.is_file():
        raise BenchError(
            f"ExecuTorch can't lower {workshop.model.name}: {_reason(done.stderr)}",
            hint="leave executorch out of the contenders",
        )
