"""Makes transformers models attend to a cache that is longer than its content.

Most models ask a table of transformers' for their attention function. The first choice is our own
operator, which takes the place of the tokens instead of a mask; the second attends with the masks
that transformers makes. Models that have attention code of their own keep it, and get masks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from edgecompile.loaders.folders.pretrained import import_transformers, quiet
from edgecompile.loaders.generators.cache import Place
from edgecompile.runtime.format.manifest.schema import GenerationSpec

PLACED, MASKED = "edgecompile", "edgecompile_masked"


@dataclass(frozen=True)
class Way:
    """One way to attend.

    Attributes:
        attention: name of the attention function; None: the model's own.
        mask: whether the model is given a mask of ones, one for each row of the context, from
            which some (ALiBi) count positions.
    """

    attention: str | None
    mask: bool = False


#: In the order in which they are tried; what agrees with the model as it is wins.
WAYS: tuple[Way, ...] = (
    Way(PLACED),
    Way(MASKED),
    Way(MASKED, mask=True),
    Way(None),
    Way(None, mask=True),
    Way("eager"),
    Way("eager", mask=True),
)

#: The same for decoders that attend to a source, too. Some make a mask of as many ones as a number in
#: the cache says where they aren't given one, which can't be traced: so they are given one first.
SOURCE_WAYS: tuple[Way, ...] = (
    Way(PLACED, mask=True),
    Way(PLACED),
    Way(MASKED),
    Way(MASKED, mask=True),
    Way("eager"),
    Way("eager", mask=True),
)

# Arguments that models pass along and that change nothing here.
_HARMLESS = {
    "cache_position",
    "is_causal",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "past_key_values",
    "position_embeddings",
    "position_ids",
    "return_dict",
    "use_cache",
}

# The attention that a model came with, for those that attend in another way now.
_own: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
_place: ContextVar[Place] = ContextVar("edgecompile_place")
_has_source: ContextVar[bool] = ContextVar("edgecompile_has_source", default=False)


@contextmanager
def placed(place: Place, *, source: bool = False) -> Iterator[None]:
    """Tells the attention where the tokens of this run stand.

    With a ``source`` the modules that say of themselves that they aren't causal attend to that.
    """
    tokens = _place.set(place), _has_source.set(source)
    try:
        yield
    finally:
        _place.reset(tokens[0])
        _has_source.reset(tokens[1])


def _reads_source(module: nn.Module) -> bool:
    return _has_source.get() and getattr(module, "is_causal", True) is False


def own_attention(model: Any) -> str:
    """The attention that the model came with, whatever it uses now."""
    return _own.get(model) or str(model.config._attn_implementation)


def attend_always(model: Any, attention: str) -> None:
    """Lets the model use an attention function from now on."""
    _own[model] = own_attention(model)
    model.set_attn_implementation(attention)


@contextmanager
def attending(model: Any, attention: str) -> Iterator[None]:
    """Lets the model use an attention function meanwhile."""
    before = model.config._attn_implementation
    model.set_attn_implementation(attention)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def _attend_placed(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    """[1, heads, length, width] of queries to [1, length, heads, width]."""
    if _reads_source(module):
        return _attend_masked(module, query, key, value, None, scaling, **rest)
    _refuse(rest)
    if attention_mask is not None:
        raise NotImplementedError("a mask beside the causal one")
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    window, cap = int(sliding_window or 0), float(softcap or 0.0)
    result = _place.get().attend(query, key, value, window, float(scale), cap)
    return result.transpose(1, 2), None


def _attend_masked(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    position_bias: Tensor | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    """The same with a mask; keys aren't repeated for the heads that share them.

    ``position_bias`` is added to the scores, float32 [1, heads, length, context].
    """
    _refuse(rest)
    if position_bias is not None and not (_reads_source(module) and _unbiased(module)):
        attention_mask = _with_bias(position_bias, attention_mask)
    result = nn.functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=attention_mask,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return result.transpose(1, 2), None


def _unbiased(module: nn.Module) -> bool:
    """Whether a module has no table for the bias that it passes on: T5's are zeros for a source."""
    return getattr(module, "has_relative_attention_bias", None) is False


def _with_bias(bias: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return bias
    return bias.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else bias + mask


def _refuse(rest: Mapping[str, Any]) -> None:
    unknown = sorted(name for name, value in rest.items() if value is not None)
    unknown = [name for name in unknown if name not in _HARMLESS]
    if unknown:
        raise NotImplementedError("attention with " + ", ".join(unknown))


AttentionInterface.register(PLACED, _attend_placed)
AttentionInterface.register(MASKED, _attend_masked)
# Without a function for masks of that name no mask is made at all.
AttentionMaskInterface.register(MASKED, sdpa_mask)


def greedy_of(
    model: Any, spec: GenerationSpec, storing: Callable[[], AbstractContextManager[None]]
) -> Callable[..., list[int]]:
    """The function ``greedy`` of a :class:`edgecompile.models.loaded.Generation`.

    It generates by transformers and the attention that the model came with, ``storing`` keys and values
    as the caches do.
    """

    def greedy(
        prompt: Sequence[int], most: int, encoder_inputs: Mapping[str, Tensor] | None = None
    ) -> list[int]:
        transformers = import_transformers()
        plain = transformers.GenerationConfig(
            do_sample=False,
            num_beams=1,
            use_cache=True,
            max_new_tokens=most,
            repetition_penalty=1.0,
            no_repeat_ngram_size=0,
            eos_token_id=list(spec.eos) or None,
            bos_token_id=spec.bos,
            pad_token_id=spec.pad,
            decoder_start_token_id=next(iter(spec.start), None),
            suppress_tokens=list(spec.suppress) or None,
            begin_suppress_tokens=list(spec.suppress_first) or None,
        )
        begun = torch.tensor([list(prompt)])
        inputs = {"input_ids": begun, "attention_mask": torch.ones_like(begun)}
        if encoder_inputs is not None:
            inputs = {**encoder_inputs, "decoder_input_ids": begun}
        # generate() fills what a configuration leaves open from the model's own.
        before, model.generation_config = model.generation_config, plain
        # Whisper's own method is about recordings of any length; this is what it calls.
        generate = transformers.GenerationMixin.generate
        try:
            own = own_attention(model)
            with quiet(transformers), attending(model, own), storing(), torch.no_grad():
                text = generate(model, **inputs, generation_config=plain)
        finally:
            model.generation_config = before
        return [int(token) for token in text[0, begun.shape[1] :]]

    return greedy
