"""Recurrent layers: exported with a length that may vary, lowered, and equal to torch's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from edgecompile.backends.cpu.lowering.lower import lower_graph
from edgecompile.backends.operators import ops
from edgecompile.export.operators.whole_layers import WholeRecurrences

KINDS = [nn.LSTM, nn.GRU, nn.RNN]


class Layers(nn.Module):
    """A recurrent module whose results are all returned, flattened to a tuple."""

    def __init__(self, kind: type[nn.RNNBase], **options: object) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rnn = kind(12, 10, **options)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y, states = self.rnn(x)
        return (y, states) if isinstance(states, Tensor) else (y, *states)


def exported(module: nn.Module, x: Tensor, dynamic: bool) -> torch.fx.GraphModule:
    dim = torch.export.Dim("length", min=1, max=40)
    shapes = {"x": {1: dim}} if dynamic else None
    with torch.no_grad():
        program = torch.export.export(module, (), {"x": x}, dynamic_shapes=shapes, strict=False)
    return program.module()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "options",
    [
        {"batch_first": True},
        {"batch_first": True, "num_layers": 2, "bidirectional": True},
        {"batch_first": True, "bias": False, "bidirectional": True},
    ],
)
def test_the_length_stays_free(kind: type[nn.RNNBase], options: dict[str, object]) -> None:
    module = Layers(kind, **options).eval()
    with WholeRecurrences():
        graph = exported(module, torch.randn(2, 7, 12), dynamic=True)
    report = lower_graph(graph)
    layers = int(options.get("num_layers", 1)) * (2 if options.get("bidirectional") else 1)  # type: ignore[call-overload]
    assert report.counts["recurrences"] == layers
    for length in (1, 2, 33, 40):
        x = torch.randn(2, length, 12)
        for got, wanted in zip(graph(x=x), module(x), strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_torchs_whole_operators_are_taken_apart(kind: type[nn.RNNBase]) -> None:
    """As a program of a fixed length has them."""
    module = Layers(kind, batch_first=True, num_layers=2, bidirectional=True).eval()
    x = torch.randn(2, 7, 12)
    graph = exported(module, x, dynamic=False)
    assert not any(n.target is ops.RECURRENCE for n in graph.graph.nodes)
    report = lower_graph(graph)
    # Both directions of a layer read the same input: two projections become one product.
    assert (report.counts["recurrences"], report.counts["linears"]) == (4, 4)
    for got, wanted in zip(graph(x=x), module(x), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)


def test_relu_and_unbatched_inputs() -> None:
    module = Layers(nn.RNN, nonlinearity="relu").eval()
    x = torch.randn(7, 12)
    with WholeRecurrences():
        graph = exported(module, x, dynamic=False)
    assert lower_graph(graph).counts["recurrences"] == 1
    for got, wanted in zip(graph(x=x), module(x), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)


def test_torch_is_left_as_it_was() -> None:
    module, x = Layers(nn.LSTM).eval(), torch.randn(5, 2, 12)
    wanted = module(x)
    with WholeRecurrences():
        # Projections and doubles are torch's own still.
        double = Layers(nn.LSTM).double().eval()
        assert double(x.double())[0].dtype == torch.float64
        assert Layers(nn.LSTM, proj_size=4).eval()(x)[0].shape == (5, 2, 4)
    for got, other in zip(module(x), wanted, strict=True):
        torch.testing.assert_close(got, other)
