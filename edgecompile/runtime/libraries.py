"""Native libraries, hashed before they are loaded.

The loader is given /proc/self/fd/N of the very descriptor that was hashed, so a file that is
exchanged between the two steps isn't what gets loaded. The dynamic loader recognises a library by
the name it was opened with: a descriptor number that was closed and used again would name the old
library. Therefore descriptors stay open for the life of the process, one per distinct content.
"""

import ctypes
import os
import threading
from typing import Dict, NamedTuple

from .errors import NativeError
from .files import BundleFolder

_RTLD_LOCAL_NOW = os.RTLD_LOCAL | os.RTLD_NOW


class PinnedLibrary(NamedTuple):
    """A library whose content was checked; ``path`` is what to dlopen, ``label`` what to print."""

    sha256: str
    path: str
    label: str


_pinned: Dict[str, PinnedLibrary] = {}
_lock = threading.Lock()


def pin_library(folder: BundleFolder, name: str) -> PinnedLibrary:
    """Opens and hashes a library of a bundle, once per process and content.

    Raises:
        DamagedBundleError: the file is missing, or differs from its size or hash.
    """
    sha256 = folder.manifest.files[name].sha256
    with _lock:
        if sha256 in _pinned:
            return _pinned[sha256]
        fd = folder.open(name)
        try:
            folder.check_hash(name, fd)
        except BaseException:
            os.close(fd)
            raise
        label = os.path.join(folder.path, name)
        path = "/proc/self/fd/{}".format(fd)
        if not os.path.exists(path):
            # No /proc here: the library is loaded by name, and the folder has to be trusted not
            # to change in between.
            os.close(fd)
            path = os.path.abspath(label)
        _pinned[sha256] = PinnedLibrary(sha256, path, label)
        return _pinned[sha256]


def load_library(pinned: PinnedLibrary) -> ctypes.CDLL:
    """dlopens a pinned library, its symbols visible to nobody else.

    Raises:
        NativeError: the dynamic loader refused it.
    """
    try:
        return ctypes.CDLL(pinned.path, mode=_RTLD_LOCAL_NOW)
    except OSError as error:
        raise NativeError(
            "{}: can't be loaded: {} [native-load]".format(pinned.label, error),
            "the library was built for another system; see `info --host`",
        ) from None
