"""The kernels of convolutions in Triton's interpreter, against torch's convolutions."""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn import functional

pytest.importorskip("triton")

from edgecompile.backends.cuda.kernels.convolution import CONVOLUTION, packed_weight
from edgecompile.backends.cuda.kernels.launch import interpreted
from edgecompile.backends.operators.ops import ACTIVATIONS

_BOUNDS = {torch.float32: 5e-6, torch.float16: 5e-3, torch.bfloat16: 4e-2}


class Case(NamedTuple):
    channels: int
    outputs: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int]
    groups: int
    size: tuple[int, int]
    tile: tuple[int, ...]


CASES = {
    "a tap's channels fill steps": Case(
        16, 24, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1, (5, 4), (16, 16, 16, 4, 2, 1)
    ),
    "several programs share a tile": Case(
        32, 24, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1, (4, 3), (16, 16, 16, 4, 2, 4)
    ),
    "a part has nothing to do": Case(
        16, 16, (1, 3), (1, 1), (0, 1, 0, 1), (1, 1), 1, (1, 21), (16, 16, 16, 4, 2, 5)
    ),
    "images of three channels": Case(
        3, 20, (7, 7), (2, 2), (3, 3, 3, 3), (1, 1), 1, (9, 8), (16, 32, 16, 4, 2, 1)
    ),
    "one channel": Case(
        1, 24, (1, 10), (1, 5), (0, 0, 0, 0), (1, 1), 1, (1, 64), (16, 32, 16, 4, 1, 1)
    ),
    "steps cross taps": Case(
        20, 24, (1, 3), (1, 2), (0, 1, 0, 2), (1, 1), 1, (1, 21), (16, 16, 32, 4, 2, 2)
    ),
    "groups, dilated, uneven padding": Case(
        32, 40, (3, 3), (2, 1), (1, 0, 2, 1), (2, 1), 2, (7, 4), (16, 32, 16, 4, 2, 3)
    ),
    "what lies outside is cut off": Case(
        16, 16, (2, 2), (1, 1), (-1, 0, 0, -2), (1, 1), 1, (6, 7), (16, 16, 16, 4, 2, 1)
    ),
    "each channel by itself": Case(
        6, 6, (3, 3), (1, 2), (1, 0, 2, 1), (2, 1), 6, (9, 6), (16, 16, 0, 4, 1, 1)
    ),
    "several outputs of each channel": Case(
        6, 18, (1, 5), (1, 2), (0, 2, 0, 1), (1, 1), 6, (1, 16), (8, 16, 0, 4, 1, 1)
    ),
}


def drawn(seed: int, *sizes: int) -> Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


def padded(x: Tensor, padding: tuple[int, ...]) -> Tensor:
    return functional.pad(x, [padding[1], padding[3], padding[0], padding[2]])


def check(case: Case, dtype: torch.dtype, activation: str, *, residual: bool, bias: bool) -> None:
    fan = case.channels // case.groups * math.prod(case.kernel)
    x = drawn(0, 2, case.channels, *case.size)
    w = drawn(1, case.outputs, case.channels // case.groups, *case.kernel) / fan**0.5
    b = drawn(2, case.outputs) if bias else None
    plain: Any = (case.stride, 0, case.dilation, case.groups)
    x, w, b = (None if t is None else t.to(dtype) for t in (x, w, b))  # type: ignore[assignment]
    wide = [None if t is None else t.double() for t in (padded(x, case.padding), w, b)]
    want = functional.conv2d(*wide, *plain)  # type: ignore[arg-type]
    more = drawn(3, *want.shape).to(dtype) if residual else None
    want = want if more is None else want + more.double()
    want = ENDS[activation](want)
    operands = (x, packed_weight(w, case.groups), b, more, *case[2:7], ACTIVATIONS[activation])
    with interpreted():
        got = CONVOLUTION(*operands, case.tile)
    reference = CONVOLUTION(*operands, case.tile)  # what torch computes in its place
    for y in (got, reference):
        assert y.dtype == dtype and y.shape == want.shape
        assert y.is_contiguous(memory_format=torch.channels_last)
        bound = _BOUNDS[dtype] * max(1.0, want.abs().max().item())
        assert (y.double() - want).abs().max().item() <= bound


ENDS = {
    "none": lambda x: x,
    "relu": functional.relu,
    "gelu_erf": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "relu6": functional.relu6,
    "hardswish": functional.hardswish,
    "hardsigmoid": functional.hardsigmoid,
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(name, dtype, marks=() if dtype is quick else pytest.mark.slow)
        # Each case in one type, and each of the quick types in every other case.
        for name, quick in zip(CASES, itertools.cycle([torch.float32, torch.float16]), strict=False)
        for dtype in (torch.float32, torch.float16, torch.bfloat16)
    ],
)
def test_convolution(name: str, dtype: torch.dtype) -> None:
    check(CASES[name], dtype, "relu", residual=True, bias=True)
    check(CASES[name], dtype, "none", residual=False, bias=False)


def test_every_activation_has_a_number() -> None:
    assert set(ENDS) == set(ACTIVATIONS)


@pytest.mark.parametrize("activation", ENDS)
def test_activations(activation: str) -> None:
    one, other = CASES["a part has nothing to do"], CASES["each channel by itself"]
    for case, parts in ((one, 1), (one, 2), (other, 1)):
        tiled = case._replace(tile=(16, 16, 16, 4, 1, parts))
        check(tiled, torch.float32, activation, residual=False, bias=True)


@pytest.mark.parametrize("activation", ["relu", "relu6"])
def test_nan_stays(activation: str) -> None:
    case = CASES["a tap's channels fill steps"]
    x, w = drawn(0, 1, 16, 5, 4), drawn(1, 24, 16, 3, 3)
    x[0, 0, 2, 2] = torch.nan
    operands = (x, packed_weight(w, 1), None, None, *case[2:7], ACTIVATIONS[activation], case.tile)
    with interpreted():
        got = CONVOLUTION(*operands)
    assert got.isnan().sum().item() == 9 * 24


def test_channels_last_are_read_as_they_are() -> None:
    x = drawn(0, 2, 16, 5, 5)
    w = packed_weight(drawn(1, 16, 16, 3, 3), 1)
    last = x.contiguous(memory_format=torch.channels_last)
    geometry = ((3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1, 0, (16, 16, 16, 4, 2, 1))
    with interpreted():
        assert torch.equal(
            CONVOLUTION(x, w, None, None, *geometry), CONVOLUTION(last, w, None, None, *geometry)
        )
