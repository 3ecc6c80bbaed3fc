"""build --backend triton of a model whose sizes depend on values: real code, on a host without a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import edgecompile
from edgecompile.bundle.rehearsal import REHEARSAL
from edgecompile.runtime import open_bundle
from edgecompile.runtime.format.manifest.parse import parse_manifest
from tests.fake_gpu.build import FakeCudart
from tests.native.c_runtime.c_library import CLibrary, build_library
from tests.needs import need_triton


class Distinct(nn.Module):
    """Distinct tokens are embedded and mixed once; rows are selected, repeated, and counted by a number in the data."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.mix = nn.Linear(16, 8)

    def forward(self, ids: Tensor, first: Tensor) -> dict[str, Tensor]:
        found, inverse, counts = torch.unique(ids, return_inverse=True, return_counts=True)
        h = torch.relu(self.mix(self.embed(found)))
        even = (ids % 2 == 0).long()
        place = torch.arange(ids.shape[0])
        repeats = torch.where(place == 0, (1 - even).sum() + even, even)
        count = first.sum().item()
        torch._check(count >= 0)
        torch._check(count <= ids.shape[0])
        return {
            "found": found,
            "counts": counts,
            "tokens": (h - h.mean(0))[inverse],
            "repeated": ids.repeat_interleave(repeats, output_size=ids.shape[0]),
            "places": torch.nonzero(ids > 20),
            "begin": self.embed(ids[:count]),
        }


@pytest.mark.slow
def test_sizes_that_depend_on_values(fake_driver: FakeCudart, tmp_path: Path) -> None:
    """The build runs every length on the CPU, and rehearses them for the GPU; both loaders open the result."""
    need_triton()
    torch.manual_seed(0)
    model = {
        "module": Distinct().eval(),
        "inputs": {"ids": torch.arange(9) % 5, "first": torch.tensor([1])},
        "axes": {"ids": {0: "length"}},
        "bounds": {"ids": (0, 49), "first": (0, 1)},
    }
    options = edgecompile.BuildOptions(backend="triton")
    bundle = edgecompile.build(
        model, target="cuda-sm90", lengths=[3, 9, 20, 32], precision="fp32", quick=True,
        output=tmp_path / "distinct.ecb", build_options=options,
    )  # fmt: skip
    path = str(tmp_path / "distinct.ecb")
    manifest = parse_manifest((tmp_path / "distinct.ecb" / "manifest.json").read_bytes())
    gpu = manifest.variants[-1].gpu
    assert gpu is not None and not gpu.graphs and REHEARSAL in gpu.checks
    verify = json.loads((tmp_path / "distinct.ecb" / "reports" / "verify.json").read_text())
    assert verify["ok"] and verify["lengths"]["run"] == verify["lengths"]["total"] == 32
    assert any("wait" in note for note in bundle.notes)
    library = CLibrary(build_library())
    with open_bundle(path, warmup=False) as python, library.open(path, lazy=1) as c:
        assert python.info["variant"] == c.describe()["variant"] == "triton-x86-64"
        assert python.info["scratch_bytes"] == c.describe()["scratch_bytes"] > 0
