"""The attention kernel in Triton's interpreter against torch's own attention."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from edgecompile.backends.cuda.kernels.attention import ATTENTION, PER_TOKEN
from edgecompile.backends.cuda.kernels.launch import interpreted

_TILE = (16, 32, 2, 2)
_BOUNDS = {torch.float32: 2e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def operands(
    dtype: torch.dtype, heads: int, groups: int, width: int, *, batch: int = 2
) -> list[Tensor]:
    """Queries of 19 tokens, keys and values of 37, over memory in the order of tokens."""
    made = []
    for length, n in ((19, heads), (37, groups), (37, groups)):
        x = torch.randn(
            batch, length, n, width, generator=torch.Generator().manual_seed(n + length)
        )
        made.append(x.to(dtype).transpose(1, 2))
    return made


def expected(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float
) -> Tensor:
    """In float64, with zeros where a row sees nothing."""
    k, v = (x.double().repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q.double() @ k.transpose(2, 3) * scale
    if mask is not None:
        hidden = (
            torch.zeros(()).masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else mask
        )
        # As the sum is: the lowest number of a dtype swallows a score.
        scores = (scores.float() + hidden.float()).double()
    if causal:
        lower = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~lower, -torch.inf)
    return torch.softmax(scores, 3).nan_to_num(0.0) @ v


def masks(dtype: torch.dtype) -> Iterator[Tensor | None]:
    drawn = torch.Generator().manual_seed(5)
    padding = torch.ones(2, 1, 1, 37, dtype=torch.bool)
    padding[1, ..., 20:] = False
    nothing = padding.clone()
    nothing[0] = False
    lowest = torch.zeros(2, 1, 1, 37, dtype=dtype).masked_fill(~nothing, torch.finfo(dtype).min)
    random = torch.randn(4, 19, 37, generator=drawn).to(dtype)
    infinite = random.masked_fill(torch.rand(19, 37, generator=drawn) < 0.3, -torch.inf)
    yield from (None, padding, nothing, lowest, random, infinite[0], random[:, :, :1])
    yield from (padding.expand(2, 4, 19, 37), torch.randn(2, 1, 19, 37, generator=drawn))


def check(
    tensors: list[Tensor],
    mask: Tensor | None,
    causal: bool,
    tile: tuple[int, ...] = _TILE,
    order: tuple[int, ...] = PER_TOKEN,
) -> None:
    (q, k, v), scale = tensors, 0.3
    want = expected(q, k, v, mask, causal, scale)
    with interpreted():
        got = ATTENTION(q, k, v, mask, causal, scale, *tile, order)
    assert got.dtype == q.dtype
    assert got.permute(*order, 3).is_contiguous()
    assert (got.double() - want).abs().max().item() <= _BOUNDS[q.dtype] * max(
        1, v.abs().max().item()
    )
    # What torch computes instead, where there is no interpreter.
    plain = ATTENTION(q, k, v, mask, causal, scale, *tile, order)
    assert plain.stride() == got.stride()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_padding_is_hidden(dtype: torch.dtype) -> None:
    check(operands(dtype, 4, 2, 24), list(masks(dtype))[1], False)


def test_masks_and_the_causal_flag() -> None:
    for mask in itertools.islice(masks(torch.float16), 2, 6):
        check(operands(torch.float16, 4, 4, 16), mask, False)
    check(operands(torch.float16, 4, 1, 40), None, True)


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))])
def test_memory_has_the_order_that_is_asked_for(order: tuple[int, ...]) -> None:
    check(operands(torch.float16, 4, 2, 24), None, False, order=order)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_every_mask_and_width(dtype: torch.dtype) -> None:
    for mask, causal in itertools.product(masks(dtype), (False, True)):
        check(operands(dtype, 4, 2, 20), mask, causal)
    for width in (16, 33, 64, 80, 96, 128, 256):
        check(operands(dtype, 2, 1, width, batch=1), None, False, (32, 16, 2, 2))


def test_nan_stays_where_it_is_seen() -> None:
    q, k, v = operands(torch.float32, 1, 1, 16, batch=1)
    k[0, 0, 30] = torch.nan
    with interpreted():
        got = ATTENTION(q, k, v, None, True, 1.0, *_TILE, PER_TOKEN)
    assert got.isfinite().all()  # no query sees as far
    with interpreted():
        got = ATTENTION(q, k, v, None, False, 1.0, *_TILE, PER_TOKEN)
    assert got.isnan().all()
