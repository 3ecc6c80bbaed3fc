"""Artifacts: what compiling one bucket for one variant leaves, and the tensors it reads.

Tensors are kept by content in a :class:`TensorStore`, so that the buckets and variants of one
model, which read the same weights, store them once and a restarted build finds them again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from edgecompile.audit.judge import AuditVerdict
from edgecompile.buckets.ranges import Bucket
from edgecompile.errors import CompileError
from edgecompile.files import file_sha256, plain, plain_fields, replacing, write_json
from edgecompile.toolchain.native import NativeRuntime

if TYPE_CHECKING:
    from torch import Tensor

#: Names that the bundle uses for torch's dtypes.
DTYPE_NAMES: Mapping[str, str] = {
    "torch.float32": "float32",
    "torch.float64": "float64",
    "torch.float16": "float16",
    "torch.bfloat16": "bfloat16",
    "torch.float8_e4m3fn": "float8_e4m3fn",
    "torch.int64": "int64",
    "torch.int32": "int32",
    "torch.int16": "int16",
    "torch.int8": "int8",
    "torch.uint8": "uint8",
    "torch.bool": "bool",
}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a :class:`TensorStore`.

    Attributes:
        sha256: hash over dtype, shape and the row-major bytes; also the file's name.
        dtype: one of :data:`DTYPE_NAMES`' values.
        shape: sizes.
    """

    sha256: str
    dtype: str
    shape: tuple[int, ...]

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> StoredTensor:
        return StoredTensor(data["sha256"], data["dtype"], tuple(data["shape"]))


class TensorStore:
    """A folder of tensors, each in a file named by the hash of its content."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def add(self, tensor: Tensor) -> StoredTensor:
        """Stores a tensor's values and returns how to find them.

        Raises:
            CompileError: its dtype can't be stored.
        """
        import torch

        dtype = DTYPE_NAMES.get(str(tensor.dtype))
        if dtype is None:
            raise CompileError(f"a constant of the model has dtype {tensor.dtype}")
        flat = tensor.detach().cpu().contiguous()
        # A view as bytes works for every dtype, those included that numpy lacks. It is no copy:
        # a table may have gigabytes.
        raw: Any = flat.reshape(-1).view(torch.uint8).numpy() if flat.numel() else b""
        shape = tuple(int(size) for size in flat.shape)
        digest = _digest(dtype, shape)
        digest.update(raw)
        stored = StoredTensor(digest.hexdigest(), dtype, shape)
        path = self.path(stored)
        if not path.is_file():
            # Programs are compiled side by side, and two may bring the same tensor at once.
            with replacing(path) as file:
                file.write(raw)
        return stored

    def path(self, tensor: StoredTensor) -> Path:
        """The file with the tensor's row-major bytes."""
        return self.directory / f"{tensor.sha256}.bin"

    def copy(self, tensor: StoredTensor, target: BinaryIO) -> None:
        """Writes the tensor's bytes to a file.

        Raises:
            CompileError: they aren't those that were stored.
        """
        digest = _digest(tensor.dtype, tensor.shape)
        with self.path(tensor).open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
                target.write(block)
        if digest.hexdigest() != tensor.sha256:
            self.path(tensor).unlink(missing_ok=True)  # so that it is made again
            raise CompileError(
                f"{self.path(tensor)} has changed since it was written", hint="build once more"
            )


def _digest(dtype: str, shape: tuple[int, ...]) -> hashlib._Hash:
    return hashlib.sha256(f"{dtype}{shape}".encode())


@dataclass(frozen=True)
class Artifact:
    """One compiled program.

    Attributes:
        key: identifies everything that shaped it; an artifact with the same key is reused.
        bucket: index of the bucket in the plan.
        variant: name of the variant.
        library: the shared library.
        sha256: the SHA-256 of the library.
        isa: the instruction set that Inductor vectorised for, as it recorded it.
        vectorised: whether its own kernels calculate with vectors of floats.
        constants: the tensors that the program reads, by fully qualified name.
        seconds: time by step (generate, compile, link).
        commands: the compiler's command lines, without paths.
        lowering: the rewrites of graph lowering.
        kinds: sizes of each kind at which conditions don't hold that the code generator took for
            given: the program has to be compared there.
        compiler: path and version of the compiler, where the key doesn't cover it.
    """

    key: str
    bucket: int
    variant: str
    library: Path
    sha256: str
    isa: str
    vectorised: bool
    constants: Mapping[str, StoredTensor]
    seconds: Mapping[str, float]
    commands: tuple[str, ...]
    lowering: Mapping[str, Any]
    kinds: tuple[Mapping[str, int], ...] = ()
    compiler: tuple[str, str] = ("", "")

    def to_json(self) -> dict[str, Any]:
        seconds = {name: round(value, 3) for name, value in self.seconds.items()}
        constants = plain(dict(sorted(self.constants.items())))
        return {**plain_fields(self), "seconds": seconds, "constants": constants}

    def save(self) -> Path:
        """Writes the description beside the library."""
        path = self.library.with_suffix(".json")
        write_json(path, self.to_json())
        return path

    @staticmethod
    def load(path: Path) -> Artifact:
        """Reads what :meth:`save` wrote and checks the library against its hash.

        Raises:
            CompileError: the file or its library is missing, malformed or changed.
        """
        try:
            data = json.loads(path.read_text())
            constants = {k: StoredTensor.from_json(v) for k, v in data["constants"].items()}
            data.update(
                library=path.parent / Path(data["library"]).name,
                constants=constants,
                commands=tuple(data["commands"]),
                kinds=tuple(dict(sizes) for sizes in data["kinds"]),
                compiler=tuple(data["compiler"]),
            )
            artifact = Artifact(**data)
            actual = file_sha256(artifact.library)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CompileError(
                f"{path} isn't a usable artifact: {error}", hint="run the compile stage again"
            ) from error
        if actual != artifact.sha256:
            raise CompileError(
                f"{artifact.library} has changed since it was built",
                hint="run the compile stage again",
            )
        return artifact

    @staticmethod
    def find(library: Path, key: str, store: TensorStore) -> Artifact | None:
        """The artifact that an earlier process left there, if it has this key and is whole."""
        try:
            artifact = Artifact.load(library.with_suffix(".json"))
        except CompileError:
            return None
        whole = all(store.path(tensor).is_file() for tensor in artifact.constants.values())
        return artifact if artifact.key == key and whole else None


@dataclass(frozen=True, kw_only=True)
class CompiledPrograms:
    """The programs of a model, by variant of the bundle, or by architecture of a GPU's host.

    Attributes:
        natives: runtime library that the programs call; none of the backend torch.
        artifacts: programs, in the order of the buckets.
        store: the tensors that they read.
        audit: verdicts on libraries and kernels.
    """

    natives: Mapping[str, NativeRuntime]
    artifacts: Mapping[str, tuple[Artifact, ...]]
    store: TensorStore
    audit: tuple[AuditVerdict, ...]

    def glibc(self, variant: str) -> str:
        """The newest glibc that any library of a variant or architecture needs."""
        versions = [v.glibc for v in self.audit if v.variant == variant and v.glibc]
        return max(versions, key=lambda text: [int(x) for x in text.split(".")], default="2.17")


def hinted_sizes(bucket: Bucket, ranges: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    """The sizes that kernels are tuned for: the bucket's hints, within the ranges of its program."""
    return {
        name: min(max(extent.hint, ranges[name][0]), ranges[name][1])
        for name, extent in bucket.axes
        if name in ranges
    }
