"""Element types of inputs, outputs and weights: one table, used by every other module.

``code`` is the number that the native ABI uses (c10::ScalarType); ``container`` is the name in a
safetensors header. bfloat16 and float8 have no numpy type: weights may have them, inputs and outputs may not.
But caches may be bfloat16: numpy has its bits as uint16, which nothing else is.
"""

from typing import Dict, NamedTuple, Optional, Tuple, Union

Number = Union[int, float]


class ElementType(NamedTuple):
    """One element type; ``kind`` is 'b' (bool), 'i', 'u' or 'f' as in numpy, ``size`` in bytes."""

    name: str
    code: int
    container: str
    numpy: Optional[str]
    kind: str
    size: int


_TABLE = (
    ElementType("uint8", 0, "U8", "uint8", "u", 1),
    ElementType("int8", 1, "I8", "int8", "i", 1),
    ElementType("int16", 2, "I16", "int16", "i", 2),
    ElementType("int32", 3, "I32", "int32", "i", 4),
    ElementType("int64", 4, "I64", "int64", "i", 8),
    ElementType("float16", 5, "F16", "float16", "f", 2),
    ElementType("float32", 6, "F32", "float32", "f", 4),
    ElementType("float64", 7, "F64", "float64", "f", 8),
    ElementType("bool", 11, "BOOL", "bool", "b", 1),
    ElementType("bfloat16", 15, "BF16", "uint16", "f", 2),
    ElementType("float8_e4m3fn", 24, "F8_E4M3", None, "f", 1),
)

BY_NAME: Dict[str, ElementType] = {item.name: item for item in _TABLE}
BY_CODE: Dict[int, ElementType] = {item.code: item for item in _TABLE}
BY_CONTAINER: Dict[str, ElementType] = {item.container: item for item in _TABLE}

BY_NUMPY: Dict[str, ElementType] = {item.numpy: item for item in _TABLE if item.numpy is not None}

BFLOAT16 = "bfloat16"
# What an input or output may be: whatever numpy has under its own name.
INPUT_NAMES: Tuple[str, ...] = tuple(item.name for item in _TABLE if item.numpy == item.name)
# The same of an input of a generative program.
CACHE_NAMES: Tuple[str, ...] = (*INPUT_NAMES, BFLOAT16)

_FLOAT_MAX = {"float16": 65504.0, "float32": 3.4028234663852886e38}


def array_type(dtype: str) -> str:
    """The name in numpy of the arrays that have ``dtype``."""
    numpy = BY_NAME[dtype].numpy
    assert numpy is not None
    return numpy


def value_range(dtype: str) -> Tuple[Number, Number]:
    """Smallest and largest finite value that ``dtype`` holds, inclusive."""
    item = BY_NAME[dtype]
    if item.kind == "b":
        return 0, 1
    if item.kind == "u":
        return 0, 2 ** (8 * item.size) - 1
    if item.kind == "i":
        return -(2 ** (8 * item.size - 1)), 2 ** (8 * item.size - 1) - 1
    top = _FLOAT_MAX.get(dtype, 1.7976931348623157e308)
    return -top, top


def holds(dtype: str, value: Number) -> bool:
    """Whether ``value`` can be written in ``dtype``: whole for integers, within its range."""
    low, high = value_range(dtype)
    if BY_NAME[dtype].kind != "f" and not isinstance(value, int):
        return False
    return low <= value <= high
