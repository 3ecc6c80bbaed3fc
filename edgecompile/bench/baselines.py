"""Ways to run a model, each in a process of its own: a bundle, eager, or any command."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgecompile.bench.process import Baseline
from edgecompile.bench.report import BenchSettings
from edgecompile.errors import BenchError
from edgecompile.models.options import LoadOptions
from edgecompile.runtime.commands.info import device_bytes
from edgecompile.runtime.format.files.folder import BundleFolder
from edgecompile.runtime.format.manifest.schema import TORCH, Manifest

EAGER = "eager"
_WORKER = Path(__file__).resolve().with_name("worker.py")
#: The folder to put on the path of a process that imports this package.
PACKAGE_ROOT = _WORKER.parents[2]


def read_bundle(path: Path, *, whole: bool = False) -> Manifest:
    """The manifest of a bundle; ``whole`` compares all files with it.

    Raises:
        BundleError: it is missing or malformed, or a file isn't as it says.
    """
    folder = BundleFolder(str(path))
    try:
        if whole:
            folder.check_hashes()
        return folder.manifest
    finally:
        folder.close()


def bundle_baseline(name: str, path: Path, settings: BenchSettings, cache: Path) -> Baseline:
    """A bundle, run by the runtime inside it.

    Args:
        name: the name in reports.
        path: the path of the bundle.
        settings: the threads and the variant.
        cache: folder for compiled Python files, which mustn't fall into the bundle. From its second
            start on a device has them, too.

    Raises:
        BundleError: the bundle is damaged, or holds files that its manifest doesn't list.
    """
    bundle = path.resolve()
    # Before anything in it runs: its Python runtime does so unhashed.
    manifest = read_bundle(bundle, whole=True)

    def measure_size(facts: Mapping[str, Any]) -> Mapping[str, int]:
        (variant,) = [item for item in manifest.variants if item.name == facts["variant"]]
        sizes = device_bytes(manifest, variant)
        return {kind: size for kind, size in sizes.items() if kind != "total"}

    return Baseline(
        name=name,
        command=(sys.executable, str(_WORKER), "bundle"),
        settings={
            "path": str(bundle),
            "threads": settings.threads,
            "variant": settings.variant,
            "torch": any(v.backend == TORCH for v in manifest.variants),
        },
        precision=manifest.precision,
        path=(str(bundle / "runtime"),),
        environment={"PYTHONPYCACHEPREFIX": str(cache.resolve() / "pycache")},
        bundle=bundle,
        measure_size=measure_size,
    )


def eager_baseline(spec: str, manifest: Manifest, threads: int) -> Baseline:
    """The model's own code, run by torch.

    Args:
        spec: the specification of the model.
        manifest: the manifest of the bundle, with the options for loading the model.
        threads: the threads of torch.
    """
    batch = manifest.axes.get("batch")
    settings = {
        "spec": absolute_spec(spec),
        "batch": None if batch is None else [batch.lo, batch.hi],
        "load": LoadOptions.from_json(manifest.plan.get("load")).to_json(),
        "threads": threads,
    }
    return Baseline(
        EAGER,
        (sys.executable, "-m", "edgecompile.bench.worker", EAGER),
        settings,
        path=(str(PACKAGE_ROOT),),
    )


def find_baseline(
    text: str, spec: str | None, manifest: Manifest, settings: BenchSettings, cache: Path
) -> Baseline:
    """A baseline of ``--against``: ``eager``, the path of a bundle (``….ecb``), or ``NAME=COMMAND``.

    Raises:
        BenchError: it is none of these, or the model that eager needs isn't known.
        BundleError: see :func:`bundle_baseline`.
    """
    name, equals, command = text.partition("=")
    if equals and name and shlex.split(command):
        words = tuple(shlex.split(command))
        return Baseline(name, words, {"threads": settings.threads})
    if text.rstrip("/").endswith(".ecb"):
        return bundle_baseline(Path(text).stem, Path(text), settings, cache)
    if text != EAGER:
        raise BenchError(
            f"'{text}' is nothing to measure against",
            hint=f"give {EAGER}, the path of another bundle, or NAME=COMMAND; benchmarks/ in the "
            "source tree has commands for ONNX Runtime, OpenVINO and others",
        )
    if spec is None:
        raise BenchError(
            f"{EAGER}: made from the model, which a bundle doesn't hold",
            hint="name the model that the bundle was built from with --model",
        )
    return eager_baseline(spec, manifest, settings.threads)


def absolute_spec(spec: str) -> str:
    """The specification with its path, if it has one, made absolute: processes run elsewhere."""
    where, colon, factory = spec.rpartition(":")
    if colon and Path(where).expanduser().is_file():
        return f"{Path(where).expanduser().resolve()}:{factory}"
    path = Path(spec).expanduser()
    return str(path.resolve()) if path.exists() else spec
