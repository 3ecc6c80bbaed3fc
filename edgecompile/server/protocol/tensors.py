"""Tensors of the Open Inference Protocol: JSON lists and little-endian bytes to arrays and back.

Sources: kserve/open-inference-protocol, specification/protocol/inference_rest.md; Triton's
docs/protocol/extension_binary_data.md.
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgecompile.server.errors import BadRequest, TooLarge
from edgecompile.server.protocol.datatypes import BYTES, DTYPES
from edgecompile.server.protocol.documents import kind

_MAX_RANK = 16
_RANGES = {
    name: (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    for name, dtype in DTYPES.items()
    if dtype.kind in "iu"
}
_ALLOWED: dict[str, frozenset[type]] = {
    "b": frozenset((bool,)),
    "i": frozenset((int,)),
    "u": frozenset((int,)),
    "f": frozenset((int, float)),
}


def read_shape(value: Any, where: str, most: int) -> tuple[int, ...]:
    """A tensor's shape.

    Raises:
        BadRequest: it isn't a list of sizes.
        TooLarge: it means more than ``most`` elements.
    """
    if not isinstance(value, list) or len(value) > _MAX_RANK:
        raise BadRequest(f"{where}: shape must be a list of at most {_MAX_RANK} sizes")
    count = 1
    for size in value:
        if type(size) is not int or size < 0:
            raise BadRequest(f"{where}: shape holds {_shown(value)}, must be integers from 0 on")
        count *= size
    if count > most or max(value, default=0) > most:
        raise TooLarge(f"{where}: shape {_shown(value)} means over {most} elements, the limit")
    return tuple(value)


def _shown(value: Any) -> str:
    return f"{value!s:.100}"


def from_list(data: Any, datatype: str, shape: Sequence[int], where: str) -> NDArray[Any]:
    """The array of a JSON list, nested or flat, in row-major order.

    Raises:
        BadRequest: it doesn't fit the shape or the datatype; nothing is rounded or cut.
    """
    if not isinstance(data, list):
        raise BadRequest(f"{where}: data must be a list, not {kind(data)}")
    flat = _flatten(data, shape, where)
    count = math.prod(shape)
    if len(flat) != count:
        raise BadRequest(f"{where}: data has {len(flat)} elements, shape {list(shape)} {count}")
    if datatype == BYTES:
        return _texts(flat, shape, where)
    dtype = DTYPES[datatype]
    if datatype == "FP16":
        raise BadRequest(f"{where}: FP16 can't be given as JSON, but as a binary tensor")
    strange = set(map(type, flat)) - _ALLOWED[dtype.kind]
    if strange:
        if strange == {float} and any(_is_beyond(item) for item in flat):
            least, most = _RANGES.get(datatype, (0, 1))
            raise BadRequest(f"{where}: data holds numbers outside {least}..{most}")
        contents = "numbers with a fraction"
        if float not in strange:
            contents = ", ".join(sorted(kind(item()) for item in strange))
        raise BadRequest(f"{where}: data holds {contents}, which {datatype} doesn't take")
    if dtype.kind in "iu":
        least, most = _RANGES[datatype]
        # numpy itself refuses what INT64 doesn't hold, and looks at each number anyway.
        if datatype == "INT64" or not flat or (min(flat) >= least and max(flat) <= most):
            try:
                return np.array(flat, dtype).reshape(shape)
            except OverflowError:
                pass
        raise BadRequest(f"{where}: data holds numbers outside {least}..{most}")
    try:
        with np.errstate(over="raise"):
            return np.array(flat, dtype).reshape(shape)
    except (OverflowError, FloatingPointError):  # no float holds it
        raise BadRequest(f"{where}: data holds a number that {datatype} doesn't hold") from None


def _is_beyond(value: float) -> bool:
    """Whether a number may be an integer of over 64 bits, which orjson reads as a float."""
    return isinstance(value, float) and abs(value) >= 2.0**63


def _texts(flat: list[Any], shape: Sequence[int], where: str) -> NDArray[Any]:
    if any(not isinstance(item, str) for item in flat):
        raise BadRequest(f"{where}: data of BYTES must be strings")
    return _object_array(flat, shape)


def _flatten(data: list[Any], shape: Sequence[int], where: str) -> list[Any]:
    level = data
    for depth in range(len(shape)):
        if not level or not isinstance(level[0], list):
            break
        nested = depth + 1 < len(shape)
        size = shape[depth + 1] if nested else None
        lists = all(isinstance(item, list) and len(item) == size for item in level)
        if not nested or len(data) != shape[0] or not lists:
            raise BadRequest(f"{where}: data is nested otherwise than shape {list(shape)}")
        level = list(chain.from_iterable(level))
    return level


def from_bytes(data: memoryview, datatype: str, shape: Sequence[int], where: str) -> NDArray[Any]:
    """The array over these very bytes, read-only; copied where they don't lie as numbers have to.

    Raises:
        BadRequest: there are too few or too many bytes, or they aren't of this datatype.
    """
    count = math.prod(shape)
    if datatype == BYTES:
        try:
            return to_texts(split_strings(data), shape)
        except ValueError as error:
            raise BadRequest(f"{where}: {error}") from None
    dtype = DTYPES[datatype]
    if len(data) != count * dtype.itemsize:
        raise BadRequest(
            f"{where}: {len(data)} bytes, shape {list(shape)} of {datatype} has "
            f"{count * dtype.itemsize}"
        )
    if datatype == "BOOL":
        raw = np.frombuffer(data, np.uint8)
        if raw.size and raw.max() > 1:
            raise BadRequest(f"{where}: a byte of BOOL must be 0 or 1")
    array: NDArray[Any] = np.ndarray(shape, dtype, data)
    return array if array.flags.aligned else array.copy()


def split_strings(data: memoryview) -> list[memoryview]:
    """The elements of BYTES of a binary tensor: each has its length in front, 4 bytes.

    Raises:
        ValueError: the last one is cut off.
    """
    elements: list[memoryview] = []
    at = 0
    while at < len(data):
        if at + 4 > len(data):
            raise ValueError("has a length of BYTES that is cut off")
        (size,) = struct.unpack_from("<I", data, at)
        at += 4
        if at + size > len(data):
            raise ValueError("has an element of BYTES that is cut off")
        elements.append(data[at : at + size])
        at += size
    return elements


def to_texts(elements: Sequence[bytes | memoryview], shape: Sequence[int]) -> NDArray[Any]:
    """Elements of BYTES as an array of strings.

    Raises:
        ValueError: they are more or fewer than the shape has, or not in UTF-8.
    """
    count = math.prod(shape)
    if len(elements) != count:
        raise ValueError(f"has {len(elements)} elements of BYTES, shape {list(shape)} {count}")
    try:
        texts = [str(item, "utf-8") for item in elements]
    except UnicodeDecodeError:
        raise ValueError("has an element of BYTES that isn't UTF-8") from None
    return _object_array(texts, shape)


def _object_array(texts: list[str], shape: Sequence[int]) -> NDArray[Any]:
    array = np.empty(len(texts), object)
    array[:] = texts
    return array.reshape(shape)


def to_bytes(array: NDArray[Any]) -> bytes:
    """The bytes of a binary tensor."""
    if array.dtype == object:
        texts = [str(item).encode() for item in array.ravel()]
        return b"".join(struct.pack("<I", len(text)) + text for text in texts)
    if sys.byteorder == "big":
        array = array.astype(array.dtype.newbyteorder("<"))
    return array.tobytes()
