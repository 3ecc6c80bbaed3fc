"""The files of a bundle: opened without following links, checked against the manifest.

Every file is opened relative to the folder's descriptor, one path component at a time with
O_NOFOLLOW, so neither a link inside the bundle nor a rename of the folder changes what is read.
"""

import bisect
import hashlib
import os
import stat
from typing import TYPE_CHECKING, Callable, Optional, Tuple, Union

from ...base.errors import BundleError, DamagedBundleError
from ...base.limits import raise_limit
from ..document import Problems, shorten
from ..manifest.parse import MAX_MANIFEST_BYTES, parse_manifest
from ..manifest.schema import MANIFEST_NAME, Manifest
from ..trust.policy import find_policy
from ..trust.release import MAX_RELEASE_BYTES, RELEASE_NAME, Release, parse_release
from . import stamps
from .hashes import file_state, find_hash_damage

if TYPE_CHECKING:
    from ..output import Path
    from ..trust.check import Verified

#: Least size in bytes of a file whose hash is worth a stamp: a smaller one takes under a millisecond.
_LARGE = 1 << 20
_DAMAGED_HINT = "copy the bundle again, or build it again"
_UNLISTED_HINT = (
    "remove what the manifest doesn't list; Python writes __pycache__ where PYTHONPATH names the "
    "bundle's runtime: install edgecompile-runtime, or run python3 BUNDLE COMMAND, instead"
)
#: Where signatures are checked, no command may run the folder's own code before.
_UNSIGNED_HINT = (
    "remove what the manifest doesn't list, such as __pycache__: no signature covers it; open the bundle "
    "by an installed edgecompile-runtime, which writes nothing there"
)
# O_NONBLOCK: opening a FIFO that lies where a file should be must not hang.
_FILE_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_FOLDER_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY


class BundleFolder:
    """An open bundle: its manifest and safe access to the files that the manifest lists.

    Attributes:
        path: the folder as it was given.
        manifest: the validated manifest.
        manifest_sha256: hex digest of manifest.json, the identity of the bundle.
        verified: the keys whose signatures were checked, and the release; None: none were.
    """

    def __init__(
        self,
        path: str,
        fd: Optional[int] = None,
        *,
        trust: "Union[bool, Path, None]" = None,
        listed: Optional[str] = None,
    ) -> None:
        """Opens the folder and reads the manifest, before it the signatures where they are wanted.

        Args:
            path: the folder.
            fd: a descriptor of it, which is taken over; None: it is opened by its path.
            trust: the trust folder, see ``find_policy``.
            listed: the SHA-256 that the manifest must have, in place of signatures: that of a bundle
                within one that was checked, or of one that the caller has checked before.

        Raises:
            BundleError: there is no bundle at ``path``, or its manifest is malformed.
            DamagedBundleError: the manifest isn't the listed one; or of a signed bundle the folder
                holds files that the manifest doesn't list.
            UntrustedBundleError: signatures are wanted, and they don't suffice.
            HostLimitError: the system doesn't let it be opened: open files, permission, memory.
            FormatVersionError: the manifest's format version is unknown.
        """
        self.path = os.fspath(path)
        self._fd = _open_folder(self.path) if fd is None else fd
        try:
            data = self._read_manifest()
            self.manifest_sha256 = hashlib.sha256(data).hexdigest()
            if listed is not None and self.manifest_sha256 != listed:
                text = "has SHA-256 {}, must have {}".format(self.manifest_sha256, listed)
                raise self._damaged(MANIFEST_NAME, "file-hash", text)
            policy = find_policy(trust) if listed is None else None
            signed = None
            if policy is not None:
                from ..trust.check import check_signatures  # most devices have no trust folder

                signed = check_signatures(self._fd, self.path, data, policy)
            self.manifest: Manifest = parse_manifest(data, os.path.join(self.path, MANIFEST_NAME))
            self.verified: Optional[Verified] = None
            if signed is not None:
                self.verified = signed.judge(self.manifest)
                self.check_names()
        except BaseException:
            self.close()
            raise

    def open_inner(self, name: str) -> "BundleFolder":
        """The bundle in a folder of this one, whose manifest this one lists; the caller closes it.

        Raises:
            BundleError, FormatVersionError: see any bundle.
            DamagedBundleError: its manifest isn't the one that is listed here.
            HostLimitError: the system doesn't let it be opened.
        """
        path = os.path.join(self.path, name)
        try:
            fd = self._open_beneath(name, _FOLDER_FLAGS)
        except OSError as error:
            raise_limit(error, path)
            text = "is a link, or can't be opened: {}".format(error.strerror)
            raise self._damaged(name, "file-kind", text) from None
        return BundleFolder(path, fd, listed=self.manifest.files[name + "/" + MANIFEST_NAME].sha256)

    def read_release(self) -> Optional[Release]:
        """The release that ``release.json`` names, for statistics: nobody vouches for it where no signature was checked.

        None: there is none, or it can't be read as the release of this model.
        """
        if self.verified is not None:
            return self.verified.release
        try:
            fd = os.open(RELEASE_NAME, _FILE_FLAGS, dir_fd=self._fd)
        except OSError:
            return None
        try:
            release = parse_release(os.pread(fd, MAX_RELEASE_BYTES + 1, 0), RELEASE_NAME)
        except (BundleError, OSError):  # such as a folder
            return None
        finally:
            os.close(fd)
        return release if release.name == self.manifest.name else None

    @property
    def fd(self) -> int:
        """Its descriptor, which stays the folder's; -1 once it is closed."""
        return self._fd

    def close(self) -> None:
        """Closes the folder; files that are open or mapped stay usable."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def open(self, name: str) -> int:
        """Opens a listed file and returns its descriptor, which the caller closes.

        Raises:
            DamagedBundleError: rules file-missing, file-kind, file-size-differs.
            HostLimitError: the system doesn't let it be opened.
        """
        fd, problem = self._try_open(name)
        if problem is not None:
            raise self._damaged(name, *problem)
        return fd

    def check_sizes(self) -> None:
        """Checks that every listed file is there, is a regular file and has its size.

        Raises:
            DamagedBundleError: lists every file that isn't.
        """
        self._check_each(lambda name, fd: None)

    def check_names(self) -> None:
        """Checks that the folder holds nothing that isn't listed, beside signatures and the release.

        Raises:
            DamagedBundleError: lists every file that isn't.
        """
        problems = Problems(self.path)
        self._find_unlisted(problems)
        hint = _UNLISTED_HINT if self.verified is None else _UNSIGNED_HINT
        problems.raise_if_any(DamagedBundleError, hint)

    def open_unlisted(self, name: str) -> int:
        """Opens the manifest, the release or a signature, whose content nobody has compared; the caller closes it.

        Raises:
            FileNotFoundError: there is none.
            DamagedBundleError: rule file-kind.
            HostLimitError: the system doesn't let it be opened.
        """
        try:
            fd = self._open_beneath(name)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise_limit(error, os.path.join(self.path, name))
            text = "is a link, or can't be opened: {}".format(error.strerror)
            raise self._damaged(name, "file-kind", text) from None
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise self._damaged(name, "file-kind", "isn't a regular file")
        return fd

    def check_hashes(self, progress: Optional[Callable[[str], None]] = None) -> None:
        """Checks that the folder holds the listed files and no others, and the SHA-256 of each.

        Args:
            progress: a function that gets the name of each listed file before its turn.

        Raises:
            DamagedBundleError: lists every file that is missing, differs or isn't listed.
        """

        def check(name: str, fd: int) -> Optional[Tuple[str, str]]:
            if progress is not None:
                progress(name)
            return self._hash_problem(name, fd)

        self._check_each(check, unlisted=True)

    def open_checked(self, name: str) -> int:
        """Opens a listed file whose content has the recorded SHA-256; the caller closes it.

        Raises:
            DamagedBundleError: see ``open`` and ``check_hash``.
        """
        fd = self.open(name)
        try:
            self.check_hash(name, fd)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def check_hash(self, name: str, fd: int) -> None:
        """Checks that what ``fd`` (opened by ``open(name)``) holds has the recorded SHA-256.

        Raises:
            DamagedBundleError: rule file-hash.
        """
        problem = self._hash_problem(name, fd)
        if problem is not None:
            raise self._damaged(name, *problem)

    def check_large(self, name: str, fd: int) -> None:
        """As :meth:`check_hash`, for a file that takes long: its hash may be known since the boot.

        That is where the file's facts are those with which it had this hash (:mod:`.stamps`).

        Raises:
            DamagedBundleError: rule file-hash.
        """
        entry, before = self.manifest.files[name], os.fstat(fd)
        if entry.size < _LARGE:
            return self.check_hash(name, fd)
        if stamps.find(before, entry.sha256):
            return
        self.check_hash(name, fd)
        # A file that was written to meanwhile has a hash that nobody knows.
        if file_state(os.fstat(fd)) == file_state(before):
            stamps.keep(before, entry.sha256)

    def _check_each(
        self, check: Callable[[str, int], Optional[Tuple[str, str]]], unlisted: bool = False
    ) -> None:
        problems = Problems(self.path)
        for name in sorted(self.manifest.files):
            fd, problem = self._try_open(name)
            if problem is None:
                try:
                    problem = check(name, fd)
                finally:
                    os.close(fd)
            if problem is not None:
                problems.add(problem[0], name, problem[1])
        damaged = problems.count
        if unlisted:
            self._find_unlisted(problems)
        unlisted_hint = _UNLISTED_HINT if self.verified is None else _UNSIGNED_HINT
        hint = unlisted_hint if problems.count and not damaged else _DAMAGED_HINT
        problems.raise_if_any(DamagedBundleError, hint)

    def _find_unlisted(self, problems: Problems) -> None:
        """Notes what the folder holds beside the manifest and the listed files."""
        from ..trust.statement import SIGNATURES_NAME, is_signing_file

        names = sorted(self.manifest.files)
        folders = [""]
        while folders:
            folder = folders.pop()
            try:
                fd = self._open_beneath(folder[:-1], _FOLDER_FLAGS) if folder else os.dup(self._fd)
            except OSError:  # noted with the files in it
                continue
            try:
                with os.scandir(fd) as entries:
                    for entry in entries:
                        path = folder + entry.name
                        if path in self.manifest.files or path == MANIFEST_NAME:
                            continue
                        if path == SIGNATURES_NAME and entry.is_dir(follow_symlinks=False):
                            folders.append(path + "/")
                            continue
                        if is_signing_file(path) and entry.is_file(follow_symlinks=False):
                            continue
                        # Only a folder of listed files is looked into; any other one is named.
                        at = bisect.bisect_left(names, path + "/")
                        if names[at : at + 1] and names[at].startswith(path + "/"):
                            folders.append(path + "/")
                        elif not _keeps_byte_code_out(fd, path.rpartition("/")[2]):
                            text = "isn't listed in the manifest"
                            problems.add("file-unlisted", shorten(path, 200), text)
                        if problems.too_many:
                            return
            finally:
                os.close(fd)

    def _hash_problem(self, name: str, fd: int) -> Optional[Tuple[str, str]]:
        return find_hash_damage(fd, self.manifest.files[name])

    def _try_open(self, name: str) -> Tuple[int, Optional[Tuple[str, str]]]:
        try:
            fd = self._open_beneath(name)
        except FileNotFoundError:
            return -1, ("file-missing", "is missing")
        except OSError as error:
            raise_limit(error, os.path.join(self.path, name))
            text = "is a link, or can't be opened: {}".format(error.strerror)
            return -1, ("file-kind", text)
        info = os.fstat(fd)
        entry = self.manifest.files[name]
        problem = None
        if not stat.S_ISREG(info.st_mode):
            problem = ("file-kind", "isn't a regular file")
        elif info.st_size != entry.size:
            text = "has {} bytes, must have {}".format(info.st_size, entry.size)
            problem = ("file-size-differs", text)
        if problem is not None:
            os.close(fd)
            return -1, problem
        return fd, None

    def _open_beneath(self, name: str, flags: int = _FILE_FLAGS) -> int:
        folders = name.split("/")
        leaf = folders.pop()
        parent = self._fd
        try:
            for folder in folders:
                # Only one is open at a time: a path may have 500 of them.
                child = os.open(folder, _FOLDER_FLAGS, dir_fd=parent)
                if parent != self._fd:
                    os.close(parent)
                parent = child
            return os.open(leaf, flags, dir_fd=parent)
        finally:
            if parent != self._fd:
                os.close(parent)

    def _read_manifest(self) -> bytes:
        place = "{}: ".format(os.path.join(self.path, MANIFEST_NAME))
        try:
            fd = os.open(MANIFEST_NAME, _FILE_FLAGS, dir_fd=self._fd)
        except FileNotFoundError:
            raise BundleError(
                "{}: is not a bundle: it has no {} [bundle-manifest]".format(
                    self.path, MANIFEST_NAME
                ),
                "the path must be a bundle, a folder that `edgecompile build` wrote",
            ) from None
        except OSError as error:
            raise_limit(error, os.path.join(self.path, MANIFEST_NAME))
            raise BundleError(
                "{}can't be opened as a file: {} [bundle-manifest]".format(place, error.strerror),
                "the path must be a bundle, a folder that `edgecompile build` wrote",
            ) from None
        try:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode):
                raise BundleError(place + "isn't a regular file [bundle-manifest]")
            if info.st_size > MAX_MANIFEST_BYTES:
                text = "{}{} bytes, at most {} [json-size]"
                raise BundleError(text.format(place, info.st_size, MAX_MANIFEST_BYTES))
            with os.fdopen(os.dup(fd), "rb") as stream:
                return stream.read(MAX_MANIFEST_BYTES + 1)
        except OSError as error:
            raise_limit(error, os.path.join(self.path, MANIFEST_NAME))
            text = "{}can't be read: {} [bundle-manifest]"
            raise BundleError(text.format(place, error.strerror)) from None
        finally:
            os.close(fd)

    def _damaged(self, name: str, rule: str, text: str) -> DamagedBundleError:
        message = "{}: {}: {} [{}]".format(self.path, name, text, rule)
        return DamagedBundleError(message, _DAMAGED_HINT)


def _open_folder(path: str) -> int:
    try:
        # The bundle itself may be reached through a link: the user chose that path.
        return os.open(path, _FOLDER_FLAGS & ~os.O_NOFOLLOW)
    except FileNotFoundError:
        text, hint = "doesn't exist", "check the path"
    except NotADirectoryError:
        text = "is not a bundle: it isn't a folder"
        hint = "an archive of a bundle has to be unpacked first"
    except OSError as error:
        raise_limit(error, shorten(path, 1024))
        text, hint = "can't be opened: {}".format(error.strerror), "check the path"
    except ValueError:  # a NUL in it
        text, hint = "isn't a path", "check the path"
    raise BundleError("{}: {} [bundle-folder]".format(shorten(path, 1024), text), hint)


def _keeps_byte_code_out(folder: int, name: str) -> bool:
    """Whether this is an empty file in the place of the folder that Python writes byte code to."""
    if name != "__pycache__":
        return False
    info = os.stat(name, dir_fd=folder, follow_symlinks=False)
    return stat.S_ISREG(info.st_mode) and info.st_size == 0
