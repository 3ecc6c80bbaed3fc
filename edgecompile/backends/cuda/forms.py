"""Whether a bucket gets a second program, for few rows: decided by the model that chooses tiles.

Rows are what a run's products have: batch times length, the product of all sizes that vary. A program whose
rows vary has one tile for each product, which is a compromise between its least and its most. Two programs, one up
to a number of rows and one beyond, each have tiles of their own. What that saves is the model's estimate over
the sizes of the traffic.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any

import torch

from edgecompile.backends.cuda.tiles import PRODUCT_TILES, Product, choose_tile, cycles
from edgecompile.buckets.ranges import AxisRange, Bucket
from edgecompile.export.conditions import size_symbols
from edgecompile.export.program import ExportedModel
from edgecompile.targets.gpu import GpuFacts

aten = torch.ops.aten

Sizes = Mapping[str, int]
#: Sizes of the axes that make rows, and how often they come.
Traffic = Sequence[tuple[Sizes, float]]

#: Precisions whose products have tiles of ours, by the model of which a bucket's programs are chosen.
TILED = ("fp16", "bf16")
#: The share of the products' time on the traffic that a second program has to save: it takes as long to
#: build as the first. Of whole runs it is about two thirds of that.
LEAST_GAIN = 0.08
#: What the products of one size may take, over their time with one program (2 % of a run): near the border a program's tiles are
#: the least suitable.
_SLOWER = 1.03
#: Powers of two that are tried.
_LEAST_ROWS, _MOST_ROWS = 32, 4096
#: The first counts twice.
_SHARES = (0.5, 0.125, 0.375, 0.625, 0.875)


@dataclass(frozen=True)
class Forms:
    """Two programs of a bucket.

    Attributes:
        rows: the most that the one for few has.
        few, many: sizes that each one's tiles are chosen for, the one that counts most first.
        gain: share of the products' time that they save on the traffic, by the model.
    """

    rows: int
    few: tuple[Sizes, ...]
    many: tuple[Sizes, ...]
    gain: float


def choose_forms(
    exported: ExportedModel, bucket: Bucket, gpu: GpuFacts, traffic: Traffic
) -> Forms | None:
    """The two programs that save most and make no size slower, or None where one is nearly as good.

    Golden vectors are of both ends of the length, so one of each program has to be among them.

    Args:
        exported: the bucket's program.
        bucket: what it serves.
        gpu: the target.
        traffic: sizes of every axis that makes rows.
    """
    served = [
        (
            {
                axis: bucket.range(axis).hi if axis in bucket.pad_axes else n
                for axis, n in at.items()
            },
            w,
        )
        for at, w in traffic
        if all(n in bucket.range(axis) for axis, n in at.items())
    ]
    if not served:
        return None
    axes = {axis: bucket.range(axis) for axis in served[0][0]}
    length = bucket.length_axis
    lows = {axis: r.hi if axis in bucket.pad_axes else r.lo for axis, r in axes.items()}
    highs = {axis: r.hi for axis, r in axes.items()}
    hints = {axis: min(max(r.hint, lows[axis]), r.hi) for axis, r in axes.items()}
    count = read_products(exported, {name: r.hint for name, r in bucket.axes})
    costs = _Costs(gpu, count)
    # Every golden vector of the shortest inputs has few rows, and every one of the longest many.
    least = rows_of({**highs, length: lows[length]})
    most = rows_of({**lows, length: highs[length]}) - 1
    one = [hints, _sized(math.isqrt(rows_of(hints) * rows_of(highs)), hints, axes), highs]
    alone = [costs.time(at, one) for at, _ in served]
    before = sum(weight * time for (_, weight), time in zip(served, alone, strict=True))
    best: Forms | None = None
    rows = _LEAST_ROWS
    while rows <= min(most, _MOST_ROWS):
        if rows >= least:
            few = _points([x for x in served if rows_of(x[0]) <= rows], rows, hints, axes)
            many = _points([x for x in served if rows_of(x[0]) > rows], None, hints, axes)
            each = [costs.time(at, few if rows_of(at) <= rows else many) for at, _ in served]
            after = sum(weight * time for (_, weight), time in zip(served, each, strict=True))
            gain = 1 - after / before if before else 0.0
            slower = max(new / old for new, old in zip(each, alone, strict=True))
            if slower <= _SLOWER and (best is None or gain > best.gain):
                best = Forms(rows, few, many, gain)
        rows *= 2
    return best if best is not None and best.gain >= LEAST_GAIN else None


def form_note(index: int, rows: int, gain: float, verb: str = "has") -> str:
    """What a person should know of a bucket's second program."""
    return (
        f"Bucket {index} {verb} two programs for the GPU, one for at most {rows} rows (the product of a run's "
        f"sizes): by the model of tiles products take {100 * gain:.0f} % less of the traffic's time."
    )


def rows_of(sizes: Sizes) -> int:
    """The rows of a run."""
    return math.prod(sizes.values())


def _points(
    served: Traffic, most: int | None, hints: Sizes, axes: Mapping[str, AxisRange]
) -> tuple[Sizes, ...]:
    """What a program's tiles are chosen for: the median of its traffic by rows, others of it, its most rows."""
    largest = {axis: r.hi for axis, r in axes.items()}
    if most is not None:
        largest = _sized(most, hints, axes)
    ordered = sorted(served, key=lambda item: rows_of(item[0]))
    reached = list(accumulate(weight for _, weight in ordered))
    points = [ordered[bisect_left(reached, share * reached[-1])][0] for share in _SHARES if reached]
    return tuple(dict(x) for x in dict.fromkeys(tuple(s.items()) for s in (*points, largest)))


def _sized(rows: int, near: Sizes, axes: Mapping[str, AxisRange]) -> dict[str, int]:
    """Sizes with about so many rows: the first axis' own as long as others make them up, then more of it."""
    sizes = dict(near)
    for axis in [*list(axes)[1:], next(iter(axes))]:
        others = rows_of({**sizes, axis: 1})
        sizes[axis] = min(max(rows // others, axes[axis].lo), axes[axis].hi)
    return sizes


class _Costs:
    """What the products take by the model, in cycles."""

    def __init__(self, gpu: GpuFacts, count: _Products) -> None:
        self._gpu = gpu
        self._products = count
        self._chosen: dict[Any, list[int]] = {}
        self._cycles = cache(lambda product, tile: cycles(product, PRODUCT_TILES[tile], gpu))

    def time(self, sizes: Sizes, points: Sequence[Sizes]) -> float:
        """A run's at these sizes, with the tiles that are chosen for ``points``."""
        key = tuple(tuple(point.items()) for point in points)
        tiles = self._chosen.get(key)
        if tiles is None:
            each = zip(*(self._products.at(point) for point in points), strict=True)
            tiles = [choose_tile(self._gpu, products, PRODUCT_TILES) for products in each]
            self._chosen[key] = tiles
        return sum(
            number * float(self._cycles(product, tile))
            for product, tile, number in zip(
                self._products.at(sizes), tiles, self._products.numbers, strict=True
            )
        )


class _Products:
    """A program's unlike products, whose sizes may vary, and how many there are of each."""

    def __init__(
        self, found: Mapping[tuple[Any, ...], int], symbols: Mapping[Any, str], hints: Sizes
    ) -> None:
        self.numbers = list(found.values())
        self._sizes = list(found)
        self._symbols, self._hints = symbols, hints

    def at(self, sizes: Sizes) -> list[Product]:
        """Their sizes in a run."""
        known = {**self._hints, **sizes}
        values = {symbol: known[axis] for symbol, axis in self._symbols.items() if axis in known}

        def number(size: Any) -> int:
            return max(1, size if isinstance(size, int) else int(size.xreplace(values)))

        return [Product(*map(number, item)) for item in self._sizes]


def _expression(size: Any) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else int(size)


def read_products(exported: ExportedModel, hints: Sizes) -> _Products:
    """The products of a program, those of linear layers that share an input as one.

    Products whose sizes depend on values are left out, and those within attention, which is one operator.
    """
    graph = exported.program.graph_module
    symbols = size_symbols(graph, exported.inputs)
    shared: dict[Any, list[Any]] = {}
    found: Counter[tuple[Any, ...]] = Counter()
    for node in graph.graph.nodes:
        if node.op != "call_function" or node.target not in _PLACES:
            continue
        left = node.args[_PLACES[node.target]]
        out, first = ([*map(_expression, item.meta["val"].shape)] for item in (node, left))
        if not out or not all(
            isinstance(size, int) or size.free_symbols <= symbols.keys() for size in (*out, *first)
        ):
            continue
        if node.target is aten.linear.default:
            entry = shared.setdefault(left, [math.prod(out[:-1]), 0, first[-1]])
            entry[1] += out[-1]
        elif len(out) > 1:
            found[(*out[-2:], first[-1], math.prod(out[:-2]))] += 1
    found.update((*item, 1) for item in shared.values())
    return _Products(found, symbols, hints)


#: Where the left operand of a product stands.
_PLACES = {
    aten.linear.default: 0, aten.mm.default: 0, aten.matmul.default: 0, aten.bmm.default: 0,
    aten.addmm.default: 1, aten.baddbmm.default: 1,
}  # fmt: skip
