"""The state of a factory: which outputs can be the inputs of the next run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from edgecompile.errors import ModelError
from edgecompile.loaders.load import load_model
from edgecompile.models.options import LoadOptions
from edgecompile.runtime.format.manifest.schema import StateSpec
from tests.factories import stateful


class Counter(torch.nn.Module):
    """Adds up what comes."""

    def forward(self, x: torch.Tensor, total: torch.Tensor) -> tuple[torch.Tensor, ...]:
        total = total + x.sum(1)
        return total * 2, total, total.long(), x


def counter(**more: Any) -> dict[str, Any]:
    return {
        "module": Counter(),
        "inputs": {"x": torch.ones(1, 5), "total": torch.zeros(1)},
        "axes": {"x": {1: "length"}},
        "outputs": ("twice", "total_next", "whole", "same"),
        "state": {"total": "total_next"},
        **more,
    }


def test_a_factory_names_states_and_their_start() -> None:
    states = {item.input: item for item in load_model(stateful.make()).state}
    assert states["past"] == StateSpec("past_next", "past")
    assert states["h"].start == tuple(stateful.start().flatten().tolist())
    for start in (0.5, np.full(1, 0.5), torch.tensor([0.5]), [0.5]):
        (state,) = load_model(counter(start={"total": start})).state
        assert state == StateSpec("total_next", "total", (0.5,))
    assert load_model(counter(state={}, start={})).state == ()


def test_the_one_size_of_a_model_is_no_axis_of_its_state() -> None:
    model = load_model(counter(axes={}))
    assert {spec.name: spec.shape for spec in model.inputs} == {"x": ("batch", 5), "total": (1,)}


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"state": {"y": "total_next"}}, "state names the input 'y', which doesn't exist"),
        ({"state": {"total": 1}}, "state of 'total' is 1, not the name of an output"),
        ({"state": ["total"]}, "state is a list, not a dict by input name"),
        ({"state": {"total": "sum"}}, "there is no output 'sum', only twice, total_next"),
        ({"state": {"total": "whole"}}, r"'whole' is int64 \[1\], but 'total' is float32 \[1\]"),
        ({"state": {"x": "same"}}, "the state 'x' varies with length, but keeps its size"),
        (
            {"axes": {"x": {0: "batch", 1: "length"}, "total": {0: "batch"}}},
            "the state 'total' varies with batch, .*: leave it out of axes",
        ),
        (
            {"state": {"total": "total_next", "x": "total_next"}},
            "state names the output total_next twice",
        ),
        ({"start": {"x": 1}}, "start names 'x', which is no state"),
        ({"start": {"total": [1, 2]}}, r"start of 'total' has the shape \[2\], must be \[1\]"),
        ({"start": {"total": float("nan")}}, "has values that aren't finite numbers"),
        ({"start": {"total": 1e39}}, "has values that aren't finite numbers"),
        ({"start": {"total": "zero"}}, "start of 'total' is 'zero', not a number or an array"),
    ],
)
def test_what_is_no_state_is_refused(more: dict[str, Any], text: str) -> None:
    with pytest.raises(ModelError, match=text):
        load_model(counter(**more), LoadOptions())


def test_a_start_is_a_value_of_its_input() -> None:
    spec = stateful.make()
    with pytest.raises(ModelError, match="start of 'frames' has values that aren't int64"):
        load_model({**vars(spec), "start": {"frames": 0.5}})
