"""Weights of a checkpoint that is rounded already, packed with the very numbers that it stores.

Rounding such a weight again would add a second error to the first one. Its whole numbers, scales and
offsets are those of the packed weight instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from edgecompile.backends.operators import ops
from edgecompile.errors import CompileError
from edgecompile.quantization.gptq import RoundedWeights, hash_matrix

#: By how much the float32 matrix of a loaded model may differ from its grid: bfloat16 rounds by half as much.
_RELATIVE, _OF_LARGEST = 2.0**-8, 2.0**-20


@dataclass(frozen=True, eq=False)
class KeptGrid:
    """A matrix ``[N, K]`` as a checkpoint stores it: ``scale * (value - zero)`` or ``scale * value + minimum``.

    Attributes:
        values: uint8 ``[N, K]`` of 0 to 15, or int8.
        scales: ``[N, ceil(K / block)]``, of any float type. float16 has to hold those of uint8 values exactly,
            float32 the others.
        block: inputs that share a scale: 32 or a multiple.
        zeros: whole numbers of 0 to 16, shaped as the scales; None: 8 for uint8 values, 0 for int8.
        minimums: in place of zeros, numbers shaped as the scales that float16 holds exactly.
    """

    values: Tensor
    scales: Tensor
    block: int = ops.HALF_BLOCK
    zeros: Tensor | None = None
    minimums: Tensor | None = None

    def unpack(self) -> Tensor:
        """The float32 matrix."""
        n, k = self.values.shape
        return ops.unpack_weight(self.pack(), n, k)

    def pack(self) -> Tensor:
        """The matrix as products read it.

        Raises:
            CompileError: no product reads such a grid.
        """
        values, zeros, minimums = self.values, self.zeros, self.minimums
        if values.dtype == torch.int8:
            _require(zeros is None and minimums is None, "int8 values have zeros or minimums")
            return ops.pack_int8_halves(values, _exactly(self.spread(self.scales), torch.float32))
        _require(values.dtype == torch.uint8, f"values are {values.dtype}")
        _require(bool((values < 16).all()), "a value is beyond 15")
        _require(zeros is None or minimums is None, "it has both zeros and minimums")
        size = 2 * ops.HALF_BLOCK
        if self.block % size or minimums is not None:
            size = ops.HALF_BLOCK
        shifts = None
        if zeros is not None:
            _require(bool(((zeros >= 0) & (zeros <= 16)).all()), "a zero is beyond 0 to 16")
            shifts = _exactly(self.spread(zeros, size), torch.uint8)
        elif minimums is not None:
            shifts = _exactly(self.spread(minimums, size), torch.float16)
        scales = _exactly(self.spread(self.scales, size), torch.float16)
        return ops.pack_int4(values.to(torch.int8) - 8, scales, shifts, block=size)

    def spread(self, of_blocks: Tensor, size: int = ops.HALF_BLOCK) -> Tensor:
        """The numbers that blocks have, for every ``size`` inputs."""
        n, k = self.values.shape
        _require(
            self.block > 0 and self.block % size == 0,
            f"blocks of {self.block} inputs aren't whole {size}s",
        )
        _require(
            of_blocks.shape == (n, -(-k // self.block)),
            f"{list(of_blocks.shape)} isn't a number for each {self.block} of [{n}, {k}]",
        )
        return of_blocks.repeat_interleave(self.block // size, 1)[:, : -(-k // size)]


def _join(grids: Sequence[KeptGrid]) -> KeptGrid:
    """The grid of matrices below each other, in the form that holds all of theirs."""
    if len(grids) == 1:
        return grids[0]
    values = torch.cat([grid.values.to(torch.int16) for grid in grids])
    scales = torch.cat([grid.spread(grid.scales).to(torch.float64) for grid in grids])
    shifted = [grid for grid in grids if grid.minimums is not None]
    if any(grid.values.dtype == torch.int8 for grid in grids):
        _require(not shifted, "int8 values are merged with minimums")
        k = values.shape[1]
        zeros = torch.cat([_zeros(grid).repeat_interleave(ops.HALF_BLOCK, 1) for grid in grids])
        return KeptGrid((values - zeros[:, :k]).to(torch.int8), scales)
    values = values.to(torch.uint8)
    zeros = torch.cat([_zeros(grid) for grid in grids])
    if shifted:
        of_zeros = [-_zeros(grid) * grid.spread(grid.scales).to(torch.float64) for grid in grids]
        minimums = [
            made if grid.minimums is None else grid.spread(grid.minimums).to(torch.float64)
            for grid, made in zip(grids, of_zeros, strict=True)
        ]
        return KeptGrid(values, scales, minimums=torch.cat(minimums))
    if all(grid.block == grids[0].block for grid in grids):
        plain = all(grid.zeros is None for grid in grids)
        own = [torch.full_like(g.scales, 8) if g.zeros is None else g.zeros for g in grids]
        scales = torch.cat([grid.scales.to(torch.float64) for grid in grids])
        return KeptGrid(values, scales, grids[0].block, None if plain else torch.cat(own))
    return KeptGrid(values, scales, zeros=zeros)


def _zeros(grid: KeptGrid) -> Tensor:
    """The zeros of every 32 inputs, in int16."""
    zero = 0 if grid.values.dtype == torch.int8 else 8
    of_blocks = torch.full_like(grid.scales, zero) if grid.zeros is None else grid.zeros
    return grid.spread(of_blocks).to(torch.int16)


def keep_grids(
    products: Mapping[str, tuple[Sequence[str], Tensor]], grids: Mapping[str, KeptGrid]
) -> RoundedWeights:
    """Packed weights for the products whose weights all have a grid.

    Args:
        products: the names and the float32 values of each product's weights, by the packed attribute, as
            :attr:`QuantizedProgram.products <edgecompile.quantization.program.QuantizedProgram.products>` has them.
        grids: the grids, by the names that products give their weights.

    Raises:
        CompileError: a grid can't be packed, or doesn't stand for the product's values.
    """
    packed, origins = {}, {}
    for attr, (names, exact) in products.items():
        if exact.dim() != 2 or not names or not all(name in grids for name in names):
            continue
        own, (n, k) = [grids[name] for name in names], exact.shape
        same = all(grid.values.dim() == 2 and grid.values.shape[1] == k for grid in own)
        try:
            joined = _join(own) if same else own[0]
            tensor = joined.pack()
        except CompileError as error:
            raise CompileError(f"{', '.join(names)}: {error}") from error
        same = same and joined.values.shape == exact.shape
        if not same or not _stands_for(ops.unpack_weight(tensor, n, k), exact):
            raise CompileError(
                f"{', '.join(names)}: the checkpoint's grid has other values than the model",
                hint="a loader that reorders a weight has to reorder its grid as well",
            )
        packed[attr], origins[attr] = tensor, hash_matrix(exact)
    return RoundedWeights(packed, origins)


def _stands_for(kept: Tensor, exact: Tensor) -> bool:
    size = exact.abs()
    most = float(size.max()) if size.numel() else 0.0
    return bool(((kept - exact).abs() <= _RELATIVE * size + _OF_LARGEST * most).all())


def _exactly(numbers: Tensor, dtype: torch.dtype) -> Tensor:
    """The numbers in a type, which has to hold them exactly."""
    made = numbers.to(dtype)
    same = bool((made.to(torch.float64) == numbers.to(torch.float64)).all())
    _require(same, f"a scale, zero or minimum is no number of {dtype}")
    return made


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise CompileError(f"the grid can't be kept: {problem}")
