"""The model that chooses tiles: what it has to get right at sizes where the answer is known."""

from __future__ import annotations

import math

import pytest

from edgecompile.backends.cuda.gemm.tiles import (
    PRODUCT_TILES,
    RULES,
    Product,
    Tile,
    choose_split,
    choose_tile,
    cycles,
)
from edgecompile.backends.cuda.lowering.tiles import depthwise_tile
from edgecompile.targets.gpu import GpuFacts

ORIN = GpuFacts(87, 8, 163 << 10, 1536, 2 << 20)
H100 = GpuFacts(90, 132, 227 << 10, 2048, 50 << 20)
TILES = PRODUCT_TILES


def chosen(product: Product, gpu: GpuFacts) -> Tile:
    return TILES[choose_tile(gpu, [product], TILES)]


def test_a_tile_that_does_not_fit_costs_infinitely_much() -> None:
    small = GpuFacts(86, 28, 99 << 10, 1536, 3 << 20)
    tile = Tile(128, 256, 64, 3, 8)
    assert tile.shared_memory(2) == 147456
    assert math.isinf(cycles(Product(512, 512, 512), tile, small))
    assert not math.isinf(cycles(Product(512, 512, 512), tile, H100))


def test_sums_beyond_the_registers_cost_infinitely_much() -> None:
    assert math.isinf(cycles(Product(512, 512, 512), Tile(128, 128, 32, 3, 2), H100))


@pytest.mark.parametrize("gpu", [ORIN, H100])
@pytest.mark.parametrize("m", [1, 16, 64, 256, 4096])
@pytest.mark.parametrize(("n", "k"), [(384, 384), (1536, 384), (384, 1536), (4096, 4096)])
@pytest.mark.parametrize("width", [2, 4])
def test_what_is_chosen_fits(gpu: GpuFacts, m: int, n: int, k: int, width: int) -> None:
    tile = chosen(Product(m, n, k, 1, width), gpu)
    assert tile.shared_memory(width) <= gpu.shared_memory


def test_few_rows_take_small_tiles_so_that_every_multiprocessor_has_work() -> None:
    short, long = chosen(Product(16, 384, 384), H100), chosen(Product(8192, 4096, 4096), H100)
    assert short.m * short.n <= 32 * 32
    assert long.m * long.n >= 128 * 128
    assert math.ceil(384 / short.n) >= 12


def test_few_multiprocessors_take_larger_tiles() -> None:
    product = Product(128, 768, 768)
    a, b = chosen(product, ORIN), chosen(product, H100)
    assert a.m * a.n >= b.m * b.n


def test_pipelines_are_preferred_where_the_depth_has_steps() -> None:
    assert chosen(Product(64, 1536, 1536), H100).stages > 1


def test_the_choice_does_not_depend_on_the_order_of_equals() -> None:
    product = Product(64, 384, 384)
    assert choose_tile(H100, [product], [TILES[3], TILES[3]]) == 0


@pytest.mark.parametrize("product", [Product(64, 384, 384), Product(8192, 4096, 4096)])
def test_other_rules_take_other_tiles_that_fit(product: Product) -> None:
    best = chosen(product, H100)
    by = {rule: TILES[choose_tile(H100, [product], TILES, rule)] for rule in RULES}
    assert by["model"] == best
    area = {rule: tile.m * tile.n for rule, tile in by.items()}
    areas = [tile.m * tile.n for tile in TILES]
    assert area["larger"] > area["model"] or area["model"] == max(areas)
    assert area["smaller"] < area["model"] or area["model"] == min(areas)
    assert (by["steps"].m, by["steps"].n) == (best.m, best.n)
    alike = [tile for tile in TILES if (tile.m, tile.n) == (best.m, best.n)]
    assert by["steps"] != best or len(alike) == 1
    assert all(math.isfinite(cycles(product, tile, H100)) for tile in by.values())


def test_a_rule_that_allows_nothing_takes_the_best() -> None:
    tiles = [Tile(16, 32, 32, 1, 1), Tile(64, 64, 64, 3, 4)]
    product = Product(8192, 4096, 4096)
    assert choose_tile(H100, [product], tiles, "larger") == choose_tile(H100, [product], tiles)


def test_where_nothing_fits_the_smallest_is_taken() -> None:
    tiny = GpuFacts(80, 1, 1 << 10, 1536, 1 << 20)
    assert TILES[choose_tile(tiny, [Product(64, 64, 64)], TILES)] == Tile(16, 16, 128, 3, 1)


def test_a_varying_product_gets_a_tile_that_is_good_at_all_of_its_sizes() -> None:
    few, many = Product(55, 2304, 768), Product(4096, 2304, 768)
    between = Product(474, 2304, 768)
    tile = TILES[choose_tile(H100, [few, between, many], TILES)]
    lost = []
    for product in (few, between, many):
        best = cycles(product, chosen(product, H100), H100)
        lost.append(cycles(product, tile, H100) / best)
    own = cycles(many, chosen(few, H100), H100) / cycles(many, chosen(many, H100), H100)
    assert max(lost) < 2 < own
    assert tile.m * tile.n > chosen(few, H100).m * chosen(few, H100).n


def test_a_step_does_not_reach_past_the_end_of_the_depth() -> None:
    assert 384 % chosen(Product(16, 384, 384), H100).k == 0
    assert chosen(Product(16, 384, 100), H100).k >= 32  # nothing divides it


@pytest.mark.parametrize("gpu", [ORIN, H100])
@pytest.mark.parametrize("width", [2, 4])
def test_depth_is_shared_where_outputs_are_few(gpu: GpuFacts, width: int) -> None:
    deep, parts = choose_split(gpu, Product(49, 512, 4608, 1, width))
    wide, whole = choose_split(gpu, Product(100352, 64, 576, 1, width))
    assert whole == 1
    assert parts > 1 or gpu is ORIN  # whose few multiprocessors small tiles fill
    assert max(deep.shared_memory(width), wide.shared_memory(width)) <= gpu.shared_memory
    # No part is without a step.
    steps = math.ceil(4608 / deep.k)
    assert (parts - 1) * math.ceil(steps / parts) < steps


def test_a_shallow_product_is_not_shared() -> None:
    assert choose_split(H100, Product(49, 512, 32))[1] == 1


def test_few_pixels_take_small_blocks_where_channels_are_by_themselves() -> None:
    assert depthwise_tile(8 * 56 * 56, 144, H100)[:2] == (64, 32)
    assert depthwise_tile(49, 960, H100)[:2] == (16, 32)
    assert depthwise_tile(49 * 8, 960, ORIN)[:2] == (64, 32)
