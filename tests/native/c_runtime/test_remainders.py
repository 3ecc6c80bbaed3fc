"""A length that a sum alone gives, and a program for each of its remainders: built, run by both loaders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import edgecompile
from edgecompile.runtime.base.errors import EdgecompileError
from edgecompile.runtime.model.model import Model
from edgecompile.runtime.model.open_bundle import open_bundle
from tests.native.c_runtime.c_library import CLibrary, CLibraryError, CModel
from tests.native.c_runtime.models import Arrays, assert_same

pytestmark = pytest.mark.slow
HI = 24


class Net(nn.Module):
    """Sums of pairs; every other one is halved if the number of pairs is odd."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = self.mix(x).unflatten(1, (-1, 2)).sum(2)
        if x.shape[1] % 2:
            x = x.cumsum(1) / 2
        return x + y[:, 1:]


def make() -> dict[str, Any]:
    torch.manual_seed(0)
    return {
        "module": Net(),
        "inputs": {"x": torch.randn(1, 12, 4), "y": torch.randn(1, 7, 4)},
        "axes": {"x": {0: "batch", 1: "2*length"}, "y": {0: "batch", 1: "length+1"}},
        "limits": {"length": (1, HI)},
    }


def draw(pairs: int, extra: int = 1, single: int = 0) -> Arrays:
    rng = np.random.default_rng(pairs)
    shapes = {"x": (1, 2 * pairs + single, 4), "y": (1, pairs + extra, 4)}
    return {name: rng.standard_normal(s).astype(np.float32) for name, s in shapes.items()}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("remainders") / "pairs.ecb"
    edgecompile.build(make(), lengths=[3, 9, 20], target="cpu-x86-64-v3", quick=True, output=path)
    return path


def test_every_length_is_right(python_model: Model, host_model: CModel) -> None:
    manifest, module = python_model.manifest, make()["module"]
    assert [spec.shape[1] for spec in manifest.inputs] == ["2*length", "length+1"]
    lengths = [bucket.axes["length"] for bucket in manifest.buckets]
    assert {(item.lo, item.hi, item.step) for item in lengths} == {(1, HI - 1, 2), (2, HI, 2)}
    for length in range(1, HI + 1):
        inputs = draw(length)
        got = python_model.run(inputs)
        with torch.no_grad():
            wanted = module(*map(torch.from_numpy, inputs.values())).numpy()
        np.testing.assert_allclose(got["output"], wanted, rtol=1e-5, atol=1e-5)
        assert_same(host_model.run(inputs), got)


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        (draw(4, single=1), "(2*length) has size 9, which it has for no size of its axes"),
        (draw(4, extra=2), "(length+1) has size 6, must be 5"),
        (draw(HI + 1), f"no bucket takes the sizes batch 1, length {HI + 1}"),
        (draw(0), "no bucket takes the sizes batch 1, length 0"),
    ],
)
def test_sizes_that_no_length_gives_are_refused_alike(
    python_model: Model, host_model: CModel, inputs: Arrays, text: str
) -> None:
    with pytest.raises(EdgecompileError) as wanted:
        python_model.run(inputs)
    with pytest.raises(CLibraryError) as caught:
        host_model.run(inputs)
    assert caught.value.status == wanted.value.exit_code
    assert text in str(wanted.value) and text in str(caught.value)


def test_an_optional_input_leaves_its_length_to_the_others(
    library: CLibrary, bundle: Path, tmp_path: Path
) -> None:
    """The first sum of the length is that of the input which was left out."""
    folder = tmp_path / "optional.ecb"
    shutil.copytree(bundle, folder)
    manifest = json.loads((folder / "manifest.json").read_bytes())
    assert manifest["inputs"][0]["shape"][1] == "2*length"
    for item in manifest["inputs"]:
        item["default"] = 0
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with open_bundle(folder) as python, library.open(folder) as host:
        for length in (3, 4):
            inputs = draw(length)
            inputs["x"][...] = 0
            want = python.run(inputs)
            given = {"y": inputs["y"]}
            assert_same(python.run(given), want)
            assert_same(host.run(given), want)
        for refused in ({"y": draw(0)["y"][:, :0]}, {}):
            with pytest.raises(EdgecompileError) as wanted:
                python.run(refused)
            with pytest.raises(CLibraryError) as caught:
                host.run(refused)
            assert caught.value.status == wanted.value.exit_code
