"""Rows that nothing reads: what is left gives the same, and no more of it is computed than is needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgecompile.backends.lowering.dead_rows import drop_dead_rows

WIDTH = 8


class Model(nn.Module):
    """A function of x [1, length, WIDTH] and of a row's number, with weights."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH, dtype=torch.float64))
        self.call = forward

    def forward(self, x: Tensor, last: Tensor) -> Any:
        return self.call(x, last, self.weight)


def rows_of(forward: Callable[..., Any], *, static: bool = False) -> tuple[int, set[str]]:
    """Compares the rewritten graph at several sizes; the nodes of one row, and the operators of all rows."""
    torch.manual_seed(3)
    model = Model(forward)
    example = (torch.randn(1, 6, WIDTH, dtype=torch.float64), torch.tensor([4]))
    length = torch.export.Dim("length", min=3, max=32)
    shapes = None if static else ({1: length}, {})
    program = torch.export.export(model, example, dynamic_shapes=shapes)
    gm: Any = program.module()
    count = drop_dead_rows(gm)
    gm.graph.eliminate_dead_code()
    gm.graph.lint()
    gm.recompile()
    for size, last in ((6, 0), (6, 5)) if static else ((6, 5), (3, 0), (31, 7), (31, 30)):
        x = torch.randn(1, size, WIDTH, dtype=torch.float64)
        wanted, got = (call(x.clone(), torch.tensor([last])) for call in (model, gm))
        for one, other in zip(
            *((v if isinstance(v, tuple) else (v,)) for v in (wanted, got)), strict=True
        ):
            torch.testing.assert_close(other, one, rtol=1e-12, atol=1e-12)
    whole = {
        str(node.target).removeprefix("aten.").partition(".")[0]
        for node in gm.graph.nodes
        if node.op == "call_function"
        and isinstance(node.meta.get("val"), Tensor)
        and any(size == program_length(gm) for size in node.meta["val"].shape)
    }
    return count, whole


def program_length(gm: Any) -> Any:
    x = next(node for node in gm.graph.nodes if node.op == "placeholder")
    return x.meta["val"].shape[1]


def block(x: Tensor, last: Tensor, w: Tensor) -> Tensor:
    """A layer that attends, then a layer of which only one row is read."""
    h = x + F.layer_norm(x, (WIDTH,)) @ w
    q, k, v = ((h @ w).view(1, -1, 2, 4).transpose(1, 2) for _ in range(3))
    mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
    a = F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).reshape(1, -1, WIDTH)
    h = h + F.linear(a, w)
    gate, up = F.linear(h, torch.cat([w, w])).chunk(2, -1)
    h = h + F.silu(gate) * up
    h.mul_(0.5)
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
    return (torch.softmax(h @ w, -1)[:, last])[:, 0]


@pytest.mark.parametrize("static", [False, True])
def test_a_layer_behind_the_last_attention_computes_one_row(static: bool) -> None:
    count, whole = rows_of(block, static=static)
    assert count >= 15
    # Keys and values need all rows; what works on them is all that is left.
    assert not whole & {"silu", "softmax", "mul_", "pow", "rsqrt", "chunk"}
    assert {"layer_norm", "matmul"} <= whole


def test_linears_of_one_input_stay_together() -> None:
    """Programs of one token make one matrix of them; the bundle would hold another for this one."""

    def forward(x: Tensor, last: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        q, k = F.linear(x, w), F.linear(x, w + 1)
        return F.linear(q.exp(), w)[:, last], k

    count, whole = rows_of(forward)
    assert count == 2 and "exp" not in whole and "linear" in whole


@pytest.mark.parametrize(
    "mix",
    [
        lambda x: x.cumsum(1),
        lambda x: x.flip(1),
        lambda x: torch.softmax(x, 1),
        lambda x: x - x.mean(1, keepdim=True),
        lambda x: x.sort(1).values,
        lambda x: F.conv1d(x.transpose(1, 2), torch.ones(WIDTH, 1, 3, dtype=x.dtype), padding=1, groups=WIDTH).transpose(1, 2),
        lambda x: torch.cat([x[:, 1:], x[:, :1]], 1),
        lambda x: x.roll(1, 1),
        lambda x: (x @ x.transpose(1, 2)) @ x,
        lambda x: F.scaled_dot_product_attention(x, x, x),
        lambda x: F.scaled_dot_product_attention(x, x, x.exp()),
        lambda x: torch.bmm(x @ x.transpose(1, 2), x @ x.transpose(1, 2)) @ x,
        lambda x: (x @ x.transpose(1, 2)).softmax(1) @ x,
        lambda x: x.reshape(1, -1, 2, WIDTH // 2).transpose(1, 2).reshape(1, -1, WIDTH),
    ],
)  # fmt: skip
@pytest.mark.parametrize("static", [False, True])
def test_what_mixes_rows_keeps_all(mix: Callable[[Tensor], Tensor], static: bool) -> None:
    rows_of(lambda x, last, w: mix(x @ w)[:, last], static=static)
    rows_of(lambda x, last, w: (mix(x) @ w + x)[:, last], static=static)


@pytest.mark.parametrize(
    "change",
    [
        lambda h: h.pow_(torch.tensor(2.0)),
        lambda h: h.ge_(0.1),
        lambda h: h.mul_(torch.ones(1, dtype=torch.float32)),
        lambda h: h.masked_fill_(h > 1, 0.5),
        lambda h: torch.cat([h.new_empty(0), h], -1),
        lambda h: h.clamp_(0, 1),
    ],
)
def test_changes_in_place_keep_their_dtype(change: Callable[[Tensor], Tensor]) -> None:
    rows_of(lambda x, last, w: (change((x @ w) + 1) @ w)[:, last])


def test_rows_that_something_else_needs_stay() -> None:
    # Another output, two numbers, a change in place of what is read elsewhere, and one through a view.
    def two(x: Tensor, last: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        h = x @ w
        return (h + 1)[:, last], h.sum(1)

    assert rows_of(two)[1] >= {"matmul"}

    def numbers(x: Tensor, last: Tensor, w: Tensor) -> Tensor:
        h = (x @ w).exp()
        return h[:, last] + h[:, last * 0]

    rows_of(numbers)

    def changed(x: Tensor, last: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        h = x @ w
        g = h + 1
        g.mul_(2)
        return g[:, last], (g + h).sum(1)

    rows_of(changed)

    def through_a_view(x: Tensor, last: Tensor, w: Tensor) -> Tensor:
        h = x @ w
        part = h[:, :, :2]
        part.mul_(3)
        return (h + 1)[:, last]

    rows_of(through_a_view)

    def views(x: Tensor, last: Tensor, w: Tensor) -> Tensor:
        h = x @ w
        part = h.transpose(1, 2)
        h.add_(1)
        return (part.transpose(1, 2) * 2)[:, last]

    rows_of(views)


@pytest.mark.parametrize(
    "forward",
    [
        lambda x, last, w: (x @ w).unsqueeze(2).expand(1, -1, 3, WIDTH)[:, last],
        lambda x, last, w: (x @ w).permute(1, 0, 2).index_select(0, last),
        lambda x, last, w: (x @ w)[0].flatten(1)[last],
        lambda x, last, w: F.linear(x, w)[:, :, None].squeeze(2)[:, last],
        lambda x, last, w: torch.addmm(w[0], (x @ w)[0], w)[last],
        lambda x, last, w: torch.bmm(x @ w, w[None])[:, last],
        lambda x, last, w: (x @ w).topk(3, -1).values.sum(-1)[:, last],
        lambda x, last, w: torch.cat([x @ w, x.exp()], -1)[..., 2:9][:, last],
        lambda x, last, w: torch.stack([x @ w, x.exp()], 1).mean(1)[:, last],
        lambda x, last, w: F.embedding((x * 3).abs().long().clamp(max=7), w)[:, last],
        lambda x, last, w: (torch.arange(x.shape[1])[:, None] * w[0])[None][:, last],
        lambda x, last, w: (x @ w).split(4, -1)[1].select(2, 1)[:, last],
    ],
)
@pytest.mark.parametrize("static", [False, True])
def test_the_rules_one_by_one(forward: Callable[..., Any], static: bool) -> None:
    assert rows_of(forward, static=static)[0] >= 1
