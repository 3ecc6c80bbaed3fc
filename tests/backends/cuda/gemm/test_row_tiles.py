"""Tiles of products by their rows: which are chosen, and what a program launches at each number of rows."""

from __future__ import annotations

import ctypes
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgecompile.backends.cuda.gemm.row_tiles import (
    MOST_TILES,
    RowKernel,
    TileChooser,
    choose_row_tiles,
    launch_by_rows,
    read_template,
    with_tile,
)
from edgecompile.backends.cuda.gemm.tiles import PRODUCT_TILES, RULES, Product, Tile, cycles
from edgecompile.backends.cuda.source import Kernel
from edgecompile.errors import CompileError
from edgecompile.runtime import open_bundle
from edgecompile.targets.gpu import GpuFacts
from tests.cli.command import run
from tests.fake_gpu.build import FakeCudart
from tests.needs import need_triton

ORIN = GpuFacts(87, 8, 163 << 10, 1536, 2 << 20)
H100 = GpuFacts(90, 132, 227 << 10, 2048, 50 << 20)
PRODUCTS = [(2304, 768), (768, 768), (3072, 768), (768, 3072), (384, 384), (4096, 4096)]

SOURCE = """def product(in_ptr0, arg_A, ks0, ks1):
    EVEN_K : tl.constexpr = True
    BLOCK_M : tl.constexpr = 128
    BLOCK_N : tl.constexpr = 64
    BLOCK_K : tl.constexpr = 32
    M = ks0*ks1
    N = 768
    K = 3072
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC_TYPE)
"""


@pytest.mark.parametrize("gpu", [ORIN, H100])
@pytest.mark.parametrize(("n", "k"), PRODUCTS)
def test_each_number_of_rows_gets_nearly_its_best_tile(gpu: GpuFacts, n: int, k: int) -> None:
    most = Product(4096, n, k)
    found = choose_row_tiles(gpu, most, PRODUCT_TILES)
    limits = [item.most for item in found]
    assert limits == sorted(set(limits)) and limits[-1] == 4096 and len(found) <= MOST_TILES

    def slower(rows: int, tile: Tile) -> float:
        product = replace(most, m=rows)
        return cycles(product, tile, gpu) / min(cycles(product, t, gpu) for t in PRODUCT_TILES)

    looked_at = [16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096]
    each = [slower(m, next(x.tile for x in found if m <= x.most)) for m in looked_at]
    assert sum(each) / len(each) < 1.06
    one = min(sum(slower(m, tile) for m in looked_at) for tile in PRODUCT_TILES)
    assert sum(each) <= one


def test_one_tile_does_where_rows_are_few() -> None:
    assert len(choose_row_tiles(H100, Product(16, 768, 768), PRODUCT_TILES)) == 1


@pytest.mark.parametrize("rule", RULES[1:])
def test_other_rules_choose_other_tiles(rule: str) -> None:
    product = Product(4096, 768, 768)
    found = choose_row_tiles(H100, product, PRODUCT_TILES, rule)
    assert found[-1].most == 4096
    assert {x.tile for x in found} != {
        x.tile for x in choose_row_tiles(H100, product, PRODUCT_TILES)
    }


def test_tiles_divide_the_depth_all_or_none() -> None:
    for depth in (768, 96, 80):
        found = choose_row_tiles(H100, Product(4096, 768, depth), PRODUCT_TILES)
        assert len({depth % item.tile.k == 0 for item in found}) == 1


def test_a_chooser_keeps_what_a_product_gets_for_fewer_rows() -> None:
    chooser = TileChooser(H100)
    products = [Product(rows, 768, 3072) for rows in (55, 475, 4096)]
    last = PRODUCT_TILES[chooser.choose(products, PRODUCT_TILES)]
    template = replace(
        read_template(SOURCE) or pytest.fail("no template"), tile=(last.m, last.n, last.k)
    )
    fewer = chooser.fewer(template)
    assert fewer == choose_row_tiles(H100, products[-1], PRODUCT_TILES)[:-1] != ()
    assert chooser.fewer(replace(template, columns=769)) == ()
    # Of a product whose columns vary as well nothing is kept.
    chooser.choose([Product(9, 9, 3072), Product(90, 90, 3072)], PRODUCT_TILES)
    assert chooser.fewer(replace(template, columns=90)) == ()


def test_a_template_is_read_and_gets_another_tile() -> None:
    template = read_template(SOURCE)
    assert template is not None
    assert (template.rows, template.columns, template.depth) == ("ks0*ks1", 768, 3072)
    assert template.tile == (128, 64, 32)
    other = read_template(with_tile(SOURCE, Tile(16, 32, 256, 4, 2)))
    assert other == replace(template, tile=(16, 32, 256))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("M = ks0*ks1", "M = 64"),  # nothing varies
        ("M = ks0*ks1", "M = ks0//2"),  # C++ rounds in another way
        ("N = 768", "N = ks1"),
        ("K = 3072", "K = ks1"),
        ("    BLOCK_K : tl.constexpr = 32\n", ""),
    ],
)
def test_other_kernels_keep_their_tile(old: str, new: str) -> None:
    assert read_template(SOURCE.replace(old, new)) is None


def test_a_wrapper_of_another_form_is_refused() -> None:
    kernel = Kernel("product", "product", "", 4, 1024, SOURCE)
    other = RowKernel(32, Tile(16, 32, 256, 4, 2), replace(kernel, name="product_to_32"))
    with pytest.raises(CompileError, match="launches a product in an unknown way"):
        launch_by_rows("void call_product() {}", kernel, [other])


MODEL = """
import torch
from torch import nn


def make():
    return {
        "module": nn.Linear(256, 256),
        "inputs": {"input": torch.randn(1, 55, 256)},
        "axes": {"input": {0: "batch", 1: "length"}},
        "limits": {"length": (1, 512)},
    }
"""


@pytest.mark.slow
def test_a_program_launches_the_kernel_for_its_rows(
    fake_driver: FakeCudart, tmp_path: Path
) -> None:
    """On the fake of the driver, where kernels of Triton's compute nothing, but are told their launches."""
    need_triton()
    (tmp_path / "wide.py").write_text(MODEL)
    lengths = tmp_path / "lengths.txt"
    lengths.write_text("3\n55\n512\n")
    path = tmp_path / "out.ecb"
    made = run(
        "build", f"{tmp_path / 'wide.py'}:make", "--target", "cuda-sm90", "--backend", "triton", "--precision", "fp16",
        "--mode", "exact", "--lengths", str(lengths), "--batch", "1:8", "--quick", "--output", str(path),
    )  # fmt: skip
    assert made.exit_code == 0, made.stderr
    found = choose_row_tiles(
        GpuFacts(90, 132, 232448, 2048, 52428800), Product(4096, 256, 256), PRODUCT_TILES
    )
    assert len(found) > 1
    names = re.findall(
        r'"name": "triton_tem[^"]*_to_(\d+)"', (path / "reports" / "gpu.json").read_text()
    )
    assert sorted(map(int, names)) == [item.most for item in found[:-1]]
    library = fake_driver.library
    facts = (ctypes.c_uint * 3)()
    with open_bundle(str(path), mode="default") as model:
        for batch, length in ((1, 3), (1, 55), (2, 100), (1, 512), (8, 100), (3, 511), (8, 512)):
            x = np.zeros((batch, length, 256), np.float32)
            model.run({"input": x})
            library.fake_cuda_launches()
            model.run({"input": x})
            tile = next(item.tile for item in found if batch * length <= item.most)
            launched = []
            for number in range(library.fake_cuda_launches()):
                library.fake_cuda_launched(ctypes.c_long(number), facts)
                launched.append(tuple(facts))
            blocks = -(-batch * length // tile.m) * -(-256 // tile.n)
            assert (blocks, 32 * tile.warps) in [item[:2] for item in launched], (batch, length)
