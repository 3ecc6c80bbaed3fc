"""The scan of the C ABI against the operator in torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from edgecompile.export.operators.linear_scan import linear_scan
from edgecompile.export.operators.texts_states import texts_window
from tests.native.programs.aoti import ShimError
from tests.native.programs.torch_cases import Optional, ours


def draw(length: int, heads: int, key_heads: int, keys: int, values: int) -> list[Tensor]:
    """Arguments of the operator, with ``beta``, but for ``last``."""
    torch.manual_seed(length * 100 + values)
    q, k = torch.randn(2, length, key_heads, keys)
    v, state = torch.randn(length, heads, values), torch.randn(heads, keys, values)
    decay, beta = torch.rand(2, length, heads)
    return [q, k * keys**-0.5, v, decay, beta, state]


def scan(arguments: list[Tensor], delta: bool, last: int) -> tuple[Tensor, ...]:
    """Results of the native operator."""
    *first, beta, state = arguments
    optional = Optional(beta if delta else None)
    results = ours("cpu_ec_linear_scan", *first, optional, state, torch.tensor([last]), results=2)
    return tuple(results)


@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("each_key", [False, True])
@pytest.mark.parametrize(
    ("length", "heads", "key_heads", "keys", "values"),
    [
        (1, 1, 1, 1, 1), (5, 4, 2, 3, 7), (9, 2, 1, 8, 16), (30, 6, 6, 20, 33), (0, 2, 2, 4, 4),
        (4, 2, 1, 20, 70), (4, 1, 1, 600, 70),
    ],
)  # fmt: skip
def test_tokens(
    delta: bool, each_key: bool, length: int, heads: int, key_heads: int, keys: int, values: int
) -> None:
    arguments = draw(length, heads, key_heads, keys, values)
    if each_key:
        arguments[3] = torch.rand(length, heads, keys)
    kept = [tensor.clone() for tensor in arguments]
    for last in sorted({-1, 0, length // 2, length - 1, length + 5}):
        q, k, v, decay, beta, state = arguments
        optional = beta if delta else None
        wanted = linear_scan(q, k, v, decay, optional, state, torch.tensor([last]))
        for mine, theirs in zip(scan(arguments, delta, last), wanted, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=2e-5)
    for mine, theirs in zip(arguments, kept, strict=True):
        assert torch.equal(mine, theirs)


def test_padding_is_never_read() -> None:
    arguments = draw(8, 2, 1, 4, 9)
    whole = scan([t[:5] for t in arguments[:5]] + arguments[5:], True, 4)
    for tensor in arguments[:5]:
        tensor[5:] = float("nan")
    y, state = scan(arguments, True, 4)
    assert torch.equal(y[:5], whole[0]) and torch.equal(state, whole[1])
    assert not y[5:].any()


@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("each_key", [False, True])
@pytest.mark.parametrize(("keys", "values"), [(20, 33), (20, 70), (600, 70)])
def test_tokens_give_what_each_of_them_gives_alone(
    delta: bool, each_key: bool, keys: int, values: int
) -> None:
    """Bit for bit, as lookup needs it."""
    *inputs, state = draw(8, 6, 3, keys, values)
    if each_key:
        inputs[3] = torch.rand(8, 6, keys)
    y, last = scan([*inputs, state], delta, 7)
    for t in range(8):
        row, state = scan([*(tensor[t : t + 1] for tensor in inputs), state], delta, 0)
        assert torch.equal(row[0], y[t])
    assert torch.equal(state, last)


def test_views_are_read_as_they_are() -> None:
    arguments = draw(6, 4, 4, 5, 5)
    turned = [t.transpose(0, 1).contiguous().transpose(0, 1) for t in arguments]
    for mine, theirs in zip(scan(turned, True, 5), scan(arguments, True, 5), strict=True):
        assert torch.equal(mine, theirs)


def test_what_does_not_fit_is_refused() -> None:
    arguments = draw(3, 4, 2, 5, 6)
    for number, role in enumerate(["k", "v", "decay", "beta", "state"], 1):
        wrong = list(arguments)
        wrong[number] = torch.zeros(2, *wrong[number].shape[1:])
        with pytest.raises(ShimError, match=rf"(q|{role}) doesn't fit"):
            scan(wrong, True, 0)
    with pytest.raises(ShimError, match="decay doesn't fit"):
        scan([*arguments[:3], torch.zeros(3, 4, 6), *arguments[4:]], True, 0)
    with pytest.raises(ShimError, match="3 heads can't share 2 key heads"):
        scan([*arguments[:2], torch.zeros(3, 3, 6), *arguments[3:]], True, 0)


def memory_of(states: list[Tensor | None]) -> Tensor:
    """Where states lie in memory; 0 for None."""
    return torch.tensor([0 if state is None else state.data_ptr() for state in states])


@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("values_first", [False, True])
def test_each_text_is_scanned_as_it_is_alone(delta: bool, values_first: bool) -> None:
    """Bit for bit, its state included; one that begins finds zeros, and one without a state writes none."""
    *inputs, _ = draw(4, 6, 3, 20, 33)
    states: list[Tensor | None] = [torch.randn(6, 20, 33) for _ in range(3)] + [None]
    begun = [True, True, False, True]
    kept = [None if x is None else x.transpose(1, 2) if values_first else x for x in states]
    kept = [None if x is None else x.clone(memory_format=torch.contiguous_format) for x in kept]
    *first, beta = inputs
    optional, place = Optional(beta if delta else None), torch.tensor([5 * x for x in begun])
    (y,) = ours(
        "cpu_ec_texts_scan", *first, optional, memory_of(kept), place, values_first, results=1
    )
    for t, state in enumerate(states):
        old = state if state is not None and begun[t] else torch.zeros(6, 20, 33)
        row, next_state = scan([*(tensor[t : t + 1] for tensor in inputs), old], delta, 0)
        assert torch.equal(y[t], row[0])
        if state is not None:
            mine = kept[t]
            assert torch.equal(mine.transpose(1, 2) if values_first else mine, next_state)


def test_windows_of_texts_move_on() -> None:
    torch.manual_seed(3)
    x, place = torch.randn(5, 3, 1).transpose(0, 1).contiguous().transpose(0, 1), [4, 0, 1, 7, 2]
    states = [torch.randn(3, 4) for _ in place]
    mine = [state.clone() for state in states]
    (got,) = ours("cpu_ec_texts_window", x, memory_of(mine), torch.tensor(place), 4, results=1)
    assert torch.equal(got, texts_window(x, memory_of(states), torch.tensor(place), 4))
    assert all(torch.equal(one, other) for one, other in zip(mine, states, strict=True))
    nothing = memory_of([None] * 5)
    (got,) = ours("cpu_ec_texts_window", x, nothing, torch.tensor(place), 4, results=1)
    assert torch.equal(got[:, :, 4:], x) and not got[:, :, :4].any()


def test_states_that_do_not_fit_the_texts_are_refused() -> None:
    *first, _, _ = draw(2, 4, 2, 5, 6)
    none, places = Optional(None), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ShimError, match="addresses of states aren't int64 of 2 texts"):
        ours("cpu_ec_texts_scan", *first, none, places[:1], places, False, results=1)
    with pytest.raises(ShimError, match="positions aren't int64 of 2 texts"):
        ours("cpu_ec_texts_window", torch.ones(2, 3, 1), places, places.float(), 4, results=1)
    with pytest.raises(ShimError, match="x doesn't fit"):
        ours("cpu_ec_texts_window", torch.ones(2, 3, 2), places, places, 4, results=1)
    with pytest.raises(ShimError, match="a window of 0 inputs"):
        ours("cpu_ec_texts_window", torch.ones(2, 3, 1), places, places, 0, results=1)
