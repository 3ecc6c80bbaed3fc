"""Sorts, recurrences and attention over a cache in Triton's interpreter, against torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from edgecompile.backends.cuda.kernels.attention import CACHED_ATTENTION
from edgecompile.backends.cuda.kernels.extremes import EXTREMES
from edgecompile.backends.cuda.kernels.grouped import GROUPED
from edgecompile.backends.cuda.kernels.launch import interpreted
from edgecompile.backends.cuda.kernels.recurrence import RECURRENCE
from edgecompile.backends.cuda.kernels.sorting import SORT
from edgecompile.export.operators.cached_attention import cached_attention
from edgecompile.export.operators.recurrence import KINDS, run_steps


def drawn(*sizes: int, seed: int = 0) -> Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64])
def test_sort(dtype: torch.dtype, descending: bool) -> None:
    x = (drawn(3, 71) * 4).round().to(dtype)  # many are equal
    if dtype.is_floating_point:
        x[0, 5], x[0, 60], x[1, 3], x[1, 9] = torch.nan, torch.nan, torch.inf, -torch.inf
    want, places = torch.sort(x, dim=1, descending=descending, stable=True)
    for k in (71, 10):
        with interpreted():
            got, at = SORT(x, k, descending)
        assert torch.equal(at, places[:, :k])
        assert torch.equal(got.nan_to_num(99), want[:, :k].nan_to_num(99))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reverse", [False, True])
def test_recurrence(kind: str, reverse: bool) -> None:
    gates, hidden = {"lstm": 4, "gru": 3}.get(kind, 1), 19
    x, w, b = drawn(5, 2, gates * hidden), drawn(gates * hidden, hidden) / 5, drawn(gates * hidden)
    h, c = drawn(2, hidden), drawn(2, hidden) if kind == "lstm" else None
    code = KINDS[kind]
    want = run_steps(x, lambda s: torch.nn.functional.linear(s, w, b), h, c, code, reverse)
    for dtype, bound in ((torch.float32, 2e-6), (torch.float16, 4e-3)):
        narrow = [None if t is None else t.to(dtype) for t in (x, w, b, h, c)]
        with interpreted():
            got = RECURRENCE(*narrow, code, reverse)
        assert [y.shape for y in got] == [y.shape for y in want]
        for one, other in zip(got, want, strict=True):
            assert one.dtype == dtype
            assert one.numel() == 0 or (one - other).abs().max().item() <= bound


@pytest.mark.parametrize(("new", "place"), [(1, 0), (1, 40), (19, 12)])
@pytest.mark.parametrize(("window", "softcap"), [(0, 0.0), (9, 3.0)])
def test_cached_attention(new: int, place: int, window: int, softcap: float) -> None:
    q, k, v = drawn(1, 4, new, 24), drawn(1, 2, 64, 24, seed=1), drawn(1, 2, 64, 24, seed=2)
    # What isn't written yet must not be read.
    k[:, :, place + new :], v[:, :, place + new :] = torch.nan, torch.nan
    position = torch.tensor([place])
    want = cached_attention(q, k.nan_to_num(0), v.nan_to_num(0), position, window, 0.3, softcap)
    with interpreted():
        got = CACHED_ATTENTION(q, k, v, position, window, 0.3, softcap, 16, 16, 2, 2)
    assert (got - want).abs().max().item() <= 2e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_groups_of_rows(dtype: torch.dtype) -> None:
    x, w = drawn(45, 40).to(dtype), drawn(5, 70, 40).to(dtype).transpose(1, 2)
    ends = torch.tensor(
        [3, 3, 35, 41, 43], dtype=torch.int32
    )  # one is empty, two rows are nobody's
    want = GROUPED(x, w, ends)
    with interpreted():
        got = GROUPED(x, w, ends)
    assert got[43:].count_nonzero() == 0
    assert (got - want).abs().max().item() <= (2e-5 if dtype == torch.float32 else 3e-2)


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_extremes_of_places(dtype: torch.dtype, largest: bool) -> None:
    x = (drawn(3, 300) * 9).to(dtype)
    places = torch.arange(900).reshape(3, 300) * 7 % 12
    x[0, 0], places[places == 4] = -3, 5  # nothing goes to 4
    if dtype == torch.float32:
        x[places == 2] = torch.inf if largest else -torch.inf
        x[places == 3] = -torch.inf if largest else torch.inf
    want, hit = EXTREMES(x, places, 12, largest)
    with interpreted():
        got = EXTREMES(x, places, 12, largest)
    assert torch.equal(got[0], want) and torch.equal(got[1], hit)
    assert not hit[:, 4].any() and hit[:, 3].all()
    assert torch.equal(
        want[1, 0], x[1, places[1] == 0].amax() if largest else x[1, places[1] == 0].amin()
    )
