"""Graph lowering of convolutions, and of what stands around them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from edgecompile.backends.cpu.lowering.lower import lower_graph
from edgecompile.backends.inductor.compat.generation import generate_cpp
from edgecompile.backends.lowering.constants import PACKED_PREFIX, constant_of, value_of
from edgecompile.backends.operators.convolution import CONVOLUTION
from edgecompile.targets.profile import load_variant
from tests.backends.cpu.lowering.test_lower import lowered, targets

CONVOLVED = ("convolutions", "pads", "batch_norms", "convolved_activations")


class Convolutions(nn.Module):
    """A convolution between padding, a norm and an activation in place; two that read one input."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(6, 40, 3, stride=2, bias=False)
        self.norm = nn.BatchNorm1d(40)
        nn.init.normal_(self.norm.running_mean)  # type: ignore[arg-type]
        nn.init.uniform_(self.norm.running_var, 0.5, 2)  # type: ignore[arg-type]
        self.relu = nn.ReLU(inplace=True)
        self.a, self.b = nn.Conv1d(40, 32, 1), nn.Conv1d(40, 64, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.relu(self.norm(self.first(nn.functional.pad(x, (2, 1)))))
        return self.a(y), self.b(y).transpose(1, 2) * 2


def test_what_stands_around_convolutions_joins_them() -> None:
    torch.manual_seed(0)
    module, x = Convolutions(), torch.randn(2, 6, 11)
    graph, report = lowered(module, {"x": x})
    found = report.counts
    assert tuple(found[k] for k in CONVOLVED) == (1, 1, 1, 1)
    # Pointwise ones are linears, which are merged as they read the same; a transposition that
    # undoes theirs is left out.
    assert (found["pointwise"], report.counts["merged"]) == (2, 2)
    assert torch.ops.aten.transpose.int not in targets(graph)
    for got, want in zip(graph(x=x), module(x), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


class Unfit(nn.Module):
    """Convolutions that must stay as they are, or whose surroundings must."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Conv1d(4, 4, 3) for _ in "abc")
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        read_twice = self.a(x)
        mirrored = self.b(nn.functional.pad(x, (1, 1), mode="reflect"))
        raised = self.c(nn.functional.pad(x, (1, 1), value=2.0))
        computed = nn.functional.conv1d(x, weight)
        return self.norm(read_twice), read_twice, mirrored, raised, computed, self.a(x[0])


def test_convolutions_that_would_change_stay() -> None:
    module = Unfit()
    example = {"x": torch.randn(2, 4, 9), "weight": torch.randn(3, 4, 2)}
    graph, report = lowered(module, example)
    found = report.counts
    assert tuple(found[k] for k in CONVOLVED[:3]) == (3, 0, 0)
    assert sorted(report.plain_convolutions.values()) == [
        "the input has no batch dimension",
        "weight or bias is computed from the inputs",
    ]
    for got, want in zip(graph(**example), module(**example), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_one_weight_in_two_geometries() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(5, 7, 4))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            transposed = nn.functional.conv_transpose1d
            return transposed(x, self.weight, stride=2), transposed(x, self.weight, stride=3)

    module, x = Twice(), torch.randn(1, 5, 6)
    graph, report = lowered(module, {"x": x})
    assert report.counts["convolutions"] == 2
    for got, want in zip(graph(x=x), module(x), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


class Classic(nn.Module):
    """Classifiers of images as they used to be written: the last pixels as one row."""

    def __init__(self, kernel: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, kernel, padding=kernel // 2)
        self.out = nn.Linear(8 * 4 * 4, 5)

    def forward(self, x: Tensor) -> Tensor:
        pixels = nn.functional.max_pool2d(self.conv(x).relu(), 2)
        first = self.out(pixels.view(pixels.shape[0], -1))
        return first + self.out(pixels.view_as(x.new_empty(x.shape[0], 128)))


@pytest.mark.parametrize("kernel", [1, 3])
def test_views_of_results_in_another_order_are_copies(kernel: int) -> None:
    module, example = Classic(kernel).eval(), {"x": torch.randn(2, 3, 8, 8)}
    graph, report = lowered(module, example)
    assert report.counts["convolutions"] + report.counts["pointwise"] == 1
    with torch.no_grad():
        torch.testing.assert_close(graph(**example), module(**example), rtol=1e-5, atol=1e-5)
    # The code generator traces the graph anew, and refuses views that can't be.
    generate_cpp(graph, example, load_variant("x86-64-v3"))


class Residual(nn.Module):
    """A block of a ResNet at each of three sizes of images."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (
            nn.Sequential(nn.Conv2d(n, n, 3, padding=1, bias=False), nn.BatchNorm2d(n), nn.ReLU())
            for n in (16, 32, 48)
        )
        self.widen, self.widen_more = nn.Conv2d(16, 32, 3, 2, 1), nn.Conv2d(32, 48, 3, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.widen((x + self.first(x)).relu())
        z = self.widen_more((y + self.second(y)).relu())
        return (z + self.third(z)).relu()


def points(graph: torch.fx.GraphModule) -> list[int]:
    """For each convolution the rows of its packed weight that belong to one channel."""
    found = []
    for node in graph.graph.nodes:
        if node.target is CONVOLUTION:
            weight, x = constant_of(graph, node.args[1]), value_of(node.args[0])
            assert weight is not None and x is not None
            found.append(weight.shape[1] // int(x.shape[1]))
    return found


def test_weights_are_packed_for_tiles_by_the_size_of_the_image() -> None:
    torch.manual_seed(0)
    module, x = Residual().eval(), torch.randn(2, 16, 26, 25)
    graph, report = lowered(module, {"x": x})
    assert report.counts["convolutions"] == 5
    assert points(graph) == [36, 9, 16, 9, 9]
    with torch.no_grad():
        torch.testing.assert_close(graph(x=x), module(x), rtol=2e-5, atol=2e-5)


def test_what_sees_padding_or_runs_in_torch_has_no_tiles() -> None:
    x = torch.randn(2, 16, 26, 25)
    for settings in ({"padded": True}, {"unpacked": {}}):
        graph = torch.export.export(Residual().eval(), (), {"x": x}, strict=False).module()
        lower_graph(graph, **settings)  # type: ignore[arg-type]
        assert points(graph) == [9] * 5


def test_tiles_fit_the_smallest_image_that_varies() -> None:
    torch.manual_seed(0)
    size = torch.export.Dim("size", min=24, max=64)
    module, shapes = Residual().eval(), {"x": {2: size, 3: size}}
    graph, _ = lowered(module, {"x": torch.randn(2, 16, 32, 32)}, shapes)
    assert points(graph) == [36, 9, 16, 9, 9]
    for side in (24, 25, 64):
        x = torch.randn(2, 16, side, side)
        with torch.no_grad():
            torch.testing.assert_close(graph(x=x), module(x), rtol=2e-5, atol=2e-5)


class Pyramid(nn.Module):
    """One head over images of several sizes, with this stride in the smallest."""

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.head, self.stride = nn.Conv2d(16, 16, 3, padding=1), stride

    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        last = nn.functional.conv2d(z, self.head.weight, self.head.bias, self.stride, 2)
        return self.head(x), self.head(y).relu(), last


@pytest.mark.parametrize(
    ("sizes", "stride", "wanted"),
    [((32, 16, 4), 1, 16), ((64, 32, 4), 1, 36), ((8, 4, 2), 1, 9), ((64, 32, 4), 2, 9)],
)
def test_a_weight_of_several_images_is_stored_once(
    sizes: tuple[int, ...], stride: int, wanted: int
) -> None:
    torch.manual_seed(0)
    module = Pyramid(stride).eval()
    example = {n: torch.randn(1, 16, size, size) for n, size in zip("xyz", sizes, strict=True)}
    graph, _ = lowered(module, example)
    assert points(graph) == [wanted] * 3
    assert len([n for n, _ in graph.named_buffers() if n.startswith(PACKED_PREFIX)]) == 1
    with torch.no_grad():
        for got, want in zip(graph(**example), module(**example), strict=True):
            torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5)


class Masked(nn.Module):
    """A convolution whose weight is computed of constants, and changed in place before or after."""

    def __init__(self, late: bool) -> None:
        super().__init__()
        self.weight, self.late = nn.Parameter(torch.randn(8, 8, 3, 3)), late

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight * 2
        before = nn.functional.conv2d(x, weight)
        weight[:, :, 1, 1:] = 0
        return before if self.late else nn.functional.conv2d(x, weight)


@pytest.mark.parametrize("late", [False, True])
def test_weights_that_are_changed_are_no_constants(late: bool) -> None:
    torch.manual_seed(3)
    module, x = Masked(late), torch.randn(1, 8, 6, 7)
    graph, report = lowered(module, {"x": x})
    assert report.counts["convolutions"] == 0
    torch.testing.assert_close(graph(x=x), module(x), rtol=1e-5, atol=1e-4)
