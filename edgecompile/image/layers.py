"""Layers of an image: archives whose bytes depend on names, modes and contents alone."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

from edgecompile.runtime.store.image import GZIP, LAYER


@dataclass(frozen=True)
class Layer:
    """A layer that lies among an image's blobs.

    Attributes:
        title: a description of its content.
        media_type: whether it is compressed, and how.
        digest: the digest of the bytes that are stored and moved, ``sha256:…``.
        diff_id: the digest of the archive in them.
        size: bytes stored.
    """

    title: str
    media_type: str
    digest: str
    diff_id: str
    size: int

    def descriptor(self) -> dict[str, object]:
        """The layer as a manifest lists it."""
        return {"mediaType": self.media_type, "digest": self.digest, "size": self.size}


@dataclass(frozen=True)
class Entry:
    """A file of a layer.

    Attributes:
        name: its path in the image, without a leading slash.
        content: its bytes, or opens a stream of them; of a link where it leads to.
        size: bytes of the stream.
        executable: whether anybody may run it.
        kind: ``tarfile.REGTYPE``, ``SYMTYPE``, ``LNKTYPE`` or ``DIRTYPE``.
    """

    name: str
    content: bytes | str | Callable[[], BinaryIO]
    size: int = 0
    executable: bool = False
    kind: bytes = tarfile.REGTYPE


class Blobs:
    """The folder of an image's blobs, named by their digests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "sha256"
        self.folder.mkdir(parents=True, exist_ok=True)

    def path(self, digest: str) -> Path:
        """The path of a blob."""
        return self.folder / digest.removeprefix("sha256:")

    def add(self, content: bytes) -> tuple[str, int]:
        """Stores bytes; returns their digest and size."""
        digest = hashlib.sha256(content).hexdigest()
        (self.folder / digest).write_bytes(content)
        return f"sha256:{digest}", len(content)

    def take(self, path: Path, digest: str) -> None:
        """Takes a blob of another folder: links it if it can, else copies it, and checks it."""
        target = self.path(digest)
        if target.exists():
            return
        hasher = hashlib.sha256()
        with path.open("rb") as source, target.open("xb") as file:
            while block := source.read(1 << 20):
                hasher.update(block)
                file.write(block)
        if digest != f"sha256:{hasher.hexdigest()}":
            target.unlink()
            raise ValueError(f"{path} isn't {digest}")

    def write_layer(
        self, title: str, entries: Iterable[Entry], *, compress: bool, sealed: bool = False
    ) -> Layer:
        """Archives files, with the folders that they need, in the order of their names.

        Owner, times and all of the modes but the right to execute are the same for all.

        Args:
            title: a description of its content.
            entries: its files; of two of one name the later counts.
            compress: weights hardly shrink, and stay as they are.
            sealed: whether nobody may write to the files, or run them.
        """
        part = self.folder / f".{uuid.uuid4().hex}.partial"
        stored = _Hashing(part.open("xb"))
        try:
            # The level is gzip's own; no name, no time.
            packed = gzip.GzipFile("", "wb", 6, cast(BinaryIO, stored), 0) if compress else stored
            plain = _Hashing(cast(BinaryIO, packed))
            with tarfile.open(fileobj=plain, mode="w|", format=tarfile.PAX_FORMAT) as tar:  # type: ignore[call-overload]
                for info, entry in _with_folders(entries):
                    if sealed and info.isfile():
                        info.mode = 0o444
                    with _open(entry) as stream:
                        tar.addfile(info, stream)
            packed.close()
            stored.close()
            os.replace(part, self.path(stored.digest))
        finally:
            part.unlink(missing_ok=True)
        media = LAYER + (GZIP if compress else "")
        return Layer(title, media, stored.digest, plain.digest, stored.size)


class _Hashing:
    """Passes on what is written, and hashes it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        self._hash.update(data)
        self.size += len(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    @property
    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"


def _open(entry: Entry | None) -> BinaryIO:
    content = b"" if entry is None or entry.kind != tarfile.REGTYPE else entry.content
    return io.BytesIO(content) if isinstance(content, bytes) else content()  # type: ignore[operator]


def _with_folders(entries: Iterable[Entry]) -> Iterator[tuple[tarfile.TarInfo, Entry | None]]:
    by_name = {entry.name: entry for entry in entries}
    seen: set[str] = set()
    # A hard link comes after the file that it names.
    for entry in sorted(by_name.values(), key=lambda e: (e.kind == tarfile.LNKTYPE, e.name)):
        parents = [*reversed(PurePosixPath(entry.name).parents[:-1])]
        if entry.kind == tarfile.DIRTYPE:
            parents.append(PurePosixPath(entry.name))
        for folder in parents:
            if str(folder) not in seen:
                seen.add(str(folder))
                info = tarfile.TarInfo(str(folder))
                # Programs of the base write there, as anybody may on any system.
                info.type, info.mode = tarfile.DIRTYPE, 0o1777 if str(folder) == "tmp" else 0o755
                yield info, None
        if entry.kind == tarfile.DIRTYPE:
            continue
        info = tarfile.TarInfo(entry.name)
        info.type, info.mode = entry.kind, 0o755 if entry.executable else 0o644
        if entry.kind != tarfile.REGTYPE:
            assert isinstance(entry.content, str)
            info.linkname = entry.content
        else:
            info.size = len(entry.content) if isinstance(entry.content, bytes) else entry.size
        yield info, entry


def folder_entries(
    folder: Path, prefix: str, keep: Callable[[str], bool] = lambda name: True
) -> Iterator[Entry]:
    """The files below a folder, under ``prefix``; those whose path in it ``keep`` refuses are left out."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if not keep(name):
            continue
        if path.is_symlink():
            yield Entry(f"{prefix}{name}", os.readlink(path), kind=tarfile.SYMTYPE)
        elif path.is_file():
            facts = path.stat()
            opener = lambda path=path: path.open("rb")  # noqa: E731
            yield Entry(f"{prefix}{name}", opener, facts.st_size, bool(facts.st_mode & 0o100))


def archive_entries(
    tar: tarfile.TarFile, keep: Callable[[str], bool] = lambda name: True
) -> Iterator[Entry]:
    """The files and links of an archive; devices and empty folders are left out."""
    for info in tar:
        name = info.name.removeprefix("./").strip("/")
        if not name or not keep(name):
            continue
        if info.isfile():
            opener = lambda info=info: cast(BinaryIO, tar.extractfile(info))  # noqa: E731
            yield Entry(name, opener, info.size, bool(info.mode & 0o100))
        elif info.issym() or info.islnk():
            yield Entry(name, info.linkname.removeprefix("./") if info.islnk() else info.linkname, kind=info.type)  # fmt: skip
