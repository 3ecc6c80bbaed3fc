"""Copies a bundle into a store. A file that an installed version has is linked, so disk and memory hold it once."""

import contextlib
import hashlib
import os
from queue import Queue
from threading import Thread
from typing import Dict, Generator, Iterable, List, Mapping, Set

from ..base.errors import BundleError, DamagedBundleError, EdgecompileError
from ..format.files.folder import BundleFolder
from ..format.files.hashes import find_hash_damage
from ..format.manifest.schema import MANIFEST_NAME, FileEntry, Manifest
from ..format.trust.release import RELEASE_NAME
from ..format.trust.statement import (
    MAX_SIGNATURE_BYTES,
    MAX_SIGNATURES,
    SIGNATURES_NAME,
    is_signature_name,
)
from .disk import FULL, add_folder, filling, link, remove, seal_folder, write_file

_CHUNK = 1 << 20
#: Parts that may wait for the thread that hashes them.
_MOST_WAITING = 4


def copy_bundle(
    folder: BundleFolder, target: str, installed: Mapping[str, str], own: bool = False
) -> int:
    """Copies a bundle to a new folder, for which ``sync_tree`` waits.

    The hash of each file is compared on the way, be it copied or linked to an installed one.

    Args:
        folder: the bundle.
        target: the path of the folder.
        installed: paths of files that may be linked, by SHA-256.
        own: whether the bundle's own files may be linked, too: their hashes were compared, and nobody else can
            write to them.

    Returns:
        The bytes that were copied, without those of linked files.

    Raises:
        DamagedBundleError: a file isn't as listed, or isn't listed.
        DeviceDiskError: there is too little space.
        HostLimitError: the system refuses.
    """
    folder.check_names()
    try:
        with filling(target):
            return _copy(folder, target, installed, own)
    except BaseException:
        with contextlib.suppress(OSError):
            remove(target)
        raise


def _copy(folder: BundleFolder, target: str, installed: Mapping[str, str], own: bool) -> int:
    files = folder.manifest.files
    unlisted = _list_unlisted(folder)
    folders = {os.path.dirname(name) for name in (*files, *unlisted)}
    for name in list(folders):
        while name:
            name = os.path.dirname(name)
            folders.add(name)
    ordered = sorted(folders)  # "" first, a folder before those in it
    for name in ordered:
        add_folder(os.path.join(target, name).rstrip("/"))
    # Keeps Python from writing its byte code there; see ``check_names``.
    for name in {os.path.dirname(item) for item in files if item.endswith(".py")}:
        write_file(os.path.join(target, name, "__pycache__"), [])
    copied = 0
    linkable = _find_linkable(folder.manifest)
    for name, entry in sorted(files.items()):
        path = os.path.join(target, name)
        old = installed.get(entry.sha256) if name in linkable else None
        if old is not None and _link(old, path) and _is_whole(path, entry):
            continue
        copied += entry.size
        if own and name in linkable and _link(os.path.join(folder.path, name), path):
            continue
        fd = folder.open(name)
        try:
            parts = iter(lambda fd=fd: os.read(fd, _CHUNK), b"")  # type: ignore[misc]
            origin = os.path.join(folder.path, name)
            with contextlib.closing(check_parts(parts, entry, origin)) as checked:
                write_file(path, checked)
        finally:
            os.close(fd)
    for name in unlisted:
        with contextlib.suppress(FileNotFoundError):
            fd = folder.open_unlisted(name)
            try:
                write_file(os.path.join(target, name), [_read_small(fd, name)])
            finally:
                os.close(fd)
    for name in reversed(ordered):
        seal_folder(os.path.join(target, name))
    return copied


def _find_linkable(manifest: Manifest) -> Set[str]:
    """Every file, except those beside a recipe: readers of ONNX refuse weights of several names, as an attack."""
    recipes = [item.recipe for item in manifest.variants if item.recipe]
    beside = tuple(os.path.dirname(recipe) + "/" for recipe in recipes)
    return {name for name in manifest.files if not name.startswith(beside)}


def _link(source: str, path: str) -> bool:
    """Whether a file could be linked."""
    try:
        link(source, path)
    except OSError as error:
        if error.errno in FULL:
            raise
        return False  # too many links, or it is gone
    return True


def _is_whole(path: str, entry: FileEntry) -> bool:
    """Whether the disk still has what was written to an installed file; its new name goes otherwise."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        damaged = find_hash_damage(fd, entry)
    finally:
        os.close(fd)
    if damaged is not None:
        remove(path)
    return damaged is None


def check_parts(
    parts: Iterable[bytes], entry: FileEntry, path: str
) -> Generator[bytes, None, None]:
    """Passes the parts of a file on, and compares their hash at the end; a large file's is computed meanwhile.

    Its thread ends with the generator, so a caller closes that.

    Args:
        parts: the file's content.
        entry: its entry in the manifest.
        path: the file, for a message.

    Raises:
        DamagedBundleError: the content is another one.
    """
    digest, size = hashlib.sha256(), 0
    queue: Queue[bytes] = Queue(_MOST_WAITING)
    thread = None
    if entry.size > _CHUNK:
        # The end of the process doesn't wait for a daemon.
        thread = Thread(target=lambda: [*map(digest.update, iter(queue.get, b""))], daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has no thread left
            thread = None
    try:
        for part in parts:
            size += len(part)
            if size > entry.size:
                break
            if thread is None:
                digest.update(part)
            else:
                queue.put(part)
            yield part
    finally:
        if thread is not None:
            queue.put(b"")
            thread.join()
    if size != entry.size or digest.hexdigest() != entry.sha256:
        text = "{}: isn't as the manifest lists it [file-hash]"
        raise DamagedBundleError(text.format(path), "copy the bundle again, or build it again")


def _list_unlisted(folder: BundleFolder) -> List[str]:
    """The names of what the manifest can't list; the manifest is the last."""
    names: List[str] = []
    with contextlib.suppress(FileNotFoundError):
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY
        fd = os.open(SIGNATURES_NAME, flags, dir_fd=folder.fd)
        try:
            found = sorted(filter(is_signature_name, os.listdir(fd)))
        finally:
            os.close(fd)
        names = [SIGNATURES_NAME + "/" + name for name in found]
    if len(names) > MAX_SIGNATURES:
        raise BundleError("{}: more than {} signatures".format(folder.path, MAX_SIGNATURES))
    return [*names, RELEASE_NAME, MANIFEST_NAME]


def _read_small(fd: int, name: str) -> bytes:
    parts: List[bytes] = []
    size = 0
    while size <= MAX_SIGNATURE_BYTES:
        part = os.read(fd, _CHUNK)
        if not part:
            return b"".join(parts)
        parts.append(part)
        size += len(part)
    raise BundleError("{}: is too large [signature-file]".format(name))


def list_installed(places: List[str]) -> Dict[str, str]:
    """The paths of all files in installed versions, by the SHA-256 that they had."""
    found: Dict[str, str] = {}
    for place in places:
        try:
            folder = BundleFolder(place, trust=False)
        except EdgecompileError:
            continue  # nothing of it can be linked; its own trial, or the next one, shows that
        for name in _find_linkable(folder.manifest):
            found.setdefault(folder.manifest.files[name].sha256, os.path.join(place, name))
        folder.close()
    return found
