"""Grids of checkpoints: packed weights have the very numbers that the checkpoint stores."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from edgecompile.backends.operators import ops
from edgecompile.errors import CompileError
from edgecompile.quantization.kept_grids import KeptGrid, keep_grids


def draw(n: int, k: int, block: int = 32) -> KeptGrid:
    generator = torch.Generator().manual_seed(n * k)
    values = torch.randint(0, 16, (n, k), generator=generator, dtype=torch.uint8)
    scales = torch.rand(n, -(-k // block), generator=generator).to(torch.float16)
    return KeptGrid(values, scales, block)


def values_of(grid: KeptGrid) -> Tensor:
    """By the definition, in float32, which holds each step of it."""
    k = grid.values.shape[1]
    scales = grid.scales.repeat_interleave(grid.block, 1)[:, :k].to(torch.float32)
    return scales * (grid.values.to(torch.float32) - 8)


@pytest.mark.parametrize("block", [32, 64, 128])
@pytest.mark.parametrize(("n", "k"), [(1, 1), (33, 64), (64, 100), (40, 130), (3, 0)])
def test_a_packed_grid_has_the_checkpoints_numbers(n: int, k: int, block: int) -> None:
    grid = draw(n, k, block)
    assert torch.equal(grid.unpack(), values_of(grid))
    assert torch.equal(ops.unpack_weight(grid.pack(), n, k), values_of(grid))


def test_products_take_grids_of_all_their_weights() -> None:
    q, k, v, other = (draw(n, 96) for n in (64, 32, 32, 40))
    products = {
        "qkv": (("q", "k", "v"), torch.cat([values_of(grid) for grid in (q, k, v)])),
        "one": (("other",), values_of(other).to(torch.bfloat16).to(torch.float32)),
        "half": (("q", "without"), torch.cat([values_of(q), torch.ones(32, 96)])),
    }
    kept = keep_grids(products, {"q": q, "k": k, "v": v, "other": other})
    assert set(kept.packed) == {"qkv", "one"}
    taken = kept.take("qkv", products["qkv"][1], "int4")
    assert taken is not None
    assert torch.equal(ops.unpack_weight(taken, 128, 96), products["qkv"][1])
    assert kept.take("qkv", products["qkv"][1], "int8") is None
    # What a loader made bfloat16 is stored with the checkpoint's numbers again.
    taken = kept.take("one", products["one"][1], "int4")
    assert taken is not None and torch.equal(ops.unpack_weight(taken, 40, 96), values_of(other))


def test_a_grid_of_other_values_is_refused() -> None:
    grid = draw(40, 96)
    exact = values_of(grid)
    for changed in (exact.flip(0), exact[:32], exact * 1.01):
        with pytest.raises(CompileError, match="weight: the checkpoint's grid has other values"):
            keep_grids({"attr": (("weight",), changed.contiguous())}, {"weight": grid})


def test_what_no_product_reads_is_refused() -> None:
    grid = draw(40, 96)
    for wrong, problem in (
        (replace(grid, values=grid.values + 8), "a value is beyond 15"),
        (replace(grid, block=48), "blocks of 48 inputs aren't whole 32s"),
        (replace(grid, block=0), "blocks of 0 inputs"),
        (replace(grid, block=64), r"\[40, 3\] isn't a number for each 64 of \[40, 96\]"),
        (replace(grid, scales=torch.full((40, 3), 1 / 3)), "isn't a number of half precision"),
        (replace(grid, scales=torch.full((40, 3), 1e6)), "isn't a number of half precision"),
    ):
        with pytest.raises(CompileError, match=problem):
            wrong.pack()
