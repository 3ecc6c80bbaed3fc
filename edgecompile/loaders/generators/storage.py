"""Keys and values as caches in bfloat16 store them, in a model that transformers runs over a cache of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

# Bits of a float64 behind those that bfloat16 has.
_DROPPED = 52 - 7

_rounds: ContextVar[bool] = ContextVar("edgecompile_rounds_caches", default=False)


def to_bfloat16(x: Tensor) -> Tensor:
    """The nearest numbers of bfloat16, ties to even: in float64 where ``x`` is, which is no type to be rounded by."""
    if x.dtype != torch.float64:
        return x.to(torch.bfloat16)
    bits = x.view(torch.int64)
    bits = bits + (2 ** (_DROPPED - 1) - 1) + ((bits >> _DROPPED) & 1)
    rounded: Tensor = (bits >> _DROPPED) << _DROPPED
    return rounded.view(torch.float64)


@contextmanager
def rounding_caches() -> Iterator[None]:
    """Lets every cache of transformers round the keys and values that it takes meanwhile.

    Those of the run itself are rounded, too: a program reads them from the cache.
    """
    update = Cache.update

    def rounded(
        self: Any, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kw: Any
    ) -> tuple[Tensor, Tensor]:
        key, value = (to_bfloat16(x).to(x.dtype) for x in (key_states, value_states))
        return update(self, key, value, layer_idx, *args, **kw)

    token = _rounds.set(True)
    Cache.update = rounded  # type: ignore[method-assign]
    try:
        yield
    finally:
        Cache.update = update  # type: ignore[method-assign]
        _rounds.reset(token)


def rounds_caches() -> bool:
    """Whether caches round: only a model that is run over one shows it."""
    return _rounds.get()
