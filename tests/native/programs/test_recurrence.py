"""The recurrent kernel of the C ABI against torch's modules."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from edgecompile.backends.operators.ops import pack_weight
from edgecompile.export.operators.recurrence import KINDS
from tests.native.programs.aoti import ShimError
from tests.native.programs.torch_cases import Optional, ours

MODULES = {
    "lstm": lambda h: nn.LSTM(h + 3, h),
    "gru": lambda h: nn.GRU(h + 3, h),
    "rnn_tanh": lambda h: nn.RNN(h + 3, h),
    "rnn_relu": lambda h: nn.RNN(h + 3, h, nonlinearity="relu"),
}


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("hidden", [1, 7, 8, 20, 33, 130])
def test_steps(kind: str, hidden: int) -> None:
    for seed in range(6):
        torch.manual_seed(seed)
        module = MODULES[kind](hidden)
        length, batch = [1, 2, 9, 30, 0, 17][seed], [1, 3, 1, 2, 2, 40][seed]
        x = torch.randn(length, batch, hidden + 3)
        h0, c0 = torch.randn(2, 1, batch, hidden)
        reverse = bool(seed & 1)
        w_x, w_h, b_x, b_h = (p.detach() for p in module.parameters())
        gates = nn.functional.linear(x, w_x, b_x)
        if seed == 3:
            gates = gates.transpose(0, 1).contiguous().transpose(0, 1)
        first = c0[0] if kind == "lstm" else None
        packed = pack_weight(w_h)
        got = ours(
            "cpu_ec_recurrence", gates, packed, Optional(b_h), h0[0], Optional(first), KINDS[kind],
            reverse, results=3,
        )  # fmt: skip
        if length == 0:
            assert got[0].shape == (0, batch, hidden)
            torch.testing.assert_close(got[1], h0[0])
            continue
        states = (h0, c0) if kind == "lstm" else h0
        with torch.no_grad():
            y, ends = module(x.flip(0) if reverse else x, states)
        wanted: list[Tensor] = [y.flip(0) if reverse else y, *(e[0] for e in _tuple(ends))]
        if kind != "lstm":
            wanted.append(torch.zeros(0, hidden))
        for mine, theirs in zip(got, wanted, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=2e-6)


def _tuple(value: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


def test_what_does_not_fit_is_refused() -> None:
    gates, packed = torch.zeros(4, 2, 32), pack_weight(torch.zeros(32, 8))
    state = torch.zeros(2, 8)

    def run(*arguments: object) -> None:
        ours("cpu_ec_recurrence", *arguments, results=3)

    none = Optional(None)
    with pytest.raises(ShimError, match="kind 4 is unknown"):
        run(gates, packed, none, state, none, 4, False)
    with pytest.raises(ShimError, match="an LSTM has a c0"):
        run(gates, packed, none, state, none, 0, False)
    with pytest.raises(ShimError, match="gates have 32 columns, a state of 8 needs 24"):
        run(gates, packed, none, state, none, 1, False)
    with pytest.raises(ShimError, match=r"c0 isn't \[2, 8\]"):
        run(gates, packed, none, state, Optional(torch.zeros(1, 8)), 0, False)
    with pytest.raises(ShimError, match="w_packed has 256 elements"):
        small = pack_weight(torch.zeros(32, 8))[:, :8, :]
        run(
            torch.zeros(4, 2, 64),
            small,
            none,
            torch.zeros(2, 16),
            Optional(torch.zeros(2, 16)),
            0,
            False,
        )
    with pytest.raises(ShimError, match="bias is no vector of 32"):
        run(gates, packed, Optional(torch.zeros(8)), state, Optional(state), 0, False)
