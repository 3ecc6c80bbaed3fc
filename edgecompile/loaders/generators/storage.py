"""Keys and values as caches store them: in float32, bfloat16, or int8 with scales."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from edgecompile.export.operators.cache_rows import DEQUANTIZE_ROWS, QUANTIZE_ROWS
from edgecompile.models.cache_rows import row_bytes, to_bfloat16

_rounds: ContextVar[bool] = ContextVar("edgecompile_rounds_caches", default=False)


@dataclass(frozen=True)
class Storage:
    """How caches store keys and values.

    Attributes:
        precision: its name in ``cache_precision``.
        dtype: the type of the caches.
    """

    precision: str
    dtype: str

    def size(self, width: int) -> int:
        """Elements of a row of ``width`` numbers."""
        return row_bytes(width) if self is INT8 else width

    def store(self, x: Tensor) -> Tensor:
        """Numbers [..., width] as a cache has them; bfloat16 is float64 there where ``x`` is."""
        if self is INT8:
            rows: Tensor = QUANTIZE_ROWS(x)
            return rows
        return to_bfloat16(x) if self is BFLOAT16 else x

    def read(self, cache: Tensor, dtype: torch.dtype) -> Tensor:
        """The numbers that a cache stands for, in the type that the model computes in."""
        if self is FLOAT32:
            return cache
        numbers = DEQUANTIZE_ROWS(cache) if self is INT8 else cache
        return numbers if numbers.dtype == dtype else numbers.to(dtype)

    @contextmanager
    def rounding(self) -> Iterator[None]:
        """Lets every cache of transformers round the keys and values that it takes meanwhile.

        Those of the run itself are rounded, too: a program reads them from the cache.
        """
        if self is FLOAT32:
            yield
            return
        update = Cache.update

        def rounded(
            cache: Any, keys: Tensor, values: Tensor, layer_idx: int, *args: Any, **kw: Any
        ) -> tuple[Tensor, Tensor]:
            key, value = (self.read(self.store(x), x.dtype) for x in (keys, values))
            return update(cache, key, value, layer_idx, *args, **kw)

        token = _rounds.set(True)
        Cache.update = rounded  # type: ignore[assignment, method-assign]
        try:
            yield
        finally:
            Cache.update = update  # type: ignore[method-assign]
            _rounds.reset(token)


FLOAT32, BFLOAT16, INT8 = (
    Storage("fp32", "float32"),
    Storage("bf16", "bfloat16"),
    Storage("int8", "int8"),
)
#: By the name in ``cache_precision``.
STORAGES = {item.precision: item for item in (FLOAT32, BFLOAT16, INT8)}


def rounds_caches() -> bool:
    """Whether caches round: only a model that is run over one shows it."""
    return _rounds.get()
