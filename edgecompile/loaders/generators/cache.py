"""A cache of keys and values that lies outside the model and is written in place.

transformers' models speak to a ``Cache``; this one writes to tensors that the caller owns, and
gives whole buffers back: what of them may be seen is the attention's business
(:mod:`edgecompile.loaders.generators.attention`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, EncoderDecoderCache


@dataclass(frozen=True)
class Place:
    """Where the tokens of a run stand in the context.

    Attributes:
        position: int64 [1], of the first one.
        real: int64 [length]: each token's number in the run; of padding, the last real one's.
            None where there is one token.
        rows: int64 [length]: ``position + real``, the row that each token is written to.
        last: int64 [1], the number of the last real token.
    """

    position: Tensor
    real: Tensor | None
    rows: Tensor
    last: Tensor


def find_place(length: Any, context: Any, position: Tensor, last: Tensor) -> Place:
    """Where ``length`` tokens from ``position`` on stand, the real ones up to ``last``.

    Padding stands where the last real token does, and no value of ``position`` or ``last`` leads
    out of the context: what native code writes must be within the cache, whatever it is given.
    """
    if isinstance(length, int) and length == 1:
        position = position.clamp(max=context - 1)
        return Place(position, None, position, torch.zeros_like(last))
    last = last.clamp(max=length - 1)
    position = torch.minimum(position, context - 1 - last)
    real = torch.minimum(torch.arange(length), last)
    return Place(position, real, position + real, last)


class WrittenCache(Cache):
    """Keys and values of every layer, float32 [context, heads, width], written at ``place``.

    What is written for padding is what is written for the last real token, into the same row: so
    padding changes nothing.
    """

    def __init__(self, pairs: Sequence[tuple[Tensor, Tensor]], place: Place) -> None:
        super().__init__(layers=[])
        self._pairs = pairs
        self._place = place

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Writes [1, heads, length, width]; gives the whole buffers as [1, heads, context, width]."""
        buffers = []
        for buffer, states in zip(self._pairs[layer_idx], (key_states, value_states), strict=True):
            rows = states[0].transpose(0, 1)
            if self._place.real is not None:
                rows = rows[self._place.real]
            buffer.index_copy_(0, self._place.rows, rows)
            buffers.append(buffer.transpose(0, 1)[None])
        return buffers[0], buffers[1]

    def __len__(self) -> int:
        return len(self._pairs)

    def get_seq_length(self, layer_idx: int = 0) -> Any:
        """Tokens before this run, as a tensor without dimensions."""
        return self._place.position[0]

    def get_query_offset(self, layer_idx: int = 0) -> Any:
        """The same: masks count the new tokens from there."""
        return self._place.position[0]

    def get_mask_sizes(self, *args: Any, **kwargs: Any) -> tuple[Any, int]:
        """Masks are as wide as the context and begin with its first row."""
        return self._pairs[0][0].shape[0], 0

    def get_max_cache_shape(self, layer_idx: int = 0) -> Any:
        """Rows of the context."""
        return self._pairs[0][0].shape[0]

    @property
    def is_sliding(self) -> list[bool]:
        """No layer drops rows: a window is the attention's business."""
        return [False] * len(self._pairs)

    @property
    def is_compileable(self) -> bool:
        """Masks may not be left out for the first run: every run is the same program."""
        return True


class _GivenCache(Cache):
    """Keys and values of a source, which are only read."""

    def __init__(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
        super().__init__(layers=[])
        layers = [[part.transpose(0, 1)[None] for part in pair] for pair in pairs]
        # Of a layer models read nothing but these: float32 [1, heads, source, width].
        self.layers = [SimpleNamespace(keys=k, values=v) for k, v in layers]  # type: ignore[misc]

    def __len__(self) -> int:
        return len(self.layers)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """More than none: every layer's keys and values are there."""
        return 1


class SourceCache(EncoderDecoderCache):
    """The two caches of a decoder in an encoder-decoder model: its own text, and a source.

    Args:
        own: the text's cache.
        source: keys and values of the source by layer, float32 [source, heads, width].
    """

    def __init__(self, own: WrittenCache, source: Sequence[tuple[Tensor, Tensor]]) -> None:
        super().__init__(own, _GivenCache(source))

    @property
    def is_compileable(self) -> bool:
        """As of the text's cache."""
        return True
