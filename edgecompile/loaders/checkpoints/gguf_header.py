"""The header of a GGUF file: its metadata and its table of tensors, read within bounds and checked.

The format is that of https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. No library reads a file before
all of this holds, since a count or an offset that lies would make it allocate or read anything.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

from edgecompile.errors import ModelError

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_ENTRIES = 1 << 16
_MAX_ITEMS = 1 << 24
_MAX_KEY, _MAX_STRING = 1 << 10, 1 << 24
_MAX_DIMS, _MAX_SIZE = 4, (1 << 31) - 1
_ALIGNMENT = 32
_ALIGNMENT_KEY = "general.alignment"
_TABLE = "token_embd.weight"

_STRING, _ARRAY, _BOOL = 8, 9, 7
#: Codes of ``struct`` by the type of a value.
_SCALARS: Mapping[int, str] = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<B", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip


@dataclass(frozen=True)
class Form:
    """The form in which a tensor is stored.

    Attributes:
        name: name of the type.
        block: numbers that are stored together.
        size: bytes of a block.
    """

    name: str
    block: int
    size: int


#: Forms by the number of their type: those that the format has and gguf can turn into numbers.
FORMS: Mapping[int, Form] = {
    number: Form(*form)
    for number, form in {
        0: ("F32", 1, 4), 1: ("F16", 1, 2), 30: ("BF16", 1, 2),
        2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34),
        10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176),
        14: ("Q6_K", 256, 210), 16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98),
        19: ("IQ1_S", 256, 50), 20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82),
        23: ("IQ4_XS", 256, 136), 29: ("IQ1_M", 256, 56), 39: ("MXFP4", 32, 17),
    }.items()
}  # fmt: skip


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of the table.

    Attributes:
        name: name of the tensor.
        form: form of its numbers.
        shape: its sizes; the last one counts numbers that stand side by side.
        begin: first byte in the file.
    """

    name: str
    form: Form
    shape: tuple[int, ...]
    begin: int

    @property
    def size(self) -> int:
        """Its bytes."""
        return math.prod(self.shape) // self.form.block * self.form.size


@dataclass(frozen=True)
class GgufHeader:
    """The header of a GGUF file.

    Attributes:
        path: path of the file.
        values: metadata by key; of an array the number of its items.
        tensors: tensors by name.
        size: bytes of the header.
    """

    path: Path
    values: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]
    size: int

    @property
    def architecture(self) -> str:
        """The model's family, as llama.cpp names it."""
        return str(self.values["general.architecture"])


def read_gguf_header(path: Path) -> GgufHeader:
    """Reads and checks the header of a file.

    Raises:
        ModelError: the file can't be read, is damaged, contradicts itself, or holds no whole language model.
    """
    try:
        with path.open("rb") as stream:
            reader = _Reader(path, stream)
            values = reader.read_values()
            tensors = reader.read_tensors(values)
            header = GgufHeader(path, values, tensors, stream.tell())
    except OSError as error:
        raise ModelError(f"'{path}' can't be read: {error.strerror or error}") from error
    _check_model(header)
    return header


class _Reader:
    """Reads the parts of an open file, in their order."""

    def __init__(self, path: Path, stream: BinaryIO) -> None:
        self._path, self._stream, self._left = path, stream, path.stat().st_size
        self._end = self._left
        if self._take(4, "the magic") != MAGIC:
            raise self._refuse("it doesn't begin as one")
        version = self._scalar("<I", "the version")
        if version not in _VERSIONS:
            raise self._refuse(f"it has version {version}, read are 2 and 3, little-endian")
        self._tensors = self._count("tensors", 25)
        self._values = self._count("entries of metadata", 13)

    def read_values(self) -> dict[str, Any]:
        """The metadata."""
        values: dict[str, Any] = {}
        for _ in range(self._values):
            key = self._string("a key", _MAX_KEY)
            if key in values:
                raise self._refuse(f"the key {key!r} occurs twice")
            values[key] = self._value(self._scalar("<I", key), key)
        return values

    def read_tensors(self, values: Mapping[str, Any]) -> dict[str, StoredTensor]:
        """The table of tensors."""
        alignment = values.get(_ALIGNMENT_KEY, _ALIGNMENT)
        if (
            not isinstance(alignment, int)
            or not 8 <= alignment <= 1 << 20
            or alignment & (alignment - 1)
        ):
            raise self._refuse(f"{_ALIGNMENT_KEY} is {alignment!r}, no power of two from 8 on")
        entries = [self._entry() for _ in range(self._tensors)]
        start = -(-self._stream.tell() // alignment) * alignment
        tensors: dict[str, StoredTensor] = {}
        for name, form, shape, offset in entries:
            if name in tensors:
                raise self._refuse(f"the tensor {name} occurs twice")
            tensor = StoredTensor(name, form, shape, start + offset)
            if offset % alignment:
                raise self._refuse(f"{name} begins at {offset}, no multiple of {alignment}")
            if tensor.begin + tensor.size > self._end:
                raise self._refuse(
                    f"{name} ends at byte {tensor.begin + tensor.size}, the file at {self._end}",
                    hint="it may be cut short: fetch it again",
                )
            tensors[name] = tensor
        ordered = sorted(tensors.values(), key=lambda tensor: tensor.begin)
        for before, tensor in pairwise(ordered):
            if before.begin + before.size > tensor.begin:
                raise self._refuse(f"{before.name} and {tensor.name} overlap")
        return tensors

    def _entry(self) -> tuple[str, Form, tuple[int, ...], int]:
        name = self._string("a tensor's name", _MAX_KEY)
        count = self._scalar("<I", name)
        if not 1 <= count <= _MAX_DIMS:
            raise self._refuse(f"{name} has {count} dimensions, allowed are 1 to {_MAX_DIMS}")
        shape = tuple(self._scalar("<Q", name) for _ in range(count))[::-1]
        if not all(1 <= size <= _MAX_SIZE for size in shape):
            raise self._refuse(f"{name} has the shape {list(shape)}")
        number, offset = self._scalar("<I", name), self._scalar("<Q", name)
        form = FORMS.get(number)
        if form is None:
            raise self._refuse(
                f"{name} has the type {number}, which isn't read",
                hint="read are " + ", ".join(form.name for form in FORMS.values()),
            )
        if shape[-1] % form.block:
            raise self._refuse(
                f"{name} has rows of {shape[-1]} numbers, {form.name} stores whole blocks of {form.block}"
            )
        return name, form, shape, offset

    def _value(self, kind: int, key: str) -> Any:
        if kind == _STRING:
            return self._string(key, _MAX_STRING)
        if kind == _ARRAY:
            return self._array(key)
        if kind not in _SCALARS:
            raise self._refuse(f"{key} has the type {kind}, which there isn't")
        value = self._scalar(_SCALARS[kind], key)
        return bool(value) if kind == _BOOL else value

    def _array(self, key: str) -> int | list[Any]:
        """An array: its items where they are few numbers, else their number."""
        kind, count = self._scalar("<I", key), self._scalar("<Q", key)
        least = 8 if kind == _STRING else struct.calcsize(_SCALARS.get(kind, "<Q"))
        if kind not in _SCALARS and kind != _STRING:
            raise self._refuse(f"{key} is an array of the type {kind}")
        if count > _MAX_ITEMS or count * least > self._left:
            raise self._refuse(f"{key} has {count} items, which the file has no room for")
        if kind == _STRING:
            for _ in range(count):
                self._take(self._length(key, _MAX_STRING), key)
            return int(count)
        data = self._take(count * least, key)
        if count > _MAX_KEY:
            return int(count)
        return [value for (value,) in struct.iter_unpack(_SCALARS[kind], data)]

    def _string(self, what: str, most: int) -> str:
        data = self._take(self._length(what, most), what)
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise self._refuse(f"{what} isn't UTF-8") from None

    def _length(self, what: str, most: int) -> int:
        length = int(self._scalar("<Q", what))
        if length > most:
            raise self._refuse(f"{what} has {length} bytes, read are {most}")
        return length

    def _count(self, what: str, least: int) -> int:
        """A number of items that take ``least`` bytes each."""
        count = int(self._scalar("<Q", f"the number of {what}"))
        if count > min(_MAX_ENTRIES, self._left // least):
            raise self._refuse(f"it claims {count} {what}")
        return count

    def _scalar(self, code: str, what: str) -> Any:
        (value,) = struct.unpack(code, self._take(struct.calcsize(code), what))
        return value

    def _take(self, count: int, what: str) -> bytes:
        data = self._stream.read(count) if count <= self._left else b""
        if len(data) != count:
            raise self._refuse(f"it ends within {what}", hint="it may be cut short: fetch it again")
        self._left -= count
        return data

    def _refuse(self, reason: str, hint: str | None = None) -> ModelError:
        return ModelError(f"'{self._path}' is no valid GGUF file: {reason}", hint=hint)


def _check_model(header: GgufHeader) -> None:
    """Refuses what is no whole language model, or whose metadata and tensors contradict each other."""
    values, path = header.values, header.path
    name = values.get("general.architecture")
    if not isinstance(name, str) or not re.fullmatch(r"[a-z0-9_-]{1,40}", name):
        raise ModelError(f"'{path}' names no model: general.architecture is {name!r}")
    parts = values.get("split.count", 1)
    if parts not in (0, 1):
        raise ModelError(
            f"'{path}' is one of {parts} files of a model",
            hint="llama-gguf-split merges them into one",
        )
    table = header.tensors.get(_TABLE)
    if table is None or len(table.shape) != 2:
        raise ModelError(
            f"'{path}' holds no language model: it has no matrix {_TABLE}",
            hint="adapters, projectors of images and other parts of models aren't read",
        )
    tokens = _items(values.get("tokenizer.ggml.tokens"))
    if tokens != table.shape[0]:
        raise ModelError(
            f"'{path}': the vocabulary has {tokens} tokens, {_TABLE} has {table.shape[0]} rows"
        )
    for key in ("tokenizer.ggml.scores", "tokenizer.ggml.token_type"):
        if key in values and _items(values[key]) != tokens:
            raise ModelError(f"'{path}': {key} has {_items(values[key])} items for {tokens} tokens")
    found = {int(m[1]) for key in header.tensors if (m := re.match(r"blk\.(\d{1,9})\.", key))}
    facts = {"block_count": len(found), "embedding_length": table.shape[1]}
    for key, seen in facts.items():
        said = values.get(f"{name}.{key}")
        if said != seen:
            raise ModelError(f"'{path}': {name}.{key} is {said!r}, the tensors have {seen}")
    if max(found, default=0) >= max(len(found), 1):
        raise ModelError(f"'{path}': tensors of layers are missing")
    for key, value in values.items():
        numbers = value if isinstance(value, list) else [value]
        if key.startswith(f"{name}.") and not all(_is_sensible(number) for number in numbers):
            raise ModelError(f"'{path}': {key} is {value!r}, which no model has")


def _is_sensible(value: Any) -> bool:
    """Whether a number is one that a model may have: finite, and as a whole one no larger than a size."""
    if isinstance(value, float):
        return math.isfinite(value)
    return not isinstance(value, int) or abs(value) <= _MAX_SIZE


def _items(value: Any) -> int:
    return len(value) if isinstance(value, list) else value if isinstance(value, int) else 0
