"""checks: a GPU's program is compared on the CPU with the graph that it was made of."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("triton")

from edgecompile.backends.cuda import checks
from edgecompile.backends.cuda.checks import check_graph
from edgecompile.backends.cuda.lowering.lower import lower_for_gpu
from edgecompile.errors import ModelError, VerificationError
from edgecompile.export.export import export_model
from edgecompile.export.program import ExportedModel
from edgecompile.loaders.load import load_model
from edgecompile.targets.gpu import GpuFacts
from tests.factories.half import deep_autocast

GPU = GpuFacts(87, 16, 163 << 10, 1536, 4 << 20)
#: float16 has one number for the first and the second score.
TIED = {"scores": torch.tensor([1.0, 0.9999, 0.5]), "rows": torch.arange(6.0).reshape(3, 2)}


def export(module: nn.Module) -> ExportedModel:
    return export_model(load_model({"module": module, "inputs": TIED}))


def test_torch_s_roundings_within_forward_don_t_count_against_the_program() -> None:
    exported = export_model(load_model(deep_autocast()), {"length": (1, 32)})
    sizes = [{"length": 12}, {"length": 32}]
    check, found = check_graph(exported, sizes, "fp16")
    graph = exported.program.module()
    lower_for_gpu(graph, GPU, "fp16")
    check(graph)
    # The graph with torch's roundings is off by more than the program without them.
    assert [item.sizes for item in found] == sizes and all(i.max_error < 1e-2 for i in found)
    with pytest.raises(VerificationError, match="differs by"):
        check(exported.program.module())


class Ranked(nn.Module):
    """Rows [N, 2] in the order of their scores [N]; in half precision itself where asked."""

    def __init__(self, halves: bool = False) -> None:
        super().__init__()
        self.halves = halves

    def forward(self, scores: Tensor, rows: Tensor) -> Tensor:
        rows = (rows.half() + 1).float() - 1 if self.halves else rows
        return rows[scores.argsort(stable=True)]


@pytest.mark.parametrize("halves", [False, True])
def test_rows_of_nearly_equal_scores_may_come_in_either_order(halves: bool) -> None:
    exported = export(Ranked(halves))
    check, found = check_graph(exported, [{}], "fp16", lambda sizes: TIED)
    graph = exported.program.module()
    lower_for_gpu(graph, GPU, "fp16")
    want, got = (
        next(iter(module(**TIED).values())) for module in (exported.program.module(), graph)
    )
    assert torch.equal(got[1:], want[1:].flip(0)) and torch.equal(got[0], want[0])
    check(graph)
    assert found[0].max_error == 0

    class Swapped(nn.Module):
        def forward(self, scores: Tensor, rows: Tensor) -> dict[str, Tensor]:
            return {name: rows[[0, 2, 1]] for name in exported.program.module()(**TIED)}

    with pytest.raises(VerificationError, match="differs by"):
        check(Swapped())


@pytest.mark.parametrize("halves", [False, True])
def test_the_kernels_may_order_nearly_equal_scores_as_well(
    halves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported = export(Ranked(halves))
    monkeypatch.setattr(ExportedModel, "load", lambda folder: exported)
    monkeypatch.setattr(ExportedModel, "example", lambda self, sizes: TIED)
    task = {"folder": "", "sizes": {}, "precision": "fp16", "gpu": vars(GPU)}
    answer = checks._interpret(task)
    assert (answer["kind"], answer["max_error"]) == (checks.INTERPRETER, 0.0)
    monkeypatch.setattr(checks, "_take_ties", lambda got, want, *_: want)
    assert "differs by" in checks._interpret(task)["error"]


class Counted(nn.Module):
    """Code that takes the second of the best scores to be at the second place at least."""

    def forward(self, scores: Tensor, rows: Tensor) -> Tensor:
        places = scores.topk(2).indices
        count = places[1].item()
        torch._check(count >= 1)
        torch._check(count <= 2)
        return rows[places] + rows[:count].sum()


def test_an_order_that_the_graph_refuses_shows_nothing() -> None:
    exported = export(Counted())
    check, found = check_graph(exported, [{}], "fp16", lambda sizes: TIED)
    check(exported.program.module())
    assert found[0].max_error == 0


@pytest.mark.parametrize("seconds", [-math.inf, math.inf])
def test_no_further_order_is_tried_once_they_took_their_time(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    more: list[Any] = []
    monkeypatch.setattr(checks, "_ORDERS_S", seconds)
    exported = export(Ranked())

    def follow(choices: Any, outputs: Any, rtol: float, run: Any) -> None:
        try:
            more.append(run(nullcontext()))
        except ModelError:
            more.append(None)

    monkeypatch.setattr(checks, "follow_orders", follow)
    check_graph(exported, [{}], "fp16", lambda sizes: TIED)[0](exported.program.module())
    assert [bool(one) for one in more] == [seconds > 0]
