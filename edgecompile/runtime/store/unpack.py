"""Unpacks a bundle from an archive or an image beside the versions, once its signatures were checked.

The first reading takes out the manifest and the signatures alone. The second one writes what the manifest lists, so
no archive fills the disk with anything else.
"""

import contextlib
import os
from typing import Callable, Iterable, Iterator, List, Mapping, NamedTuple

from ..base.errors import BundleError, DamagedBundleError, DeviceDiskError
from ..format.document import shorten
from ..format.manifest import MAX_MANIFEST_BYTES
from ..format.schema import MANIFEST_NAME, FileEntry
from ..format.trust.statement import MAX_SIGNATURE_BYTES, is_signing_file
from .archive import Member, Names, open_archive, read_members
from .disk import add_parents, filling, write_file
from .image import PREFIX, find_layers
from .store import Say
from .workspace import working

#: Manifests, also those of bundles within the bundle, the signatures and the release.
_MOST_BYTES = 8 * MAX_MANIFEST_BYTES + 2 * MAX_SIGNATURE_BYTES
_MOST_SIGNED = 64


class Parcel(NamedTuple):
    """A bundle as it came.

    Attributes:
        path: the path of its folder; of an archive it has the manifest and the signatures at first.
        own: whether nobody else can write to the folder.
        complete: a function that gets the files of the manifest, once it is trusted, and unpacks them. It raises
            DamagedBundleError where the archive holds others, and DeviceDiskError where there is too little space.
    """

    path: str
    own: bool
    complete: Callable[[Mapping[str, FileEntry]], None]


@contextlib.contextmanager
def unpacked(source: str, root: str, say: Say) -> Iterator[Parcel]:
    """A bundle: the folder ``source``, or what is unpacked from it, which goes with the context.

    Args:
        source: a folder, a tar archive, plain or by gzip, or an image as ``find_layers`` takes it.
        root: the store, whose disk gets the files.
        say: a function that gets a line of text for every step.

    Raises:
        BundleError: it is malformed.
        DeviceDiskError: there is too little space.
        StoreError: the store can't be used.
    """
    if not source.startswith(PREFIX) and not os.path.isfile(source):
        yield Parcel(source, False, lambda files: None)
        return
    say("reading {}".format(source))
    paths = find_layers(source) if source.startswith(PREFIX) else [source]
    with working(root, say) as target:
        with filling(target):
            prefix = _write_signed(paths, source, target)

        def complete(files: Mapping[str, FileEntry]) -> None:
            say("unpacking {}".format(source))
            with filling(target):
                _write_listed(paths, source, target, prefix, files)

        yield Parcel(os.path.join(target, prefix).rstrip("/"), True, complete)


def _write_signed(paths: List[str], source: str, target: str) -> str:
    """Writes the manifest, the release and the signatures; returns the folder in the archive that has them."""
    names, size, count = Names(source), 0, 0
    info = os.statvfs(target)
    room, taken = info.f_bavail * info.f_frsize, 0
    for member in _read_all(paths, source, names):
        taken += member.size
        if taken > room:
            text = "{}: has at least {} bytes, {} has room for {}"
            raise DeviceDiskError(text.format(source, taken, target, room))
        if _is_signed(member.name) or _is_signed(member.name.partition("/")[2]):
            size, count = size + member.size, count + 1
            if size > _MOST_BYTES or count > _MOST_SIGNED:
                text = (
                    "{}: more than {} manifests and signatures, or {} bytes of them [archive-form]"
                )
                raise BundleError(text.format(source, _MOST_SIGNED, _MOST_BYTES))
            _write(target, member)
    if MANIFEST_NAME in names.files:
        return ""
    tops = {name.partition("/")[0] for name in names.files}
    if len(tops) == 1 and tops.pop() + "/" + MANIFEST_NAME in names.files:
        return next(iter(names.files)).partition("/")[0]
    text = "{}: has no {} at its top, nor in its only folder [archive-form]"
    raise BundleError(text.format(source, MANIFEST_NAME))


def _write_listed(
    paths: List[str], source: str, target: str, prefix: str, files: Mapping[str, FileEntry]
) -> None:
    """Writes what the manifest lists. The hashes are compared when the files go into their version."""
    for member in _read_all(paths, source, Names(source)):
        name = member.name[len(prefix) + 1 :] if prefix else member.name
        entry = files.get(name)
        if os.path.lexists(os.path.join(target, member.name)):
            continue
        if entry is None and os.path.basename(name) == "__pycache__" and not member.size:
            continue  # an empty file keeps Python's byte code out of a bundle
        wrong = None
        if entry is None:
            wrong = "isn't listed in the manifest [file-unlisted]"
        elif entry.size != member.size:
            wrong = "has {} bytes, must have {} [file-size-differs]".format(member.size, entry.size)
        if wrong is not None:
            raise DamagedBundleError("{}: {}: {}".format(source, shorten(name, 200), wrong))
        _write(target, member)


def _read_all(paths: Iterable[str], source: str, names: Names) -> Iterator[Member]:
    for path in paths:
        with open_archive(path) as file:
            yield from read_members(file, source, names)


def _write(target: str, member: Member) -> None:
    path = os.path.join(target, member.name)
    add_parents(path)
    write_file(path, member.parts)


def _is_signed(name: str) -> bool:
    return name == MANIFEST_NAME or is_signing_file(name)
