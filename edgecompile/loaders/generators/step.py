"""One step of a language model over caches that the caller owns, as a module to export.

Models of a decoder alone and decoders that attend to a source are the same module: the second takes
the source's keys and values, too.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from edgecompile.errors import ModelError
from edgecompile.loaders.generators.attention import Way, placed
from edgecompile.loaders.generators.cache import SourceCache, WrittenCache, find_place
from edgecompile.models.modules import describe_error, named_forward

INPUT, POSITION, LAST = "input_ids", "position", "last"
_TOKENS = 3

#: Heads and width of a layer's keys, and of its values.
KeyValueShape = tuple[tuple[int, int], tuple[int, int]]


def find_caches(model: Any) -> tuple[KeyValueShape, ...]:
    """The cache of each layer of a transformers model, found by running it on three tokens.

    Raises:
        ModelError: it keeps something else than keys and values of every token.
    """
    from transformers import DynamicCache

    cache = DynamicCache()
    tokens = torch.zeros(1, _TOKENS, dtype=torch.int64)
    try:
        with torch.no_grad():
            model(input_ids=tokens, past_key_values=cache, use_cache=True)
        return cache_shapes(cache.layers, _TOKENS)
    except Exception as exc:  # whatever a model raises that isn't made for this
        hint = (
            "models whose layers keep keys and values of all tokens are supported; without a cache: "
            '`task="logits"`'
        )
        raise refuse_caches(model, describe_error(exc), hint) from exc


def cache_shapes(layers: Sequence[Any], length: int) -> tuple[KeyValueShape, ...]:
    """Shapes of the keys and values that the layers of a cache keep of ``length`` tokens.

    Raises:
        ValueError: they keep something else, or nothing.
    """
    if not layers:
        raise ValueError("no layer keeps anything")
    for part in (part for layer in layers for part in (layer.keys, layer.values)):
        if part.dim() != 4 or part.shape[0] != 1 or part.shape[2] != length:
            raise ValueError(f"keys or values of {list(part.shape)} for {length} tokens")
    sizes = [(layer.keys.shape, layer.values.shape) for layer in layers]
    return tuple(((k[1], k[3]), (v[1], v[3])) for k, v in sizes)


def refuse_caches(model: Any, problem: str, hint: str) -> ModelError:
    """The error for a model whose keys and values can't be kept outside."""
    return ModelError(
        f"{type(model).__name__} can't generate over a cache of keys and values from outside: {problem}",
        hint=hint,
    )


def pair_names(start: str, layers: int) -> tuple[str, ...]:
    """Names of the keys and values of every layer: ``cache_0_key``, ``cache_0_value`` and so on."""
    return tuple(f"{start}_{n}_{part}" for n in range(layers) for part in ("key", "value"))


class GenerationStep(nn.Module):
    """Runs ``model`` on new tokens that follow what its caches hold.

    ``forward`` takes ``input_ids`` int64 [1, length], ``position`` int64 [1] (the place of the
    first token), ``last`` int64 [1] (which token's logits are wanted: the last real one) and for
    each layer ``cache_N_key`` and ``cache_N_value``, float32 [context, heads, width], whose rows
    from ``position`` on it changes. A decoder behind a source takes ``cross_N_key`` and
    ``cross_N_value``, float32 [source, heads, width], for each layer as well, which it only reads.
    Gives ``logits`` float32 [1, vocabulary].

    Args:
        model: a transformers model.
        shapes: of the caches, by layer.
        way: how the model is to attend.
        source: whether it attends to a source.
    """

    def __init__(
        self, model: Any, shapes: Sequence[KeyValueShape], way: Way, *, source: bool = False
    ) -> None:
        super().__init__()
        self.model = model
        self.shapes = tuple(shapes)
        self.way = way
        self.caches = pair_names("cache", len(shapes))
        self.cross = pair_names("cross", len(shapes)) if source else ()
        self.names = (INPUT, POSITION, LAST, *self.caches, *self.cross)
        self._accepted = set(inspect.signature(model.forward).parameters)
        self.forward = named_forward(self.names, self._step)

    def _step(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        tokens = inputs[INPUT]
        own, source = _pairs(inputs, self.caches), _pairs(inputs, self.cross)
        context = own[0][0].shape[0]
        place = find_place(tokens.shape[1], context, inputs[POSITION], inputs[LAST])
        cache: Any = WrittenCache(own, place)
        kind = "decoder_" if source else ""
        optional: dict[str, Any] = {
            f"{kind}position_ids": place.rows[None],
            "cache_position": place.rows,
            "logits_to_keep": place.last,
            "return_dict": True,
        }
        if self.way.mask:
            optional[f"{kind}attention_mask"] = torch.ones(1, context, dtype=torch.int64)
        arguments = {name: value for name, value in optional.items() if name in self._accepted}
        if source:
            from transformers.modeling_outputs import BaseModelOutput

            cache = SourceCache(cache, source)
            # Of the encoder's result only the length is looked at: its projections are there.
            states = source[0][0].new_zeros(1, source[0][0].shape[0], 1)
            arguments["encoder_outputs"] = BaseModelOutput(last_hidden_state=states)
        arguments[f"{kind}input_ids"] = tokens
        with placed(place, source=bool(source)):
            outputs = self.model(past_key_values=cache, use_cache=True, **arguments)
        logits = outputs.logits if "logits_to_keep" in arguments else outputs.logits[:, place.last]
        return {"logits": logits[:, 0]}


def _pairs(inputs: Mapping[str, Tensor], names: Sequence[str]) -> list[tuple[Tensor, Tensor]]:
    tensors = [inputs[name] for name in names]
    return list(zip(tensors[::2], tensors[1::2], strict=True))
