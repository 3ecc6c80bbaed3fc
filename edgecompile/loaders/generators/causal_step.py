"""One step of a causal language model over caches that the caller owns, as a module to export."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from edgecompile.errors import ModelError
from edgecompile.loaders.generators.attention import Way, context_mask, placed
from edgecompile.loaders.generators.cache import WrittenCache, find_place
from edgecompile.models.modules import named_forward

__all__ = [
    "INPUT",
    "LAST",
    "POSITION",
    "GenerationStep",
    "KeyValueShape",
    "cache_shapes",
    "empty_caches",
]

INPUT, POSITION, LAST = "input_ids", "position", "last"

#: Heads and width of a layer's keys, and of its values.
KeyValueShape = tuple[tuple[int, int], tuple[int, int]]


def cache_shapes(model: Any) -> tuple[KeyValueShape, ...]:
    """The cache of each layer of a transformers model, found by running it on three tokens.

    Raises:
        ModelError: it keeps something else than keys and values of every token.
    """
    from transformers import DynamicCache

    cache = DynamicCache()
    tokens = torch.zeros(1, 3, dtype=torch.int64)
    name = type(model).__name__
    hint = "models whose layers keep keys and values of all tokens are supported; without a cache: --task logits"
    try:
        with torch.no_grad():
            model(input_ids=tokens, past_key_values=cache, use_cache=True)
        shapes = []
        layers: Any = cache.layers
        for layer in layers:
            keys, values = layer.keys, layer.values
            if any(t.dim() != 4 or t.shape[0] != 1 or t.shape[2] != 3 for t in (keys, values)):
                raise ValueError(f"keys {list(keys.shape)} and values {list(values.shape)}")
            shapes.append(((keys.shape[1], keys.shape[3]), (values.shape[1], values.shape[3])))
        if not shapes:
            raise ValueError("no layer keeps anything")
    except Exception as exc:
        raise ModelError(
            f"{name} can't generate over a cache of keys and values: {type(exc).__name__}: {exc}",
            hint=hint,
        ) from exc
    return tuple(shapes)


class GenerationStep(nn.Module):
    """Runs ``model`` on new tokens that follow what its caches hold.

    ``forward`` takes ``input_ids`` int64 [1, length], ``position`` int64 [1] (the place of the
    first token), ``last`` int64 [1] (which token's logits are wanted: the last real one) and for
    each layer ``cache_N_key`` and ``cache_N_value``, float32 [context, heads, width], whose rows
    from ``position`` on it changes. Gives ``logits`` float32 [1, vocabulary].
    """

    def __init__(self, model: Any, layers: int, way: Way, more: Sequence[str] = ()) -> None:
        """``more`` are names of further inputs, behind the caches."""
        super().__init__()
        self.model = model
        self.way = way
        self.caches = tuple(f"cache_{n}_{part}" for n in range(layers) for part in ("key", "value"))
        self.names = (INPUT, POSITION, LAST, *self.caches, *more)
        self._accepted = set(inspect.signature(model.forward).parameters)
        self.forward = named_forward(self.names, self._step)

    def _step(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        tokens = given[INPUT]
        buffers = [given[name] for name in self.caches]
        pairs = list(zip(buffers[::2], buffers[1::2], strict=True))
        context = buffers[0].shape[0]
        place = find_place(tokens.shape[1], context, given[POSITION], given[LAST])
        optional: dict[str, Any] = {
            "position_ids": place.rows[None],
            "cache_position": place.rows,
            "logits_to_keep": place.last,
            "return_dict": True,
        }
        if self.way.mask:
            optional["attention_mask"] = context_mask(context)
        known = {name: value for name, value in optional.items() if name in self._accepted}
        with placed(place):
            found = self.model(
                input_ids=tokens,
                past_key_values=WrittenCache(pairs, place),
                use_cache=True,
                **known,
            )
        logits = found.logits if "logits_to_keep" in known else found.logits[:, place.last]
        return {"logits": logits[:, 0]}


def empty_caches(
    shapes: Sequence[KeyValueShape], context: int, generator: torch.Generator | None = None
) -> list[Tensor]:
    """Buffers for every layer's keys and values, of zeros or of normal noise."""
    sizes = [(context, *part) for shape in shapes for part in shape]
    if generator is None:
        return [torch.zeros(size) for size in sizes]
    return [torch.randn(size, generator=generator) for size in sizes]
