"""Arrays as native code sees them: ec_tensor of native/base/edgecompile_abi.h."""

import ctypes
import struct
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from ..format.dtypes import BY_CODE, BY_NUMPY, ElementType

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_DIMS = 8

#: The part of an output to return: its size along each dimension, None for all that there is.
Shape = Tuple[Optional[int], ...]


class NativeTensor(ctypes.Structure):
    """ec_tensor: a borrowed view; sizes and strides count elements."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("nbytes", ctypes.c_int64),
        ("dtype", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("sizes", ctypes.c_int64 * MAX_DIMS),
        ("strides", ctypes.c_int64 * MAX_DIMS),
    )


# The same as bytes: packing them is several times as fast as setting fields, and a run of a small
# model is short. The first part changes with every array, the second one with its layout only.
_PLACE = struct.Struct("PPq")
_LAYOUT = struct.Struct("ii{0}q{0}q".format(MAX_DIMS))
assert _PLACE.size + _LAYOUT.size == ctypes.sizeof(NativeTensor)

# By numpy's own characters, of which some types have two: C's long and long long may be alike.
_CODES = {
    char: BY_NUMPY[np.dtype(char).name].code
    for char in "?bBhHiIlLqQefd"
    if np.dtype(char).name in BY_NUMPY
}
_layouts: Dict[Tuple[str, Tuple[int, ...], Tuple[int, ...]], bytes] = {}
_MOST_LAYOUTS = 4096


def pack_arrays(arrays: Sequence["NDArray[Any]"]) -> bytes:
    """A table of ec_tensor that describes ``arrays``; valid as long as they live.

    Their dtypes must be ones that an input may have, with at most MAX_DIMS dimensions and strides
    that are multiples of the element size.
    """
    parts = []
    for array in arrays:
        key = (array.dtype.char, array.shape, array.strides)
        layout = _layouts.get(key)
        if layout is None:
            layout = _pack_layout(*key)
            if len(_layouts) >= _MOST_LAYOUTS:
                _layouts.clear()
            _layouts[key] = layout
        parts.append(_PLACE.pack(0, _address(array), _span(array)) + layout)
    return b"".join(parts)


def _address(array: "NDArray[Any]") -> int:
    buffer: Any = array  # which type checkers don't know as one
    try:  # in a third of the time
        return ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    except (TypeError, ValueError, BufferError):  # read-only, empty, or with gaps
        return int(array.__array_interface__["data"][0])


def _span(array: "NDArray[Any]") -> int:
    if array.flags.c_contiguous:
        return int(array.nbytes)
    steps = [(n - 1) * step for n, step in zip(array.shape, array.strides)]
    return int(array.itemsize + sum(steps))


def _pack_layout(char: str, shape: Tuple[int, ...], strides: Tuple[int, ...]) -> bytes:
    item = np.dtype(char).itemsize
    steps = row_major(shape)
    # Where a stride is never used, numpy's may be anything.
    if 0 not in shape and any(
        n > 1 and own != step * item for n, own, step in zip(shape, strides, steps)
    ):
        steps = [0 if n == 1 else step // item for n, step in zip(shape, strides)]
    fill = (0,) * (MAX_DIMS - len(shape))
    return _LAYOUT.pack(_CODES[char], len(shape), *shape, *fill, *steps, *fill)


def row_major(shape: Sequence[int]) -> List[int]:
    """Strides of an array without gaps, in elements."""
    steps = [1] * len(shape)
    for i in range(len(shape) - 1, 0, -1):
        steps[i - 1] = steps[i] * max(shape[i], 1)
    return steps


def fill_tensor(slot: Any, data: int, nbytes: int, code: int, shape: Sequence[int]) -> None:
    """Describes a row-major array in ``slot``, a NativeTensor."""
    slot.data = data
    slot.nbytes = nbytes
    slot.dtype = code
    slot.ndim = len(shape)
    for i, (size, step) in enumerate(zip(shape, row_major(shape))):
        slot.sizes[i] = size
        slot.strides[i] = step


def wrap_tensor(view: NativeTensor) -> "NDArray[Any]":
    """The memory of ``view`` as an array, without a copy.

    Raises:
        ValueError: a dtype that numpy lacks, or a bad number of dimensions.
    """
    element = BY_CODE.get(view.dtype)
    if element is None or element.numpy is None or not 0 <= view.ndim <= MAX_DIMS:
        raise ValueError("dtype code {} and {} dimensions".format(view.dtype, view.ndim))
    return _wrap(view, element)


def _wrap(view: NativeTensor, element: ElementType) -> "NDArray[Any]":
    sizes = tuple(view.sizes[: view.ndim])
    strides = tuple(view.strides[: view.ndim])
    if 0 in sizes:
        return np.empty(sizes, dtype=element.numpy)
    span = 1 + sum((n - 1) * step for n, step in zip(sizes, strides))
    buffer = (ctypes.c_ubyte * (span * element.size)).from_address(view.data)
    return np.ndarray(
        sizes,
        dtype=element.numpy,
        buffer=buffer,
        strides=tuple(step * element.size for step in strides),
    )
