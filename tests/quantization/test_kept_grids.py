"""Grids of checkpoints: packed weights have the very numbers that the checkpoint stores."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from edgecompile.backends.cpu.lowering.lower import lower_graph
from edgecompile.backends.operators import ops
from edgecompile.errors import CompileError
from edgecompile.precision import Precision
from edgecompile.quantization.kept_grids import KeptGrid, keep_grids

FORMS = ["plain", "zeros", "minimums", "int8"]


def draw(n: int, k: int, block: int = 32, form: str = "plain") -> KeptGrid:
    generator = torch.Generator().manual_seed(n * k)

    def whole(lowest: int, highest: int, width: int, dtype: torch.dtype = torch.uint8) -> Tensor:
        return torch.randint(lowest, highest + 1, (n, width), generator=generator, dtype=dtype)

    blocks = -(-k // block)
    scales = torch.randn(n, blocks, generator=generator).to(torch.float16)
    if form == "int8":
        return KeptGrid(whole(-128, 127, k, torch.int8), scales, block)
    zeros = whole(0, 16, blocks) if form == "zeros" else None
    minimums = scales * whole(-8, 0, blocks, torch.int8) / 4 if form == "minimums" else None
    return KeptGrid(whole(0, 15, k), scales, block, zeros, minimums)


def values_of(grid: KeptGrid) -> Tensor:
    """By the definition, in float32, which holds each product."""
    k = grid.values.shape[1]

    def wide(numbers: Tensor) -> Tensor:
        return numbers.repeat_interleave(grid.block, 1)[:, :k].to(torch.float32)

    values = grid.values.to(torch.float32)
    if grid.minimums is not None:
        return wide(grid.scales) * values + wide(grid.minimums)
    if grid.zeros is not None:
        return wide(grid.scales) * (values - wide(grid.zeros))
    return wide(grid.scales) * (values - (0 if grid.values.dtype == torch.int8 else 8))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("block", [32, 64, 128])
@pytest.mark.parametrize(("n", "k"), [(1, 1), (33, 64), (64, 100), (40, 130), (3, 0)])
def test_a_packed_grid_has_the_checkpoints_numbers(n: int, k: int, block: int, form: str) -> None:
    grid = draw(n, k, block, form)
    packed = grid.pack()
    assert torch.equal(ops.unpack_weight(packed, n, k), values_of(grid))
    assert torch.equal(grid.unpack(), values_of(grid))
    whole, blocks = block > 32 and form in ("plain", "zeros"), -(-k // 64)
    sizes = {"plain": 1024 + 128, "zeros": 1024 + 192, "minimums": 1024 + 256, "int8": 2048 + 256}
    each = (sizes[form] + 1024) // 2 if whole else sizes[form]
    assert tuple(packed.shape) == (-(-n // 32), blocks * each)


@pytest.mark.parametrize("first", FORMS)
@pytest.mark.parametrize("second", FORMS)
@pytest.mark.parametrize("blocks", [(32, 32), (64, 64), (64, 32), (128, 64)])
def test_merged_products_hold_grids_of_unlike_forms(
    first: str, second: str, blocks: tuple[int, int]
) -> None:
    grids = {"q": draw(64, 160, blocks[0], first), "k": draw(32, 160, blocks[1], second)}
    exact = torch.cat([values_of(grid) for grid in grids.values()])
    products = {"qk": (("q", "k"), exact)}
    if {first, second} == {"int8", "minimums"}:
        with pytest.raises(CompileError, match=r"q, k: .* int8 values are merged with minimums"):
            keep_grids(products, grids)
    elif {first, second} == {"zeros", "minimums"}:  # zero * scale has more bits than float16
        with pytest.raises(CompileError, match=r"q, k: .* no number of torch\.float16"):
            keep_grids(products, grids)
    else:
        taken = keep_grids(products, grids).take(
            "qk", exact, "int8" if "int8" in (first, second) else "int4"
        )
        assert taken is not None and torch.equal(ops.unpack_weight(taken, 96, 160), exact)


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
        (replace(grid, values=grid.values.to(torch.int32)), "values are torch.int32"),
        (replace(grid, zeros=grid.scales + 17), "a zero is beyond 0 to 16"),
        (replace(grid, zeros=torch.full((40, 3), 0.5)), "no number of torch.uint8"),
        (replace(grid, zeros=grid.scales, minimums=grid.scales), "both zeros and minimums"),
        (replace(grid, minimums=torch.full((40, 3), 1 / 3)), "no number of torch.float16"),
        (replace(draw(40, 96, form="int8"), minimums=grid.scales), "int8 values have zeros"),
        (replace(grid, block=48), "blocks of 48 inputs aren't whole 32s"),
        (replace(grid, block=0), "blocks of 0 inputs"),
        (replace(grid, block=64), r"\[40, 3\] isn't a number for each 64 of \[40, 96\]"),
        (replace(grid, scales=torch.full((40, 3), 1 / 3)), "no number of torch.float16"),
        (replace(grid, scales=torch.full((40, 3), 1e6)), "no number of torch.float16"),
    ):
        with pytest.raises(CompileError, match=problem):
            wrong.pack()


@pytest.mark.parametrize("form", FORMS)
def test_a_lowered_program_has_the_checkpoints_weights(form: str) -> None:
    grids = {name: draw(n, 96, 32, form) for name, n in (("q", 64), ("k", 32), ("other", 40))}

    class Layers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, grid in grids.items():
                layer = torch.nn.Linear(96, len(grid.values), bias=False)
                layer.weight = torch.nn.Parameter(values_of(grid))
                setattr(self, name, layer)

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([self.q(x), self.k(x), torch.relu(self.other(x))], 1)

    x = torch.randn(5, 96, generator=torch.Generator().manual_seed(1))
    exported = torch.export.export(Layers(), (x,))
    exact = exported.module()
    packed = lower_graph(exact).packed
    products = {
        attr: (tuple(names), torch.cat([values_of(grids[name.split(".")[0]]) for name in names]))
        for attr, names in packed.items()
    }
    own = {f"{name}.weight": grid for name, grid in grids.items()}
    rounded = keep_grids(products, own)
    assert rounded.packed.keys() == packed.keys() and len(packed) == 2
    lowered = exported.module()
    precision = Precision("int8" if form == "int8" else "int4", rounded=rounded)
    lower_graph(lowered, precision)
    for attr, tensor in rounded.packed.items():
        assert torch.equal(lowered.get_buffer(attr), tensor)
    want = torch.nn.functional.linear(
        ops.round_activations(x), torch.cat([values_of(g) for g in grids.values()]).double()
    )
    want[:, 96:].relu_()
    torch.testing.assert_close(lowered(x), want.float(), rtol=1e-4, atol=1e-3)
