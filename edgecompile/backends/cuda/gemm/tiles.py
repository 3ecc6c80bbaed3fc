"""Chooses the tile of a product by a model of the target: nothing can be timed here.

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


@dataclass(frozen=True)
class Costs:
    """The model's constants for a kind of kernel.

    Attributes:
        half, single: multiply-adds that a multiprocessor does in a cycle, in half precision or fp8 on the tensor
            cores, and in float32 on the ordinary ones.
        latency: cycles until memory answers a step of the pipeline.
        bytes: in a cycle that each multiprocessor gets from the second-level cache when all of them ask.
        frame: cycles of a block outside its steps: launching, addresses, the sums' way to memory.
        registers: the registers of a thread, besides its sums.
        second: cycles of a kernel that adds parts, beside its bytes.
    """

    half: int
    single: int
    latency: int
    bytes: int
    frame: int
    registers: int
    second: int = 0


#: Of the templates for products, in half precision: fitted to the times of 48 products of 16 to 4,096 rows with 105
#: tiles on an H100. What it chooses of PRODUCT_TILES takes 5 % longer than the best of all in the mean, 15 % at most.
PRODUCTS = Costs(half=2318, single=128, latency=926, bytes=83, frame=2405, registers=39)
#: Of the kernel for convolutions, in half precision: fitted to 1,305 times of 102 convolutions with these
#: tiles on an H100. What it chooses takes 3 % longer than the best of them in the mean, 24 % at most.
CONVOLUTIONS = Costs(
    half=800, single=128, latency=1500, bytes=34, frame=2700, registers=32, second=3500
)
#: Of the same template in fp8: fitted to 2,700 times of 45 products with 71 tiles on an H100. What it chooses of FP8_TILES
#: takes 3 % longer than the best of all in the mean, 14 % at most.
FP8_PRODUCTS = Costs(half=1449, single=128, latency=2314, bytes=35, frame=2652, registers=72)
_REGISTERS, _BLOCKS = 65536, 32


@dataclass(frozen=True)
class Tile:
    """The tile sizes with which a template divides a matmul.

    Attributes:
        m, n, k: rows, columns and depth of a block's step.
        stages: the stages of the pipeline of loads.
        warps: the warps of a block.
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
        batch: the number of them at once.
        width: bytes of an operand's number.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    width: int = 2


def cycles(
    product: Product, tile: Tile, gpu: GpuFacts, parts: int = 1, costs: Costs | None = None
) -> float:
    """The cycles that the model predicts for a matmul with a tile; infinite where it doesn't fit.

    Args:
        product: its sizes.
        tile: the tile of a block.
        gpu: the GPU that it is for.
        parts: blocks that share the depth of one tile; their sums are added by a second kernel.
        costs: the costs of the kernel; None: those of the templates for matmuls.
    """
    costs = costs or (FP8_PRODUCTS if product.width == 1 else PRODUCTS)
    shared = tile.shared_memory(product.width)
    if shared > gpu.shared_memory:
        return math.inf
    # The sums stay in registers; with more than 128 of them for a thread they spill.
    sums = tile.m * tile.n / (32 * tile.warps)
    if sums > 128:
        return math.inf
    registers = 32 * tile.warps * (sums + costs.registers)
    resident = max(
        1,
        min(
            _BLOCKS,
            int(_REGISTERS / registers),
            gpu.threads // (32 * tile.warps),
            gpu.shared_memory // max(shared, 1),
        ),
    )
    blocks = product.batch * math.ceil(product.m / tile.m) * math.ceil(product.n / tile.n) * parts
    waves = math.ceil(blocks / (gpu.multiprocessors * resident))
    together = min(resident, math.ceil(blocks / gpu.multiprocessors))
    rate = costs.half if product.width <= 2 else costs.single
    multiply = tile.m * tile.n * tile.k / (rate * min(1.0, together * tile.warps / 4))
    load = (tile.m + tile.n) * tile.k * product.width / costs.bytes
    alone = max(multiply, load)  # of one block, whose pipeline hides the latency, or not
    alone = (
        max(alone, costs.latency / (tile.stages - 1)) if tile.stages > 1 else alone + costs.latency
    )
    step = max(alone, together * multiply, together * load)
    width = max(product.width, 2) if parts == 1 else 4
    store = together * tile.m * tile.n * width / costs.bytes
    steps = math.ceil(math.ceil(product.k / tile.k) / parts)
    total = waves * (costs.frame + costs.latency + steps * step + store)
    if parts == 1:
        return total
    sums = product.batch * product.m * product.n * parts * width
    return total + costs.second + sums / (costs.bytes * gpu.multiprocessors)


#: How a program's tiles may be chosen: by the model; or as the model's next best among larger ones, among
#: smaller ones, or among those of equal size with other steps, stages or warps.
RULES = ("model", "larger", "smaller", "steps")


def choose_tile(
    gpu: GpuFacts, products: Sequence[Product], tiles: Sequence[Tile], rule: str = RULES[0]
) -> int:
    """The index of the tile with which the model makes a product fastest; of equals the first.

    Where none fits the target, the smallest. Another rule than the first takes the fastest of those that it
    allows beside this one, and this one where it allows none that fits.

    Args:
        gpu: the target.
        products: the product at some of its sizes, each of which counts as much.
        tiles: the tiles to choose among.
        rule: one of ``RULES``.
    """
    costs = [sum(each) for each in zip(*(slowness(gpu, p, tiles) for p in products), strict=True)]
    best = min(range(len(tiles)), key=costs.__getitem__)
    others = [
        index
        for index, tile in enumerate(tiles)
        if math.isfinite(costs[index]) and _allowed(rule, tile, tiles[best])
    ]
    return min(others, key=costs.__getitem__, default=best)


def slowness(gpu: GpuFacts, product: Product, tiles: Sequence[Tile]) -> list[float]:
    """Each tile's time over the best one's, by the model; where none fits, their shared memory."""
    times = [cycles(product, tile, gpu) for tile in tiles]
    least = min(times)
    if math.isinf(least):
        return [float(tile.shared_memory(product.width)) for tile in tiles]
    # Where a step reaches past the end of the depth, every load needs a mask.
    even = [product.k % tile.k == 0 for tile in tiles]
    return [
        time / least * (1 if fits or not any(even) else _MASKED)
        for time, fits in zip(times, even, strict=True)
    ]


def _allowed(rule: str, tile: Tile, best: Tile) -> bool:
    area, chosen = tile.m * tile.n, best.m * best.n
    if rule == "larger":
        return area > chosen
    if rule == "smaller":
        return area < chosen
    return rule == "steps" and tile != best and (tile.m, tile.n) == (best.m, best.n)


#: Tiles of the template for products of half precision: rows, columns, depth, stages, warps. Those that were best
#: on an H100 at some size, or nearly so at all sizes of 64 to 1,024 rows.
PRODUCT_TILES = (
    Tile(16, 16, 128, 3, 1), Tile(16, 16, 128, 4, 1), Tile(16, 16, 256, 3, 1),
    Tile(16, 16, 256, 4, 1), Tile(16, 32, 128, 4, 2), Tile(16, 32, 256, 3, 2),
    Tile(16, 32, 256, 4, 2), Tile(64, 32, 64, 4, 4), Tile(64, 32, 64, 5, 4),
    Tile(64, 32, 128, 4, 4), Tile(64, 32, 128, 5, 4), Tile(64, 64, 32, 4, 4),
    Tile(64, 64, 64, 3, 4), Tile(64, 64, 64, 4, 4), Tile(64, 64, 64, 5, 4),
    Tile(64, 64, 128, 5, 4), Tile(64, 128, 64, 3, 4), Tile(64, 128, 64, 5, 4),
    Tile(64, 128, 128, 4, 4), Tile(128, 128, 64, 3, 8), Tile(128, 128, 64, 5, 4),
    Tile(128, 256, 64, 4, 8),
)  # fmt: skip
#: Those that were best of 71 for one of 45 products of fp8 on an H100, 16 to 4,096 rows.
FP8_TILES = (
    Tile(16, 32, 256, 4, 2), Tile(64, 32, 128, 3, 4), Tile(64, 32, 128, 4, 4),
    Tile(64, 32, 256, 4, 4), Tile(64, 32, 256, 5, 4), Tile(64, 64, 128, 3, 4),
    Tile(64, 64, 128, 4, 4), Tile(64, 64, 128, 5, 4), Tile(64, 64, 256, 3, 4),
    Tile(64, 64, 256, 4, 4), Tile(64, 128, 128, 3, 4), Tile(64, 128, 128, 4, 4),
    Tile(128, 128, 128, 4, 8),
)  # fmt: skip
#: What masked loads cost, over loads without: an assumption.
_MASKED = 1.5

#: Tiles of the kernel for convolutions, by bytes of a number: rows, columns, depth, stages, warps. Those of
#: half precision are the ones that were best somewhere on an H100; float32 was never timed.
_TILES = {
    2: (
        Tile(16, 64, 128, 4, 4), Tile(32, 32, 64, 4, 2), Tile(64, 32, 64, 4, 4),
        Tile(64, 64, 32, 5, 4), Tile(64, 64, 64, 3, 4), Tile(64, 64, 128, 3, 4),
        Tile(64, 128, 64, 4, 4), Tile(128, 64, 64, 3, 4), Tile(128, 128, 64, 3, 8),
    ),
    4: (
        Tile(16, 32, 32, 3, 2), Tile(32, 32, 32, 3, 4), Tile(64, 32, 32, 3, 4),
        Tile(64, 64, 32, 3, 4), Tile(128, 64, 16, 3, 8),
    ),
}  # fmt: skip


def choose_split(gpu: GpuFacts, product: Product) -> tuple[Tile, int]:
    """The tile of a convolution's product, and how many blocks share its depth."""
    best = _TILES[product.width][0], 1
    least = math.inf
    for tile in _TILES[product.width]:
        steps = math.ceil(product.k / tile.k)
        for few in sorted({max(2, math.ceil(steps / 2**i)) for i in range(6)} | {steps}):
            parts = math.ceil(steps / few)
            cost = cycles(product, tile, gpu, parts, CONVOLUTIONS)
            if cost < least:
                best, least = (tile, parts), cost
    return best
