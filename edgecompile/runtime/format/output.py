"""Files that the runtime writes where its user says: whole or not at all."""

import contextlib
import json
import os
import stat
from typing import TYPE_CHECKING, Any, Iterable, Mapping, Union

from ..base.errors import InputError
from .document import shorten

if TYPE_CHECKING:
    Path = Union[str, os.PathLike[str]]


def check_output(path: "Path", name: str, bundle: str) -> str:
    """Looks at a path to write to, before the work whose result it gets.

    Args:
        path: the path of the file; ``{pid}`` in it stands for the number of this process.
        name: the file's name in an error.
        bundle: the bundle's folder, in which nothing may be written.

    Returns:
        The absolute path, links resolved, so that a later change of the working folder or of a
        link doesn't matter.

    Raises:
        InputError: it isn't a path, its folder doesn't exist or can't be written to, or there is
            something else than a file.
    """
    try:
        text: object = os.fspath(path)
    except TypeError:
        text = ""
    if not isinstance(text, str) or not text:
        raise InputError("{} is {!r}, must be the path of a file".format(name, path))
    shown = "{} {}".format(name, shorten(text, 1024))
    try:
        real = os.path.realpath(text.replace("{pid}", str(os.getpid())))
        folder = os.path.dirname(real)
        if not os.path.isdir(folder):
            hint = "make the folder first, or name a file in another one"
            raise InputError("{}: the folder {} doesn't exist".format(shown, folder), hint)
        if os.path.isdir(real):
            raise InputError(shown + ": is a folder", "name a file in it")
        # A device or a pipe would be replaced by a file.
        regular = True
        with contextlib.suppress(FileNotFoundError):
            regular = stat.S_ISREG(os.lstat(real).st_mode)
        if not regular:
            raise InputError(shown + ": isn't a regular file", "name a file, or a new one")
        inside = os.path.realpath(bundle)
        if os.path.commonpath([real, inside]) == inside:
            hint = "a bundle isn't changed once it is written; name a file elsewhere"
            raise InputError("{}: is in the bundle {}".format(shown, bundle), hint)
        if not os.access(folder, os.W_OK | os.X_OK):
            hint = "name a file in a folder that this user may write to"
            raise InputError("{}: can't write in {}".format(shown, folder), hint)
    except (OSError, ValueError) as error:  # ValueError: a null character
        if isinstance(error, InputError):
            raise
        raise InputError("{}: {}".format(shown, shorten(error, 200))) from None
    return real


def write_output(
    path: str, data: "Union[bytes, Iterable[Union[bytes, memoryview]]]", durable: bool = False
) -> None:
    """Replaces the file ``path`` (of ``check_output``) by one that holds ``data``, at once.

    Whoever reads it sees the old or the new one. A process that is killed meanwhile may leave a
    file ``.edgecompile-*.tmp`` beside it.

    Args:
        path: the path of the file.
        data: the new content, or its parts.
        durable: wait until the disk has it, so that it also outlives a loss of power.

    Raises:
        OSError: it can't be written; the old file is still there.
    """
    name = ".edgecompile-{}-{}.tmp".format(os.getpid(), os.urandom(6).hex())
    beside = os.path.join(os.path.dirname(path), name)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        with os.fdopen(os.open(beside, flags, 0o666), "wb") as stream:
            stream.writelines([data] if isinstance(data, bytes) else data)
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
        os.replace(beside, path)
        if durable:
            folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise


def write_report(path: str, report: Mapping[str, Any]) -> None:
    """Writes ``report`` as JSON with ``write_output``.

    Raises:
        InputError: it can't be written; the old file is still there.
    """
    try:
        data = json.dumps(report, indent=1, allow_nan=False).encode("ascii") + b"\n"
        write_output(path, data)
    except OSError as error:
        raise InputError("{}: can't be written: {}".format(path, error.strerror)) from None


def make_private(path: str) -> None:
    """Makes a folder and those above it that don't exist, all of them for this user alone.

    That is what os.makedirs does with the last level only.

    Raises:
        OSError: that isn't possible.
    """
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    if parent != path:
        make_private(parent)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:  # somebody else was first, or it isn't a folder
        if not os.path.isdir(path):
            raise
