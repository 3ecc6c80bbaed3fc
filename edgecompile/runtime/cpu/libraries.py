"""Native libraries, hashed before they are loaded.

The loader is given /proc/self/fd/N of the very descriptor that was hashed, so a file that is
exchanged between the two steps isn't what gets loaded; just before it is, the file's times tell
whether it was written to since, and then it is hashed again. The dynamic loader recognises a library
by the name it was opened with: a descriptor number that was closed and used again would name the old
library. Therefore descriptors stay open for the life of the process, one per distinct content.
"""

import ctypes
import os
import threading
from typing import Any, Dict, NamedTuple, Optional, Sequence, Set, Tuple

from ..base.errors import DamagedBundleError, NativeError
from ..base.limits import explain_loading
from ..format.files.folder import BundleFolder
from ..format.files.hashes import file_state, find_hash_damage
from ..format.manifest.schema import FileEntry

#: A native function's name, result and arguments.
Function = Tuple[str, Any, Tuple[Any, ...]]

_RTLD_LOCAL_NOW = os.RTLD_LOCAL | os.RTLD_NOW


class PinnedLibrary(NamedTuple):
    """A library whose content was checked; ``path`` is what to dlopen, ``label`` what to print.

    ``fd`` is -1 where /proc isn't mounted; ``state`` is the file's from before it was hashed.
    """

    entry: FileEntry
    path: str
    label: str
    fd: int
    state: Tuple[int, ...]

    def check_again(self) -> None:
        """To be called just before loading: the content is still what was hashed.

        Raises:
            DamagedBundleError: rule file-hash or file-size-differs.
        """
        damage = self._find_damage()
        if damage is not None:
            text = "{}: {} [{}]; it changed since it was checked"
            raise DamagedBundleError(
                text.format(self.label, damage[1], damage[0]),
                "replace a bundle's files by renaming, don't write into them",
            )

    def _find_damage(self) -> Optional[Tuple[str, str]]:
        try:
            if file_state(os.stat(self.path)) == self.state:
                return None
        except OSError as error:
            return "file-hash", "can't be read: {}".format(error.strerror)
        if self.fd < 0:
            return "file-hash", "isn't the file that was hashed"
        # A new name or mode changes the state too. A descriptor that somebody else closed and
        # that names another file now has another content.
        return find_hash_damage(self.fd, self.entry)


_pinned: Dict[str, PinnedLibrary] = {}
_lock = threading.Lock()


def after_fork() -> None:
    """In a process after a fork: no thread is pinning."""
    global _lock
    _lock = threading.Lock()


def pin_library(folder: BundleFolder, name: str) -> PinnedLibrary:
    """Opens and hashes a library of a bundle, once per process and content.

    Raises:
        DamagedBundleError: the file is missing, or differs from its size or hash.
    """
    entry = folder.manifest.files[name]
    # Nothing is hashed under the lock: others wait for it in calls that a ``close`` waits for.
    library = _pinned.get(entry.sha256)
    # Of one hash and two sizes, one is wrong: folder.open says so.
    if library is not None and library.entry == entry and library._find_damage() is None:
        return library
    fd = folder.open(name)
    try:
        state = file_state(os.fstat(fd))
        folder.check_hash(name, fd)
    except BaseException:
        os.close(fd)
        raise
    label = os.path.join(folder.path, name)
    path = "/proc/self/fd/{}".format(fd)
    if not os.path.exists(path):
        # No /proc here: the library is loaded by name, and the folder has to be trusted not
        # to change in between. Nothing is kept: by its name it may be another file later.
        os.close(fd)
        return PinnedLibrary(entry, os.path.abspath(label), label, -1, state)
    new = PinnedLibrary(entry, path, label, fd, state)
    with _lock:
        if _pinned.get(entry.sha256) is library:
            _pinned[entry.sha256] = new
            return new
    os.close(fd)  # another thread was first, and hashed its own
    return pin_library(folder, name)


def load_library(pinned: PinnedLibrary) -> ctypes.CDLL:
    """dlopens a pinned library, its symbols visible to nobody else.

    Raises:
        DamagedBundleError: its content changed since it was pinned.
        HostLimitError: the system doesn't let it be loaded: open files, memory, a noexec mount.
        NativeError: the dynamic loader refused it.
    """
    pinned.check_again()
    try:
        return ctypes.CDLL(pinned.path, mode=_RTLD_LOCAL_NOW)
    except OSError as error:
        limit = explain_loading(str(error), pinned.label, pinned.path)
        if limit is not None:
            raise limit from None
        raise NativeError(
            "{}: can't be loaded: {} [native-load]".format(pinned.label, error),
            "the library was built for another system; see `info --host`",
        ) from None


def find_loaded(soname: str) -> Optional[ctypes.CDLL]:
    """The library that the dynamic loader binds later ones to that need ``soname``, or None.

    Of several with that SONAME it is the one that was loaded first.
    """
    try:
        return ctypes.CDLL(soname, mode=_RTLD_LOCAL_NOW | os.RTLD_NOLOAD)
    except OSError:
        return None


def bind_functions(
    library: ctypes.CDLL,
    label: str,
    functions: Sequence[Function],
    abi: Tuple[str, int],
    optional: Sequence[Function] = (),
) -> Set[str]:
    """Declares a library's functions, and returns which of the ``optional`` ones it lacks.

    Args:
        abi: the function that tells the version of its interface, and the version wanted.

    Raises:
        NativeError: it lacks a function that isn't optional, or has another version.
    """
    absent = []
    for name, result, arguments in (*functions, *optional):
        function = getattr(library, name, None)
        if function is None:
            absent.append(name)
            continue
        function.restype = result
        function.argtypes = list(arguments)
    lacks = {name for name, _, _ in optional}.intersection(absent)
    absent = [name for name in absent if name not in lacks]
    if absent:
        raise NativeError(
            "{}: has no {} [native-functions]".format(label, ", ".join(absent)),
            "a bundle built before edgecompile 0.2.0 runs with the runtime inside it, `python3 "
            "BUNDLE COMMAND`; or build it again",
        )
    version = getattr(library, abi[0])()
    if version != abi[1]:
        text = "{}: has ABI version {}, this loader knows version {} [native-abi]"
        raise NativeError(
            text.format(label, version, abi[1]),
            "use the runtime in the bundle's own runtime/ folder",
        )
    return lacks
