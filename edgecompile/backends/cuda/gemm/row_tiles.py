"""Tiles of a product by its rows: which it gets, and the host code that takes the one for a run's.

Rows are what a run's sizes decide: batch times length, most often. One tile for all of them is a compromise between
the least and the most. So a product whose rows vary is compiled with a few tiles, each for the rows at which the
model gives it least time, and the function that launches it picks one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import NamedTuple

from edgecompile.backends.cuda.gemm.tiles import RULES, Product, Tile, choose_tile, slowness
from edgecompile.backends.cuda.source import Kernel
from edgecompile.errors import CompileError
from edgecompile.targets.gpu import GpuFacts

#: Tiles of one product. Each is a kernel of 15 to 60 kB.
MOST_TILES = 4
#: The share of a product's time that one more tile has to save, in the mean over its rows.
_LEAST_GAIN = 0.01
#: Numbers of rows that are looked at, and that may end a tile: as many to each power of two.
_ROWS = sorted({1 << i for i in range(4, 21)} | {3 << i for i in range(3, 20)})


class RowTile(NamedTuple):
    """A tile, and the rows up to which a product is computed with it."""

    most: int
    tile: Tile


def choose_row_tiles(
    gpu: GpuFacts, product: Product, tiles: Sequence[Tile], rule: str = RULES[0]
) -> tuple[RowTile, ...]:
    """The tiles of a product whose rows vary, by rows in ascending order; the last one's are ``product.m``.

    Every number of rows counts by its time over that with its best tile.

    Args:
        gpu: the target.
        product: at its most rows.
        tiles: the tiles to choose among.
        rule: the rule for choosing each, one of
            :data:`~edgecompile.backends.cuda.gemm.tiles.RULES`.
    """
    ends = [rows for rows in _ROWS if rows < product.m] + [product.m]
    products = [replace(product, m=rows) for rows in ends]
    # A loop over the depth has masks or it hasn't: all kernels of a product are alike in that.
    even = [tile for tile in tiles if product.k % tile.k == 0] or list(tiles)
    costs = [slowness(gpu, item, even) for item in products]
    count = len(ends)
    least = {
        (first, last): min(map(sum, zip(*costs[first:last], strict=True)))
        for first in range(count)
        for last in range(first + 1, count + 1)
    }
    # For so many tiles: the least cost up to each end, and where the tiles begin.
    best: dict[int, tuple[float, tuple[int, ...]]] = {
        last: (least[0, last], (0,)) for last in range(1, count + 1)
    }
    starts = best[count][1]
    for number in range(2, MOST_TILES + 1):
        before = best[count][0]
        best = {
            last: min(
                (best[first][0] + least[first, last], (*best[first][1], first))
                for first in range(number - 1, last)
            )
            for last in range(number, count + 1)
        }
        if count not in best or not before - best[count][0] > _LEAST_GAIN * before:
            break
        starts = best[count][1]
    chosen = (
        RowTile(ends[last - 1], even[choose_tile(gpu, products[first:last], even, rule)])
        for first, last in pairwise((*starts, count))
    )
    # Neighbours may have one tile by another rule than the model's.
    return tuple(list(group)[-1] for _, group in groupby(chosen, key=lambda item: item.tile))


@dataclass(frozen=True)
class Template:
    """The sizes and the tile of a product's kernel, read from Triton's source.

    Attributes:
        rows: the expression of its number of rows, of the kernel's arguments.
        columns, depth: its other sizes.
        tile: rows, columns and depth of a step.
    """

    rows: str
    columns: int
    depth: int
    tile: tuple[int, int, int]


def read_template(source: str) -> Template | None:
    """The template of a product whose rows vary, and nothing else of it; None of another kernel."""
    lines = dict(_LINE.findall(source))
    rows, columns, depth = (lines.get(name, "") for name in "MNK")
    tile = [lines.get(f"BLOCK_{name} : tl.constexpr", "") for name in "MNK"]
    numbers = [columns, depth, *tile]
    if "ks" not in rows or not _ROWS_TEXT.fullmatch(rows) or not all(map(str.isdigit, numbers)):
        return None
    return Template(rows, int(columns), int(depth), tuple(map(int, tile)))  # type: ignore[arg-type]


def with_tile(source: str, tile: Tile) -> str:
    """A product's source with another tile."""
    sizes = {"M": tile.m, "N": tile.n, "K": tile.k}
    return _BLOCK.sub(lambda match: f"{match[1]}{sizes[match[2]]}", source)


#: A size, or a constant, that a kernel begins with.
_LINE = re.compile(r"^    ([MNK]|BLOCK_[MNK] : tl\.constexpr) = (.+)$", re.MULTILINE)
_BLOCK = re.compile(r"^(    BLOCK_([MNK]) : tl\.constexpr = )\d+$", re.MULTILINE)
#: What is the same in Python and in C++.
_ROWS_TEXT = re.compile(r"[ks\d+* ()]+")


class TileChooser:
    """Chooses tiles for the products of a program, and keeps what those of varying rows get beside the last one."""

    def __init__(self, gpu: GpuFacts, rule: str = RULES[0]) -> None:
        self._gpu, self._rule = gpu, rule
        self._found: dict[tuple[int, int, tuple[int, int, int]], tuple[RowTile, ...]] = {}

    def choose(self, products: Sequence[Product], tiles: Sequence[Tile]) -> int:
        """The index of the tile for a product, at its most rows where they vary.

        Args:
            products: the product at some of its sizes, the largest last.
            tiles: the tiles to choose among.
        """
        most = products[-1]
        if len(products) == 1 or any(replace(item, m=most.m) != most for item in products):
            return choose_tile(self._gpu, products, tiles, self._rule)
        row_tiles = choose_row_tiles(self._gpu, most, tiles, self._rule)
        last = row_tiles[-1].tile
        key = most.n, most.k, (last.m, last.n, last.k)
        previous = self._found.get(key)
        if previous is None or previous[-1].most < most.m:
            self._found[key] = row_tiles
        return tiles.index(last)

    def fewer(self, template: Template) -> tuple[RowTile, ...]:
        """The tiles of a product for fewer rows than those that its template's own tile is for."""
        return self._found.get((template.columns, template.depth, template.tile), ())[:-1]


@dataclass(frozen=True)
class RowKernel:
    """One of a product's kernels beside that for its most rows.

    Attributes:
        most: rows up to which it runs.
        tile: its tile.
        kernel: its code.
    """

    most: int
    tile: Tile
    kernel: Kernel


def launch_by_rows(wrapper: str, kernel: Kernel, others: Sequence[RowKernel]) -> str:
    """The wrapper with a product's launch by its rows.

    Args:
        wrapper: C++ that launches ``kernel`` whatever the rows are.
        kernel: the kernel for the most rows.
        others: the kernels for fewer rows, ascending.

    Raises:
        CompileError: torch's Inductor writes wrappers in another way.
    """
    name, template = kernel.name, read_template(kernel.source)
    assert template is not None
    launch = _found(
        rf"template <[^\n]*>\nstatic [^\n]* void call_{name}\((.*?)\)\{{\n.*?\n\}}\n", wrapper
    )
    arguments = ", ".join(
        re.findall(r"(\w+)(?: = [^,\n]+)?(?:,|$)", launch[1].strip(), re.MULTILINE)
    )
    head = launch[0].index("){\n") + len("){\n")
    body, functions, conditions = launch[0], "", ""
    for item in others:
        own, tile = item.kernel.name, item.tile
        grid = f"(({template.rows} + {tile.m - 1}) / {tile.m}) * {-(-template.columns // tile.n)}"
        changed = (
            (rf"\bcall_{name}\(", f"call_{own}("),
            (rf"\bkernels_\.{name}\b", f"kernels_.{own}"),
            (rf"\b__{name}_start\b", f"__{own}_start"),
            (r"(?<=uint32_t grid_0 = )_grid_0(?=;)", grid),
            (rf"(?<=, ){kernel.shared_memory}(?=, &kernels_)", str(item.kernel.shared_memory)),
            (
                rf"(?<=, grid_2, ){kernel.num_warps}, {kernel.shared_memory}(?=, kernel_args_)",
                f"{item.kernel.num_warps}, {item.kernel.shared_memory}",
            ),
        )
        text = body
        for pattern, new in changed:
            _found(pattern, text)
            text = re.sub(pattern, new, text)
        functions += text + "\n"
        conditions += f"    if ({template.rows} <= {item.most}) return call_{own}({arguments});\n"
    wrapper = wrapper.replace(body, functions + body[:head] + conditions + body[head:])
    for line in (
        rf" *CUfunction {name}\{{nullptr\}};\n",
        rf" *extern [^\n]*\b__{name}_start\[\];\n",
    ):
        declared = _found(line, wrapper)[0]
        wrapper = wrapper.replace(
            declared, declared + "".join(declared.replace(name, x.kernel.name) for x in others)
        )
    return wrapper


def _found(pattern: str, text: str) -> re.Match[str]:
    match = re.search(pattern, text, re.DOTALL)
    if match is None:
        raise CompileError(
            "torch's Inductor launches a product in an unknown way",
            hint="this is a defect of edgecompile with this version of torch; please report it",
        )
    return match
