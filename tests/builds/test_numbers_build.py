"""build --backend triton of a model whose sizes depend on values."""

from __future__ import annotations

import numpy as np
import pytest

from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.pipeline.build import build
from edgecompile.pipeline.request import BuildRequest
from edgecompile.pipeline.result import BuildResult
from edgecompile.planning.request import PlanRequest
from edgecompile.runtime import open_bundle
from edgecompile.runtime.base.errors import GpuError
from edgecompile.runtime.format.manifest.parse import parse_manifest
from tests.cli.command import run
from tests.fake_gpu.build import FakeCudart
from tests.needs import need_triton

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def forward(self, ids, first):
        count = first.sum().item()
        torch._check(count >= 0)
        torch._check(count <= ids.shape[1])
        return torch.nonzero(ids > 60), torch.masked_select(ids, ids < 30) * 0.5, ids[:, :count] * 2

def make():
    return {
        "module": Net(),
        "inputs": {"ids": torch.randint(100, (1, 9)), "first": torch.tensor([1])},
        "axes": {"ids": {1: "length"}},
        "bounds": {"ids": (0, 99), "first": (0, 1)},
        "outputs": ["places", "values", "begin"],
    }
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> BuildResult:
    need_triton()
    folder = tmp_path_factory.mktemp("numbers")
    (folder / "net.py").write_text(NET)
    lengths = LengthDistribution.from_samples([3, 4, 9, 16])
    plan = PlanRequest(lengths, quick=True, max_length=16, backend="triton", precision="fp32")
    model = f"{folder / 'net.py'}:make"
    return build(
        BuildRequest(model, "cuda-sm90", plan, output=folder / "n.ecb", work_dir=folder / "work")
    )


def test_the_bundle_says_that_no_graph_holds_its_runs(built: BuildResult) -> None:
    manifest = parse_manifest((built.bundle_path / "manifest.json").read_bytes())
    gpu = manifest.variants[-1].gpu
    assert gpu is not None and not gpu.graphs and set(gpu.checks) == {"audit", "graph", "rehearsal"}
    assert [item.shape for item in manifest.outputs] == [(None, 2), (None,), (1, None)]
    assert any("waits for a number from the GPU" in note for note in built.notes)
    assert "no CUDA graphs" in " ".join(run("inspect", str(built.bundle_path)).output.split())


def test_memory_is_planned_for_every_value(
    fake_driver: FakeCudart, built: BuildResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the fake of the driver, where kernels compute nothing: what is read is by chance, and refused."""
    with open_bundle(built.bundle_path, mode="reduce-overhead", warmup=False) as model:
        info = model.info
        assert info["variant"] == "triton-x86-64" and info["launches"]["0"] >= 4
        # The places of 16 elements, and one behind them, of each of two masks.
        assert info["scratch_bytes"] >= 2 * 17 * 8
        with pytest.raises(GpuError, match=r"Expected u.* but received"):
            model.run({"ids": np.ones((1, 9), np.int64), "first": np.array([1])})
    with open_bundle(built.bundle_path, variant="x86-64-v3") as model:
        ids = np.arange(15)[None] * 6
        got = model.run({"ids": ids, "first": np.array([1])})
    np.testing.assert_array_equal(got["places"], np.argwhere(ids > 60))
    np.testing.assert_array_equal(got["values"], ids[ids < 30] * 0.5)
    np.testing.assert_array_equal(got["begin"], ids[:, :1] * 2)
