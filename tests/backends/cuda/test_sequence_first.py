"""Attention over sequences that come before their batch, as ``nn.MultiheadAttention`` has them, rewritten for a GPU."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("triton")

from edgecompile.backends.cuda.kernels.attention import ATTENTION, PER_TOKEN
from edgecompile.backends.lowering.constants import constant_of
from tests.backends.cuda.test_gpu_lowering import check, lowered, targets

aten = torch.ops.aten
_VARYING = {"x": {1: torch.export.Dim("batch", min=1, max=4)}}


class Encoder(nn.Module):
    """Queries and keys have positions that values lack, so parts of one matrix are read apart."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm = nn.MultiheadAttention(32, 4), nn.LayerNorm(32)
        self.positions = nn.Parameter(torch.randn(9, 1, 32))

    def forward(self, x: Tensor) -> Tensor:
        q = x + self.positions
        y = self.attention(q, q, x, need_weights=False)[0]
        return self.norm(x + y)  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """Queries that are a constant, spread over the batch, see each other and then the input."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.cross = nn.MultiheadAttention(32, 4), nn.MultiheadAttention(32, 4)
        self.queries = nn.Parameter(torch.randn(5, 1, 32))

    def forward(self, x: Tensor) -> Tensor:
        q = self.queries.expand(-1, x.shape[1], -1)
        y = self.own(q, q, torch.zeros_like(q), need_weights=False)[0] + q
        return self.cross(y, x, x, need_weights=False)[0]  # type: ignore[no-any-return]


def seeded(kind: type[nn.Module], *sizes: int) -> tuple[nn.Module, Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return kind().eval(), torch.randn(sizes)


@pytest.mark.parametrize("kind", [Encoder, Decoder])
@pytest.mark.parametrize("shapes", [None, _VARYING])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_linears_read_memory_as_it_lies(kind: type[nn.Module], shapes: Any, precision: str) -> None:
    module, x = seeded(kind, 9, 3, 32)
    graph, report = check(module, {"x": x}, precision, shapes)
    assert report.counts["folded"] == (3 if kind is Encoder else 5)
    dtypes = set()
    for node in graph.graph.nodes:
        if node.target is ATTENTION:
            assert tuple(node.args[-1]) == (2, 0, 1)
        elif node.target is aten.linear.default:
            dtypes.add(node.meta["val"].dtype)
            assert all(constant_of(graph, source) is not None for source in node.args[1:])
    assert len(dtypes) == 1
    assert aten.split.Tensor not in targets(graph)


class Read(nn.Module):
    def __init__(self, *steps: tuple[str, tuple[int, ...]]) -> None:
        super().__init__()
        self.steps = steps

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.scaled_dot_product_attention(x, x, x)
        for name, args in self.steps:
            y = getattr(y, name)(*args)
        return y * 2


@pytest.mark.parametrize(
    ("steps", "order"),
    [
        ([], PER_TOKEN),
        ([("transpose", (1, 2))], PER_TOKEN),
        ([("permute", (2, 0, 1, 3))], (2, 0, 1)),
        ([("transpose", (-3, -2)), ("transpose", (0, 1))], (2, 0, 1)),
        ([("permute", (1, -4, 2, -1))], (1, 0, 2)),
        ([("transpose", (2, 3))], PER_TOKEN),
    ],
)
def test_memory_follows_its_only_reader(
    steps: list[tuple[str, tuple[int, ...]]], order: tuple[int, ...]
) -> None:
    x = torch.randn(2, 3, 7, 16, generator=torch.Generator().manual_seed(0))
    graph, _ = check(Read(*steps), {"x": x}, "fp32", interpret=False)
    (call,) = (node for node in graph.graph.nodes if node.target is ATTENTION)
    assert tuple(call.args[-1]) == order


class Pair(nn.Module):
    """Two linears of one input, whose results are divided into heads."""

    def __init__(self, cut: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.cut = nn.Linear(32, 32), nn.Linear(32, 32), cut

    def forward(self, x: Tensor) -> Tensor:
        return self.cut(self.a(x)) * self.cut(self.b(x))


@pytest.mark.parametrize("shapes", [None, _VARYING])
@pytest.mark.parametrize(
    ("cut", "merged"),
    [
        (lambda y: y.view(y.shape[0], -1, 4, 8), 2),
        (lambda y: y.view(y.shape[0], -1, 8), 0),
        (lambda y: y.view(y.shape[0], -1, 4, 8).view(y.shape[0], -1, 8), 0),
        (lambda y: y.unsqueeze(0).view(y.shape[0], -1, 8), 0),
        (lambda y: y[1:].view(y.shape[0] - 1, -1, 8), 0),
        (lambda y: y[1].view(-1, 8), 0),
        (lambda y: y.transpose(0, 1).contiguous().view(y.shape[1], -1, 8), 2),
    ],
)
def test_parts_of_a_wider_row_are_viewed_within_it(shapes: Any, cut: Any, merged: int) -> None:
    x = torch.randn(9, 3, 32, generator=torch.Generator().manual_seed(1))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = Pair(cut)
    _, report = check(module, {"x": x}, "fp32", shapes, interpret=False)
    assert report.counts["merged"] == merged


class Halves(nn.Module):
    """A table of which one half is a weight as it is, and the other one doubled."""

    def __init__(self, changes: bool) -> None:
        super().__init__()
        self.register_buffer("table", torch.randn(32, 16))
        self.changes = changes

    def forward(self, x: Tensor) -> Tensor:
        if self.changes:
            self.table.add_(1)  # type: ignore[operator]
        linear = nn.functional.linear
        return linear(x, self.table[:16]) + linear(x, self.table[16:] * 2)  # type: ignore[index]


@pytest.mark.parametrize(("changes", "folded"), [(False, 1), (True, 0)])
def test_what_is_viewed_or_changed_is_not_made_twice(changes: bool, folded: int) -> None:
    x = torch.randn(4, 16, generator=torch.Generator().manual_seed(2))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = Halves(changes)
    want = copy.deepcopy(module)(x)  # a run changes the table
    graph, report = lowered(module, {"x": x}, "fp32")
    assert report.counts["folded"] == folded
    torch.testing.assert_close(graph(x=x), want, rtol=1e-5, atol=1e-5)


class Masked(nn.Module):
    """A weight that is computed of a constant, and changed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 16))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.clone()
        weight[:, 3:] = 0
        return nn.functional.linear(x, weight)


def test_a_computed_weight_that_is_changed_is_not_folded() -> None:
    x = torch.randn(4, 16, generator=torch.Generator().manual_seed(2))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = Masked()
    _, report = check(module, {"x": x}, "fp32", None, interpret=False)
    assert report.counts["folded"] == 0
