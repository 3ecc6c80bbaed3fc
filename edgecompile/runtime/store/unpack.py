"""Unpacks a bundle from an archive or an image beside the versions, once its signatures were checked.

The first reading takes out the manifest and the signatures alone, and ends where it has enough of them. The second one
writes what the manifest lists, so no archive fills the disk with anything else.
"""

import contextlib
import os
from typing import Iterable, Iterator, List, Mapping, Optional, Set, Tuple

from ..base.errors import BundleError, DamagedBundleError, DeviceDiskError
from ..format.document import shorten
from ..format.files.folder import BundleFolder
from ..format.manifest.parse import MAX_MANIFEST_BYTES
from ..format.manifest.schema import MANIFEST_NAME, FileEntry
from ..format.trust.statement import MAX_SIGNATURE_BYTES, SIGNATURES_NAME, is_signing_file
from .archive import Member, Names, open_archive, read_members
from .disk import add_parents, filling, remove, write_file
from .image import PREFIX, find_layers
from .staging import check_parts
from .store import Say
from .workspace import working

#: Manifests, also those of bundles within the bundle, the signatures and the release.
_MOST_BYTES = 8 * MAX_MANIFEST_BYTES + 2 * MAX_SIGNATURE_BYTES
_MOST_SIGNED = 64
#: Least size in bytes of a file that the first reading doesn't read past, if it can help it.
_LARGE = 1 << 20


class Parcel:
    """A bundle as it came.

    Attributes:
        path: the path of its folder.
        own: whether nobody else can write to the folder.
    """

    own = False

    def __init__(self, path: str) -> None:
        self.path = path

    def open(self, trust: Optional[str] = None) -> BundleFolder:
        """Opens it; of an archive the manifest and the signatures alone.

        Args:
            trust: the trust folder, see ``find_policy``.

        Raises:
            BundleError, DeviceDiskError: see ``BundleFolder`` and ``unpacked``.
        """
        return BundleFolder(self.path, trust=trust)

    def complete(self, files: Mapping[str, FileEntry]) -> None:
        """Unpacks the files of the manifest, once it is trusted.

        Raises:
            DamagedBundleError: the archive holds others.
            DeviceDiskError: there is too little space.
        """


class _Packed(Parcel):
    """A bundle in an archive, or in the layers of an image."""

    own = True

    def __init__(self, source: str, paths: List[str], target: str, say: Say) -> None:
        super().__init__(target)
        self._source, self._paths, self._target, self._say = source, paths, target, say
        self._prefix = ""

    def open(self, trust: Optional[str] = None) -> BundleFolder:
        # Most archives have the signatures before the weights, so a part of it is enough, as a rule.
        for whole in (False, True):
            with filling(self._target):
                self._prefix, is_all = _write_signed(self._paths, self._source, self._target, whole)
            self.path = os.path.join(self._target, self._prefix).rstrip("/")
            try:
                return super().open(trust)
            except BundleError:
                if is_all:
                    raise
        raise AssertionError("unreachable")

    def complete(self, files: Mapping[str, FileEntry]) -> None:
        self._say("unpacking {}".format(self._source))
        _check_room(self._source, self._target, sum(entry.size for entry in files.values()))
        with filling(self._target):
            _write_listed(self._paths, self._source, self._target, self._prefix, files)


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
        yield Parcel(source)
        return
    say("reading {}".format(source))
    paths = find_layers(source) if source.startswith(PREFIX) else [source]
    with working(root, say) as target:
        # The manifest is in a small layer.
        yield _Packed(source, sorted(paths, key=os.path.getsize), target, say)


class _Signing:
    """The manifests and signatures that one reading of an archive came upon; there may be few of them."""

    def __init__(self, source: str) -> None:
        self.names: Set[str] = set()
        self._source = source
        self._size = 0

    def add(self, member: Member) -> None:
        self.names.add(member.name)
        self._size += member.size
        if self._size > _MOST_BYTES or len(self.names) > _MOST_SIGNED:
            text = "{}: more than {} manifests and signatures, or {} bytes of them [archive-form]"
            raise BundleError(text.format(self._source, _MOST_SIGNED, _MOST_BYTES))


def _write_signed(paths: List[str], source: str, target: str, whole: bool) -> Tuple[str, bool]:
    """Writes the manifest, the release and the signatures.

    Args:
        paths: the archives.
        source: their name in an error.
        target: the folder that they are unpacked to.
        whole: whether all is read. Otherwise a large file ends it, if a manifest and a signature came before.

    Returns:
        The folder in the archive that has them, and whether all was read.
    """
    signing, taken = _Signing(source), 0
    tops: Set[str] = set()
    for member in _read_all(paths, source, Names(source)):
        top, _, rest = member.name.partition("/")
        if not whole and member.size >= _LARGE:
            prefix = _find_prefix(tops, signing.names)
            start = "/".join(filter(None, (prefix, SIGNATURES_NAME, "")))
            if prefix is not None and any(name.startswith(start) for name in signing.names):
                return prefix, False
        tops.add(top)
        taken += member.size
        _check_room(source, target, taken)
        if _is_signed(member.name) or _is_signed(rest):
            signing.add(member)
            _write(target, member)
    prefix = _find_prefix(tops, signing.names)
    if prefix is None:
        text = "{}: has no {} at its top, nor in its only folder [archive-form]"
        raise BundleError(text.format(source, MANIFEST_NAME))
    return prefix, True


def _find_prefix(tops: Set[str], signing: Set[str]) -> Optional[str]:
    """The folder in an archive that has the bundle: "" for none; None: there is no bundle."""
    if MANIFEST_NAME in signing:
        return ""
    only = next(iter(tops)) if len(tops) == 1 else ""
    return only if only and "{}/{}".format(only, MANIFEST_NAME) in signing else None


def _check_room(source: str, target: str, size: int) -> None:
    info = os.statvfs(target)
    room = info.f_bavail * info.f_frsize
    if size > room:
        text = "{}: has at least {} bytes, {} has room for {}"
        raise DeviceDiskError(text.format(source, size, target, room))


def _write_listed(
    paths: List[str], source: str, target: str, prefix: str, files: Mapping[str, FileEntry]
) -> None:
    """Writes what the manifest lists, and compares the hashes."""
    signing = _Signing(source)
    start = prefix + "/" if prefix else ""
    for member in _read_all(paths, source, Names(source)):
        name = member.name[len(start) :]
        if not member.name.startswith(start):
            text = "{}: {} isn't in the folder {} [archive-form]"
            raise BundleError(text.format(source, shorten(member.name, 200), shorten(prefix)))
        entry = files.get(name)
        if _is_signed(name):
            # The version is verified with those that the first reading didn't reach, too.
            signing.add(member)
            _write(target, member)
            continue
        if entry is None and os.path.basename(name) == "__pycache__" and not member.size:
            continue  # an empty file keeps Python's byte code out of a bundle
        wrong = None
        if entry is None:
            wrong = "isn't listed in the manifest [file-unlisted]"
        elif entry.size != member.size:
            wrong = "has {} bytes, must have {} [file-size-differs]".format(member.size, entry.size)
        if entry is None or wrong is not None:
            raise DamagedBundleError("{}: {}: {}".format(source, shorten(name, 200), wrong))
        path = os.path.join(target, member.name)
        if os.path.lexists(path):  # a bundle's within the bundle, which nobody has compared
            remove(path)
        with contextlib.closing(check_parts(member.parts, entry, path)) as parts:
            _write(target, member._replace(parts=parts))


def _read_all(paths: Iterable[str], source: str, names: Names) -> Iterator[Member]:
    for path in paths:
        with open_archive(path) as file:
            yield from read_members(file, source, names)


def _write(target: str, member: Member) -> None:
    """Writes a file, unless it is there."""
    path = os.path.join(target, member.name)
    if not os.path.lexists(path):
        add_parents(path)
        write_file(path, member.parts)


def _is_signed(name: str) -> bool:
    return name == MANIFEST_NAME or is_signing_file(name)
