"""Graph lowering of ``grid_sample`` to the runtime's operator."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgecompile.backends.operators.samples import SAMPLES
from tests.backends.cpu.lowering.test_lower import lowered, targets

Call = Callable[[Tensor, Tensor], Tensor]


class Sampled(nn.Module):
    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call = call

    def forward(self, x: Tensor, grid: Tensor) -> Tensor:
        return self.call(x, grid)


def deformed(x: Tensor, grid: Tensor) -> Tensor:
    """Of deformable attention: heads are images, and points are weighted and added up."""
    heads = x.reshape(-1, 10, *x.shape[2:])
    places = grid.repeat_interleave(2, 0)
    levels = [F.grid_sample(heads[..., ::step, :], places, align_corners=False) for step in (1, 2)]
    return (torch.cat(levels, -1) * torch.arange(8)).sum(-1)


@pytest.mark.parametrize(
    ("call", "count"),
    [
        (lambda x, grid: F.grid_sample(x, grid, align_corners=False), 1),
        (lambda x, grid: F.grid_sample(x, grid, align_corners=True), 1),
        (lambda x, grid: F.grid_sample(x, grid, padding_mode="border", align_corners=False), 1),
        (lambda x, grid: F.grid_sample(x, grid, padding_mode="reflection", align_corners=False), 1),
        (deformed, 2),
        (lambda x, grid: F.grid_sample(x, grid, mode="bicubic", align_corners=False), 0),
        (lambda x, grid: F.grid_sample(x, grid, mode="nearest", align_corners=False), 0),
        (lambda x, grid: F.grid_sample(x[:, :3], grid, align_corners=False), 0),
        (lambda x, grid: F.grid_sample(x.double(), grid.double(), align_corners=False), 0),
    ],
)
def test_samples_of_several_channels_are_the_runtimes(call: Call, count: int) -> None:
    torch.manual_seed(0)
    module = Sampled(call)
    example = {"x": torch.randn(2, 20, 6, 5), "grid": torch.rand(2, 7, 4, 2) * 3 - 1.5}
    batch, height = torch.export.Dim("batch", max=9), torch.export.Dim("height", min=3, max=40)
    graph, report = lowered(module, example, {"x": {0: batch, 2: height}, "grid": {0: batch}})
    assert report.counts["samples"] == count == targets(graph).count(SAMPLES)
    other = {"x": torch.randn(3, 20, 9, 5), "grid": torch.rand(3, 7, 4, 2) * 3 - 1.5}
    for inputs in (example, other):
        torch.testing.assert_close(graph(**inputs), module(**inputs), rtol=1e-5, atol=1e-5)
