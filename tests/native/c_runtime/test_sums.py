"""Sizes and bounds that follow from axes, built and run: by both loaders, with the same refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import edgecompile
from edgecompile.runtime.base.errors import EdgecompileError
from edgecompile.runtime.model.model import Model
from tests.native.c_runtime.c_library import INPUT, CLibraryError, CModel, make_tensors
from tests.native.c_runtime.models import Arrays, assert_same

LO, HI, PAST = 1, 20, 30


class Net(nn.Module):
    """Two rates, a cache in front, and the last valid position of each row."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(8, 8)
        self.slow = nn.Conv1d(1, 8, 3, stride=2, padding=1)

    def forward(
        self,
        new: torch.Tensor,
        past: torch.Tensor,
        mask: torch.Tensor,
        pitch: torch.Tensor,
        lengths: torch.Tensor,
    ) -> Any:
        whole = torch.cat([past, self.mix(new)], 1).masked_fill(mask[..., None] == 0, 0.0)
        last = new[torch.arange(new.shape[0]), lengths - 1]
        return whole.cumsum(1)[:, -1], last + self.slow(pitch).mean(2)


def make() -> dict[str, Any]:
    rows = {0: "batch"}
    return {
        "module": Net(),
        "inputs": {
            "new": torch.randn(2, 6, 8),
            "past": torch.randn(2, 9, 8),
            "mask": torch.ones(2, 15, dtype=torch.int64),
            "pitch": torch.randn(2, 1, 12),
            "lengths": torch.tensor([6, 3]),
        },
        "axes": {
            "new": {**rows, 1: "length"},
            "past": {**rows, 1: "past"},
            "mask": {**rows, 1: "past + length"},
            "pitch": {**rows, 2: "2*length"},
            "lengths": rows,
        },
        "limits": {"length": (LO, HI), "past": (1, PAST)},
        "bounds": {"lengths": (1, "length")},
    }


def draw(batch: int, length: int, past: int) -> Arrays:
    rng = np.random.default_rng([batch, length, past])
    return {
        "new": rng.standard_normal((batch, length, 8)).astype(np.float32),
        "past": rng.standard_normal((batch, past, 8)).astype(np.float32),
        "mask": rng.integers(0, 2, (batch, past + length)),
        "pitch": rng.standard_normal((batch, 1, 2 * length)).astype(np.float32),
        "lengths": rng.integers(1, length + 1, batch),
    }


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    torch.manual_seed(0)
    return make()


@pytest.fixture(scope="module")
def bundle(made: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sums")
    edgecompile.build(
        made, lengths=[3, 6, 12], batch=(1, 3), target="cpu-x86-64-v3", quick=True,
        output=folder / "sums.ecb",
    )  # fmt: skip
    return folder / "sums.ecb"


def test_the_manifest_states_sums(python_model: Model) -> None:
    shapes = {item.name: item.shape for item in python_model.manifest.inputs}
    assert shapes["mask"] == ("batch", "past+length") and shapes["pitch"] == (
        "batch",
        1,
        "2*length",
    )
    lengths = python_model.manifest.inputs[-1]
    assert lengths.to_json(True)["bounds"] == [1, "length"] and lengths.bounds == (1, HI)
    assert set(python_model.manifest.axes) == {"batch", "length", "past"}


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("length", [LO, 2, 7, HI])
@pytest.mark.parametrize("past", [1, 5, PAST])
def test_every_size_is_right(
    made: dict[str, Any],
    python_model: Model,
    host_model: CModel,
    batch: int,
    length: int,
    past: int,
) -> None:
    inputs = draw(batch, length, past)
    got = python_model.run(inputs)
    with torch.no_grad():
        wanted = made["module"](**{name: torch.from_numpy(x) for name, x in inputs.items()})
    for array, tensor in zip(got.values(), wanted, strict=True):
        np.testing.assert_allclose(array, tensor.numpy(), rtol=1e-5, atol=1e-5)
    assert_same(host_model.run(inputs), got)


@pytest.mark.parametrize(
    ("change", "texts"),
    [
        ({"pitch": np.zeros((2, 1, 7), np.float32)}, ["(2*length) has size 7, must be 8"]),
        ({"mask": np.ones((2, 8), np.int64)}, ["(past+length) has size 8, must be 7"]),
        (
            {"lengths": np.array([5, 1])},
            ["1 of 2 values lie outside 1..4", "the first is 5 at [0]"],
        ),
        ({"lengths": np.array([4, 0])}, ["the first is 0 at [1]"]),
    ],
)
def test_what_does_not_follow_is_refused(
    python_model: Model, host_model: CModel, change: Arrays, texts: list[str]
) -> None:
    inputs = {**draw(2, 4, 3), **change}
    with pytest.raises(EdgecompileError) as wanted:
        python_model.run(inputs)
    with pytest.raises(CLibraryError) as caught:
        host_model.run(inputs)
    assert caught.value.status == wanted.value.exit_code
    for text in texts:
        assert text in str(wanted.value) and text in caught.value.text


def test_every_problem_is_told_though_a_size_is_unknown(python_model: Model) -> None:
    inputs = draw(2, 4, 3)
    del inputs["new"]
    with pytest.raises(EdgecompileError) as caught:
        python_model.run({**inputs, "lengths": np.array([1, 2])})
    assert "new: is missing" in str(caught.value)


def test_impossible_sizes_of_empty_arrays_are_refused(host_model: CModel) -> None:
    """The sum wraps round, and is no size of the input."""
    inputs = {name: np.ascontiguousarray(array[:0]) for name, array in draw(2, 4, 3).items()}
    tensors = make_tensors(inputs)
    tensors[0].sizes[1] = 2**62
    with pytest.raises(CLibraryError, match=r"\((2\*length|past\+length)\)") as caught:
        host_model.run_tensors(tensors)
    assert caught.value.status == INPUT
