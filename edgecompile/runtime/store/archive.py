"""Reads tar archives that nobody has checked: files and folders, and nothing else.

Not by ``tarfile``: older Pythons' takes as much memory as a header asks for, and loops where a size is negative.
"""

import gzip
import os
import stat
import zlib
from typing import BinaryIO, Dict, Iterator, NamedTuple, Optional, Set, Union

from ..base.errors import BundleError
from ..format.document import shorten
from ..format.manifest.parse import MAX_MANIFEST_BYTES, check_path

_BLOCK = 512
_CHUNK = 1 << 20
#: Bytes read at a time, of which ``gzip`` takes few.
_BUFFER = 1 << 16
#: Entries, and records of extended headers; a manifest lists at most 65536 files.
_MOST = 1 << 17
#: Characters of the names of all files and folders; a manifest, with all its names, has a quarter at most.
_MOST_CHARACTERS = 4 * MAX_MANIFEST_BYTES
_MAX_EXTENSION = 1 << 16
#: Keys of an extended header's records that matter here. Those of a sparse file begin like the last one.
_PATH, _SIZE, _SPARSE = b"path", b"size", b"GNU.sparse"
_FILES, _FOLDER = (b"0", b"\0"), b"5"
_PAX, _GLOBAL, _LONG_NAME = b"x", b"g", b"L"
_IMAGE_HINT = (
    "archives hold one bundle's files alone; `edgecompile image --only-bundle` writes such an image"
)


class Member(NamedTuple):
    """A file in an archive.

    Attributes:
        name: its path.
        size: its size in bytes.
        parts: its content, which can be read until the next member is asked for.
    """

    name: str
    size: int
    parts: Iterator[bytes]


def open_archive(path: str) -> BinaryIO:
    """Opens a file to be read; the caller closes it.

    Raises:
        BundleError: there is none, or it isn't a regular file.
    """
    try:
        # O_NONBLOCK: opening a FIFO must not hang.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        text = "can't be opened: {}".format(getattr(error, "strerror", error))
        raise _fault(shorten(path, 1024), "archive-form", text, "check the path") from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise _fault(path, "archive-form", "isn't a regular file", "check the path")
    return os.fdopen(fd, "rb", _BUFFER)


class Names:
    """The names in an archive, or in all layers of an image: each file once, and no file that is a folder, too."""

    def __init__(self, source: str) -> None:
        self.files: Set[str] = set()
        self._source = source
        self._folders: Set[str] = set()
        self._count = 0
        self._characters = 0

    def count(self) -> None:
        """Counts an entry, or a record of one."""
        self._count += 1
        if self._count > _MOST:
            raise _fault(self._source, "archive-count", "more than {} entries".format(_MOST))

    def add(self, name: str, is_folder: bool) -> None:
        """Notes a name."""
        wrong = check_path(name)
        if wrong is not None:
            text = "{!r} {}".format(shorten(name), wrong)
            raise _fault(self._source, "archive-name", text)
        parts = name.split("/")
        if parts[-1].startswith(".wh."):
            text = "{!r} removes a file of another layer".format(shorten(name))
            raise _fault(self._source, "archive-kind", text)
        if is_folder:
            self._add_folders(name)
            return
        if name in self.files or name in self._folders:
            raise _fault(self._source, "archive-twice", "{!r} twice".format(shorten(name)))
        self._add_folders(name.rpartition("/")[0])
        self._keep(self.files, name)

    def _add_folders(self, name: str) -> None:
        """Notes a folder and those that it is in, up to the first that is known."""
        while name and name not in self._folders:
            if name in self.files:
                text = "{!r} twice, as a folder and a file".format(shorten(name))
                raise _fault(self._source, "archive-twice", text)
            self._keep(self._folders, name)
            name = name.rpartition("/")[0]

    def _keep(self, names: Set[str], name: str) -> None:
        self._characters += len(name)
        if self._characters > _MOST_CHARACTERS:
            text = "names of more than {} characters".format(_MOST_CHARACTERS)
            raise _fault(self._source, "archive-count", text)
        names.add(name)


def read_members(file: BinaryIO, source: str, names: Names) -> Iterator[Member]:
    """The files of an archive, in its order.

    Args:
        file: the archive at its beginning, plain or compressed by gzip.
        source: its name in an error.
        names: the names so far.

    Raises:
        BundleError: it isn't an archive of files and folders.
    """
    is_gzip = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    stream = _Stream(gzip.GzipFile(fileobj=file) if is_gzip else file, source, not is_gzip)
    changes: Dict[bytes, bytes] = {}
    while True:
        header = stream.take(_BLOCK)
        if header == bytes(_BLOCK):
            return
        names.count()
        size = stream.check(header)
        kind = header[156:157]
        if kind in (_PAX, _GLOBAL, _LONG_NAME):
            if size > _MAX_EXTENSION:
                raise stream.fault("a header of {} bytes".format(size))
            data = stream.take(size)
            stream.take(-size % _BLOCK)
            if kind == _PAX:
                changes.update(_read_pax(stream, data, names))
            elif kind == _LONG_NAME:
                changes[_PATH] = data.rstrip(b"\0")
            continue
        size = stream.parse_size(changes[_SIZE]) if _SIZE in changes else size
        name = changes.get(_PATH, _find_name(header)).decode("utf-8", "replace")
        if size and kind == _FOLDER:
            raise stream.fault("a folder of {} bytes".format(size))
        if kind not in (*_FILES, _FOLDER) or _SPARSE in changes:
            text = "{!r} isn't a file or a folder".format(shorten(name))
            raise _fault(source, "archive-kind", text)
        changes = {}
        plain = name[2:] if name.startswith("./") else name
        if kind != _FOLDER:
            names.add(plain, False)
            end = stream.offset + size + -size % _BLOCK
            yield Member(plain, size, stream.read(size))
            stream.skip(end - stream.offset)
        elif plain.rstrip("/") not in ("", "."):
            names.add(plain[:-1] if plain.endswith("/") else plain, True)


class _Stream:
    """Bytes of an archive; too few of them are an error.

    Attributes:
        offset: number of those that were read or skipped.
    """

    def __init__(self, file: Union[gzip.GzipFile, BinaryIO], source: str, can_seek: bool) -> None:
        self.offset = 0
        self._file = file
        self._source = source
        self._can_seek = can_seek

    def fault(self, text: str) -> BundleError:
        return _fault(self._source, "archive-form", text)

    def read(self, size: int) -> Iterator[bytes]:
        while size:
            try:
                part = self._file.read(min(size, _CHUNK))
            except (OSError, EOFError, zlib.error) as error:
                raise self.fault("can't be read: {}".format(error)) from None
            if not part:
                raise self.fault("ends too early")
            size -= len(part)
            self.offset += len(part)
            yield part

    def skip(self, size: int) -> None:
        """Skips bytes; if there are too few, the next ``take`` finds out."""
        if self._can_seek:
            self._file.seek(size, os.SEEK_CUR)
            self.offset += size
        else:
            for _ in self.read(size):
                pass

    def take(self, size: int) -> bytes:
        return b"".join(self.read(size))

    def check(self, header: bytes) -> int:
        """The size that a header has."""
        blanked = header[:148] + b" " * 8 + header[156:]
        if self._parse_octal(header[148:156]) != sum(blanked):
            raise self.fault("isn't a tar archive, plain or by gzip")
        field = header[124:136]
        if field[0] == 0x80:  # GNU's form of large numbers
            return int.from_bytes(field[1:], "big")
        return self._parse_octal(field)

    def _parse_octal(self, field: bytes) -> int:
        digits = field.strip(b" \0")
        if digits.strip(b"01234567"):
            raise self.fault("isn't a tar archive, plain or by gzip")
        return int(digits or b"0", 8)

    def parse_size(self, text: bytes) -> int:
        if not text.isdigit() or len(text) > 18:
            raise self.fault("a size of {!r}".format(shorten(text)))
        return int(text)


def _read_pax(stream: _Stream, data: bytes, names: Names) -> Dict[bytes, bytes]:
    """The records of an extended header that matter here; each is its length, a key and a value."""
    records, start = {}, 0
    while start < len(data):
        names.count()
        digits = data[start : data.find(b" ", start, start + 20)]
        length = stream.parse_size(digits)
        record = data[start + len(digits) + 1 : start + length]
        key, equals, value = record.partition(b"=")
        if not equals or not value.endswith(b"\n"):
            raise stream.fault("an extended header without records")
        key = _SPARSE if key.startswith(_SPARSE) else key
        if key in (_PATH, _SIZE, _SPARSE):
            records[key] = value[:-1]
        start += length
    return records


def _find_name(header: bytes) -> bytes:
    name, prefix = (field.partition(b"\0")[0] for field in (header[:100], header[345:500]))
    is_posix = header[257:263] == b"ustar\0"
    return prefix + b"/" + name if is_posix and prefix else name


def _fault(source: str, rule: str, text: str, hint: Optional[str] = _IMAGE_HINT) -> BundleError:
    return BundleError("{}: {} [{}]".format(source, text, rule), hint)
