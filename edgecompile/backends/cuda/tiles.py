"""Which tile a product is computed with, by a model of the target: nothing can be timed here.

A product [m, k] x [k, n] is cut into blocks of ``tile.m`` x ``tile.n``, each of which walks along k in
steps of ``tile.k``. The model counts cycles: a step takes what is largest of the latency of memory that the
pipeline leaves, the multiplications, and the bytes, of all blocks that share a multiprocessor; blocks that
don't fit at once wait for another wave. What decides at small sizes is how many blocks there are for how
many multiprocessors, at large ones how often the operands are read again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgecompile.targets.gpu import GpuFacts

#: Multiply-adds that the tensor cores of a multiprocessor do in a cycle, in float16 and bfloat16: NVIDIA's
#: white papers of GA100, of Orin and of GH100 (mma.sync reaches half of its figure for wgmma). Float32 is
#: multiplied by the ordinary cores.
_HALF, _SINGLE = 1024, 128
#: Cycles until memory answers, and bytes in a cycle that each multiprocessor gets from the second-level
#: cache when all of them ask. Assumptions, of the size that published microbenchmarks of A100 and H100
#: have (200 to 700 cycles, 4 to 6 TB/s); tile choices are to be compared on devices.
_LATENCY, _BYTES = 500, 32
#: Cycles of a block outside its steps: launching, addresses, the sums' way to memory.
_FRAME = 800
_REGISTERS, _BLOCKS = 65536, 32


@dataclass(frozen=True)
class Tile:
    """How a template cuts a product up.

    Attributes:
        m, n, k: rows, columns and depth of a block's step.
        stages: of the pipeline of loads.
        warps: of a block.
    """

    m: int
    n: int
    k: int
    stages: int
    warps: int

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Tile:
        """The tile of a product's template, by the names of its options."""
        m, n, k = (int(options[f"BLOCK_{name}"]) for name in "MNK")
        return cls(m, n, k, options["num_stages"], options["num_warps"])

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Tile:
        """The tile of a template as it describes itself: ``(m, k, n)``."""
        m, k, n = (int(text) for text in re.findall(r"-?\d+", facts["tile_shape"]))
        return cls(m, n, k, facts["num_stages"], facts["num_warps"])

    def shared_memory(self, width: int) -> int:
        """Bytes of shared memory for operands of ``width`` bytes each."""
        return self.stages * (self.m + self.n) * self.k * width


@dataclass(frozen=True)
class Product:
    """The sizes of a product.

    Attributes:
        m, n, k: rows, columns and depth; of a convolution: positions, channels out, and channels in
            times the kernel's size.
        batch: how many of them at once.
        width: bytes of an operand's number.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    width: int = 2


def cycles(product: Product, tile: Tile, gpu: GpuFacts) -> float:
    """How many cycles the model gives a product with a tile; infinite where it doesn't fit."""
    shared = tile.shared_memory(product.width)
    if shared > gpu.shared_memory:
        return math.inf
    # The sums stay in registers; with more than 128 of them for a thread they spill.
    sums = tile.m * tile.n / (32 * tile.warps)
    if sums > 128:
        return math.inf
    registers = 32 * tile.warps * (sums + 64)
    resident = max(
        1,
        min(
            _BLOCKS,
            int(_REGISTERS / registers),
            gpu.threads // (32 * tile.warps),
            gpu.shared_memory // max(shared, 1),
        ),
    )
    blocks = product.batch * math.ceil(product.m / tile.m) * math.ceil(product.n / tile.n)
    waves = math.ceil(blocks / (gpu.multiprocessors * resident))
    together = min(resident, math.ceil(blocks / gpu.multiprocessors))
    rate = _HALF if product.width == 2 else _SINGLE
    multiply = tile.m * tile.n * tile.k / (rate * min(1.0, together * tile.warps / 4))
    load = (tile.m + tile.n) * tile.k * product.width / _BYTES
    alone = max(multiply, load)  # of one block, whose pipeline hides the latency, or not
    alone = max(alone, _LATENCY / (tile.stages - 1)) if tile.stages > 1 else alone + _LATENCY
    step = max(alone, together * multiply, together * load)
    store = together * tile.m * tile.n * product.width / _BYTES
    return waves * (_FRAME + _LATENCY + math.ceil(product.k / tile.k) * step + store)


#: How a program's tiles may be chosen: by the model; or as the model's next best among larger ones, among
#: smaller ones, or among those of equal size with other steps, stages or warps.
RULES = ("model", "larger", "smaller", "steps")


def choose_tile(
    gpu: GpuFacts, product: Product, tiles: Sequence[Tile], rule: str = RULES[0]
) -> int:
    """The index of the tile with which the model makes the product fastest; of equals the first.

    Where none fits the target, the smallest. Another rule than the first takes the fastest of those that it
    allows beside this one, and this one where it allows none that fits.
    """
    costs = [cycles(product, tile, gpu) for tile in tiles]
    best = min(range(len(tiles)), key=costs.__getitem__)
    if math.isinf(costs[best]):
        return min(range(len(tiles)), key=lambda i: tiles[i].shared_memory(product.width))
    others = [
        index
        for index, tile in enumerate(tiles)
        if math.isfinite(costs[index]) and _allowed(rule, tile, tiles[best])
    ]
    return min(others, key=costs.__getitem__, default=best)


def _allowed(rule: str, tile: Tile, best: Tile) -> bool:
    area, chosen = tile.m * tile.n, best.m * best.n
    if rule == "larger":
        return area > chosen
    if rule == "smaller":
        return area < chosen
    return rule == "steps" and tile != best and (tile.m, tile.n) == (best.m, best.n)
