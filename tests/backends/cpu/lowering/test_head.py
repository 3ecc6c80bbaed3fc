"""Heads of which a run may leave out tokens: only where no other token's logit can tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from edgecompile.backends.operators import ops
from tests.backends.cpu.lowering.test_tables import Encoder, Step, lowered, run

WIDTH = 70


class After(Step):
    """A language model of one product, and what it does to the logits."""

    def __init__(self, then: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.then = then
        self.register_buffer("each", torch.linspace(0.5, 2, WIDTH))

    def forward(self, ids: Tensor, cache: Tensor, cross: Tensor | None = None) -> Any:
        return self.then(self, super().forward(ids, cache, cross))


def marked(graph: torch.fx.GraphModule) -> bool:
    return any(node.target is ops.HEAD for node in graph.graph.nodes)


KEPT: dict[str, Callable[[Any, Tensor], Any]] = {
    "nothing": lambda own, y: y,
    "soft-capping": lambda own, y: torch.tanh(y / 3.0) * 3.0,
    "a scale of each": lambda own, y: y * own.each + own.each,
    "a scalar": lambda own, y: -(y - 2) / 5,
    "shapes": lambda own, y: y[None].float()[:, -1:].reshape(1, WIDTH).contiguous(),
    "one row": lambda own, y: y[0],
    "rows": lambda own, y: y.index_select(0, torch.tensor([0])),
}


@pytest.mark.parametrize("name", KEPT)
def test_columns_depend_on_no_others(name: str) -> None:
    """Whatever is left out: each logit has the same bits."""
    graph, report = lowered(After(KEPT[name]))
    assert marked(graph) and report.counts["heads"] == 1
    whole, _ = run(graph, After(KEPT[name]))
    gone = torch.rand(WIDTH) < 0.5
    for node in graph.graph.nodes:
        if node.target is ops.HEAD:
            node.target = lambda *given: ops.LINEAR(*given, False).masked_fill(gone, -torch.inf)
    graph.recompile()
    part, _ = run(graph, After(KEPT[name]))
    assert torch.equal(part[..., ~gone], whole[..., ~gone])
    assert not torch.equal(part, whole)


@pytest.mark.parametrize(
    "then",
    [
        lambda own, y: y.log_softmax(-1),
        lambda own, y: y - y.amax(-1, keepdim=True),
        lambda own, y: y.cumsum(-1),
        lambda own, y: y.flip(-1),
        lambda own, y: y[:, : WIDTH - 1],
        lambda own, y: y.index_select(1, torch.arange(WIDTH).flip(0)),
        lambda own, y: y[:, torch.arange(WIDTH).flip(0)],
        lambda own, y: y.reshape(2, WIDTH // 2),
        lambda own, y: y.reshape(WIDTH, 1),
        lambda own, y: y.clone().mul_(2),
        lambda own, y: y @ torch.eye(WIDTH),
        lambda own, y: (y, y.argmax(-1)),
        lambda own, y: (y, y + 1),
        lambda own, y: torch.where(y > 0, y, own.each) + y,
    ],
)
def test_others_are_left(then: Callable[[Any, Tensor], Any]) -> None:
    graph, report = lowered(After(then))
    assert not marked(graph) and not report.counts["heads"]


@pytest.mark.parametrize("module", [Step(source=True), Encoder()])
def test_other_models_have_none(module: nn.Module) -> None:
    assert not marked(lowered(module)[0])
