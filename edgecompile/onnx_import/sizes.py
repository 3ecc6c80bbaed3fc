"""Small values that are known while a model is traced: sizes, axes, scales.

ONNX calculates with sizes in tensors. As tensors they would lose their symbols: whoever reads them back
gets the size of the example, or one that depends on data. Here they are numpy arrays of Python numbers and
SymInts, so that numpy's own indexing, broadcasting and concatenation serve them.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

#: More numbers than any shape or list of axes has.
MOST = 64

_as_float: Callable[[Any], Any] = torch.sym_float
SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)


@dataclass(frozen=True)
class Known:
    """A value of few numbers.

    Attributes:
        array: its numbers, with dtype ``object``.
        dtype: its element type in the graph.
    """

    array: Any
    dtype: torch.dtype

    @property
    def numbers(self) -> list[Any]:
        """The numbers in one list."""
        return list(self.array.reshape(-1))

    @property
    def symbolic(self) -> bool:
        """Whether a number depends on a size of an input."""
        return any(isinstance(number, SYMBOLS) for number in self.numbers)

    def tensor(self) -> torch.Tensor:
        """The value as a tensor."""
        if not self.symbolic:
            return torch.tensor(self.array.tolist(), dtype=self.dtype).reshape(self.array.shape)
        parts = [torch.scalar_tensor(number, dtype=self.dtype) for number in self.numbers]
        return torch.stack(parts).reshape(self.array.shape)


def known(numbers: Iterable[Any], shape: tuple[int, ...], dtype: torch.dtype) -> Known:
    """A value of these numbers."""
    listed = list(numbers)
    array = np.empty(len(listed), object)
    for place, number in enumerate(listed):
        array[place] = number
    return Known(array.reshape(shape), dtype)


def of_tensor(tensor: torch.Tensor) -> Known:
    """A constant tensor's numbers."""
    # torch.export traces Tensor.tolist, even of a constant; numpy it doesn't see.
    plain = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
    return known(plain.numpy().reshape(-1).tolist(), tuple(tensor.shape), tensor.dtype)


def is_small(tensor: torch.Tensor) -> bool:
    """Whether a constant tensor may stand for sizes, axes or a factor."""
    most = 1 if tensor.is_floating_point() else MOST
    return tensor.numel() <= most and tensor.dim() <= 2 and not tensor.is_complex()


def stored(value: Known | torch.Tensor) -> Known | torch.Tensor:
    """A constant as known numbers where it is small."""
    if isinstance(value, torch.Tensor) and is_small(value):
        return of_tensor(value)
    return value


def as_tensor(value: Any) -> Any:
    """A value as a tensor, if it is one of known numbers."""
    return value.tensor() if isinstance(value, Known) else value


def of_shape(sizes: Iterable[Any]) -> Known:
    """Sizes as ONNX's Shape gives them."""
    listed = list(sizes)
    return known(listed, (len(listed),), torch.int64)


def _divide(a: Any, b: Any) -> Any:
    if isinstance(a, float) and isinstance(b, float):
        with np.errstate(all="ignore"):
            return float(np.float64(a) / np.float64(b))
    if isinstance(a, (float, torch.SymFloat)) or isinstance(b, (float, torch.SymFloat)):
        return a / b
    if isinstance(a, int) and isinstance(b, int):
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    return a // b  # sizes aren't negative


def _floor(a: Any) -> Any:
    return a if _endless(a) else _as_float(math.floor(a))


def _ceil(a: Any) -> Any:
    return a if _endless(a) else _as_float(math.ceil(a))


def _endless(a: Any) -> bool:
    return isinstance(a, float) and not math.isfinite(a)


def _compare(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], bool]:
    return lambda a, b: bool(function(a, b))


def _power(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        return pow(a, b, 1 << 64)  # as far as any type holds it
    if isinstance(a, (int, float)):
        with np.errstate(all="ignore"):
            return float(np.power(np.float64(a), np.float64(b)))
    return a**b


def _same(a: Any) -> Any:
    return a


#: How operators calculate with known numbers, one by one. True: the result is a truth value.
ELEMENTWISE: dict[str, tuple[Callable[..., Any], bool]] = {
    "Add": (operator.add, False),
    "Sub": (operator.sub, False),
    "Mul": (operator.mul, False),
    "Div": (_divide, False),
    "Mod": (operator.mod, False),
    "Pow": (_power, False),
    "Neg": (operator.neg, False),
    "Abs": (abs, False),
    "Floor": (_floor, False),
    "Ceil": (_ceil, False),
    "Identity": (_same, False),
    "Min": (torch.sym_min, False),
    "Max": (torch.sym_max, False),
    "Equal": (_compare(operator.eq), True),
    "Less": (_compare(operator.lt), True),
    "LessOrEqual": (_compare(operator.le), True),
    "Greater": (_compare(operator.gt), True),
    "GreaterOrEqual": (_compare(operator.ge), True),
    "And": (lambda a, b: bool(a) and bool(b), True),
    "Or": (lambda a, b: bool(a) or bool(b), True),
    "Xor": (lambda a, b: bool(a) != bool(b), True),
    "Not": (lambda a: not a, True),
}


def as_type(number: Any, dtype: torch.dtype) -> Any:
    """A result as its type holds it: whole numbers wrap, others are rounded. Symbols stay."""
    if isinstance(number, SYMBOLS):
        return number
    if dtype == torch.bool:
        return bool(number)
    if dtype.is_floating_point:
        name = "float32" if dtype == torch.bfloat16 else str(dtype).removeprefix("torch.")
        with np.errstate(all="ignore"):
            return float(np.float64(number).astype(name))
    low, span = torch.iinfo(dtype).min, 1 << 8 * dtype.itemsize
    return (int(number) - low) % span + low


def each(function: Callable[..., Any], *arrays: Any) -> Any:
    """Calls ``function`` for the numbers of arrays that are broadcast."""
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    flat = [np.broadcast_to(array, shape).reshape(-1) for array in arrays]
    result = np.empty(math.prod(shape), object)
    for place, numbers in enumerate(zip(*flat, strict=True)):
        result[place] = function(*numbers)
    return result.reshape(shape)


def cast(number: Any, dtype: torch.dtype) -> Any:
    """A number as one of another type."""
    if dtype == torch.bool:
        return bool(number)
    if dtype.is_floating_point:
        return _as_float(number)
    if isinstance(number, bool):
        return int(number)
    if isinstance(number, (float, torch.SymFloat)):
        return math.trunc(number)
    return number
