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
from edgecompile.loaders.generators.cache import (
    KEY,
    VALUE,
    Kept,
    Place,
    SourceCache,
    WrittenCache,
    find_kept,
    find_place,
)
from edgecompile.loaders.generators.scans import scanning
from edgecompile.loaders.generators.storage import FLOAT32, Storage
from edgecompile.models.modules import describe_error, named_forward

INPUT, POSITION, LAST = "input_ids", "position", "last"
#: The argument of most models that takes a cache.
PAST = "past_key_values"
_TOKENS = 3

#: Heads and width of a layer's keys, and of its values.
KeyValueShape = tuple[tuple[int, ...], tuple[int, ...]]


def find_caches(model: Any) -> tuple[tuple[Kept, ...], str]:
    """The tensors that a transformers model keeps of a text, and its argument that takes them.

    The model is run on three tokens, and the cache that it makes for itself is looked at.

    Raises:
        ModelError: it keeps something of another kind.
    """
    from transformers import DynamicCache
    from transformers.cache_utils import Cache

    tokens = torch.zeros(1, _TOKENS, dtype=torch.int64)
    try:
        with torch.no_grad():
            outputs = model(input_ids=tokens, use_cache=True, return_dict=True)
            for name, cache in outputs.items():
                if isinstance(cache, Cache):
                    return find_kept(cache.layers, _TOKENS), name
            cache = DynamicCache()
            model(input_ids=tokens, past_key_values=cache, use_cache=True)
        return find_kept(cache.layers, _TOKENS), PAST
    except Exception as exc:  # whatever a model raises that isn't made for this
        hint = (
            "models whose layers keep keys and values of all tokens, or states of a fixed size, are "
            'supported; without a cache: `task="logits"`'
        )
        raise refuse_caches(model, describe_error(exc), hint) from exc


def cache_shapes(kept: Sequence[Kept]) -> tuple[KeyValueShape, ...]:
    """Shapes of keys and values by layer.

    Raises:
        ValueError: something else is kept.
    """
    keys = [item.shape for item in kept if item.part == KEY]
    values = [item.shape for item in kept if item.part == VALUE]
    if len(keys) != len(values) or len(keys) + len(values) != len(kept):
        raise ValueError("a state of a fixed size in a decoder that reads a source")
    return tuple(zip(keys, values, strict=True))


def refuse_caches(model: Any, problem: str, hint: str) -> ModelError:
    """The error for a model whose state can't be kept outside."""
    return ModelError(
        f"{type(model).__name__} can't generate over a cache from outside: {problem}",
        hint=hint,
    )


def pair_names(start: str, layers: int) -> tuple[str, ...]:
    """Names of the keys and values of every layer: ``cache_0_key``, ``cache_0_value`` and so on."""
    return tuple(f"{start}_{n}_{part}" for n in range(layers) for part in ("key", "value"))


class GenerationStep(nn.Module):
    """Runs ``model`` on new tokens that follow what its caches hold.

    ``forward`` takes ``input_ids`` int64 [1, length], ``position`` int64 [1] (the place of the
    first token), ``last`` int64 [1] (which token's logits are wanted: the last real one) and the
    caches, which it changes: for each layer that attends ``cache_N_key`` and ``cache_N_value``,
    float32 or bfloat16 [context, heads, width] or int8 with scales, of which it writes the rows of the run; for each layer with a
    state of a fixed size ``cache_N_conv`` or ``cache_N_recurrent``, float32 of the model's shape without
    the batch, which it replaces. At position 0 such a state counts as zeros. A decoder behind a source
    takes ``cross_N_key`` and ``cross_N_value``, float32 [source, heads, width], for each layer as well,
    which it only reads. Gives ``logits`` float32 [1, vocabulary]; a run of at most ``lookup`` tokens
    those behind each of them, [length, vocabulary].

    Args:
        model: a transformers model.
        kept: the tensors that its layers keep.
        way: the implementation of attention.
        max_context: tokens of the longest text.
        past: the model's argument that takes a cache.
        source: the number of layers that read a source; 0: there is none.
        lookup: tokens of the longest run that gives logits behind each of its tokens.

    Attributes:
        storage: storage of keys and values.
        as_steps: whether single tokens scan as those of several tokens, or of several texts, do.
    """

    storage: Storage = FLOAT32
    as_steps = False

    def __init__(
        self,
        model: Any,
        kept: Sequence[Kept],
        way: Way,
        max_context: int,
        *,
        past: str = PAST,
        source: int = 0,
        lookup: int = 1,
    ) -> None:
        super().__init__()
        self.model = model
        self.kept = tuple(kept)
        self.way = way
        self.max_context = max_context
        self.past = past
        self.lookup = lookup
        self.caches = tuple(item.name for item in kept)
        self.cross = pair_names("cross", source)
        self.names = (INPUT, POSITION, LAST, *self.caches, *self.cross)
        self._accepted = set(inspect.signature(model.forward).parameters)
        self.forward = named_forward(self.names, self._step)

    @property
    def has_rows(self) -> bool:
        """Whether a cache grows with the text."""
        return any(item.grows for item in self.kept)

    @property
    def has_states(self) -> bool:
        """Whether there is a state of a fixed size, which can't go back to an earlier token."""
        return not all(item.grows for item in self.kept)

    def _step(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        tokens = inputs[INPUT]
        tensors, source = [inputs[name] for name in self.caches], _pairs(inputs, self.cross)
        rows = [t.shape[0] for item, t in zip(self.kept, tensors, strict=True) if item.grows]
        context = rows[0] if rows else self.max_context
        place = find_place(tokens.shape[1], context, inputs[POSITION], inputs[LAST])
        written = WrittenCache(self.kept, tensors, place, context, storage=self.storage)
        cache: Any = written
        kind, all_rows = "decoder_" if source else "", 1 < tokens.shape[1] <= self.lookup
        more: dict[str, Any] = {}
        if self.way.mask and f"{kind}attention_mask" in self._accepted:
            more[f"{kind}attention_mask"] = torch.ones(1, context, dtype=torch.int64)
        if source:
            cache = SourceCache(written, source)
            # Of the encoder's result only the length is looked at: its projections are there.
            states = source[0][0].new_zeros(1, source[0][0].shape[0], 1)
            more["encoder_outputs"] = encoder_result(states)
        keep = None if all_rows else place.last
        as_steps = (self.as_steps or self.lookup > 1) and tokens.shape[1] <= self.lookup
        scans = scanning(self.model, written, as_steps=as_steps)
        with placed(place, source=bool(source)), scans:
            logits = self.run_model(tokens, place, cache, keep, kind=kind, **more)
        written.write_states()
        return {"logits": logits[0] if all_rows else logits[:, 0]}

    def run_model(
        self,
        tokens: Tensor,
        place: Place,
        cache: Any,
        keep: Tensor | None = None,
        *,
        kind: str = "",
        **more: Any,
    ) -> Tensor:
        """The model's logits behind some tokens, [1, tokens, vocabulary].

        Args:
            tokens: int64 [1, length].
            place: their places.
            cache: the model's cache.
            keep: int64 of one dimension: the numbers of the tokens; None: all of them.
            kind: beginning of the names of a decoder's arguments.
            more: further arguments.
        """
        optional: dict[str, Any] = {
            f"{kind}position_ids": place.ids,
            "cache_position": place.rows,
            "logits_to_keep": 0 if keep is None else keep,
            "return_dict": True,
        }
        arguments = {name: value for name, value in optional.items() if name in self._accepted}
        arguments[f"{kind}input_ids"] = tokens
        arguments[self.past] = cache
        outputs = self.model(use_cache=True, **arguments, **more)
        logits: Tensor = outputs.logits
        return logits if keep is None or "logits_to_keep" in arguments else logits[:, keep]


def encoder_result(hidden: Tensor) -> Any:
    """The output of an encoder, without a mask, as decoders take it."""
    from transformers.modeling_outputs import BaseModelOutput

    result: Any = BaseModelOutput(last_hidden_state=hidden)
    result.attention_mask = None  # Moonshine's decoder asks for one
    return result


def _pairs(inputs: Mapping[str, Tensor], names: Sequence[str]) -> list[tuple[Tensor, Tensor]]:
    tensors = [inputs[name] for name in names]
    return list(zip(tensors[::2], tensors[1::2], strict=True))
