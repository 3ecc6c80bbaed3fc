from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.loaders.load import load_model
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.specs import AxisLimits
from edgecompile.models.threads import enough_threads
from edgecompile.pipeline.request import BuildRequest
from edgecompile.pipeline.run import Run
from edgecompile.planning.request import PlanRequest
from edgecompile.progress import NULL_PROGRESS
from tests.factories import tiny_models

LENGTHS = LengthDistribution.from_samples([1])


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    """A model of a few hundred weights, for up to 64 positions."""
    return load_model(f"{tiny_models.__file__}:masked_mlp")


def with_length(model: LoadedModel, most: int | None) -> LoadedModel:
    return replace(model, axes={**model.axes, "length": AxisLimits(1, most)})


def threads_for(model: LoadedModel) -> int:
    with enough_threads(model):
        return torch.get_num_threads()


def test_a_short_run_gets_one_thread_and_others_keep_theirs(model: LoadedModel) -> None:
    assert threads_for(model) == 1
    assert threads_for(with_length(model, 1 << 20)) == 2
    assert threads_for(with_length(model, None)) == 2


def test_a_large_encoder_keeps_its_threads(model: LoadedModel) -> None:
    generation: Any = type("Generation", (), {"encoder": with_length(model, 1 << 20)})()
    assert threads_for(replace(model, generation=generation)) == 2


def test_the_threads_come_back(model: LoadedModel) -> None:
    with pytest.raises(KeyError), enough_threads(model):
        raise KeyError
    assert torch.get_num_threads() == 2


def test_stages_of_a_loaded_model_have_them(model: LoadedModel) -> None:
    request = BuildRequest(model="", target="cpu-x86-64", plan=PlanRequest(LENGTHS))
    run = Run(request, request.check_target(), NULL_PROGRESS)
    assert run.stage("load", lambda _: torch.get_num_threads()) == 2
    run.model = model
    assert run.stage("plan", lambda _: torch.get_num_threads()) == 1
