"""double: float32 modules computed in float64, whatever types their code names."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgecompile.models import double
from edgecompile.models.double import Footprint, InFloat64, Kept, lacks_room, run_in_float64


class Stubborn(nn.Module):
    """Names float32 in every way that models do."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layer, self.cell = nn.Linear(8, 8), nn.LSTM(8, 8, batch_first=True)
        self.table = torch.rand(8)  # a plain attribute, no buffer
        self.experts = nn.Parameter(torch.randn(2, 8, 8))

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x.float()).to(self.layer.weight.dtype)
        x = torch.softmax(x, -1, dtype=torch.float32) * self.table.to(torch.float32)
        x = self.cell(x)[0] + torch.zeros(8, dtype=torch.float32).add_(0.1)
        offs = torch.tensor([2, x.shape[1]], dtype=torch.int32)
        y = F.grouped_mm(x[0].type_as(self.experts), self.experts, offs=offs)
        return y * torch.arange(8).float() / torch.tensor(3.0)


def plain(model: Stubborn, x: Tensor) -> Tensor:
    """The same in float64, written out."""
    x = F.linear(x, model.layer.weight.double(), model.layer.bias.double())
    x = torch.softmax(x, -1) * model.table.double()
    cell = nn.LSTM(8, 8, batch_first=True).double()
    cell.load_state_dict(model.cell.state_dict())
    x = cell(x)[0] + 0.1
    y = torch.cat([x[0, :2] @ model.experts[0].double(), x[0, 2:] @ model.experts[1].double()])
    return y * torch.arange(8).double() / 3


def test_a_model_that_names_float32_is_computed_in_float64() -> None:
    model, x = Stubborn().eval(), torch.randn(1, 5, 8)
    with torch.no_grad():
        narrow = model(x)
        wide = run_in_float64(lambda x: {"y": model(x)}, {"x": x})["y"]
        want = plain(model, x.double())
        again = model(x)
    assert wide.dtype == torch.float64 and narrow.dtype == torch.float32
    torch.testing.assert_close(wide, want, rtol=1e-13, atol=1e-13)
    # float32 is 1e7 times as far off, so the check above would see a single step in it.
    assert (narrow.double() - want).abs().max() > 1e-10
    torch.testing.assert_close(again, narrow, rtol=0, atol=0)
    assert model.layer.weight.dtype == torch.float32


def test_whole_numbers_stay_as_they_are() -> None:
    with InFloat64():
        assert (torch.arange(3) * 2).dtype == torch.int64


def test_half_precision_within_forward_is_float64_too() -> None:
    """Regions of autocast, conversions by either name, and weights that are halves."""

    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(3)
            self.first, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)
            self.second, self.last = nn.Linear(8, 8).half(), nn.Linear(8, 8).bfloat16()

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                y = self.norm(self.first(x)) + (x @ x.transpose(1, 2) / 8).softmax(-1).sum()
            z = self.second(y.half()).to(torch.bfloat16)
            return self.last(z.type_as(self.last.weight).bfloat16()).float()

    model, x = Halves().eval(), torch.randn(1, 5, 8)
    with Footprint() as footprint, torch.no_grad():
        narrow = model(x)
    assert footprint.halves
    wide = run_in_float64(lambda x: {"y": model(x)}, {"x": x})["y"]
    d = x.double()
    exact = copy.deepcopy(model).double()
    y = exact.norm(exact.first(d)) + (d @ d.transpose(1, 2) / 8).softmax(-1).sum()
    torch.testing.assert_close(wide, exact.last(exact.second(y)), rtol=1e-13, atol=1e-13)
    assert (narrow.double() - wide).abs().max() > 1e-4 * wide.abs().max()
    with Footprint() as footprint:
        nn.Linear(8, 8)(x)
    assert not footprint.halves


def test_memory_is_asked_for_what_lives_at_a_time() -> None:
    def most(run: Callable[[], object]) -> int:
        with Footprint() as footprint:
            run()
        assert not footprint._alive
        return footprint.most

    x, small = torch.randn(4, 8), nn.Linear(8, 8)
    # Operands with the result: 32 + 64 + 8 + 32 numbers. A second layer reads its own weights alone.
    assert most(lambda: small(x)) == 136
    two = nn.Sequential(small, nn.Linear(8, 8))
    assert most(lambda: two(x)) == 136
    # Transposed weights, which float64 copies, live until the end of the function.
    layers = [nn.Linear(8, 8, bias=False) for _ in range(5)]
    kept = most(lambda: [layer.weight.t() for layer in layers] and None)
    assert kept == 5 * 64 + 64
    # An expanded tensor takes no more than what it shows.
    assert most(lambda: x[:1].expand(10_000, 8)) < 100
    assert lacks_room(1000) == ""
    assert "GiB are free" in lacks_room(1 << 44)


class Rotary:
    """A plain object with a table, as some models have."""

    table: Tensor | None = None


class Growing(nn.Module):
    """Makes tables as it needs them, and keeps them."""

    def __init__(self) -> None:
        super().__init__()
        self.grown: Tensor
        self.register_buffer("grown", torch.zeros(2))
        self.tables: dict[int, Tensor] = {}
        self.kept: list[Tensor] = []
        self.rotary = Rotary()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        length = x.shape[1]
        if self.grown.shape[0] < length:
            self.grown = torch.arange(length) / 3.0
        if length not in self.tables:
            self.tables[length] = torch.linspace(0, 1, length)
        if not self.kept:
            self.kept.append(torch.ones(1) / 3)
        if self.rotary.table is None:
            self.rotary.table = torch.ones(1) / 7
        y = x * self.grown[:length] + self.tables[length] + self.kept[0] + self.rotary.table
        return {"y": y}


def test_nothing_of_a_run_in_float64_stays_in_a_model() -> None:
    model, x = Growing().eval(), torch.randn(1, 5)
    wide = run_in_float64(model, {"x": x})["y"]
    assert wide.dtype == torch.float64 and model.grown.shape == (2,)
    assert not model.tables and not model.kept and model.rotary.table is None
    assert model(x)["y"].dtype == torch.float32


def test_what_a_model_holds_is_searched_for_again_only_after_a_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, short, long = Growing().eval(), torch.randn(1, 5), torch.randn(1, 7)
    kept, searches = Kept(model), 0
    search = double._holders

    def counted(value: Any, *args: Any) -> Any:
        nonlocal searches
        searches += value is model
        return search(value, *args)

    monkeypatch.setattr(double, "_holders", counted)
    for x in (short, long):
        run_in_float64(model, {"x": x}, kept)
    assert searches == 1 and not model.tables
    model(short)
    run_in_float64(model, {"x": long}, kept)
    assert searches == 2 and list(model.tables) == [5] and model.grown.shape == (5,)
    # An object that came since has a table of its own.
    model.rotary = Rotary()
    run_in_float64(model, {"x": long}, kept)
    assert searches == 3 and model.rotary.table is None
    assert model.tables[5].dtype == model.kept[0].dtype == torch.float32


def test_what_a_model_writes_to_its_inputs_it_reads_again() -> None:
    def step(x: Tensor, cache: Tensor) -> dict[str, Tensor]:
        cache.index_copy_(0, torch.tensor([1]), x / 3)
        return {"y": cache * 2}

    x, cache = torch.full((1, 2), 0.7), torch.zeros(3, 2)
    got = run_in_float64(step, {"x": x, "cache": cache})["y"]
    torch.testing.assert_close(got[1], x[0].double() / 3 * 2, rtol=1e-15, atol=0)
    assert got.dtype == torch.float64 and not cache.any()
