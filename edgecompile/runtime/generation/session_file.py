"""A session as one file: its tokens, keys and values, and checkpoints, for the bundle that made them.

The file is ``MAGIC``; the length of a header as 8 bytes, little-endian; the header, a JSON object; the tokens as
int64; of each cache with rows those of the tokens, with a window those that are seen from ``places`` in the header;
of each checkpoint the states, and the logits if it has them, in the order and types of the manifest; and the SHA-256
of all before. No sizes of arrays are in it: they follow from the manifest. A reader copies everything before it
judges, so that a later change of the file is harmless, and uses nothing unless all of it is sound.
"""

import hashlib
import json
import os
import stat
from typing import (
    TYPE_CHECKING,
    Any,
    BinaryIO,
    Dict,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

import numpy as np

from ..base.arguments import is_integer
from ..base.errors import BundleError, InputError
from ..format.document import parse_json, shorten
from ..format.manifest.cache_rows import BLOCK
from ..format.manifest.schema import GenerationSpec, Manifest
from ..format.output import check_output, write_output
from .caches import rows_and_states, windows_of
from .checkpoints import Checkpoint, Checkpoints
from .windows import places_of, rows_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..format.output import Path
    from ..open.bundle import OpenBundle
    from .caches import Caches
    from .windows import Span

MAGIC = b"edgecompile session 1\n"
MAX_HEADER = 16 << 20
_DIGEST = 32
_HINT = "let the text be read anew, in a session without this file"


class Snapshot(NamedTuple):
    """The contents of a file besides keys and values."""

    tokens: List[int]
    checkpoints: List[Checkpoint]
    notes: Any


class SessionFile:
    """The file of a session of one bundle and variant, whose caches are written from and read into."""

    def __init__(self, bundle: "OpenBundle", spec: GenerationSpec, caches: "Caches") -> None:
        """Raises InputError where its sessions can't be kept in files."""
        if not caches.arrays or spec.encoder:
            what = "with an encoder" if spec.encoder else "of a GPU"
            raise InputError("sessions {} can't be saved or loaded".format(what), _HINT)
        self._bundle = bundle
        self._manifest: Manifest = bundle.manifest
        self._spec = spec
        self._rows, self._states = rows_and_states(caches, spec)
        self._windows, self._widths = caches.windows, windows_of(caches, spec)
        vocabulary = self._manifest.outputs[0].shape[1]
        assert isinstance(vocabulary, int)
        self._vocabulary = vocabulary

    def write(self, path: "Path", snapshot: Snapshot) -> str:
        """Replaces the file at ``path`` atomically, and waits until the disk has it.

        Returns:
            The path, links resolved.

        Raises:
            InputError: it can't be written, the notes aren't plain JSON, or a number isn't finite.
        """
        real = check_output(path, "the session's file", self._bundle.path)
        checkpoints = [
            # Some models give tokens that they never say minus infinity.
            x if x.logits is None or is_finite(x.logits) else x._replace(logits=None)
            for x in snapshot.checkpoints
        ]
        header = {
            "manifest_sha256": self._bundle.manifest_sha256,
            "name": self._manifest.name,
            "variant": self._bundle.variant.name,
            "tokens": len(snapshot.tokens),
            "checkpoints": [[x.length, x.logits is not None] for x in checkpoints],
            "notes": snapshot.notes,
        }
        places = places_of(self._windows, len(snapshot.tokens))
        if self._windows is not None:
            header["places"] = places
        try:
            head = json.dumps(header, allow_nan=False).encode("ascii")
            parse_json(head, "the notes", MAX_HEADER)
        except (TypeError, ValueError, RecursionError, BundleError) as error:
            text = "the notes of a session must be plain JSON values: {}"
            raise InputError(text.format(shorten(error, 200))) from None
        arrays: List[NDArray[Any]] = [np.array(snapshot.tokens, "<i8")]
        arrays += self._kept_rows(places, len(snapshot.tokens))
        for item in checkpoints:
            arrays += [*item.states, *([] if item.logits is None else [item.logits])]
        if not all(is_finite(array) for array in arrays):
            raise InputError("{}: isn't written: the caches hold NaN or infinity".format(real))
        parts = [MAGIC + len(head).to_bytes(8, "little") + head]
        digest = hashlib.sha256(parts[0])
        views = [_bytes_of(array) for array in arrays if array.size]
        for view in views:
            digest.update(view)
        try:
            write_output(real, [*parts, *views, digest.digest()], durable=True)
        except OSError as error:
            raise InputError("{}: can't be written: {}".format(real, error.strerror)) from None
        return real

    def _kept_rows(self, places: "Sequence[Span]", count: int) -> "Iterator[NDArray[Any]]":
        """The rows of ``count`` tokens that the caches hold, as a file has them."""
        for array, window in zip(self._rows, self._widths):
            for begin, end in rows_of(places, window, count):
                yield array[begin:end]

    def read(self, path: "Path", checkpoints: Optional[Checkpoints]) -> Snapshot:
        """Fills the caches with the rows of a file.

        Args:
            path: Path of the file.
            checkpoints: Checkpoints of the session, which get those of the file; None where there are no states.

        Returns:
            What is in the file; of its checkpoints the last one alone.

        Raises:
            InputError: it can't be read, is of another bundle or variant, or isn't sound. The caches may have changed.
        """
        try:
            shown = shorten(os.fspath(path), 1024)
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (TypeError, ValueError):
            text = "load is {}, must be the path of a file"
            raise InputError(text.format(shorten(repr(path)))) from None
        except OSError as error:
            raise InputError("{}: can't be opened: {}".format(shown, error.strerror)) from None
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            os.close(fd)
            raise InputError("{}: isn't a regular file".format(shown))
        with os.fdopen(fd, "rb") as stream:
            try:
                return self._read(_Reader(stream, shown, info.st_size), checkpoints)
            except OSError as error:
                text = "{}: can't be read: {}"
                raise InputError(text.format(shown, error.strerror)) from None

    def _read(self, reader: "_Reader", checkpoints: Optional[Checkpoints]) -> Snapshot:
        count, marks, places, notes = self._read_header(reader)
        bounds = next(x.bounds for x in self._manifest.inputs if x.name == self._spec.input)
        assert bounds is not None
        tokens = reader.array((count,), "<i8")
        if count and not bounds[0] <= tokens.min() <= tokens.max() <= bounds[1]:
            raise reader.refuse("a token isn't one of the model's")
        for rows in self._kept_rows(places, count):
            reader.fill(rows)
        last: List[Checkpoint] = []
        kept = None if checkpoints is None else checkpoints.make_empty(x for x, _ in marks)
        for length, has_logits in marks:
            states = [reader.array(array.shape, "<f4") for array in self._states]
            logits = reader.array((self._vocabulary,), "<f4") if has_logits else None
            last = [Checkpoint(length, states, logits)]
            if kept is not None:
                kept.add(last[0])
        reader.finish()
        if self._windows is not None:
            self._windows.start(places)
        if checkpoints is not None and kept is not None:
            checkpoints.items = kept.items
        return Snapshot(tokens.tolist(), last, notes)

    def _read_header(
        self, reader: "_Reader"
    ) -> "Tuple[int, List[Tuple[int, bool]], List[Span], Any]":
        header = reader.header()
        wanted = self._bundle.manifest_sha256
        if header.get("manifest_sha256") != wanted:
            name = shorten(header.get("name"))
            text = "is of another bundle ({!r}, manifest {}), not of this one (manifest {})"
            other = shorten(header.get("manifest_sha256"), 19)
            raise reader.refuse(text.format(name, other, shorten(wanted, 19)))
        if header.get("variant") != self._bundle.variant.name:
            text = "is of the variant {!r}, but {!r} is open; their numbers differ"
            variant = shorten(header.get("variant"))
            raise reader.refuse(text.format(variant, self._bundle.variant.name))
        count: Any = header.get("tokens")
        marks = header.get("checkpoints")
        if not is_integer(count, 0, self._spec.max_context):
            text = "tokens is {}, must be an integer from 0 to {}"
            raise reader.refuse(text.format(shorten(repr(count)), self._spec.max_context))
        if not isinstance(marks, list):
            raise reader.refuse("checkpoints must be a list")
        pairs: List[Tuple[int, bool]] = []
        places = self._read_places(reader, header, count)
        size = 8 * count + sum(rows.nbytes for rows in self._kept_rows(places, count))
        states = 4 * sum(array.size for array in self._states)
        for mark in marks:
            before = pairs[-1][0] if pairs else 0
            pair = isinstance(mark, list) and len(mark) == 2 and isinstance(mark[1], bool)
            if not pair or not is_integer(mark[0], before + 1, count):
                text = "checkpoints has {} behind {} tokens, must have [tokens, boolean] up to {}"
                raise reader.refuse(text.format(shorten(repr(mark)), before, count))
            if not any(first <= mark[0] <= last for first, last in places):
                text = "has no rows for the checkpoint behind {} tokens"
                raise reader.refuse(text.format(mark[0]))
            pairs.append((mark[0], mark[1]))
            size += states + (4 * self._vocabulary if mark[1] else 0)
        if bool(self._states and count) != bool(pairs) or (pairs and pairs[-1][0] != count):
            raise reader.refuse("its checkpoints don't reach its {} tokens".format(count))
        reader.expect(size + _DIGEST)
        return count, pairs, places, header.get("notes")

    def _read_places(self, reader: "_Reader", header: Dict[str, Any], count: int) -> "List[Span]":
        """The places that the rows in a file serve: ascending spans, the last one up to all tokens."""
        given = header.get("places", [[0, count]])
        if self._windows is None:
            return [(0, count)]
        places: List[Span] = []
        for span in given if isinstance(given, list) else [given]:
            least = places[-1][1] + 1 if places else 0
            pair = isinstance(span, list) and len(span) == 2 and is_integer(span[0], least, count)
            if not pair or not is_integer(span[1], span[0], count):
                text = "places has {}, must have [first, last] from {} to {}"
                raise reader.refuse(text.format(shorten(repr(span)), least, count))
            places.append((span[0], span[1]))
        if not places or places[-1][1] != count:
            raise reader.refuse("its places don't reach its {} tokens".format(count))
        return places


class _Reader:
    """Reads a file from its beginning to its end, and refuses what isn't sound."""

    def __init__(self, stream: BinaryIO, shown: str, size: int) -> None:
        self._stream = stream
        self._shown = shown
        self._size = size
        self._digest = hashlib.sha256()

    def refuse(self, text: str) -> InputError:
        """The error for a file that can't be used."""
        return InputError("{}: {}".format(self._shown, text), _HINT)

    def header(self) -> Dict[str, Any]:
        """Reads the header, a strict JSON object."""
        magic = self._take(min(len(MAGIC), self._size))
        if magic != MAGIC:
            raise self.refuse("isn't a session that this version of edgecompile saved")
        length = int.from_bytes(self._take(8), "little")
        if length > MAX_HEADER:
            raise self.refuse("its header has {} bytes, at most {}".format(length, MAX_HEADER))
        try:
            return parse_json(self._take(length), "header", MAX_HEADER)
        except BundleError as error:
            raise self.refuse(error.message) from None

    def expect(self, rest: int) -> None:
        """Compares the file's size before memory is taken for what it says that it holds."""
        expected = self._stream.tell() + rest
        if self._size < expected:
            raise self.refuse("is truncated: has {} bytes of {}".format(self._size, expected))
        if self._size > expected:
            text = "has {} bytes behind its end".format(self._size - expected)
            raise self.refuse(text)

    def array(self, shape: Tuple[int, ...], dtype: str) -> "NDArray[Any]":
        """Reads an array."""
        result = np.empty(shape, dtype)
        self.fill(result)
        return result

    def fill(self, array: "NDArray[Any]") -> None:
        """Reads into an array, whose values must be finite."""
        if not array.size:
            return
        view = _bytes_of(array)
        # Unlike readinto of a raw file, that of a buffered one reads all, if it is there.
        if self._stream.readinto(view) != view.nbytes:  # type: ignore[attr-defined]
            raise self.refuse("is truncated")
        self._digest.update(view)
        if not is_finite(array):
            raise self.refuse("holds NaN or infinity")

    def finish(self) -> None:
        """Compares the digest at the end."""
        digest = self._digest.digest()
        if self._take(_DIGEST) != digest:
            raise self.refuse("is damaged: its SHA-256 isn't the one at its end")
        if self._stream.read(1):
            raise self.refuse("has bytes behind its end")

    def _take(self, count: int) -> bytes:
        data = self._stream.read(count)
        if len(data) != count:
            raise self.refuse("is truncated")
        self._digest.update(data)
        return data


def is_finite(array: "NDArray[Any]") -> bool:
    """Whether no number is NaN or infinite: uint16 is bfloat16, whose exponent is then all ones, int8 a cache's rows."""
    if array.dtype == np.int8:
        return _has_finite_scales(array.view(np.uint8))
    # By parts: the answers for a whole cache would be a quarter of its size.
    flat = array.reshape(-1)
    parts = (flat[at : at + (1 << 20)] for at in range(0, flat.size, 1 << 20))
    if array.dtype == np.uint16:
        return all(bool(((part & 0x7F80) != 0x7F80).all()) for part in parts)
    return all(bool(np.isfinite(part).all()) for part in parts)


def _has_finite_scales(rows: "NDArray[np.uint8]") -> bool:
    """Whether all scales are below 2^121: any int8 times such a scale is finite."""
    return not bool(((rows[..., 1::BLOCK] & 0x7F) >= 0x7C).any())


def _bytes_of(array: "NDArray[Any]") -> memoryview:
    return array.data.cast("B")
