"""Writes at repeated indices in programs for a GPU: the last one wins, in whatever order threads come."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("triton")

from edgecompile.backends.cuda.kernels.extremes import find_last
from edgecompile.errors import CompileError
from tests.backends.cuda.test_gpu_lowering import check, flat, lowered
from tests.backends.lowering.test_collisions import COLLIDE, DONT, WIDTH, N

aten = torch.ops.aten


class Writes(nn.Module):
    def forward(self, x: Tensor, ids: Tensor, start: Tensor) -> tuple[Tensor, ...]:
        cube = torch.zeros(5, 64, 7)
        cube[ids[:3] % 5, :, ids[:3] % 7] = x[:3, :1] + torch.arange(64)
        table = torch.zeros(64, WIDTH)
        table[torch.stack([ids, ids.flip(0)])] = torch.stack([x, 2 * x])
        kinds = {name: write for name, write in COLLIDE.items() if name != "from both ends"}
        return cube, table, *(write(x, ids, start) for write in {**kinds, **DONT}.values())


class Backwards(torch.fx.Interpreter):
    """Runs a graph with the writes of each operator in reverse, as threads may make them."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        packet = getattr(target, "overloadpacket", None)
        if packet in (aten.scatter, aten.scatter_) and isinstance(args[3], Tensor):
            y, dim, index, source = args
            source = source[tuple(slice(size) for size in index.shape)]
            args = (y, dim, index.flip(dim), source.flip(dim))
        elif packet in (aten.index_copy, aten.index_copy_):
            y, dim, index, source = args
            args = (y, dim, index.flip(0), source.flip(dim))
        elif packet in (aten.put, aten.put_):
            y, index, source, *_ = args
            args = (y, index.flatten().flip(0), source.flatten().flip(0))
        elif packet in (aten.index_put, aten.index_put_) and len(args) < 4:
            y, indices, values = args
            given = [d for d, index in enumerate(indices) if index is not None]
            common = torch.broadcast_tensors(*(indices[d] for d in given))
            front = given[0] if given[-1] - given[0] + 1 == len(given) else 0
            shape = y[tuple(slice(None) if i is None else i for i in indices)].shape
            dims = range(front, front + common[0].dim())
            turned = iter([index.flip(*range(index.dim())) for index in common])
            indices = [None if index is None else next(turned) for index in indices]
            args = (y, indices, values.expand(shape).flip(*dims))
        return super().call_function(target, args, kwargs)


def test_the_last_write_wins() -> None:
    torch.manual_seed(0)
    length = torch.export.Dim("length", min=3, max=32)
    example = {
        "x": torch.randn(N, WIDTH),
        "ids": torch.randint(0, 40, (4,))[torch.randint(0, 4, (N,))],
        "start": torch.tensor(3),
    }
    shapes = {"x": {0: length}, "ids": {0: length}, "start": None}
    graph, report = check(Writes(), example, "fp32", shapes, interpret=False)
    assert report.counts["writes"] == len(COLLIDE) + 1
    with torch.no_grad():
        for one, other in zip(
            flat(Backwards(graph).run(*example.values())), Writes()(**example), strict=True
        ):
            torch.testing.assert_close(one, other)


def test_writes_within_a_region_of_autocast_are_ordered() -> None:
    class Region(nn.Module):
        def forward(self, x: Tensor, ids: Tensor) -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                y = torch.zeros(64, WIDTH)
                y[ids] = x
            return y

    example = {"x": torch.randn(N, WIDTH), "ids": torch.randint(0, 4, (N,))}
    graph, report = lowered(Region(), example, "fp32")
    assert report.counts["writes"] == 1
    with torch.no_grad():
        (got,) = flat(Backwards(graph).run(*example.values()))
        torch.testing.assert_close(got, Region()(**example))


def test_places_outside_read_nothing() -> None:
    places = torch.tensor([[0, 2, 5, 2, -1, 0], [9, 9, 9, 9, 9, 1]])
    assert find_last(places, 3).tolist() == [[5, 3, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]]


def test_a_mask_beside_indices_that_repeat_is_refused() -> None:
    class Mixed(nn.Module):
        def forward(self, x: Tensor, ids: Tensor) -> Tensor:
            y = torch.zeros(4, 8)
            y[torch.tensor([True, False, True, True]), ids[:, None]] = x
            return y

    example = {"x": torch.randn(5, 3), "ids": torch.zeros(5, dtype=torch.int64)}
    with pytest.raises(CompileError, match="a mask beside indices that may repeat"):
        lowered(Mixed(), example, "fp32")
