"""Graph lowering of weights and other constants: which leave, which stay apart, how they lie."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.backends.cpu.lowering.test_lower import lowered


def test_unused_weights_leave_and_the_rest_is_contiguous() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.f = nn.Linear(6, 4, bias=False)
            self.table = nn.Parameter(torch.randn(6, 5).t())

        def forward(self, x: Tensor) -> Tensor:
            return self.f(x + self.table)

    module, x = Odd(), torch.randn(5, 6)
    graph, _ = lowered(module, {"x": x})
    names = [n for n, _ in [*graph.named_parameters(), *graph.named_buffers()]]
    assert "f.weight" not in names
    assert all(t.is_contiguous() for _, t in [*graph.named_parameters(), *graph.named_buffers()])
    torch.testing.assert_close(graph(x=x), module(x), rtol=1e-5, atol=1e-6)


def test_constants_whose_names_look_alike_stay_apart() -> None:
    class Alike(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a_b = nn.Linear(8, 8, bias=False)
            self.a = nn.Module()
            self.a.b = nn.Linear(8, 8, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return torch.exp(self.a_b(x)) + torch.relu(self.a.b(x))  # type: ignore[operator]

    module, x = Alike(), torch.randn(3, 8)
    graph, report = lowered(module, {"x": x})
    assert report.counts["linears"] == 2
    torch.testing.assert_close(graph(x=x), module(x), rtol=1e-5, atol=1e-6)


def test_shared_weights_with_different_biases() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w1, self.w2 = (nn.Parameter(torch.randn(32, 8)) for _ in range(2))
            self.b1, self.b2, self.b3, self.b4 = (nn.Parameter(torch.randn(32)) for _ in range(4))

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            linear = nn.functional.linear
            first = linear(x, self.w1, self.b1) + linear(x, self.w2, self.b2)
            return first * (linear(y, self.w1, self.b3) + linear(y, self.w2, self.b4))

    module = Shared()
    example = {"x": torch.randn(3, 8), "y": torch.randn(3, 8)}
    graph, report = lowered(module, example)
    assert report.counts["merged"] == 4
    torch.testing.assert_close(graph(**example), module(**example), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dims", [(1, 0), (-1, -2), (0, 1), (0, -1)])
def test_permuted_constants(dims: tuple[int, int]) -> None:
    class Permuted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(8, 8))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.w.permute(dims)

    module, x = Permuted(), torch.randn(3, 8)
    graph, _ = lowered(module, {"x": x})
    torch.testing.assert_close(graph(x=x), module(x), rtol=1e-5, atol=1e-6)


def test_every_constant_has_a_row_major_memory_of_its_own() -> None:
    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.plain = torch.randn(6, 5).t()  # neither parameter nor buffer
            self.part = nn.Parameter(torch.randn(10, 6)[3:8])
            self.tied = nn.Parameter(torch.randn(6, 5).t())
            self.also = self.tied

        def forward(self, x: Tensor) -> Tensor:
            return (x + self.plain * self.part + self.tied) * self.also

    module, x = Views(), torch.randn(5, 6)
    graph, _ = lowered(module, {"x": x})
    constants = [getattr(graph, str(n.target)) for n in graph.graph.nodes if n.op == "get_attr"]
    assert len(constants) >= 3
    for tensor in constants:
        assert tensor.is_contiguous()
        assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    torch.testing.assert_close(graph(x=x), module(x))
