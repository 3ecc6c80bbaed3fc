"""A bundle as a contender: its own runtime, in a process without torch."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgecompile.bench.contenders.base import Launch, Parts, Workshop
from edgecompile.bench.contenders.process import clean_environment
from edgecompile.errors import BenchError
from edgecompile.runtime.format.manifest import MANIFEST_NAME, TORCH, Manifest, parse_manifest

__all__ = ["BundleContender", "read_bundle"]


def read_bundle(path: Path, *, whole: bool = False) -> Manifest:
    """The manifest of a bundle; ``whole`` compares all files with it.

    Raises:
        BundleError: it is missing or malformed, or a file isn't as it says.
    """
    from edgecompile.runtime.format.folder import BundleFolder

    folder = BundleFolder(str(path))
    try:
        if whole:
            folder.check_hashes()
        return folder.manifest
    finally:
        folder.close()


@dataclass(frozen=True)
class BundleContender:
    """The bundle at ``path``."""

    name: str
    path: Path
    needs: tuple[str, ...] = ()
    needs_model: bool = False

    @property
    def precision(self) -> str:
        """The manifest's label: of the linears' weights.

        Raises:
            BundleError: the manifest is missing or malformed.
        """
        return read_bundle(self.path).precision

    def prepare(self, workshop: Workshop) -> Launch:
        """Puts the bundle's own runtime on the process' path; nothing else has to be made.

        Raises:
            BundleError: the bundle is damaged, or holds files that its manifest doesn't list.
            BenchError: the runtime can't be imported.
        """
        bundle = self.path.resolve()
        # Before anything in it runs: its Python runtime does so unhashed.
        manifest = read_bundle(bundle, whole=True)
        settings = {
            "path": str(bundle),
            "threads": workshop.threads,
            "variant": workshop.variant,
            "torch": any(v.backend == TORCH for v in manifest.variants),
        }
        # Compiled Python files must not fall into the bundle, but from its second start on a
        # device has them, as the other contenders do.
        environment = {"PYTHONPYCACHEPREFIX": str(workshop.cache.resolve() / "pycache")}
        launch = Launch(
            "bundle", settings, workshop.python, (str(bundle / "runtime"),), environment
        )
        _compile_python(self.name, launch, workshop.threads)
        return launch

    def measure_size(self, workshop: Workshop, launch: Launch, facts: Mapping[str, Any]) -> Parts:
        """What the chosen variant needs; other variants, golden vectors and reports don't count."""
        manifest = parse_manifest((self.path / MANIFEST_NAME).read_bytes(), str(self.path))
        (variant,) = [item for item in manifest.variants if item.name == facts["variant"]]

        def total(names: list[str]) -> int:
            return sum(manifest.files[name].size for name in names)

        python = [name for name in manifest.files if name.startswith("runtime/")]
        # torch itself isn't counted where it is the runtime: it is taken to be there.
        native = [name for name in (variant.runtime, *manifest.probes.values()) if name]
        return {
            "weights": total([manifest.weights[manifest.precision]]),
            "programs": total(sorted(set(variant.programs))),
            "native runtime": total(native),
            "Python runtime": total(python) + (self.path / MANIFEST_NAME).stat().st_size,
        }


def _compile_python(name: str, launch: Launch, threads: int) -> None:
    command = [launch.python, "-c", "import edgecompile.runtime.model"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=clean_environment(launch, threads),
        cwd=tempfile.gettempdir(),
    )
    if done.returncode != 0:
        raise BenchError(f"the runtime of {name} can't be imported:\n{done.stderr.strip()}")
