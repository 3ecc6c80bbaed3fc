"""Reads a weights file: a safetensors container whose tensors are 64-byte aligned.

The file is mapped read-only once per process, whatever number of buckets, programs and models use
it; pages are shared with every other process that maps it. Source of the container format: the
safetensors specification (8 bytes little-endian header length, JSON header, data).
"""

import errno
import mmap
import os
import struct
import threading
import weakref
from typing import TYPE_CHECKING, Any, List, NamedTuple, Optional, Tuple

import numpy as np

from ...base.errors import DamagedBundleError
from ...base.limits import explain_errno, no_memory
from ..document import Field, Problems, is_printable, parse_json, shorten
from ..dtypes import BY_CONTAINER, ElementType
from .folder import BundleFolder
from .hashes import file_state, linked_state

if TYPE_CHECKING:
    from numpy.typing import NDArray

ALIGNMENT = 64
MAX_HEADER_BYTES = 16 << 20
PADDING_PREFIX = "__pad."
_METADATA = "__metadata__"
_MAX_DIMS = 8
_HINT = "the weights were written wrongly or changed; build the bundle again"


class Constant(NamedTuple):
    """One tensor: contiguous, ``nbytes`` bytes at ``offset`` from the start of the file."""

    name: str
    type: ElementType
    shape: Tuple[int, ...]
    offset: int
    nbytes: int


def read_constants(fd: int, size: int, source: str) -> Tuple[Constant, ...]:
    """Reads and checks the header of a weights file of ``size`` bytes.

    Padding entries (``__pad.N``) are checked like tensors and left out of the result.

    Raises:
        BundleError: lists every broken rule (weights-* and json-* of FORMAT.md).
    """
    problems = Problems(source)
    head = _read(fd, 8, 0, source)
    length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
    if not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
        text = "the header has {} bytes, must have 2 to {} within a file of {} bytes"
        problems.add("weights-header", "header", text.format(length, MAX_HEADER_BYTES, size))
        problems.raise_if_any(hint=_HINT)
    header = Field(problems, parse_json(_read(fd, length, 8, source), source, MAX_HEADER_BYTES))
    for _, field in header.find(_METADATA).members():
        field.string()
    start = 8 + length
    if start % ALIGNMENT:
        text = "the data begins at byte {}, must be a multiple of {}".format(start, ALIGNMENT)
        problems.add("weights-alignment", "header", text)
    constants = []
    for name, entry in header.members():
        if problems.too_many:
            break
        if name != _METADATA:
            constant = _read_entry(name, entry, start)
            if constant is not None:
                constants.append(constant)
    if not problems.items:
        _check_layout(problems, constants, start, size)
    problems.raise_if_any(hint=_HINT)
    return tuple(item for item in constants if not item.name.startswith(PADDING_PREFIX))


def _read(fd: int, size: int, offset: int, source: str) -> bytes:
    try:
        return os.pread(fd, size, offset)
    except OSError as error:
        text = "{}: can't be read: {} [file-hash]"
        raise DamagedBundleError(text.format(source, error.strerror)) from None


def _read_entry(name: str, entry: Field, start: int) -> Optional[Constant]:
    if not name or len(name) > 1024 or not is_printable(name):
        entry.refuse("weights-name", "names are 1 to 1024 printable characters")
    if not entry.object():
        return None
    field = entry.at("dtype")
    dtype = field.string()
    element = BY_CONTAINER.get(dtype) if dtype is not None else None
    if dtype is not None and element is None:
        text = "{!r} isn't one of {}".format(shorten(dtype), ", ".join(sorted(BY_CONTAINER)))
        field.refuse("weights-dtype", text)
    shape = _integers(entry.at("shape"), 0, _MAX_DIMS)
    span = _integers(entry.at("data_offsets"), 2, 2)
    if element is None or shape is None or span is None:
        return None
    nbytes = element.size
    for dim in shape:
        nbytes *= dim
    if not 0 <= span[0] <= span[1] or span[1] - span[0] != nbytes:
        text = "from {} to {}, but {}{} has {} bytes"
        text = text.format(span[0], span[1], dtype, list(shape), nbytes)
        entry.refuse("weights-offsets", text)
        return None
    offset = start + span[0]
    if offset % ALIGNMENT and not name.startswith(PADDING_PREFIX):
        text = "begins at byte {}, must be a multiple of {}".format(offset, ALIGNMENT)
        entry.refuse("weights-alignment", text)
    return Constant(name, element, shape, offset, nbytes)


def _integers(field: Field, least: int, most: int) -> Optional[Tuple[int, ...]]:
    result = field.integers(least, most)
    if not isinstance(field.value, list) or len(result) != len(field.value):
        return None
    if any(value < 0 for value in result):
        field.refuse("weights-offsets", "{} has a negative number".format(list(result)))
        return None
    return result if least <= len(result) <= most else None


def _check_layout(problems: Problems, constants: List[Constant], start: int, size: int) -> None:
    """Tensors follow each other without holes or overlaps, and the last ends with the file."""
    position, previous = start, "the header"
    for item in sorted(constants, key=lambda item: (item.offset, item.nbytes)):
        if item.offset != position:
            text = "begins at byte {}, but {} ends at byte {}"
            text = text.format(item.offset, shorten(previous), position)
            problems.add("weights-layout", shorten(item.name), text)
        position, previous = item.offset + item.nbytes, item.name
    if position != size:
        text = "the tensors end at byte {}, the file has {} bytes".format(position, size)
        problems.add("weights-layout", "file", text)


class Weights:
    """A mapped weights file. Keep a reference as long as native code borrows its memory.

    Attributes:
        constants: the tensors, in the order of the header.
        nbytes: size of the file.
        address: the start of the file in this process' memory.
    """

    def __init__(self, fd: int, source: str) -> None:
        """Checks the header and maps the file; ``fd`` may be closed afterwards.

        Raises:
            BundleError: the header breaks a rule.
            HostLimitError: there isn't the address space or the descriptor for it.
        """
        info = os.fstat(fd)
        self.nbytes = info.st_size
        self.constants = read_constants(fd, self.nbytes, source)
        # A link that is added to the file is no reason to have its pages twice.
        key = linked_state(info)
        mapped = _mapped.get(key)
        self._bytes: NDArray[Any] = _map(fd, self.nbytes, source) if mapped is None else mapped
        _mapped[key] = self._bytes
        self.address: int = self._bytes.ctypes.data
        self._hash_lock = threading.Lock()
        self._known_sha256: Optional[str] = None

    def check_hash(self, folder: BundleFolder, name: str, fd: int) -> None:
        """Compares the hash of ``fd``, the mapped file, with the one recorded in ``folder``.

        Once per mapping and recorded hash: bundles may share a file and disagree about its hash.

        Raises:
            DamagedBundleError: rule file-hash.
        """
        recorded = folder.manifest.files[name].sha256
        with self._hash_lock:
            if self._known_sha256 != recorded:
                folder.check_large(name, fd)
                self._known_sha256 = recorded

    def array(self, name: str) -> "NDArray[Any]":
        """A read-only view of one tensor; bfloat16 as uint16, float8 as uint8.

        Raises:
            KeyError: there is no such tensor.
        """
        for item in self.constants:
            if item.name == name:
                view = self._bytes[item.offset : item.offset + item.nbytes]
                return view.view(item.type.numpy or f"u{item.type.size}").reshape(item.shape)
        raise KeyError(name)


def _map(fd: int, size: int, source: str) -> "NDArray[Any]":
    try:
        mapping = mmap.mmap(fd, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
    except (OSError, ValueError) as error:  # a ValueError if it became shorter meanwhile
        number = error.errno if isinstance(error, OSError) else None
        if number == errno.ENOMEM:
            raise no_memory("mapping " + source, size) from None
        limit = explain_errno(number or 0, source)  # mapping takes a descriptor too
        if limit is not None:
            raise limit from None
        text = "{}: can't be mapped: {}"
        raise DamagedBundleError(text.format(source, shorten(error, 120))) from None
    return np.frombuffer(mapping, dtype=np.uint8)


_shared: "weakref.WeakValueDictionary[Tuple[int, ...], Weights]" = weakref.WeakValueDictionary()
#: With the time of modification: a server of NFS gives a removed file's inode to another one.
_mapped: "weakref.WeakValueDictionary[Tuple[int, ...], NDArray[Any]]" = (
    weakref.WeakValueDictionary()
)
_shared_lock = threading.Lock()


def after_fork() -> None:
    """In a process after a fork: no thread is mapping."""
    global _shared_lock
    _shared_lock = threading.Lock()


def map_weights(folder: BundleFolder, name: str, check_hash: bool) -> Weights:
    """Maps a weights file of a bundle, or returns this process' mapping of the same file.

    Args:
        folder: the bundle.
        name: the file, as the manifest lists it.
        check_hash: compare the SHA-256, unless this mapping's was compared before.

    Raises:
        DamagedBundleError: the file is missing, or differs from its size or hash.
        BundleError: the header breaks a rule.
    """
    fd = folder.open(name)
    try:
        key = file_state(os.fstat(fd))
        with _shared_lock:
            weights = _shared.get(key)
            if weights is None:
                weights = Weights(fd, "{}: {}".format(folder.path, name))
                _shared[key] = weights
        if check_hash:
            weights.check_hash(folder, name, fd)
        return weights
    finally:
        os.close(fd)
