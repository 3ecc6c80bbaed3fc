"""Proofs that padding changes nothing, or the operator that stands against one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from edgecompile.buckets.ranges import AxisRange
from edgecompile.errors import PlanError
from edgecompile.export.padding.check import check_padding
from edgecompile.export.padding.proof import find_leak
from edgecompile.loaders.load import load_model
from edgecompile.models.loaded import LoadedModel
from edgecompile.planning.padding import require_paddable

WIDTH = 8
Body = Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]


class Made(nn.Module):
    """A function of x [B, L, 8] and a mask [B, L], with a few layers to use."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.body = body
        self.score, self.wide = nn.Linear(WIDTH, 1), nn.Linear(WIDTH, 2 * WIDTH)
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3)
        self.norm, self.group = nn.LayerNorm(WIDTH), nn.GroupNorm(2, WIDTH)
        self.batch, self.gru = nn.BatchNorm1d(WIDTH), nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.body(self, x, attention_mask)


def made(body: Body, pad: float = 0.0, batch: tuple[int, int] = (1, 4)) -> LoadedModel:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        module = Made(body).eval()
    inputs = {"x": torch.randn(2, 9, WIDTH), "attention_mask": torch.ones(2, 9, dtype=torch.int64)}
    axes = {"x": {0: "batch", 1: "length"}, "attention_mask": {0: "batch", 1: "length"}}
    return load_model(
        (module, inputs, axes),
        pad={"x": pad, "attention_mask": 0},
        max_length=64,
        batch=batch,
    )


def lengths(lo: int, hi: int) -> list[tuple[str, AxisRange]]:
    return [("length", AxisRange(lo, hi, hi))]


def leak(body: Body) -> Any:
    return find_leak(made(body), 7, 12, {"batch": 2})


def attend(bias: float) -> Body:
    """Pools by a softmax over positions; padded ones get a bias."""

    def body(self: Made, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        scores = self.score(x).squeeze(-1) + (1.0 - mask.to(x.dtype)) * bias
        return (scores.softmax(-1).unsqueeze(-1) * x).sum(1)

    return body


def masked(x: torch.Tensor, mask: torch.Tensor, value: float = 0.0) -> torch.Tensor:
    return x.masked_fill(mask.unsqueeze(-1) == 0, value)


def mask_of_its_own(change: Callable[[torch.Tensor], torch.Tensor]) -> Body:
    """Masks what isn't positive, and changes that, before a softmax."""
    return lambda m, x, k: (
        change(x.masked_fill(x.sum(2, keepdim=True) <= 0, -1e10)).softmax(1).cumsum(1)
    )


def path(stays: bool) -> Body:
    """A place that each position maps to another, from the last to the first, as Viterbi's does."""

    def body(self: Made, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        place = x[:, 0].argmax(1, keepdim=True)
        for t in reversed(range(x.shape[1])):
            to = self.wide(x[:, t]).unflatten(1, (2, WIDTH)).cumsum(2).argmax(1)
            if stays:
                to = torch.where(mask[:, t, None] != 0, to, torch.arange(WIDTH)[None])
            place = to.gather(1, place)
        return place

    return body


HARMLESS: dict[str, Body] = {
    "a path that stays at padding": path(True),
    "layers that keep positions apart": lambda m, x, k: m.norm(F.gelu(m.wide(x)).chunk(2, -1)[0]),
    "a batch norm with statistics of its own": lambda m, x, k: m.batch(x.transpose(1, 2)),
    "a masked mean": lambda m, x, k: masked(x, k).sum(1) / k.sum(1, keepdim=True).clamp(min=1),
    "a masked maximum": lambda m, x, k: masked(x, k, -torch.inf).amax(1),
    "a masked top-k": lambda m, x, k: masked(x, k, -torch.inf).topk(2, 1).values,
    "a bias of the least number": attend(torch.finfo(torch.float32).min),
    "a bias of -1e9": attend(-1e9),
    "a bias of minus infinity": lambda m, x, k: (
        m.score(x).squeeze(-1).masked_fill(k == 0, -torch.inf).softmax(-1).unsqueeze(-1) * x
    ).sum(1),
    "causal attention": lambda m, x, k: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    "masked attention": lambda m, x, k: F.scaled_dot_product_attention(
        x, x, x, attn_mask=(k != 0)[:, None, :]
    ),
    "a causal convolution": lambda m, x, k: m.conv(F.pad(x.transpose(1, 2), (2, 0))).transpose(
        1, 2
    ),
    "a convolution of masked positions": lambda m, x, k: F.conv1d(
        masked(x, k).transpose(1, 2), m.conv.weight, padding=1
    ).transpose(1, 2),
    "a cumulated sum": lambda m, x, k: x.cumsum(1),
    "a forward recurrence": lambda m, x, k: m.gru(x)[0],
    "writes into places": lambda m, x, k: torch.zeros_like(x).index_copy(
        1, torch.arange(x.shape[1]), x
    ),
    "the first position": lambda m, x, k: m.wide(x[:, 0]),
    "the last real position": lambda m, x, k: x[torch.arange(x.shape[0]), k.sum(1) - 1],
    "an unknown operator on what is pooled": lambda m, x, k: torch.fft.rfft(
        masked(x, k).sum(1)
    ).abs(),
}

#: What may lie between a mask and a softmax.
CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "divided": lambda scores: scores / 2.0,
    "divided by one": lambda scores: scores / torch.ones(()),
    "multiplied": lambda scores: scores * 0.5,
    "multiplied in place": lambda scores: scores.mul_(0.5),
    "limited": lambda scores: scores.clamp(max=50.0),
    "at least the least number": lambda scores: scores.maximum(torch.tensor(-1e30)),
}

#: The operator and a piece of its line; what no trial finds out is marked by a star.
HARMFUL: dict[str, tuple[Body, str]] = {
    "a path through padding": (path(False), "gather"),
    "a maximum over padding": (lambda m, x, k: x.amax(1), "amax"),
    "a mean over padding": (lambda m, x, k: m.wide(x).mean(1), "mean"),
    "a mean over zeros": (lambda m, x, k: masked(x, k).mean(1), "mean"),
    "a maximum over zeros": (lambda m, x, k: masked(x, k).amax(1), "amax"),
    "a bias of -20": (attend(-20.0), "_softmax"),
    "a bias of -1e4*": (attend(-1e4), "_softmax"),
    "a mask of the inputs' own": (
        lambda m, x, k: x.masked_fill(x.sum(2, keepdim=True) <= 0, -1e9).softmax(1).cumsum(1),
        "_softmax",
    ),
    **{
        f"a mask of the inputs' own, {name}": (
            mask_of_its_own(change),
            "_softmax",
        )
        for name, change in CHANGES.items()
    },
    "top-k": (lambda m, x, k: x.topk(2, 1).values, "topk"),
    "sorting": (lambda m, x, k: x.sort(1).values.cumsum(1), "sort"),
    "a softmax over padding": (lambda m, x, k: x.softmax(1), "_softmax"),
    "attention over padding": (
        lambda m, x, k: F.scaled_dot_product_attention(x, x, x),
        "_safe_softmax",
    ),
    "a convolution that looks ahead": (
        lambda m, x, k: m.conv(F.pad((x + 1).transpose(1, 2), (1, 1))),
        "convolution",
    ),
    "a norm over positions": (lambda m, x, k: m.group(x.transpose(1, 2)), "native_group_norm"),
    "a transform over positions": (lambda m, x, k: torch.fft.fft(x, dim=1).real, "_fft"),
    "a backward recurrence": (lambda m, x, k: m.gru(x.flip(1))[0].flip(1), ""),
    "the last position": (lambda m, x, k: x[:, -1], "select"),
    "the length as a number": (lambda m, x, k: masked(x, k).sum(1) / x.shape[1], "div"),
    "distances to the end": (
        lambda m, x, k: x * torch.arange(x.shape[1], 0, -1)[:, None].to(x.dtype),
        "mul",
    ),
    "a root of negative numbers": (lambda m, x, k: x.sqrt().mean(1), "mean"),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_keeps_padding_out_is_proven(name: str) -> None:
    assert leak(HARMLESS[name]) is None
    if "maximum" not in name:
        # The same is true of what trials see.
        verdict = check_padding(made(HARMLESS[name]), [(2, 30), (3, 4), (17, 30)])
        assert verdict.safe, verdict.reason


@pytest.mark.parametrize("name", HARMFUL)
def test_what_lets_padding_through_is_named_with_its_line(name: str) -> None:
    body, operator = HARMFUL[name]
    found = leak(body)
    assert found is not None and operator in found.operator
    assert found.place is not None and found.place.file == __file__
    verdict = check_padding(made(body), [(3, 30), (3, 4), (17, 30)])
    assert not verdict.safe and str(found.place.line) in verdict.reason
    assert verdict.harmful != name.endswith("*")


def test_a_model_that_keeps_tables_is_left_as_it_was() -> None:
    def body(self: Made, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if getattr(self, "table", torch.empty(0)).shape[0] < x.shape[1]:
            self.table = torch.arange(x.shape[1], dtype=x.dtype)[:, None]
        return x + self.table[: x.shape[1]]

    model = made(body)
    assert find_leak(model, 7, 12, {"batch": 2}) is None
    assert type(model.module.model.table) is torch.Tensor
    assert check_padding(model).safe


def test_a_model_that_keeps_tables_elsewhere_is_left_with_plain_ones() -> None:
    bases: dict[int, torch.Tensor] = {}
    tables: dict[int, torch.Tensor] = {}

    def body(self: Made, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        if length not in tables:
            bases[length] = torch.arange(length, dtype=x.dtype)
            tables[length] = bases[length].view(length, 1)
        return x + tables[length]

    model = made(body)
    assert check_padding(model).safe and {7, 12, 30, 41} <= set(tables)
    assert {type(table) for table in (*tables.values(), *bases.values())} == {torch.Tensor}
    for length in (7, 41):
        example = model.make_example({"batch": 2, "length": length})
        want = example["x"] + torch.arange(length)[:, None]
        assert torch.equal(model.run(example)[model.outputs[0].name], want)
        assert torch.export.export(model.module, (), example)


def last_by_the_last_mask(m: Made, x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    found = x[torch.arange(x.shape[0]), k.sum(1) - 1]
    return torch.where(k[:, -1:] == 1, x[:, -1], found)


def first_by_the_first_mask(m: Made, x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return torch.where(k[:, :1] == 1, x[:, 0], x[torch.arange(x.shape[0]), -k.sum(1)])


def all_or_some(m: Made, x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    # Less than what a trial counts as a change.
    return x.cumsum(1) if bool(k.all()) else 1.00001 * x.cumsum(1)


@pytest.mark.parametrize("batch", [(1, 1), (1, 4)])
@pytest.mark.parametrize(
    ("body", "operator"),
    [
        (last_by_the_last_mask, "select"),
        (first_by_the_first_mask, ""),
        (all_or_some, ""),
    ],
)
@pytest.mark.parametrize("lengths", [[(8, 9)], [(5, 40)]])
def test_masks_of_several_kinds_are_tried(
    body: Body, operator: str, batch: tuple[int, int], lengths: list[tuple[int, int]]
) -> None:
    verdict = check_padding(made(body, batch=batch), lengths)
    assert not verdict.safe and operator in verdict.reason


@pytest.mark.parametrize("length", [1, 2, 3, 5, 9])
def test_masks_leave_a_position(length: int) -> None:
    verdict = check_padding(made(HARMLESS["a bias of minus infinity"]), [(length, 12)])
    assert verdict.safe, verdict.reason


def test_what_was_found_out_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    model = made(HARMLESS["a masked mean"])
    first = check_padding(model)
    monkeypatch.setattr("edgecompile.export.padding.check.find_leak", None)
    assert check_padding(model) is first
    assert require_paddable(model, lengths(1, 1)) == "proven"  # nothing to pad
    with pytest.raises(TypeError):
        check_padding(model, [(3, 9)])


def test_what_trials_find_is_refused_whatever_is_assumed() -> None:
    with pytest.raises(PlanError, match="_softmax") as error:
        require_paddable(made(attend(-20.0)), lengths(2, 40), assume=True)
    assert "assume_paddable" not in str(error.value.hint)
    perhaps = made(attend(-1e4))
    with pytest.raises(PlanError, match="isn't proven harmless") as error:
        require_paddable(perhaps, lengths(2, 40))
    assert "`assume_paddable=True`" in str(error.value.hint)
    assert require_paddable(perhaps, lengths(2, 40), assume=True) == "assumed"


def test_inputs_around_minus_four_are_tried() -> None:
    # With normal inputs the maximum of eight positions is over the padding's zeros.
    model = made(lambda m, x, k: x.sum(2).clamp(min=-30).amax(1, keepdim=True))
    verdict = check_padding(model, [(40, 60)])
    assert verdict.harmful and "amax" in verdict.reason and "lowest" in verdict.reason
