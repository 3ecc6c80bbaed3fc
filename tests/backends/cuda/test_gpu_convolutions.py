"""Convolutions of every kind, rewritten for the kernels of ours or for Inductor's template."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("triton")

from edgecompile.backends.cuda.kernels.convolution import CONVOLUTION
from edgecompile.backends.cuda.lowering.lower import lower_for_gpu
from edgecompile.backends.lowering.rewriting import LoweringReport
from edgecompile.backends.operators.ops import ACTIVATIONS
from edgecompile.targets.gpu import GpuFacts

ORIN = GpuFacts(87, 16, 163 << 10, 1536, 4 << 20)
aten = torch.ops.aten

#: Each kind once.
QUICK: list[nn.Module] = [
    nn.Conv1d(6, 8, 3, padding="same", dilation=2),
    nn.Conv1d(6, 9, 3, stride=2, dilation=3, groups=3),
    nn.Sequential(nn.Conv1d(6, 8, 3, bias=False), nn.BatchNorm1d(8), nn.ReLU()),
    nn.utils.parametrizations.weight_norm(nn.Conv1d(6, 8, 4, dilation=2)),
    nn.ConvTranspose1d(6, 8, 2, stride=4, output_padding=3, dilation=2),
    nn.Conv2d(6, 8, (3, 2), stride=(1, 2), padding=(1, 0)),
    nn.ConvTranspose2d(6, 8, (3, 4), stride=(2, 3), padding=(1, 0), output_padding=(1, 2)),
    nn.Conv3d(6, 4, 2, padding=1),
]

LAYERS: list[nn.Module] = [
    *QUICK,
    nn.Conv1d(6, 8, 3, padding=1),
    nn.Conv1d(6, 6, 5, stride=2, groups=6, bias=False),
    nn.Conv1d(6, 8, 1),
    nn.ConvTranspose1d(6, 8, 4, stride=2, padding=1),
    nn.ConvTranspose1d(6, 9, 5, stride=3, padding=1, output_padding=2, groups=3),
    nn.ConvTranspose1d(6, 8, 3),
    nn.Conv2d(6, 8, 3, dilation=2, padding=2),
    nn.ConvTranspose3d(6, 4, 3, stride=2),
]


@pytest.mark.parametrize(
    "layer",
    [*QUICK, *(pytest.param(layer, marks=pytest.mark.slow) for layer in LAYERS[len(QUICK) :])],
    ids=map(str, range(len(LAYERS))),
)
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
        assert "conv1d" not in name and "conv2d" not in name
        assert "transpose" not in name or "conv" not in name
        if name == "aten.conv3d.default":
            assert list(node.args[5]) in ([1], [1, 1, 1])
    half = program.module()
    lower_for_gpu(half, ORIN, "fp16")
    assert (half(x=x) - layer(x)).abs().max().item() <= 1e-2
    for more in (0, 1, 8):
        y = torch.cat([x, x[:, :, :more]], 2)
        want = layer(y)
        got = graph(x=y)
        assert got.shape == want.shape
        assert (got - want).abs().max().item() <= 1e-5 * max(1.0, want.abs().max().item())


class Block(nn.Module):
    """A residual block; ``order`` says how its sum is written."""

    def __init__(self, order: str, last: nn.Module, dims: int = 2) -> None:
        super().__init__()
        kind: Any = {1: nn.Conv1d, 2: nn.Conv2d}[dims]
        self.first, self.second = kind(8, 8, 3, padding=1), kind(8, 8, 3, padding=1)
        self.order, self.last = order, last

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(torch.nn.functional.relu(self.first(x), inplace=True))
        if self.order == "in place":
            y += x
        elif self.order == "behind":
            y = x + y
        elif self.order == "scaled":
            y = torch.add(y, x, alpha=2)
        elif self.order == "changed":
            x += 1
            y = y + x
        else:
            y = y + x.mean((2,), keepdim=True)
        return self.last(y)


def lowered(
    module: nn.Module, x: Tensor, precision: str = "fp32"
) -> tuple[torch.fx.GraphModule, LoweringReport]:
    for p in module.parameters():
        p.requires_grad_(False)
    shapes: Any = {"x": {0: torch.export.Dim("b", min=1, max=8)}}
    example = {"x": x.clone()}
    program = torch.export.export(module.eval(), (), example, dynamic_shapes=shapes, strict=False)
    graph = program.module()
    return graph, lower_for_gpu(graph, ORIN, precision, example)  # type: ignore[arg-type]


@pytest.mark.parametrize("dims", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize("order", ["in place", "behind", "scaled", "spread"])
def test_sums_and_activations_behind_become_part_of_convolutions(order: str, dims: int) -> None:
    module = Block(order, nn.ReLU(), dims)
    x = torch.randn(2, 8, *[7] * dims, generator=torch.Generator().manual_seed(1))
    want = module(x.clone())
    for precision in ("fp32", "fp16"):
        graph, report = lowered(module, x, precision)
        taken = order in ("in place", "behind")
        assert report.counts["residuals"] == taken
        assert report.counts["convolved_activations"] == 1 + taken
        assert (graph(x=x) - want).abs().max().item() <= (1e-5 if precision == "fp32" else 2e-2)
        calls = [node for node in graph.graph.nodes if node.target is CONVOLUTION]
        assert [node.args[3] is not None for node in calls] == [False, taken]


def test_a_convolution_does_not_move_behind_a_change_of_its_input() -> None:
    class Changed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(8, 8, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            z = x * 2
            y = self.layer(z)
            z += 1
            return y + z

    module, x = Changed(), torch.randn(2, 8, 5, 5)
    graph, report = lowered(module, x)
    assert not report.counts["residuals"]
    assert (graph(x=x) - module(x)).abs().max().item() <= 1e-5


@pytest.mark.parametrize(
    ("last", "name"),
    [
        (nn.ReLU6(), "relu6"), (nn.Hardtanh(0.0, 6.0), "relu6"), (nn.Hardswish(), "hardswish"),
        (nn.Hardsigmoid(), "hardsigmoid"), (nn.SiLU(), "silu"), (nn.GELU(), "gelu_erf"), (nn.GELU("tanh"), "gelu_tanh"),
        (nn.Hardtanh(0.0, 5.0), "none"), (nn.Softplus(), "none"),
    ],
)  # fmt: skip
def test_activations(last: nn.Module, name: str) -> None:
    module = nn.Sequential(nn.Conv2d(8, 8, 3), last)

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = module

        def forward(self, x: Tensor) -> Tensor:
            return self.layers(x)

    x = torch.randn(2, 8, 7, 7, generator=torch.Generator().manual_seed(1)) * 4
    graph, _ = lowered(Named(), x)
    (call,) = [node for node in graph.graph.nodes if node.target is CONVOLUTION]
    assert call.args[9] == ACTIVATIONS[name]
    assert (graph(x=x) - module(x)).abs().max().item() <= 1e-5


def test_tiles_are_chosen_for_the_sizes_given() -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(256, 256, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x)

    program = torch.export.export(
        Deep().eval(), (), {"x": torch.randn(2, 256, 7, 7)},
        dynamic_shapes={"x": {0: torch.export.Dim("b", min=1, max=512)}}, strict=False,
    )  # fmt: skip
    tiles = []
    for batch in (1, 512):
        graph = program.module()
        lower_for_gpu(graph, ORIN, "fp16", {"x": torch.empty(batch, 256, 7, 7)})  # type: ignore[arg-type]
        tiles += [node.args[10] for node in graph.graph.nodes if node.target is CONVOLUTION]
    assert tiles[0][-1] > 1 == tiles[1][-1]  # few outputs have their depth shared
    assert tiles[0][0] * tiles[0][1] <= tiles[1][0] * tiles[1][1]
