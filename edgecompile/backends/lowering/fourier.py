"""Discrete Fourier transforms as products with tables of cosines and sines.

Quick for the sizes that models transform, a few hundred. A complex operand is a pair of real
tensors, a real one a tensor; so is the result. Names, arguments and norms are those of torch.fft.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

aten = torch.ops.aten

Pair = tuple[Tensor, Tensor]


def _transform(
    x: Pair | Tensor, n: Any, dim: int, norm: str | None, inverse: bool, half: bool = False
) -> Pair:
    """Along ``dim``, of size ``n`` (None: the tensor's): cut to it, or filled up with zeros.

    With ``half`` of a real tensor, of which the first ``n // 2 + 1`` coefficients say all.
    """
    real, imaginary = (_floating(x), None) if isinstance(x, Tensor) else x
    n = real.shape[dim] if n is None else n
    outputs = n // 2 + 1 if half else n
    cos, sin = _tables(real, dim, outputs, n, lambda i, _: i < n)
    scale = _scale(n, norm, inverse)
    cos, sin = cos * scale, sin * (scale if inverse else -scale)
    if imaginary is None:
        return _product(real, cos, dim), _product(real, sin, dim)
    return (
        _product(real, cos, dim) - _product(imaginary, sin, dim),
        _product(real, sin, dim) + _product(imaginary, cos, dim),
    )


def _to_real(x: Pair | Tensor, n: Any, dim: int, norm: str | None, inverse: bool) -> Tensor:
    """To ``n`` real numbers (None: an even number) from the first ``n // 2 + 1`` coefficients.

    The others are the conjugates of all but the first and, of an even size, the last of these,
    whose imaginary parts count as zero.
    """
    real, imaginary = (_floating(x), torch.zeros_like(_floating(x))) if isinstance(x, Tensor) else x
    n = 2 * (real.shape[dim] - 1) if n is None else n
    cos, sin = _tables(real, dim, n, n, lambda i, n: 2 * i <= n)
    scale = _scale(n, norm, inverse)
    row = torch.arange(real.shape[dim])[:, None]
    twice = ((row > 0) & (2 * row < n)).to(cos.dtype)
    cos, sin = cos * (1 + twice) * scale, sin * (2 * twice) * (scale if inverse else -scale)
    return _product(real, cos, dim) - _product(imaginary, sin, dim)


def _floating(x: Tensor) -> Tensor:
    return x if x.is_floating_point() else x.to(torch.get_default_dtype())


def _scale(n: Any, norm: str | None, inverse: bool) -> Any:
    if norm == "ortho":
        return n**-0.5
    return 1 / n if (norm or "backward") == ("backward" if inverse else "forward") else 1


def _product(part: Tensor, table: Tensor, dim: int) -> Tensor:
    return (part.transpose(dim, -1) @ table).transpose(dim, -1)


def _tables(
    like: Tensor, dim: int, outputs: Any, n: Any, counts: Callable[[Any, Any], Any]
) -> Pair:
    """Cosines and sines of ``2 pi i k / n``, zero in rows ``i`` that don't count.

    Sines of half turns are exactly zero: what is real has no imaginary part then, as in torch.
    """
    inputs, dtype = like.shape[dim], like.dtype
    if all(isinstance(size, int) for size in (inputs, outputs, n)):
        # Constants of the graph, made by numpy, of which tracing sees nothing but the results.
        rows, columns = np.arange(inputs)[:, None], np.arange(outputs)
        # Reduced first: the angle of a large product would have no digits left.
        angle = (rows * columns % n) * (2 * math.pi / n)
        kind = np.float64 if dtype == torch.float64 else np.float32
        cosines = np.cos(angle) * counts(rows, n)
        sines = np.sin(angle) * (counts(rows, n) & (2 * rows * columns % n != 0))
        return torch.from_numpy(cosines.astype(kind)), torch.from_numpy(sines.astype(kind))
    i, k = torch.arange(inputs)[:, None], torch.arange(outputs)
    turns = (i * k % n).to(dtype) / n
    # Half a turn either way: float32 has the most digits there.
    angle = (turns - torch.round(turns)) * (2 * math.pi)
    left_out = ~counts(i, n)
    straight = 2 * i * k % n == 0
    return torch.cos(angle).masked_fill(left_out, 0), torch.sin(angle).masked_fill(
        left_out | straight, 0
    )


def _function(
    inverse: bool, *, half: bool = False, real: bool = False, last: Any = -1
) -> Callable[..., Any]:
    """One of torch.fft's functions.

    Args:
        inverse: whether it is the inverse transform.
        half: whether it takes real numbers and gives half of their spectrum, along the last dimension.
        real: whether it gives real numbers, along the last dimension.
        last: the dimension or dimensions that it takes by itself; None: all.
    """

    def run(x: Any, sizes: Any = None, dim: Any = last, norm: str | None = None) -> Any:
        *others, (final, size) = _sizes(x, sizes, dim)
        if half:  # first, as it leaves complex numbers for the others
            x = _transform(x, size, final, norm, inverse, half=True)
        for d, n in others:
            x = _transform(x, n, d, norm, inverse)
        if real:
            return _to_real(x, size, final, norm, inverse)
        return x if half else _transform(x, size, final, norm, inverse)

    return run


def _sizes(x: Any, sizes: Any, dim: Any) -> list[tuple[int, Any]]:
    """The dimensions with the size asked for of each, None for the tensor's own."""
    rank = (x if isinstance(x, Tensor) else x[0]).dim()
    if isinstance(dim, int):
        return [(dim, sizes)]
    if dim is None:
        dim = range(rank) if sizes is None else range(rank - len(sizes), rank)
    if sizes is None:
        return [(d, None) for d in dim]
    return [(d, None if n == -1 else n) for d, n in zip(dim, sizes, strict=True)]


#: By the operators that export leaves of torch.fft's functions.
TRANSFORMS: dict[Any, Callable[..., Any]] = {
    aten.fft_fft.default: _function(inverse=False),
    aten.fft_ifft.default: _function(inverse=True),
    aten.fft_rfft.default: _function(inverse=False, half=True),
    aten.fft_ihfft.default: _function(inverse=True, half=True),
    aten.fft_irfft.default: _function(inverse=True, real=True),
    aten.fft_hfft.default: _function(inverse=False, real=True),
    aten.fft_fftn.default: _function(inverse=False, last=None),
    aten.fft_ifftn.default: _function(inverse=True, last=None),
    aten.fft_rfftn.default: _function(inverse=False, half=True, last=None),
    aten.fft_irfftn.default: _function(inverse=True, real=True, last=None),
    aten.fft_fft2.default: _function(inverse=False, last=(-2, -1)),
    aten.fft_ifft2.default: _function(inverse=True, last=(-2, -1)),
    aten.fft_rfft2.default: _function(inverse=False, half=True, last=(-2, -1)),
    aten.fft_irfft2.default: _function(inverse=True, real=True, last=(-2, -1)),
}
