"""Graph lowering of residual sums, and of activations behind them, into the products before."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from edgecompile.backends.inductor.compat.generation import generate_cpp
from edgecompile.backends.operators.convolution import CONVOLUTION
from edgecompile.backends.operators.ops import ACT_LAST, ACTIVATIONS, LINEAR
from edgecompile.targets.profile import load_variant
from tests.backends.cpu.lowering.test_lower import lowered, targets

aten = torch.ops.aten
_SUMS = {aten.add.Tensor, aten.add_.Tensor}


def _layer(inputs: int, outputs: int, kernel: int, stride: int, groups: int) -> nn.Sequential:
    """A convolution and a batch norm whose statistics count."""
    norm = nn.BatchNorm2d(outputs)
    nn.init.normal_(norm.running_mean)  # type: ignore[arg-type]
    nn.init.uniform_(norm.running_var, 0.5, 2)  # type: ignore[arg-type]
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, norm)


class Bottleneck(nn.Module):
    """Of ResNet-50."""

    def __init__(self, channels: int, width: int, stride: int, activation: nn.Module) -> None:
        super().__init__()
        self.narrow, self.wide = _layer(channels, width, 1, 1, 1), _layer(width, 36, 1, 1, 1)
        self.middle, self.activation = _layer(width, width, 3, stride, 1), activation
        same = stride == 1 and channels == 36
        self.shortcut = nn.Identity() if same else _layer(channels, 36, 1, stride, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.activation(self.middle(self.activation(self.narrow(x))))
        y = self.wide(y)
        y += self.shortcut(x)
        return self.activation(y)


class BasicBlock(nn.Module):
    """Of ResNet-18: the sum follows a 3×3 convolution."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.a, self.b = _layer(36, 36, 3, 1, 1), _layer(36, 36, 3, 1, 1)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(x + self.b(self.activation(self.a(x))))


class Inverted(nn.Module):
    """Of MobileNetV3, with squeeze and excitation."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.depthwise = _layer(36, 50, 1, 1, 1), _layer(50, 50, 5, 1, 50)
        self.squeeze, self.excite = nn.Conv2d(50, 16, 1), nn.Conv2d(16, 50, 1)
        self.narrow = _layer(50, 36, 1, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.hardswish(self.depthwise(nn.functional.hardswish(self.wide(x))))
        scale = self.squeeze(nn.functional.adaptive_avg_pool2d(y, 1)).relu()
        return x + self.narrow(y * nn.functional.hardsigmoid(self.excite(scale)))


class Darknet(nn.Module):
    """Of YOLO: the activation comes before the sum."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = _layer(36, 20, 1, 1, 1), _layer(20, 36, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + nn.functional.silu(self.b(nn.functional.silu(self.a(x))))


class Net(nn.Module):
    """Blocks in a row behind a convolution, as in a model: channels lie together between them."""

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.Sequential(nn.Conv2d(3, 36, 3), *blocks)

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(x)


@pytest.mark.parametrize(
    ("blocks", "sums", "loops"),
    [
        ([Bottleneck(36, 12, 1, nn.ReLU(True)), Bottleneck(36, 12, 2, nn.ReLU(True))], 2, 0),
        ([BasicBlock(nn.ReLU()), BasicBlock(nn.ReLU6())], 2, 0),
        ([Darknet(), Darknet()], 2, 0),
        ([Inverted(), Inverted()], 2, 2),  # a mean and a multiplication, the same in both
    ],
    ids=["bottleneck", "basic", "darknet", "inverted"],
)
def test_blocks_leave_no_loop_for_sums(blocks: list[nn.Module], sums: int, loops: int) -> None:
    torch.manual_seed(0)
    module, x = Net(*blocks).eval(), torch.randn(2, 3, 11, 9)
    graph, report = lowered(module, {"x": x})
    assert report.counts["residuals"] == sums
    called = {getattr(target, "overloadpacket", target) for target in targets(graph)}
    assert called <= {
        CONVOLUTION.overloadpacket, LINEAR.overloadpacket, aten.permute, aten.mul,
        aten.sum, aten.div, aten.view, aten.reshape,  # of a mean
    }  # fmt: skip
    with torch.no_grad():
        torch.testing.assert_close(graph(x=x), module(x), rtol=1e-5, atol=1e-5)
    code = generate_cpp(graph, {"x": x}, load_variant("x86-64-v3"))
    assert code.kernels.count('extern "C"') == loops


class Sums(nn.Module):
    """One sum behind a convolution, and what a function makes of it."""

    def __init__(self, kernel: int, use: Callable[[nn.Module, Tensor], object]) -> None:
        super().__init__()
        self.layer = nn.Conv2d(20, 20, kernel, padding=kernel // 2)
        self.use = use

    def forward(self, x: Tensor) -> object:
        return self.use(self.layer, x)


def _checked(kernel: int, use: Callable[[nn.Module, Tensor], object]) -> tuple[list[int], int]:
    """The codes of the activations of the products in the lowered graph, and the sums that are left.

    The graph's values are those of the module.
    """
    torch.manual_seed(1)
    module, x = Sums(kernel, use).eval(), torch.randn(2, 20, 5, 7)
    graph, _ = lowered(module, {"x": x.clone()})
    with torch.no_grad():
        want = module(x.clone())
        torch.testing.assert_close(graph(x=x.clone()), want, rtol=1e-5, atol=1e-5)
    products = [n for n in graph.graph.nodes if n.target in (LINEAR, CONVOLUTION)]
    codes = [n.args[5 if n.target is LINEAR else 11] for n in products]
    return codes, sum(target in _SUMS for target in targets(graph))


def _twice_read(layer: nn.Module, x: Tensor) -> object:
    y = layer(x)
    return y + x, y * 2


def _changed_operand(layer: nn.Module, x: Tensor) -> object:
    z = x * 2
    before = z.sin()
    z += layer(x)
    return z.relu() + before, z


def _changed_between(layer: nn.Module, x: Tensor) -> object:
    z = x * 2
    y = layer(z)
    z += 1
    return y + z


def _changed_later(layer: nn.Module, x: Tensor) -> object:
    y = layer(x)
    y += x
    z = y.sin()
    y *= 2
    return z, y


RELU = ACTIVATIONS["relu"]


@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize(
    ("use", "codes", "sums"),
    [
        (lambda layer, x: (layer(x) + x).relu(), [RELU + ACT_LAST], 0),
        (lambda layer, x: layer(x).relu() + x, [RELU], 0),
        (lambda layer, x: (layer(x).relu() + x).tanh(), [RELU], 0),
        (lambda layer, x: (layer(x) + (z := x.sin())).relu() * z, [RELU + ACT_LAST], 0),
        (lambda layer, x: ((y := layer(x) + x).relu(), y), [0], 0),  # the sum has two readers
        (lambda layer, x: ((y := layer(x).relu()) + x, y), [RELU], 1),
        (lambda layer, x: layer(x) + x.mT.contiguous().mT, [0], 0),  # another order in memory
        (lambda layer, x: layer(x) + layer(x.sin()), [0, 0], 0),
        (lambda layer, x: torch.add(layer(x), x, alpha=2), [0], 1),
        (lambda layer, x: layer(x) + x[:1], [0], 1),
        (lambda layer, x: layer(x) + x[:, :1], [0], 1),
        (lambda layer, x: layer(x)[:1, :, :1] + x, [0], 1),
        (lambda layer, x: layer(x) + 1, [0], 1),
        (lambda layer, x: (y := layer(x)) + y, [0], 1),
        (_twice_read, [0], 1),
        (_changed_operand, [0], 2),
        (_changed_between, [0], 2),
        (_changed_later, [0], 0),
    ],
)  # fmt: skip
def test_sums_join_only_where_they_may(
    kernel: int, use: Callable[[nn.Module, Tensor], object], codes: list[int], sums: int
) -> None:
    assert _checked(kernel, use) == (codes, sums)
