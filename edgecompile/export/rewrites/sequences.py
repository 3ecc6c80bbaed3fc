"""Tensors that torch makes of a size alone: even steps, windows, triangles of indices."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from edgecompile.export.rewrites.symbols import (
    Size,
    is_symbol,
    larger,
    smaller,
    surely_equal,
)


def linspace(start: Any, end: Any, steps: Size, *, dtype: Any = None, **made: Any) -> Any:
    """``torch.linspace``: from ``start`` over the first half, from ``end`` over the second."""
    if not any(is_symbol(item) for item in (start, end, steps)):
        return NotImplemented
    dtype = dtype or torch.get_default_dtype()
    if dtype.is_complex:
        return NotImplemented
    if surely_equal(steps, 1):
        return torch.full((1,), start, dtype=dtype, **made)
    return _even_steps(start, end, steps, dtype, **made).to(dtype)


def _even_steps(start: Any, end: Any, steps: Size, dtype: torch.dtype, **made: Any) -> Tensor:
    """The places of ``linspace`` as float64, rounded to ``dtype`` if that is a floating-point type."""
    kept = dtype if dtype.is_floating_point else torch.float64

    def rounded(value: Any, dtype: torch.dtype = kept) -> Tensor:
        if isinstance(value, Tensor):
            return value.to(dtype)
        return torch.full((), value, dtype=dtype, **made)

    # Ends of whole numbers are cut to such before anything is calculated.
    first, last = (rounded(value, dtype).to(kept) for value in (start, end))
    # One step alone gives the start. torch takes a varying size to be 2 at least, so that only
    # tensors can compare it with 1.
    step = ((last - first) / rounded(steps - 1).clamp(min=1)).double()
    place = torch.arange(steps, **made)
    # torch's kernel rounds the product and the sum once, which float64 does for float32.
    left = first.double() + step * place
    right = last.double() - step * (steps - 1 - place)
    half = torch.full((), steps // 2, **made).clamp(min=1)
    return torch.where(place < half, left, right).to(kept)


def logspace(
    start: Any, end: Any, steps: Size, base: float = 10.0, *, dtype: Any = None, **made: Any
) -> Any:
    """``torch.logspace``: powers of ``base``."""
    if not any(is_symbol(item) for item in (start, end, steps)):
        return NotImplemented
    dtype = dtype or torch.get_default_dtype()
    if not dtype.is_floating_point:
        return NotImplemented
    return torch.pow(base, _even_steps(start, end, steps, dtype, **made))


def _window(
    length: Size, periodic: bool, dtype: Any, made: dict[str, Any]
) -> tuple[Tensor, Tensor] | None:
    """The places within a window, and how many steps it has; None where torch's own is taken."""
    dtype = dtype or torch.get_default_dtype()
    # Generated code has no kernels of torch's for a fixed length either.
    if not dtype.is_floating_point or (isinstance(length, int) and length < 2):
        return None
    steps = torch.full((), length if periodic else length - 1, dtype=torch.float64, **made)
    return torch.arange(length, dtype=dtype, **made), steps.clamp(min=1)


def _one_is_one(window: Tensor, length: Size) -> Tensor:
    """A window whose only element is 1 where there is one only."""
    return torch.where(torch.full((), length) > 1, window, torch.ones((), dtype=window.dtype))


def hamming_window(
    window_length: Size,
    periodic: bool = True,
    alpha: float = 0.54,
    beta: float = 0.46,
    *,
    dtype: Any = None,
    **made: Any,
) -> Any:
    """``torch.hamming_window``."""
    found = _window(window_length, periodic, dtype, made)
    if found is None:
        return NotImplemented
    place, steps = found
    return _one_is_one(torch.cos(place * (2 * math.pi / steps)) * -beta + alpha, window_length)


def hann_window(window_length: Size, periodic: bool = True, **made: Any) -> Any:
    """``torch.hann_window``."""
    return hamming_window(window_length, periodic, 0.5, 0.5, **made)


def blackman_window(
    window_length: Size, periodic: bool = True, *, dtype: Any = None, **made: Any
) -> Any:
    """``torch.blackman_window``."""
    found = _window(window_length, periodic, dtype, made)
    if found is None:
        return NotImplemented
    place = found[0] * (math.pi / found[1])
    window = torch.cos(place * 4) * 0.08 - torch.cos(place * 2) * 0.5 + 0.42
    return _one_is_one(window, window_length)


def bartlett_window(
    window_length: Size, periodic: bool = True, *, dtype: Any = None, **made: Any
) -> Any:
    """``torch.bartlett_window``."""
    found = _window(window_length, periodic, dtype, made)
    if found is None:
        return NotImplemented
    place, steps = found
    rising = place * (2.0 / steps)
    return _one_is_one(torch.where(place <= (steps / 2).floor(), rising, 2 - rising), window_length)


def kaiser_window(
    window_length: Size,
    periodic: bool = True,
    beta: float = 12.0,
    *,
    dtype: Any = None,
    **made: Any,
) -> Any:
    """``torch.kaiser_window``."""
    found = _window(window_length, periodic, dtype, made)
    if found is None or is_symbol(beta):
        return NotImplemented
    place, steps = found
    half = steps / 2
    square = (1 - ((place - half) / half).double() ** 2).clamp(min=0)
    # The Bessel function I0(beta * root) over I0(beta): a series of positive terms.
    factors = [1.0]
    while factors[-1] > sum(factors) * 1e-17:
        factors.append(factors[-1] * (beta / 2 / len(factors)) ** 2)
    window: Any = factors[-1]
    for factor in reversed(factors[:-1]):
        window = window * square + factor
    return _one_is_one((window / sum(factors)).to(place.dtype), window_length)


def tril_indices(
    row: Size, col: Size, offset: int = 0, *, dtype: Any = torch.int64, **made: Any
) -> Any:
    """``torch.tril_indices``: ``[2, count]``, row by row."""
    if not any(is_symbol(item) for item in (row, col, offset)):
        return NotImplemented
    count, inverse = _lower_triangle(row, col, offset)
    return torch.stack(inverse(torch.arange(count, **made))).to(dtype)


def triu_indices(
    row: Size, col: Size, offset: int = 0, *, dtype: Any = torch.int64, **made: Any
) -> Any:
    """``torch.triu_indices``: ``[2, count]``, row by row."""
    if not any(is_symbol(item) for item in (row, col, offset)):
        return NotImplemented
    # An upper triangle read backwards from its last element is a lower one.
    count, inverse = _lower_triangle(row, col, col - row - offset)
    rows, columns = inverse(count - 1 - torch.arange(count, **made))
    return torch.stack([row - 1 - rows, col - 1 - columns]).to(dtype)


def _lower_triangle(
    rows: Size, columns: Size, offset: Size
) -> tuple[Size, Callable[[Tensor], list[Tensor]]]:
    """The number of elements on and below a diagonal, and a function for the row and column of the i-th."""
    # Rows grow by one element each from the first that has any, until they have all columns.
    above = smaller(larger(-offset, 0), rows)
    first = smaller(larger(offset, 0) + 1, columns)
    growing = smaller(rows - above, columns - first + 1)
    triangle = growing * first + growing * (growing - 1) // 2
    full = rows - above - growing

    def inverse(place: Tensor) -> list[Tensor]:
        # Row r begins at r * first + r * (r - 1) / 2. The root is off by less than one row.
        twice = 2 * first - 1
        root = torch.sqrt((twice * twice + 8 * place).to(torch.float32))
        row = ((root - twice) / 2).to(place.dtype)
        row = row - (row * first + row * (row - 1) // 2 > place).to(place.dtype)
        row = row + ((row + 1) * first + row * (row + 1) // 2 <= place).to(place.dtype)
        column = place - (row * first + row * (row - 1) // 2)
        if not surely_equal(full, 0):
            beyond, behind = place >= triangle, place - triangle
            row = torch.where(beyond, growing + behind // columns, row)
            column = torch.where(beyond, behind % columns, column)
        return [row + above, column]

    return triangle if surely_equal(full, 0) else triangle + full * columns, inverse


def one_hot(x: Tensor, num_classes: Size = -1) -> Any:
    """``torch.nn.functional.one_hot``, for so many classes as a size says."""
    if not is_symbol(num_classes):
        return NotImplemented
    return (x.unsqueeze(-1) == torch.arange(num_classes)).to(torch.int64)


def combinations(x: Tensor, r: int = 2, with_replacement: bool = False) -> Any:
    """``torch.combinations`` of two."""
    if r != 2 or x.dim() != 1 or not is_symbol(x.shape[0]):
        return NotImplemented
    n = x.shape[0]
    first, second = triu_indices(n, n, 0 if with_replacement else 1).unbind()
    return torch.stack([x[first], x[second]], 1)


def vander(x: Tensor, N: Size = None, increasing: bool = False) -> Any:
    """``torch.vander``."""
    columns = x.shape[0] if N is None else N
    if not any(is_symbol(size) for size in (*x.shape, columns)):
        return NotImplemented
    powers = torch.arange(columns)
    powers = powers if increasing else columns - 1 - powers
    return torch.pow(x.unsqueeze(-1), powers)


def fftfreq(n: Size, d: float = 1.0, *, dtype: Any = None, **made: Any) -> Any:
    """``torch.fft.fftfreq``."""
    if not is_symbol(n):
        return NotImplemented
    place = torch.arange(n, **made)
    place = torch.where(place < (n + 1) // 2, place, place - n)
    return place.to(dtype or torch.get_default_dtype()) * (1.0 / (n * d))


def rfftfreq(n: Size, d: float = 1.0, *, dtype: Any = None, **made: Any) -> Any:
    """``torch.fft.rfftfreq``."""
    if not is_symbol(n):
        return NotImplemented
    place = torch.arange(n // 2 + 1, dtype=dtype or torch.get_default_dtype(), **made)
    return place * (1.0 / (n * d))


def affine_grid(theta: Tensor, size: Any, align_corners: bool | None = None) -> Any:
    """``torch.nn.functional.affine_grid``: ``[N, *sizes, dimensions]``."""
    sizes = list(size)[2:]
    if not any(is_symbol(item) for item in size) or len(sizes) not in (2, 3):
        return NotImplemented
    axes = []
    for n in sizes:
        axis = torch.arange(n, dtype=theta.dtype)
        span = torch.full((), n - 1 if align_corners else n, dtype=theta.dtype).clamp(min=1)
        axis = axis * 2 - (n - 1)
        axes.append(axis / span)
    grids = torch.meshgrid(*axes, indexing="ij")[::-1]  # x first
    base = torch.stack([*grids, torch.ones_like(grids[0])], -1).flatten(0, -2)
    placed = base @ theta.transpose(1, 2)
    return placed.reshape(theta.shape[0], *sizes, len(sizes))


#: What is computed instead of torch's functions, each with the same arguments.
SEQUENCES: dict[Any, Callable[..., Any]] = {
    torch.linspace: linspace,
    torch.logspace: logspace,
    torch.hann_window: hann_window,
    torch.hamming_window: hamming_window,
    torch.blackman_window: blackman_window,
    torch.bartlett_window: bartlett_window,
    torch.kaiser_window: kaiser_window,
    torch.tril_indices: tril_indices,
    torch.triu_indices: triu_indices,
    functional.one_hot: one_hot,
    torch.combinations: combinations,
    torch.vander: vander,
    torch.fft.fftfreq: fftfreq,
    torch.fft.rfftfreq: rfftfreq,
    functional.affine_grid: affine_grid,
}
