"""Graph lowering of means over images: by lines where channels lie together."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgecompile.backends.inductor.compat.generation import generate_cpp
from edgecompile.targets.profile import load_variant
from tests.backends.cpu.lowering.test_lower import lowered

Call = Callable[[Tensor], Tensor]


class Averaged(nn.Module):
    """A convolution, and a mean of its result."""

    def __init__(self, kernel: int, call: Call) -> None:
        super().__init__()
        self.layer, self.call = nn.Conv2d(5, 24, kernel, padding=kernel // 2), call

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self.layer(x).relu())


@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize(
    ("call", "count"),
    [
        (lambda x: F.adaptive_avg_pool2d(x, 1), 1),
        (lambda x: x.mean((2, 3)), 1),
        (lambda x: x.mean((-1, -2), keepdim=True) * x, 1),
        (lambda x: F.adaptive_avg_pool2d(x, (1, 2)), 0),
        (lambda x: x.mean(3), 0),
        (lambda x: x.mean((1, 2)), 0),
        (lambda x: x.mean((0, 2, 3)), 0),
        (lambda x: (x + 1).contiguous().mean((2, 3)), 0),  # whose channels may lie apart
        (lambda x: x.mean((2, 3), dtype=torch.float64).float(), 0),
    ],
)
def test_whole_images_behind_products_are_averaged_by_lines(
    kernel: int, call: Call, count: int
) -> None:
    torch.manual_seed(0)
    module, x = Averaged(kernel, call).eval(), torch.randn(3, 5, 7, 9)
    graph, report = lowered(module, {"x": x})
    assert report.counts["means"] == count
    torch.testing.assert_close(graph(x=x), module(x), rtol=1e-5, atol=1e-6)


def test_features_of_a_linear_are_no_images() -> None:
    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 24)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x).mean((2, 3))

    module, x = Rows().eval(), torch.randn(2, 5, 7, 6)
    graph, report = lowered(module, {"x": x})
    assert report.counts["means"] == 0
    torch.testing.assert_close(graph(x=x), module(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("axis", "count"), [(0, 1), (2, 0), (3, 0)])
def test_an_image_has_one_size(axis: int, count: int) -> None:
    module, x = Averaged(3, lambda x: x.mean((2, 3))).eval(), torch.randn(2, 5, 7, 9)
    shapes = {"x": {axis: torch.export.Dim("size", min=1 if axis == 0 else 2, max=40)}}
    graph, report = lowered(module, {"x": x}, shapes)
    assert report.counts["means"] == count
    more = x.repeat_interleave(3, axis)
    torch.testing.assert_close(graph(x=more), module(more), rtol=1e-5, atol=1e-6)


def test_threads_are_given_lines() -> None:
    module, x = Averaged(3, lambda x: x.mean((2, 3))), torch.randn(1, 5, 23, 19)
    graph, _ = lowered(module, {"x": x})
    kernels = generate_cpp(graph, {"x": x}, load_variant("x86-64-v3")).kernels
    first, *_ = kernels.partition("#pragma omp for")[2].partition("#pragma omp for")
    # The outermost loop is that of lines; one of 24 channels would be 3 vectors.
    assert "x0<static_cast<int64_t>(23L); x0+=static_cast<int64_t>(1L)" in first
