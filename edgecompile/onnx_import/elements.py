"""ONNX's element types as torch's, and its tensors as torch tensors, with sizes checked."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from edgecompile.errors import ModelError

#: ONNX's number of each type, and torch's type.
DTYPES = {
    1: torch.float32,
    2: torch.uint8,
    3: torch.int8,
    4: torch.uint16,
    5: torch.int16,
    6: torch.int32,
    7: torch.int64,
    9: torch.bool,
    10: torch.float16,
    11: torch.float64,
    12: torch.uint32,
    13: torch.uint64,
    16: torch.bfloat16,
}
_FLOATS = (torch.float16, torch.bfloat16, torch.float64)
#: Numbers of four bits, of which a byte holds one here; only weights may have them.
FOUR_BITS = {21: torch.uint8, 22: torch.int8}
_NAMES = {8: "string", 14: "complex64", 15: "complex128"}
#: Sizes from here on have no program: indices of generated code have 32 bits.
MOST_ELEMENTS = 2**31 - 1


def dtype_of(number: int, what: str, *, plain: bool = False) -> torch.dtype:
    """torch's type of an element type.

    Args:
        number: ONNX's number of it.
        what: the words for the value in an error.
        plain: float32 stands for every type of floating-point numbers.

    Raises:
        ModelError: torch has none.
    """
    found = DTYPES.get(number)
    if found is None:
        name = _NAMES.get(number, f"number {number}")
        raise ModelError(f"{what} has the element type {name}, which isn't supported")
    return torch.float32 if plain and found in _FLOATS else found


def check_elements(sizes: Any, what: str) -> int:
    """The number of elements of a shape.

    Raises:
        ModelError: a size is negative, or there are too many elements.
    """
    sizes = [int(size) for size in sizes]
    count: int = math.prod(sizes)
    if min(sizes, default=0) < 0 or count > MOST_ELEMENTS:
        raise ModelError(
            f"{what} has the shape {sizes[:8]}: sizes are from 0 on, at most {MOST_ELEMENTS} elements"
        )
    return count


def read_tensor(tensor: Any, what: str, raw: bytes | None = None) -> torch.Tensor:
    """A TensorProto's content.

    Args:
        tensor: the TensorProto.
        what: the words for it in an error.
        raw: its bytes where they lie in another file.

    Raises:
        ModelError: its data doesn't fit its shape, or it has an unsupported type.
    """
    import onnx

    number = int(tensor.data_type)
    dtype = FOUR_BITS.get(number) or dtype_of(number, what)
    count = check_elements(tensor.dims, what)
    if raw is None and tensor.HasField("raw_data"):
        raw = tensor.raw_data
    shape = tuple(tensor.dims)
    if raw is None:
        try:
            array = onnx.numpy_helper.to_array(tensor)
        except Exception as error:  # numpy's and onnx's have no common class
            raise ModelError(f"{what} has data that don't fit its shape {list(shape)}") from error
        return _of_array(array, dtype)
    wanted = tensor_bytes(number, count)
    if len(raw) != wanted:
        raise ModelError(
            f"{what} has {len(raw)} bytes of data; its shape {list(shape)} needs {wanted}"
        )
    if number in FOUR_BITS:
        return _unpack(np.frombuffer(raw, np.uint8), count, number == 22).reshape(shape)
    if not raw:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(raw), dtype=dtype).reshape(shape)


def tensor_bytes(number: int, count: int) -> int:
    """The bytes of so many elements of a type."""
    each: int = 0 if number in FOUR_BITS else DTYPES[number].itemsize
    return count * each or (count + 1) // 2


def _of_array(array: Any, dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.bfloat16:
        return torch.from_numpy(array.astype(np.float32)).to(dtype)
    name = str(dtype).removeprefix("torch.")
    return torch.from_numpy(np.array(array.astype(name), order="C"))


def _unpack(data: Any, count: int, signed: bool) -> torch.Tensor:
    """Numbers of four bits, the low ones first."""
    numbers = np.stack([data & 15, data >> 4], -1).reshape(-1)[:count]
    if signed:
        return torch.from_numpy((numbers.astype(np.int8) ^ 8) - np.int8(8))
    return torch.from_numpy(numbers)
