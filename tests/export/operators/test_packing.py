"""Packed sequences through recurrent layers: as padded rows, they give what torch gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from edgecompile.export.checks import compare_outputs
from edgecompile.export.export import export_model
from edgecompile.export.operators.whole_layers import WholeRecurrences
from edgecompile.loaders.load import load_model


class Packed(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], total: bool = False, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rnn = kind(6, 5, **options)
        self.total = total

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        first = self.rnn.batch_first
        packed = pack_padded_sequence(x, lengths, batch_first=first, enforce_sorted=False)
        # What is done to each step's values is done to packed ones.
        packed = PackedSequence(packed.data * 2, *packed[1:])
        y, states = self.rnn(packed)
        steps = x.shape[1 if first else 0] if self.total else None
        y, known = pad_packed_sequence(y, first, padding_value=-1.0, total_length=steps)
        return (y, known, *((states,) if isinstance(states, Tensor) else states))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("total", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"batch_first": True, "num_layers": 2, "bidirectional": True}]
)
def test_padded_rows_give_what_packed_ones_give(
    kind: type[nn.RNNBase], total: bool, options: dict[str, Any]
) -> None:
    module = Packed(kind, total, **options).eval()
    for lengths in ([4], [2, 7, 1], [3, 3, 3], [5, 9, 9, 2]):
        x = torch.randn(len(lengths), 9, 6)
        x = x if module.rnn.batch_first else x.transpose(0, 1)
        with torch.no_grad():
            wanted = module(x, torch.tensor(lengths))
            with WholeRecurrences():
                got = module(x, torch.tensor(lengths))
        for mine, torchs in zip(got, wanted, strict=True):
            torch.testing.assert_close(mine, torchs, rtol=1e-5, atol=1e-6)


def test_the_longest_row_of_a_batch_sets_the_size() -> None:
    module = Packed(nn.GRU, batch_first=True, bidirectional=True).eval()
    spec = {
        "module": module,
        "inputs": {"x": torch.randn(2, 9, 6), "lengths": torch.tensor([9, 4])},
        "axes": {"x": {1: "length"}, "lengths": {}},
        "limits": {"length": (1, 20)},
        "bounds": {"lengths": (1, "length")},
    }
    model = load_model(spec)
    exported = export_model(model)
    assert (exported.strategy, exported.ranges["length"]) == ("recurrences", (1, 20))
    graph = exported.program.module()
    for lengths in ([1, 1], [3, 7], [20, 2]):
        inputs = {"x": torch.randn(2, max(lengths), 6), "lengths": torch.tensor(lengths)}
        assert compare_outputs(graph(**inputs), model.run(inputs)) < 1e-6


def test_torch_is_left_as_it_was() -> None:
    module = Packed(nn.LSTM).eval()
    x, lengths = torch.randn(5, 2, 6), torch.tensor([2, 5])
    with torch.no_grad(), WholeRecurrences():
        double = Packed(nn.LSTM).double().eval()
        with pytest.raises(NotImplementedError, match="another type than float32"):
            double(x.double(), lengths)
    assert module(x, lengths)[0].shape == (5, 2, 5)
