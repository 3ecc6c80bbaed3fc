"""A model that computes in bfloat16 within forward is built and verified by the tolerance of bfloat16."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

import edgecompile  # noqa: E402
from edgecompile.precision import TOLERANCES  # noqa: E402
from edgecompile.runtime import open_bundle  # noqa: E402

pytestmark = pytest.mark.slow


class Autocast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y: Tensor = self.down(torch.relu(self.up(x)))
        return y.float()


def test_a_region_of_autocast(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Autocast().eval()
    spec = {
        "module": model,
        "inputs": {"x": torch.zeros(1, 5, 16)},
        "axes": {"x": {1: "length"}},
        "limits": {"length": (1, 64)},
    }
    output = tmp_path / "half.ecb"
    edgecompile.build(spec, lengths=[3, 9, 40], output=output, quick=True)
    x = np.random.default_rng(0).standard_normal((1, 23, 16)).astype(np.float32)
    with open_bundle(str(output)) as bundle:
        assert bundle.tolerance == TOLERANCES["bf16"]
        (got,) = bundle.run({"x": x}).values()
    with torch.no_grad():
        want = model(torch.from_numpy(x)).numpy()
    assert (got != want).mean() < 0.01
