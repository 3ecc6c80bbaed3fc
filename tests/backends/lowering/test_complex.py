"""Complex numbers become pairs of real tensors, all of them or none."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from edgecompile.backends.cpu.lowering.lower import LoweringReport, lower_graph


class Rotary(nn.Module):
    """Positions turn pairs of features, written with complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", 1 / 100 ** (torch.arange(4.0) / 4), persistent=False)
        self.register_buffer("turn", torch.polar(torch.ones(4), torch.arange(4.0)))

    def forward(self, x: Tensor) -> Tensor:
        angle = torch.outer(torch.arange(x.shape[1]), self.steps)
        turns = torch.polar(torch.ones_like(angle), angle).to(x.device)
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        y = pairs * turns.unsqueeze(0) * self.turn + pairs.transpose(0, 0)
        return torch.view_as_real(y).flatten(2) + y.abs().sum() + (y * 2.0).real.mean()


class Transform(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def lowered(
    module: nn.Module, x: Tensor, dynamic: bool = False
) -> tuple[torch.fx.GraphModule, LoweringReport]:
    shapes = {"x": {1: torch.export.Dim("length", min=2, max=64)}} if dynamic else None
    program = torch.export.export(
        module.eval(),
        (),
        {"x": x},
        dynamic_shapes=shapes,
        strict=False,
        prefer_deferred_runtime_asserts_over_guards=dynamic,
    )
    graph = program.module()
    return graph, lower_graph(graph)


def complex_nodes(graph: torch.fx.GraphModule) -> list[str]:
    values = ((n.name, n.meta.get("val")) for n in graph.graph.nodes)
    return [name for name, v in values if isinstance(v, Tensor) and v.is_complex()]


def test_rotary_embeddings_of_any_length() -> None:
    module = Rotary()
    graph, report = lowered(module, torch.randn(2, 9, 8), dynamic=True)
    assert complex_nodes(graph) == [] and report.kept == {}
    for length in (2, 31, 64):
        x = torch.randn(2, length, 8)
        torch.testing.assert_close(graph(x=x), module(x), rtol=1e-5, atol=1e-5)


TRANSFORMS = [
    lambda x: torch.fft.fftn(x, dim=(1, 2)).real,
    lambda x: torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).imag,
    lambda x: torch.fft.fft2(x, norm="ortho").abs(),
    lambda x: torch.view_as_real(torch.fft.rfft(x, dim=1)),
    lambda x: torch.fft.ifft(torch.fft.fft(x, dim=1), dim=1).real,
    lambda x: torch.fft.ifft(torch.fft.fft(x, dim=1, norm="forward"), dim=1, norm="forward").real,
]


def parts(x: Tensor) -> Tensor:
    return torch.stack([x.real, x.imag])


def operator_of_coefficients(x: Tensor) -> Tensor:
    """A layer of a Fourier neural operator: some coefficients are weighted, the others zero."""
    x = x.transpose(1, 2)
    coefficients = torch.fft.rfft(x)
    weights = torch.complex(torch.ones(12, 12, 2), torch.arange(24.0).reshape(12, 1, 2))
    out = torch.zeros(*x.shape[:2], x.shape[-1] // 2 + 1, dtype=torch.cfloat)
    out[:, :, :2] = torch.einsum("bcl,cdl->bdl", coefficients[:, :, :2], weights)
    return torch.fft.irfft(out, n=x.shape[-1])


def convolution(x: Tensor) -> Tensor:
    """A state-space layer's: of twice the size, so that nothing wraps around."""
    size = 2 * x.shape[1]
    product = torch.fft.rfft(x, n=size, dim=1) * torch.fft.rfft(x.flip(1), n=size, dim=1)
    return torch.fft.irfft(product, n=size, dim=1)[:, : x.shape[1]]


fft, rfft, irfft = torch.fft.fft, torch.fft.rfft, torch.fft.irfft
TRANSFORMS += [
    convolution,
    operator_of_coefficients,
    lambda x: irfft(rfft(x, dim=1), n=x.shape[1], dim=1, norm="ortho"),
    lambda x: irfft(rfft(x, dim=1, norm="forward"), dim=1, norm="forward"),
    lambda x: irfft(fft(x, dim=1), n=2 * x.shape[1] + 1, dim=1),  # the last ones aren't there
    lambda x: irfft(x, n=5, dim=-1),
    lambda x: parts(fft(x, n=3 * x.shape[1], dim=1, norm="ortho")),
    lambda x: parts(fft(x, n=70, dim=1)),
    lambda x: torch.fft.ifft2(torch.fft.fft2(x)).real,
    lambda x: torch.fft.irfft2(torch.fft.rfft2(x), s=(x.shape[1], 11)),
    lambda x: torch.fft.irfftn(torch.fft.rfftn(x, norm="ortho"), s=x.shape, norm="ortho"),
    lambda x: torch.fft.ifftn(torch.fft.fftn(x, s=(70, 10), dim=(1, 2)), dim=(1,)).imag,
    lambda x: torch.fft.hfft(rfft(x, dim=1), n=x.shape[1], dim=1),
    lambda x: parts(torch.fft.ihfft(x, dim=1, norm="ortho")),
    lambda x: parts(torch.fft.ifftshift(torch.fft.fftshift(fft(x, dim=1), dim=1), dim=1)),
]

#: What stands between a transform and its inverse.
BETWEEN = [
    lambda x, y: x / (y + 20),
    lambda x, y: x / 2.0 - y,
    lambda x, y: 1 / (x + 50j),
    lambda x, y: x * torch.exp(y / 100),
    lambda x, y: x**3 / y.abs().max(),
    lambda x, y: torch.polar(x.abs(), x.angle()),
    lambda x, y: torch.cat([x, y], -1).sum(-1) + torch.stack([x, y], 1).mean(1).mean(-1),
    lambda x, y: torch.nn.functional.pad(x, (1, 2)),
    lambda x, y: x @ y.transpose(1, 2).conj(),
    lambda x, y: torch.zeros_like(x) + x.to(torch.cfloat) + y.real.to(torch.cfloat),
]


@pytest.mark.parametrize("function", BETWEEN)
def test_what_stands_between_transforms(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    module = Transform(lambda x: parts(function(rfft(x, dim=1), rfft(x.flip(1) + 1, dim=1))))
    graph, report = lowered(module, torch.randn(2, 9, 12))
    assert complex_nodes(graph) == [] and report.kept == {}
    x = torch.randn(2, 9, 12)
    torch.testing.assert_close(graph(x=x), module(x), rtol=2e-5, atol=1e-4)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x**0.5,
        lambda x: torch.nn.functional.pad(x, (1, 2), value=1.0),
        lambda x: torch.cat([x, x.real], -1),
        lambda x: torch.einsum("abc,abc,abc->a", x, x, x),
        lambda x: x.sum(dtype=torch.complex128),
        lambda x: x.to(torch.complex128),
    ],
)
def test_what_has_other_arguments_is_left_alone(function: Callable[[Tensor], Tensor]) -> None:
    module, x = Transform(lambda x: parts(function(rfft(x)))), torch.randn(2, 9, 12)
    graph, report = lowered(module, x)
    assert complex_nodes(graph) != [] and report.kept != {}
    torch.testing.assert_close(graph(x=x), module(x))


@pytest.mark.parametrize("function", TRANSFORMS)
@pytest.mark.parametrize("length", [8, 15])
def test_fourier_transforms_of_fixed_sizes(
    function: Callable[[Tensor], Tensor], length: int
) -> None:
    module, x = Transform(function), torch.randn(2, length, 12)
    graph, _ = lowered(module, x)
    assert complex_nodes(graph) == []
    torch.testing.assert_close(graph(x=x), module(x), rtol=1e-4, atol=1e-4)


# The operator's slices make a condition of the shortest length; tests/native/programs/test_fourier.py has one.
# Each takes a second; every one runs at fixed sizes above.
@pytest.mark.parametrize(
    "function",
    [
        pytest.param(f, marks=pytest.mark.slow if number % 2 else ())
        for number, f in enumerate(TRANSFORMS)
        if f is not operator_of_coefficients
    ],
)
def test_fourier_transforms_along_a_dynamic_size(function: Callable[[Tensor], Tensor]) -> None:
    module = Transform(function)
    graph, report = lowered(module, torch.randn(2, 9, 12), dynamic=True)
    assert complex_nodes(graph) == [] and report.kept == {}
    for length in (2, 3, 17, 64):
        x = torch.randn(2, length, 12)
        want = module(x)
        error = (graph(x=x) - want).abs().max() / want.abs().max()
        assert error < 2e-6


def test_what_has_no_pair_form_is_left_alone() -> None:
    module = Transform(lambda x: torch.linalg.eigvals(x[0, :8, :8]).real + x.sum())
    x = torch.randn(1, 8, 8)
    graph, report = lowered(module, x)
    assert complex_nodes(graph) != []
    assert any("of complex numbers" in reason for reason in report.kept.values())


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("turn", torch.polar(torch.ones(4), torch.arange(4.0)))


class Names(nn.Module):
    """Constants whose names are those that others' parts could get."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()
        self.register_buffer("inner_turn", torch.polar(torch.full((4,), 2.0), torch.ones(4)))
        self.register_buffer("inner_turn_real", torch.full((4,), 5.0))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        turned = y * self.inner.turn + self.inner_turn  # type: ignore[operator]
        return torch.view_as_real(turned) * self.inner_turn_real.sum()  # type: ignore[operator]


def test_parts_of_constants_have_names_of_their_own() -> None:
    module, x = Names(), torch.randn(2, 3, 8)
    graph, _ = lowered(module, x)
    assert complex_nodes(graph) == []
    torch.testing.assert_close(graph(x=x), module(x), rtol=1e-5, atol=1e-5)


def as_complex(x: Tensor) -> Tensor:
    return torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.view_as_real(torch.add(as_complex(x), as_complex(x + 1), alpha=2)),
        lambda x: torch.view_as_real(torch.add(as_complex(x), x[..., :4], alpha=3)),
        lambda x: torch.view_as_real(as_complex(x) * 1j + (2 - 1j)),
        lambda x: torch.view_as_real(x * 1j + 1),
        lambda x: torch.view_as_real(as_complex(x).conj() * as_complex(x)),
        lambda x: as_complex(x).conj().imag + 1,
        lambda x: torch.fft.fft((x * 10).to(torch.int64)).real,
    ],
)
def test_numbers_factors_and_conjugates(function: Callable[[Tensor], Tensor]) -> None:
    module, x = Transform(function), torch.randn(2, 3, 8)
    graph, _ = lowered(module, x)
    assert complex_nodes(graph) == []
    torch.testing.assert_close(graph(x=x), module(x), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    "changed", [lambda y: y, lambda y: y.flatten(-2)[..., 1:]], ids=["itself", "a view of it"]
)
def test_a_part_that_is_changed_in_place_is_left_alone(changed: Callable[[Tensor], Tensor]) -> None:
    def function(x: Tensor) -> Tensor:
        y = as_complex(x * 1)
        changed(torch.view_as_real(y)).mul_(2)
        return y.abs()

    module, x = Transform(function), torch.randn(2, 3, 8)
    graph, report = lowered(module, x)
    assert "its memory is changed later" in report.kept.values()
    torch.testing.assert_close(graph(x=x), module(x))


def test_what_is_copied_elsewhere_is_a_pair_all_the_same() -> None:
    def function(x: Tensor) -> Tensor:
        turned = torch.view_as_real(as_complex(x) * 1j).flatten(-2).type_as(x)
        joined = x.new_empty((*x.shape[:-1], 2 * x.shape[-1]))
        joined[..., : x.shape[-1]].copy_(x)
        joined[..., x.shape[-1] :].copy_(turned)
        return joined

    module, x = Transform(function), torch.randn(2, 3, 8)
    graph, report = lowered(module, x)
    assert complex_nodes(graph) == [] and report.kept == {}
    torch.testing.assert_close(graph(x=x), module(x))
