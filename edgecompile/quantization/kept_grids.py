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
    """A matrix ``[N, K]`` as a checkpoint stores it: ``scale * (value - zero)``.

    Attributes:
        values: uint8 ``[N, K]`` of 0 to 15, or int8.
        scales: ``[N, ceil(K / block)]``, of any float type. float16 has to hold those of uint8 values exactly.
        block: inputs that share a scale: 32 or a multiple.
        zeros: whole numbers of 0 to 16, shaped as the scales; None: 8 for uint8 values, 0 for int8.
    """

    values: Tensor
    scales: Tensor
    block: int = ops.HALF_BLOCK
    zeros: Tensor | None = None

    def unpack(self) -> Tensor:
        """The float32 matrix."""
        n, k = self.values.shape
        return ops.unpack_weight(self.pack(), n, k)

    def pack(self) -> Tensor:
        """The matrix as products read it.

        Raises:
            CompileError: no product reads such a grid.
        """
        _require(
            self.values.dtype == torch.uint8 and self.zeros is None,
            "only uint8 values without zeros can be packed",
        )
        _require(bool((self.values < 16).all()), "a value is beyond 15")
        return ops.pack_int4(self.values.to(torch.int8) - 8, _halves(self._spread(self.scales)))

    def _spread(self, of_blocks: Tensor) -> Tensor:
        """What blocks have, for every 32 inputs."""
        n, k = self.values.shape
        times, rest = divmod(self.block, ops.HALF_BLOCK)
        blocks = -(-k // max(self.block, 1))
        _require(self.block > 0 and rest == 0, f"blocks of {self.block} inputs aren't whole 32s")
        _require(
            of_blocks.shape == (n, blocks),
            f"{list(of_blocks.shape)} isn't a number for each {self.block} of [{n}, {k}]",
        )
        return of_blocks.repeat_interleave(times, 1)[:, : -(-k // ops.HALF_BLOCK)]


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
        try:
            tensor = torch.cat([grids[name].pack() for name in names])
        except CompileError as error:
            raise CompileError(f"{', '.join(names)}: {error}") from error
        n, k = exact.shape
        panels = [-(-int(grids[name].values.shape[0]) // ops.PANEL) for name in names]
        same = sum(panels) == -(-n // ops.PANEL) and all(
            grids[name].values.shape[1] == k for name in names
        )
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


def _halves(numbers: Tensor) -> Tensor:
    """The numbers in float16, which has to hold them exactly."""
    halves = numbers.to(torch.float16)
    _require(
        bool((halves.to(torch.float64) == numbers.to(torch.float64)).all()),
        "a scale isn't a number of half precision",
    )
    return halves


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise CompileError(f"the grid can't be kept: {problem}")
