"""The only writer of bundles.

A bundle grows in a folder beside its final name and gets that name by one rename at the end, so
that a half-written bundle never has it, whatever interrupts the build.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import edgecompile
import edgecompile.runtime
from edgecompile.backends.artifact import Artifact, StoredTensor, TensorStore
from edgecompile.bundle.reference import Arrays
from edgecompile.bundle.staging import FULL, Staging, disk_full, free_space
from edgecompile.bundle.weights import write_weights
from edgecompile.errors import BundleWriteError
from edgecompile.files import file_sha256
from edgecompile.runtime.format.golden.ties import Ties
from edgecompile.runtime.format.manifest.parse import parse_manifest
from edgecompile.runtime.format.manifest.schema import (
    AOTI_CPU,
    MANIFEST_NAME,
    NOTHING,
    TORCH,
    FileEntry,
    GoldenCase,
    Manifest,
    Variant,
)
from edgecompile.targets.profile import VariantSpec
from edgecompile.toolchain.native import NativeRuntime

LAUNCHER = "launcher.py"


@dataclass(frozen=True)
class VariantParts:
    """The parts of a bundle for one variant: its runtime library and one program per bucket.

    Without a library torch runs the programs, of the version ``torch``. Buckets may share a program:
    then it is listed, and stored, once for all of them.
    """

    spec: VariantSpec
    native: NativeRuntime | None
    artifacts: tuple[Artifact, ...]
    glibc: str
    torch: str = ""


class BundleWriter:
    """Collects a bundle's files in the folder that a :class:`Staging` has claimed.

    Args:
        claim: entered; leaving it without :meth:`commit` removes everything that was written.
    """

    def __init__(self, claim: Staging) -> None:
        self._claim = claim
        self.output, self.staging = claim.output, claim.folder
        self._files: dict[str, FileEntry] = {}

    @contextmanager
    def _writing(self, name: str, size: int | None = None) -> Iterator[None]:
        """Turns the operating system's errors into ours, which name the bundle and its disk: where a
        file is copied, the system names the source."""
        free = free_space(self.staging)
        try:
            yield
        except OSError as error:
            if error.errno in FULL:
                raise disk_full(self.output, name, size, free) from error
            raise BundleWriteError(
                f"{name} of {self.output} can't be written: {error.strerror or error}",
                hint="name another `output`",
                destination=self.output,
            ) from error

    def add_file(self, source: Path, name: str) -> str:
        """Copies a file in under the relative path ``name``; returns ``name``."""
        size = source.stat().st_size
        return self._add(name, lambda target: shutil.copyfile(source, target), size)

    def add_bundle(self, source: Path, folder: str) -> str:
        """Copies a bundle in, all of its files, under ``folder``; returns ``folder``."""
        manifest = parse_manifest((source / MANIFEST_NAME).read_bytes(), str(source))
        for name in sorted([*manifest.files, MANIFEST_NAME]):
            self.add_file(source / name, f"{folder}/{name}")
        return folder

    def add_bytes(self, data: bytes, name: str) -> str:
        """Writes a file; returns ``name``."""
        return self._add(name, lambda target: target.write_bytes(data), len(data))

    def add_weights(
        self, tensors: Mapping[str, StoredTensor], store: TensorStore, precision: str
    ) -> str:
        """Writes ``weights.<precision>``; returns its name."""
        return self._add(
            f"weights.{precision}", lambda target: write_weights(target, tensors, store)
        )

    def add_variant(self, parts: VariantParts) -> Variant:
        """Copies a variant's libraries in; returns its manifest entry."""
        spec = parts.spec
        folder = f"code/{spec.name}"
        runtime = ""
        if parts.native is not None:
            runtime = self.add_file(parts.native.path, f"{folder}/{parts.native.path.name}")
        programs: list[str] = []
        for index, artifact in enumerate(parts.artifacts):
            first = parts.artifacts.index(artifact)
            duplicate = programs[first] if first < index else None
            name = f"{folder}/bucket-{index}.so"
            programs.append(duplicate or self.add_file(artifact.library, name))
        return Variant(
            name=spec.name,
            arch=spec.arch,
            backend=TORCH if parts.native is None else AOTI_CPU,
            requires=spec.requires,
            glibc=parts.glibc,
            rank=spec.rank,
            runtime=runtime,
            programs=tuple(programs),
            torch=parts.torch,
        )

    def add_golden(
        self,
        bucket: int,
        case: str,
        inputs: Arrays,
        outputs: Arrays,
        margins: Mapping[str, float] = NOTHING,
        ties: Ties | None = None,
    ) -> GoldenCase:
        """Writes one golden vector; returns its manifest entry."""
        name = f"golden/{bucket}-{case}.npz"
        self._add(name, lambda target: save_case(target, inputs, outputs, margins, ties))
        return GoldenCase(bucket, case, name)

    def add_runtime(self, *, torch: bool = False) -> None:
        """Copies the Python runtime in, and what starts it; with ``torch`` also what lets torch run
        programs."""
        package = Path(next(iter(edgecompile.runtime.__path__)))
        init = Path(next(iter(edgecompile.__path__))) / "__init__.py"
        self.add_file(init, "runtime/edgecompile/__init__.py")
        self.add_file(package / LAUNCHER, "__main__.py")
        for source in sorted([*package.rglob("*.py"), *package.glob("*.md")]):
            name = source.relative_to(package)
            if name.parts[0] not in (LAUNCHER, "native"):
                self.add_file(source, f"runtime/edgecompile/runtime/{name.as_posix()}")
        if torch:
            for source in sorted((init.parent / "torch_runtime").glob("*.py")):
                self.add_file(source, f"runtime/edgecompile/torch_runtime/{source.name}")
        for folder in {
            (self.staging / name).parent for name in self._files if name.endswith(".py")
        }:
            # An empty file of this name keeps Python from writing byte code there, and from reading
            # any. It isn't listed: tools that remove byte code may remove it.
            with self._writing(str(folder.relative_to(self.staging))):
                (folder / "__pycache__").touch()

    @property
    def files(self) -> dict[str, FileEntry]:
        """The files added so far."""
        return dict(self._files)

    def write_manifest(self, manifest: Manifest) -> None:
        """Writes the manifest for the files added so far; may be called again after adding more.

        The bytes go through the device's own reader first: a bundle that it would refuse is never
        written.

        Raises:
            BundleError: the manifest breaks a rule of the format.
        """
        complete = manifest._replace(files=self.files)
        data = complete.to_bytes()
        parse_manifest(data)
        path = self.staging / MANIFEST_NAME
        with self._writing(MANIFEST_NAME, len(data)):
            path.write_bytes(data)

    def commit(self, *, lasting: bool = True) -> Path:
        """Gives the bundle its name.

        Args:
            lasting: Whether the bundle must survive a power cut. One that is measured and removed needn't.

        Raises:
            BundleWriteError: the name was taken meanwhile.
        """
        with self._writing(MANIFEST_NAME):
            if lasting:
                _sync_tree(self.staging)
            return self._claim.commit()

    def _add(self, name: str, write: Callable[[Path], object], size: int | None = None) -> str:
        """Writes a file that takes ``size`` bytes, if that is known; returns ``name``."""
        if name in self._files:
            raise BundleWriteError(f"the bundle already holds {name}")
        target = self.staging / name
        with self._writing(name, size):
            target.parent.mkdir(parents=True, exist_ok=True)
            write(target)
            self._files[name] = FileEntry(target.stat().st_size, file_sha256(target))
        return name


def save_case(
    path: Path,
    inputs: Arrays,
    outputs: Arrays,
    margins: Mapping[str, float] = NOTHING,
    ties: Ties | None = None,
) -> None:
    """Writes a test case as .npz: ``in.<name>`` and ``out.<name>`` arrays, uncompressed.

    ``margin.<name>`` is the difference of an output that is allowed beyond the tolerance; ``ties.*``, ``slots.<name>``
    and ``others.<name>`` are the fields of :class:`edgecompile.runtime.format.golden.ties.Ties`.

    numpy writes a fixed date into the archive, so equal cases are equal bytes.
    """
    arrays = {f"in.{name}": value for name, value in inputs.items()}
    arrays.update({f"out.{name}": value for name, value in outputs.items()})
    arrays.update(
        {f"margin.{name}": np.array(value, np.float64) for name, value in margins.items()}
    )
    if ties is not None:
        arrays.update(ties.to_arrays())
    with path.open("xb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def merge_constants(artifacts: Sequence[Artifact]) -> dict[str, StoredTensor]:
    """The tensors of all programs, by name.

    Raises:
        BundleWriteError: two programs mean different tensors by one name.
    """
    merged: dict[str, StoredTensor] = {}
    for artifact in artifacts:
        for name, tensor in artifact.constants.items():
            if merged.setdefault(name, tensor) != tensor:
                raise BundleWriteError(
                    f"the constant {name} differs between the programs of bucket "
                    f"{artifact.bucket} and an earlier one"
                )
    return merged


def _sync_tree(folder: Path) -> None:
    """Flushes every file, so that the rename can't overtake their content on a power cut."""
    for root, _, names in os.walk(folder):
        for name in names:
            handle = os.open(os.path.join(root, name), os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
