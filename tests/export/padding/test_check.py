from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from edgecompile.export.padding.check import check_padding
from edgecompile.loaders.load import load_model
from edgecompile.models.examples import pad_inputs
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.specs import InputSpec
from tests.factories import tiny_models

TINY = Path(tiny_models.__file__)


def load(name: str, **options: Any) -> LoadedModel:
    return load_model(f"{TINY}:{name}", **options)


@pytest.mark.parametrize("name", ["masked_mlp", "token_mlp", "causal", "forward_recurrence"])
def test_padding_that_cannot_matter_is_safe(name: str) -> None:
    verdict = check_padding(load(name))
    assert verdict.safe and verdict.reason == "" and verdict.max_error < 1e-5
    lengths = {length for length, _ in verdict.tried}
    amounts = {padded - length for length, padded in verdict.tried}
    assert 1 in lengths and len(lengths) >= 4
    assert 1 in amounts and max(amounts) > 20


@pytest.mark.parametrize("name", ["unmasked_mean", "two_way_recurrence", "looping", "branching"])
def test_padding_that_leaks_is_found(name: str) -> None:
    verdict = check_padding(load(name))
    assert not verdict.safe and verdict.harmful and "outputs change by" in verdict.reason


def test_a_leak_at_one_length_only_is_found() -> None:
    class Odd(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * (1 if x.shape[1] < 60 else 2)

    model = load_model((Odd(), {"x": torch.randn(1, 9)}, {"x": {1: "length"}}), pad={"x": 0})
    assert not check_padding(model).safe
    assert check_padding(model, [(4, 8), (30, 59)]).safe


def test_what_cannot_be_padded_says_why() -> None:
    verdict = check_padding(load("cross_attention"))
    assert not verdict.safe and "no pad value is known for queries" in verdict.reason
    assert check_padding(load("frames")).reason.startswith("the size of output varies with length")
    fixed = load_model((torch.nn.Linear(8, 2), {"input": torch.randn(1, 8)}))
    assert check_padding(fixed).reason == "the model has one size, so nothing is padded"


def test_no_size_that_follows_from_the_length_is_padded() -> None:
    class Sums(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x.sum(1) + y.sum(1)

    inputs = {"x": torch.randn(1, 6), "y": torch.randn(1, 12)}
    axes = {"x": {1: "length"}, "y": {1: "2*length"}}
    model = load_model((Sums(), inputs, axes), pad={"x": 0, "y": 0}, max_length=20)
    verdict = check_padding(model)
    assert (
        not verdict.safe and verdict.reason == "the size 2*length of an input follows from length"
    )
    assert not model.paddable


def test_pad_values_can_be_given_where_the_model_declares_none() -> None:
    model = load("cross_attention", pad={"queries": 0.0})
    assert check_padding(model).safe


def test_inputs_are_padded_as_pad_mode_does_it() -> None:
    inputs = (
        InputSpec("ids", "int64", ("batch", "length"), 7),
        InputSpec("scores", "float32", ("length", 2), -1.5),
        InputSpec("other", "float32", ("batch", 3)),
    )
    example = {
        "ids": torch.tensor([[1, 2]]),
        "scores": torch.ones(2, 2),
        "other": torch.ones(1, 3),
    }
    padded = pad_inputs(inputs, example, "length", 4)
    assert padded["ids"].tolist() == [[1, 2, 7, 7]]
    assert padded["scores"].tolist() == [[1, 1], [1, 1], [-1.5, -1.5], [-1.5, -1.5]]
    assert padded["other"] is example["other"]
    with pytest.raises(ValueError, match="no pad value"):
        pad_inputs((InputSpec("x", "float32", ("length",)),), {"x": torch.ones(1)}, "length", 2)
