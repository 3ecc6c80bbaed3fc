"""Weights in MXFP4: blocks of 32 numbers of 4 bits (E2M1) that share a power of two (E8M0).

The layout is that of the OCP Microscaling Formats (MX) Specification 1.0: a byte has two numbers, the first in
its low bits. Twice a number is whole, so int8 values with half of the power as their scale are the same numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from edgecompile.errors import ModelError
from edgecompile.models.stored import GridValues

#: The form of such a matrix, for people: the kernels have no table of 16 numbers.
MXFP4_FORM = "MXFP4 (held as int8)"
#: Numbers that share a power of two.
BLOCK = 32
#: Twice the number of each code; the other eight codes are their negatives.
_DOUBLED = torch.tensor([0, 1, 2, 3, 4, 6, 8, 12], dtype=torch.int8)
#: The exponent of a power is the byte less 127; this byte says that the block is no number.
_BIAS, _NAN = 127, 255


def unpack_mxfp4(name: str, packed: Tensor, exponents: Tensor) -> GridValues:
    """A weight on its grid: int8 values, and scales that are powers of two.

    Args:
        name: name of the weight, for errors.
        packed: uint8 ``[N, K / 2]``, two numbers a byte.
        exponents: uint8 ``[N, K / 32]``.

    Raises:
        ModelError: a tensor has another type or shape, or a block has values that float32 lacks.
    """
    for tensor in (packed, exponents):
        _require(tensor.dtype == torch.uint8, name, f"packed numbers are {tensor.dtype}, not uint8")
        _require(tensor.dim() == 2, name, f"a packed part has the shape {list(tensor.shape)}")
    n, k = packed.shape[0], 2 * packed.shape[1]
    _require(k > 0 and k % BLOCK == 0, name, f"{k} inputs are no multiple of {BLOCK}")
    fits = exponents.shape == (n, k // BLOCK)
    _require(fits, name, f"it has scales of {list(exponents.shape)} for {[n, k]}")
    codes = torch.stack([packed & 15, packed >> 4], 2).view(n, k)
    return grid_of_codes(name, codes, exponents)


def grid_of_codes(name: str, codes: Tensor, exponents: Tensor) -> GridValues:
    """The grid of codes of 0 to 15, ``[N, K]``; otherwise as :func:`unpack_mxfp4`."""
    _require(not bool((exponents == _NAN).any()), name, "a scale is no number")
    table = torch.cat([_DOUBLED, -_DOUBLED])
    powers = exponents.to(torch.int32) - _BIAS - 1
    scales = torch.ldexp(torch.ones(powers.shape), powers)
    rows = GridValues(table[codes.to(torch.int32)], scales, BLOCK)
    _require(bool(rows.numbers().isfinite().all()), name, "a number is beyond float32")
    return rows


def _require(condition: bool, name: str, problem: str) -> None:
    if not condition:
        raise ModelError(f"{name}: {problem}", hint="fetch or write the weights again")
