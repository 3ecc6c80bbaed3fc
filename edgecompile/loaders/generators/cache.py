"""A cache that lies outside the model and is written in place.

transformers' models speak to a ``Cache``. This one writes to tensors that the caller owns. Of keys and
values it gives whole buffers back: the attention decides which rows a token may see
(:mod:`edgecompile.loaders.generators.attention`). A state of a fixed size is replaced by every run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, EncoderDecoderCache

from edgecompile.export.operators.cached_attention import CACHED_ATTENTION
from edgecompile.export.operators.linear_scan import LINEAR_SCAN
from edgecompile.loaders.generators.storage import FLOAT32, Storage

KEY, VALUE, CONV, RECURRENT = "key", "value", "conv", "recurrent"

#: Attributes of a layer with a tensor that isn't a state: a window's size, which is a constant.
_CONSTANTS = ("_sliding_window_tensor",)


@dataclass(frozen=True)
class Kept:
    """A tensor that a layer of a model keeps of a text.

    Attributes:
        layer: the number of the layer.
        part: ``key`` or ``value``, which have a row for each token; ``conv`` or ``recurrent``, a state
            of a fixed size.
        shape: sizes of a row, [heads, width], or of the state, without the batch.
        index: the number of the state among those of its part in its layer.
    """

    layer: int
    part: str
    shape: tuple[int, ...]
    index: int = 0

    @property
    def grows(self) -> bool:
        """Whether it has a row for each token of the text."""
        return self.part in (KEY, VALUE)

    @property
    def name(self) -> str:
        """The name of the input: ``cache_0_key``, ``cache_3_conv``, ``cache_3_conv_1``."""
        return f"cache_{self.layer}_{self.part}" + (f"_{self.index}" if self.index else "")


def find_kept(layers: Iterable[Any], length: int) -> tuple[Kept, ...]:
    """The tensors that the layers of a transformers cache keep of ``length`` tokens, in their order.

    A layer that reads the keys and values of another one keeps nothing.

    Raises:
        ValueError: they keep a tensor of another kind, or nothing at all.
    """
    kept = [
        Kept(number, part, _kept_shape(part, tensor, length), index)
        for number, layer in enumerate(layers)
        for part, index, tensor in _tensors_of(layer)
    ]
    if not kept:
        raise ValueError("no layer keeps anything")
    return tuple(kept)


def _tensors_of(layer: Any) -> Iterator[tuple[str, int, Tensor]]:
    """Each tensor that a layer keeps, with its part and its number in it."""
    known = {"keys": KEY, "values": VALUE}
    for name, value in vars(layer).items():
        if isinstance(value, Tensor) and name not in _CONSTANTS:
            if name not in known:
                raise ValueError(f"a {type(layer).__name__} with {name}")
            yield known[name], 0, value
    for name, part in (("conv_states", CONV), ("recurrent_states", RECURRENT)):
        for index, value in getattr(layer, name, {}).items():
            if value is not None:
                yield part, index, value


def _kept_shape(part: str, tensor: Tensor, length: int) -> tuple[int, ...]:
    if tensor.shape[0] != 1 or tensor.dtype != torch.float32:
        raise ValueError(f"a {part} of {list(tensor.shape)} in {tensor.dtype}")
    if part not in (KEY, VALUE):
        return tuple(tensor.shape[1:])
    if tensor.dim() != 4 or tensor.shape[2] != length:
        raise ValueError(f"keys or values of {list(tensor.shape)} for {length} tokens")
    return (tensor.shape[1], tensor.shape[3])


@dataclass(frozen=True)
class Place:
    """The positions of a run's tokens in the context.

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

    @property
    def ids(self) -> Tensor:
        """The same as ``rows``, in the shape of the tokens."""
        return self.rows[None]

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, window: int, scale: float, softcap: float
    ) -> Tensor:
        """The attention of the run's tokens to what is in the caches."""
        result: Tensor = CACHED_ATTENTION(q, k, v, self.position, window, scale, softcap)
        return result


def find_place(length: Any, context: Any, position: Tensor, last: Tensor) -> Place:
    """The positions of ``length`` tokens from ``position`` on, the real ones up to ``last``.

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
    """What every layer of a model keeps, in memory of the caller, written at ``place``.

    What is written for padding is what is written for the last real token, into the same row, and a
    state is that behind the last real token. So padding changes nothing. A text that begins finds
    states of zeros, whatever the memory holds.

    Args:
        kept: the tensors that the layers keep.
        tensors: the memory of each: [context, heads, size] of keys and values, else float32 of the
            state's shape.
        place: the places of this run's tokens.
        context: rows of the context.
        storage: storage of keys and values.

    Attributes:
        last: int64 [1], the number of the run's last real token.
        asked: the recurrent state that a layer asked for last.
    """

    asked: Tensor

    def __init__(
        self,
        kept: Sequence[Kept],
        tensors: Sequence[Tensor],
        place: Place,
        context: Any,
        *,
        storage: Storage = FLOAT32,
    ) -> None:
        super().__init__(layers=[])
        self._storage = storage
        self._place, self._context, self.last = place, context, place.last
        self._rows: dict[int, list[Tensor]] = {}
        self._memory: dict[tuple[int, str, int], Tensor] = {}
        for item, tensor in zip(kept, tensors, strict=True):
            if item.grows:
                self._rows.setdefault(item.layer, []).append(tensor)
            else:
                self._memory[item.layer, item.part, item.index] = tensor
        self._states = {key: self._given(memory) for key, memory in self._memory.items()}

    def _given(self, memory: Tensor) -> Tensor:
        return torch.where(self._place.position > 0, memory, 0.0)[None]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Writes [1, heads, length, width]; gives all that the buffers hold as [1, heads, context, width]."""
        buffers = []
        for buffer, states in zip(self._rows[layer_idx], (key_states, value_states), strict=True):
            rows = states[0].transpose(0, 1)
            if self._place.real is not None:
                rows = rows[self._place.real]
            buffer.index_copy_(0, self._place.rows, self._storage.store(rows))
            whole = buffer.transpose(0, 1)[None]
            buffers.append(self._storage.read(whole, states.dtype))
        return buffers[0], buffers[1]

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor:
        """The last inputs of a convolution, [1, channels, size]; a model may change them in place."""
        return self._states[layer_idx, CONV, state_idx]

    def update_conv_state(
        self, conv_states: Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any
    ) -> Tensor:
        """Appends inputs [1, channels, length]; gives the last ones before them, and them."""
        key = layer_idx, CONV, state_idx
        whole = torch.cat([self._states[key], conv_states], 2)
        behind = self._place.last + 1 + torch.arange(self._states[key].shape[2])
        self._states[key] = whole.index_select(2, behind)
        return whole

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor:
        """A recurrent state, with a batch of 1 in front; a model may change it in place."""
        self.asked = self._states[layer_idx, RECURRENT, state_idx]
        return self.asked

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any
    ) -> Tensor:
        """Replaces a recurrent state by that behind the last real token."""
        self._states[layer_idx, RECURRENT, state_idx] = recurrent_states
        return recurrent_states

    def scan(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        decay: Tensor,
        beta: Tensor | None,
        state: Tensor,
        *,
        values_first: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Runs :data:`edgecompile.export.operators.linear_scan.LINEAR_SCAN` up to the last real token.

        Args:
            q, k, v, decay, beta: arguments of the operator, with a batch of 1 in front.
            state: a state that the cache gave, [1, heads, keys, values].
            values_first: whether it is [1, heads, values, keys].

        Returns:
            y, and the state behind the run, with the batch in front.
        """
        first = state[0].transpose(1, 2) if values_first else state[0]
        rate = None if beta is None else beta[0]
        y, final = LINEAR_SCAN(q[0], k[0], v[0], decay[0], rate, first, self.last)
        return y[None], (final.transpose(1, 2) if values_first else final)[None]

    def has_previous_state(
        self, layer_idx: int | None = None, state_idx: int | None = None
    ) -> bool:
        """There always is one: zeros where a text begins."""
        return True

    def is_recording_past(self, layer_idx: int) -> bool:
        """States of earlier runs aren't kept."""
        return False

    def write_states(self) -> None:
        """Writes the states behind the run to the caller's memory."""
        for key, memory in self._memory.items():
            memory.copy_(self._states[key][0])

    def __len__(self) -> int:
        return len({layer for layer, *_ in self._memory} | set(self._rows))

    def get_seq_length(self, layer_idx: int = 0) -> Any:
        """Tokens before this run, as a tensor without dimensions."""
        return self._place.position[0]

    def get_query_offset(self, layer_idx: int = 0) -> Any:
        """The same: masks count the new tokens from there."""
        return self._place.position[0]

    def get_mask_sizes(self, *args: Any, **kwargs: Any) -> tuple[Any, int]:
        """Masks are as wide as the context and begin with its first row."""
        return self._context, 0

    def get_max_cache_shape(self, layer_idx: int = 0) -> Any:
        """Rows of the context."""
        return self._context

    @property
    def is_sliding(self) -> list[bool]:
        """No layer drops rows: a window is the attention's business."""
        return [False] * len(self)

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
