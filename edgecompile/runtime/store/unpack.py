"""Unpacks a bundle from an archive or an image beside the versions, once its signatures were checked.

The first reading takes out the manifest and the signatures alone. The second one writes what the manifest lists, so
no archive fills the disk with anything else.
"""

import contextlib
import errno
import os
from typing import Iterable, Iterator, List, Mapping, Optional

from ..base.errors import BundleError, DamagedBundleError, DeviceDiskError
from ..format.document import shorten
from ..format.folder import BundleFolder
from ..format.manifest import MAX_MANIFEST_BYTES
from ..format.schema import MANIFEST_NAME, FileEntry
from ..format.trust.statement import MAX_SIGNATURE_BYTES, is_signing_file
from .archive import Member, Names, open_archive, read_members
from .disk import remove, write_file
from .image import PREFIX, find_layers
from .store import Say, holding, make_root

_UNPACKED, _LOCK = ".unpacked", ".unpacking"
_FULL = (errno.ENOSPC, errno.EDQUOT)
#: Manifests, also those of bundles within the bundle, the signatures and the release.
_MOST_BYTES = 8 * MAX_MANIFEST_BYTES + 2 * MAX_SIGNATURE_BYTES


@contextlib.contextmanager
def unpacked(source: str, root: str, trust: Optional[str], say: Say) -> Iterator[str]:
    """The folder of a bundle: ``source`` itself, or what was unpacked from it, which goes with the context.

    Args:
        source: a folder, a tar archive, plain or by gzip, or an image as ``find_layers`` takes it.
        root: the store, whose disk gets the files.
        trust: the trust folder; None: the device's.
        say: a function that gets a line of text for every step.

    Raises:
        BundleError: it is malformed, or its signatures don't suffice.
        DamagedBundleError: it holds other files than the manifest lists.
        DeviceDiskError: there is too little space.
        StoreError: the store can't be used.
    """
    if not source.startswith(PREFIX) and not os.path.isfile(source):
        yield source
        return
    make_root(root)
    with holding(os.path.join(root, _LOCK), say):
        target = os.path.join(root, _UNPACKED)
        _clear(target)
        os.mkdir(target, 0o700)
        try:
            say("unpacking {}".format(source))
            paths = find_layers(source) if source.startswith(PREFIX) else [source]
            yield _unpack(paths, source, target, trust)
        finally:
            _clear(target)


def clear_unpacked(root: str, say: Say) -> None:
    """Removes what a killed installation unpacked; waits for one that runs."""
    target = os.path.join(root, _UNPACKED)
    if os.path.lexists(target):
        with holding(os.path.join(root, _LOCK), say):
            _clear(target)


def _clear(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        remove(path)


def _unpack(paths: List[str], source: str, target: str, trust: Optional[str]) -> str:
    try:
        prefix = _write_signed(paths, source, target)
        place = os.path.join(target, prefix)
        folder = BundleFolder(place, trust=trust)
        try:
            _write_listed(paths, source, target, prefix, folder.manifest.files)
        finally:
            folder.close()
    except OSError as error:
        if error.errno in _FULL:
            raise DeviceDiskError("{}: {}".format(target, error.strerror)) from None
        raise
    return place.rstrip("/")


def _write_signed(paths: List[str], source: str, target: str) -> str:
    """Writes the manifest, the release and the signatures; returns the folder in the archive that has them."""
    names, size = Names(source), 0
    info = os.statvfs(target)
    room, taken = info.f_bavail * info.f_frsize, 0
    for member in _read_all(paths, source, names):
        taken += member.size
        if taken > room:
            text = "{}: has at least {} bytes, {} has room for {}"
            raise DeviceDiskError(text.format(source, taken, target, room))
        if _is_signed(member.name) or _is_signed(member.name.partition("/")[2]):
            size += member.size
            if size > _MOST_BYTES:
                text = "{}: manifests and signatures of more than {} bytes [archive-form]"
                raise BundleError(text.format(source, _MOST_BYTES))
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
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    write_file(path, member.parts)


def _is_signed(name: str) -> bool:
    return name == MANIFEST_NAME or is_signing_file(name)
