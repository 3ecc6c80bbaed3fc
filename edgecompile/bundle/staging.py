"""The folder in which a bundle grows: beside its final name, claimed by one build at a time."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from pathlib import Path
from types import TracebackType

from edgecompile.bundle.names import bundle_path
from edgecompile.errors import BundleWriteError, DiskFullError
from edgecompile.runtime.format.manifest.schema import MANIFEST_NAME
from edgecompile.units import format_bytes

FULL = (errno.ENOSPC, errno.EDQUOT)
_BUSY = (errno.EWOULDBLOCK, errno.EACCES)


class Staging:
    """A claim to a bundle's name, and the folder beside it that gets that name in the end.

    A context manager: entering makes missing parents and the folder, leaving removes what wasn't
    committed, and those parents again. The claim is a lock on the folder (flock), which ends with
    its process, whatever ends that.

    Args:
        output: the bundle's path.
        force: whether it may replace a bundle that is already there.

    Attributes:
        output: the bundle's final path, ending in ``.ecb``.
        folder: the folder where its files are written.
        made: parent folders that entering had to make, outermost first.
    """

    def __init__(self, output: Path, *, force: bool = False) -> None:
        self.output = bundle_path(output)
        self.force = force
        self.folder = self.output.with_name(f".{self.output.name}.partial")
        self.made: tuple[Path, ...] = ()
        self._lock: int | None = None

    def __enter__(self) -> Staging:
        """Claims the name.

        Raises:
            BundleWriteError: the name is taken, another build is writing it, or nothing can be
                written there.
            DiskFullError: the disk is full.
        """
        self.check_output()
        try:
            self._make_parents()
            self._lock = self._claim()
            self.clear()
        except OSError as error:
            self._release()
            if error.errno in FULL:
                raise disk_full(self.output) from error
            raise BundleWriteError(
                f"{self.output} can't be written: no folder can be made in {self.output.parent} "
                f"({error.strerror})",
                hint="name another `output`",
            ) from error
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._lock is not None and _same(self._lock, self.folder):
            shutil.rmtree(self.folder, ignore_errors=True)
        self._release()

    def check_output(self) -> None:
        """Refuses early what :meth:`commit` would refuse at the end.

        Raises:
            BundleWriteError: the final name is taken by something that may not be replaced, or lies inside a
                bundle.
        """
        outer = (folder for folder in self.output.parents if (folder / MANIFEST_NAME).is_file())
        if found := next(outer, None):
            raise BundleWriteError(
                f"{self.output} would lie inside the bundle {found}, which no other file may be in",
                hint="name another `output`",
                destination=self.output,
            )
        if not os.path.lexists(self.output):
            return
        if not self.force:
            raise BundleWriteError(
                f"{self.output} is already there",
                hint="name another `output`, or give `force=True`",
                destination=self.output,
            )
        if self.output.is_symlink() or not (self.output / MANIFEST_NAME).is_file():
            raise BundleWriteError(
                f"{self.output} isn't a bundle, so `force` won't replace it",
                hint="name another `output`, or remove it yourself",
                destination=self.output,
            )

    def clear(self) -> None:
        """Removes what is in the folder."""
        for entry in os.scandir(self.folder):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)

    def commit(self) -> Path:
        """Gives the folder its final name.

        Raises:
            BundleWriteError: the name was taken meanwhile.
            OSError: it can't be renamed.
        """
        self.check_output()
        if os.path.lexists(self.output):
            # rename() can't replace a folder that isn't empty: the old one steps aside.
            old = self.output.with_name(f".{self.output.name}.{os.getpid()}.old")
            os.replace(self.output, old)
            try:
                os.replace(self.folder, self.output)
            except BaseException:
                os.replace(old, self.output)
                raise
            shutil.rmtree(old, ignore_errors=True)
        else:
            os.replace(self.folder, self.output)
        return self.output

    def _make_parents(self) -> None:
        missing = [self.output.parent, *self.output.parent.parents]
        missing = [folder for folder in missing if not os.path.lexists(folder)]
        for folder in reversed(missing):
            folder.mkdir(exist_ok=True)
            self.made = (*self.made, folder)

    def _claim(self) -> int:
        """A descriptor of the folder, locked."""
        while True:
            self.folder.mkdir(exist_ok=True)
            lock = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in _BUSY:
                    os.close(lock)
                    raise BundleWriteError(
                        f"another build is writing {self.output}",
                        hint="wait for it to end, or name another `output`",
                    ) from error
                # Some network file systems lock no folders; commit still replaces nothing unasked.
            if _same(lock, self.folder):
                return lock
            os.close(lock)  # the build before gave the folder its name, or removed it

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        for folder in reversed(self.made):
            try:
                folder.rmdir()
            except OSError:  # something is in it: the bundle, if all went well
                break
        self.made = ()


def _same(descriptor: int, path: Path) -> bool:
    """Whether a path still names what was opened."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except OSError:
        return False


def free_space(path: Path) -> int:
    """Bytes that may be written on the disk of ``path``, which need not exist yet; 0 where nobody
    can say."""
    try:
        return shutil.disk_usage(nearest_folder(path)).free
    except OSError:
        return 0


def nearest_folder(path: Path) -> Path:
    """``path``, or the nearest of its parents that is there."""
    while not os.path.lexists(path) and path != path.parent:
        path = path.parent
    return path


def disk_full(
    output: Path, what: str = "", needed: int | None = None, free: int | None = None
) -> DiskFullError:
    """The error that says which disk is full: that of the folder of ``output``.

    Args:
        output: the bundle that was to be written.
        what: the file of it; "": its folder.
        needed: bytes that the file takes, if that is known.
        free: bytes that there were; None: those that there are.
    """
    folder = output.parent
    if free is None:
        free = free_space(folder)
    wants = "" if needed is None else f"needs {format_bytes(needed)}, "
    subject = f"{what} of {output.name}" if what else output.name
    return DiskFullError(
        f"{folder}: no space left for {subject} ({wants}has {format_bytes(free)})",
        hint="free some space there, or name another `output`",
        destination=output,
    )
