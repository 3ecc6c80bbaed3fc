"""The encoder of an encoder-decoder model as a module to export, and the decoder without it.

The encoder takes along the projections by which the decoder reads its result: it gives the keys and
values of every layer that attends to the source, once for a text.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from edgecompile.loaders.generators.attention import attending
from edgecompile.loaders.generators.cache import Kept, find_kept
from edgecompile.loaders.generators.step import (
    KeyValueShape,
    cache_shapes,
    encoder_result,
    pair_names,
    refuse_caches,
)
from edgecompile.models.modules import describe_error, named_forward


@dataclass(frozen=True)
class Projections:
    """The decoder's keys and values of the encoder's hidden states, and the cache of its own text.

    Attributes:
        pairs: the modules of each layer that make the keys and the values of the source.
        cross: shapes of these, by layer.
        caches: the keys and values of the text.
    """

    pairs: tuple[tuple[nn.Linear, nn.Linear], ...]
    cross: tuple[KeyValueShape, ...]
    caches: tuple[Kept, ...]


class SourceEncoder(nn.Module):
    """Runs an encoder and projects its result for every layer of the decoder.

    ``forward`` takes the encoder's inputs by ``names``, of a batch of 1, and gives for each layer
    ``cross_N_key`` and ``cross_N_value``, float32 [source, heads, width].
    """

    def __init__(self, encoder: Any, projections: Projections, names: Sequence[str]) -> None:
        super().__init__()
        self.encoder = encoder
        self.projections = nn.ModuleList([part for pair in projections.pairs for part in pair])
        self._shapes = [part for shape in projections.cross for part in shape]
        self._outputs = pair_names("cross", len(projections.pairs))
        self.forward = named_forward(tuple(names), self._run)

    def _run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        hidden = self.encoder(**inputs, return_dict=True).last_hidden_state
        parts = zip(self._outputs, self.projections, self._shapes, strict=True)
        return {name: project(hidden).unflatten(2, shape)[0] for name, project, shape in parts}


def find_projections(model: Any, own: str, hidden: Tensor, start: int) -> Projections:
    """The cache of a decoder, found by running it on one token behind an encoder's result.

    Args:
        model: a transformers model; ``own`` is its attention.
        hidden: the output of its encoder, float32 [1, source, width].
        start: a token.

    Raises:
        ModelError: it keeps something else than keys and values of every token and of the source,
            or makes those of the source otherwise than by a linear layer each.
    """
    from transformers import DynamicCache, EncoderDecoderCache

    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    seen: list[tuple[nn.Linear, Tensor]] = []

    def note(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        if isinstance(module, nn.Linear) and inputs and inputs[0] is hidden:
            seen.append((module, output))

    hooks = [m.register_forward_hook(note) for m in model.modules() if isinstance(m, nn.Linear)]
    try:
        with torch.no_grad(), attending(model, own):
            model(
                encoder_outputs=encoder_result(hidden),
                decoder_input_ids=torch.tensor([[start]]),
                past_key_values=cache,
                use_cache=True,
            )
        source: Any = cache.cross_attention_cache.layers
        text: Any = cache.self_attention_cache.layers
        if not source or len(source) != len(text):
            raise ValueError(f"{len(text)} layers keep their text, {len(source)} a source")
        pairs = tuple((_maker(seen, x.keys), _maker(seen, x.values)) for x in source)
        cross, own_text = find_kept(source, hidden.shape[1]), find_kept(text, 1)
        cache_shapes(own_text)
        return Projections(pairs, cache_shapes(cross), own_text)
    except Exception as exc:  # whatever a model raises that isn't made for this
        hint = (
            "models whose decoder projects the encoder's result for each layer, as T5, BART and "
            'Whisper do, are supported; the encoder alone: `task="seq2seq-encoder"`'
        )
        raise refuse_caches(model, describe_error(exc), hint) from exc
    finally:
        for hook in hooks:
            hook.remove()


def _maker(seen: Sequence[tuple[nn.Linear, Tensor]], cached: Tensor) -> nn.Linear:
    """The layer whose output ``cached`` [1, heads, source, width] is."""
    want = cached.transpose(1, 2).flatten(2)
    for module, output in seen:
        if output.shape == want.shape and torch.equal(output, want):
            return module
    raise ValueError("keys or values of the source that no linear layer makes")


def encoder_alone(model: Any) -> Any:
    """The encoder with a configuration of its own, over the same weights."""
    return copy.deepcopy(model.get_encoder(), _kept_tensors(model))


def decoder_alone(model: Any, projections: Projections) -> Any:
    """The model without its encoder and what projects the encoder's result, over the same weights.

    A program's constants are all the weights of its module, whether it reads them or not.
    """
    unused = [model.get_encoder(), *(part for pair in projections.pairs for part in pair)]
    memo = _kept_tensors(model)
    memo.update({id(module): nn.Identity() for module in unused})
    return copy.deepcopy(model, memo)


def _kept_tensors(model: Any) -> dict[int, Any]:
    """For ``copy.deepcopy``: weights stay what they are, instead of being copied."""
    return {id(t): t for t in [*model.parameters(), *model.buffers()]}
