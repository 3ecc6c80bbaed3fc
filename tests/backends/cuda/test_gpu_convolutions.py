"""Convolutions of every kind, rewritten as those that Inductor has a template for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("triton")

from edgecompile.backends.cuda.lowering.lower import lower_for_gpu
from edgecompile.targets.gpu import GpuFacts

ORIN = GpuFacts(87, 16, 163 << 10, 1536, 4 << 20)
aten = torch.ops.aten

LAYERS: list[nn.Module] = [
    nn.Conv1d(6, 8, 3, padding=1),
    nn.Conv1d(6, 8, 3, padding="same", dilation=2),
    nn.Conv1d(6, 6, 5, stride=2, groups=6, bias=False),
    nn.Conv1d(6, 9, 3, stride=2, dilation=3, groups=3),
    nn.Conv1d(6, 8, 1),
    nn.Sequential(nn.Conv1d(6, 8, 3, bias=False), nn.BatchNorm1d(8), nn.ReLU()),
    nn.utils.parametrizations.weight_norm(nn.Conv1d(6, 8, 4, dilation=2)),
    nn.ConvTranspose1d(6, 8, 4, stride=2, padding=1),
    nn.ConvTranspose1d(6, 9, 5, stride=3, padding=1, output_padding=2, groups=3),
    nn.ConvTranspose1d(6, 8, 2, stride=4, output_padding=3, dilation=2),
    nn.ConvTranspose1d(6, 8, 3),
    nn.Conv2d(6, 8, (3, 2), stride=(1, 2), padding=(1, 0)),
    nn.Conv2d(6, 8, 3, dilation=2, padding=2),
    nn.ConvTranspose2d(6, 8, (3, 4), stride=(2, 3), padding=(1, 0), output_padding=(1, 2)),
    nn.Conv3d(6, 4, 2, padding=1),
    nn.ConvTranspose3d(6, 4, 3, stride=2),
]


@pytest.mark.parametrize("layer", LAYERS, ids=[str(i) for i in range(len(LAYERS))])
def test_convolutions(layer: nn.Module) -> None:
    dims = next(int(type(m).__name__[-2]) for m in layer.modules() if "Conv" in type(m).__name__)
    sizes = {1: (21,), 2: (13, 11), 3: (5, 6, 7)}[dims]
    layer = layer.eval()
    for p in layer.parameters():
        p.requires_grad_(False)
    x = torch.randn(2, 6, *sizes, generator=torch.Generator().manual_seed(1))

    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x)

    shapes: Any = {"x": {2: torch.export.Dim.DYNAMIC}}
    program = torch.export.export(Module(), (), {"x": x}, dynamic_shapes=shapes, strict=False)
    graph = program.module()
    lower_for_gpu(graph, ORIN, "fp32")
    for node in graph.graph.nodes:
        name = str(node.target)
        assert "conv1d" not in name
        assert "transpose" not in name or "conv" not in name
        if name in ("aten.conv2d.default", "aten.conv3d.default"):
            assert list(node.args[5]) in ([1], [1, 1], [1, 1, 1])
    half = program.module()
    lower_for_gpu(half, ORIN, "fp16")
    assert (half(x=x) - layer(x)).abs().max().item() <= 1e-2
    for more in (0, 1, 8):
        y = torch.cat([x, x[:, :, :more]], 2)
        want = layer(y)
        got = graph(x=y)
        assert got.shape == want.shape
        assert (got - want).abs().max().item() <= 1e-5 * max(1.0, want.abs().max().item())
