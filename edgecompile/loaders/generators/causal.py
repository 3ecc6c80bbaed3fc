"""Causal language models for generation.

The model's inputs are new tokens and the caches of the tokens before them; see
:class:`edgecompile.loaders.generators.causal_step.GenerationStep`. One signature serves prompts and single steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from edgecompile.loaders.folders.files import plain_name
from edgecompile.loaders.folders.position_limits import max_positions
from edgecompile.loaders.folders.pretrained import import_transformers, quiet
from edgecompile.loaders.generators.attention import attending, generate_greedily, own_attention
from edgecompile.loaders.generators.causal_check import find_step
from edgecompile.loaders.generators.causal_step import cache_shapes
from edgecompile.loaders.generators.settings import (
    CONTEXT,
    LENGTH,
    call_settings,
    context_limit,
    generation_setting,
    pad_token,
    refuse_unused,
    step_inputs,
    unheeded_settings,
)
from edgecompile.models.loaded import CausalGeneration, LoadedModel, LoadOptions, ModelSource
from edgecompile.models.probing import probe_outputs
from edgecompile.models.specs import AxisLimits

__all__ = ["CONTEXT", "LENGTH", "make_generator"]

#: Tokens of one run of a prompt where nobody says otherwise: the widest program that has to be
#: verified grows with them.
DEFAULT_LENGTH = 512

#: What is done behind an encoder's source, or taken from there, but not for language models.
_ONLY_BEHIND_SOURCES = (
    *("suppress_tokens", "begin_suppress_tokens", "forced_bos_token_id"),
    "max_length",  # of the whole text, so that it is no number of new tokens
)


def make_generator(
    model: Any,
    options: LoadOptions,
    *,
    name: str,
    source: ModelSource,
    tokenizer: Path | None = None,
    notes: Sequence[str] = (),
) -> LoadedModel:
    """A transformers model with a language modelling head, to generate with.

    Inputs and outputs are those of :class:`~edgecompile.loaders.generators.causal_step.GenerationStep`.

    Args:
        model: in eval mode, float32, on the CPU.
        options: ``max_context`` bounds the context, ``max_length`` the tokens of one run.
        name: what to call it where the options don't say.
        source: where it came from.
        tokenizer: its ``tokenizer.json``.
        notes: what a person may want to know already.

    Raises:
        ModelError: a batch is asked for; or the model isn't supported: it keeps another state than
            keys and values, or doesn't agree with itself over a cache from outside.
    """
    refuse_unused(options, "prompts", without="logits")
    told = [*notes, *unheeded_settings(model, _ONLY_BEHIND_SOURCES)]
    max_context = context_limit(max_positions(model), options.max_context, told)
    length = options.max_length or min(DEFAULT_LENGTH, max_context)
    vocabulary = int(model.get_input_embeddings().weight.shape[0])
    with quiet(import_transformers()):
        own = own_attention(model)
        with attending(model, own):
            shapes = cache_shapes(model)
        pad = pad_token(model, options, vocabulary)
        step = find_step(model, shapes, max_context, pad)
    axes = {LENGTH: AxisLimits(1, max_context), CONTEXT: AxisLimits(max_context, max_context)}
    inputs = step_inputs(vocabulary, pad, max_context, max_context, step.caches, shapes)
    chosen = plain_name(options.name or name)
    outputs = probe_outputs(step, inputs, axes, chosen)
    made = LoadedModel(
        name=chosen,
        module=step,
        inputs=inputs,
        outputs=outputs,
        axes=axes,
        length_axis=LENGTH,
        source=source,
        tokenizer=tokenizer,
        notes=tuple(told),
        load=options.to_json(),
        generation=CausalGeneration(
            **call_settings(model, step, outputs[0].name, max_context, pad, vocabulary),
            greedy=_Greedy(model, own, pad),
        ),
    )
    return made.with_longest(length)


class _Greedy:
    """transformers' own greedy generation, with the attention that the model came with."""

    def __init__(self, model: Any, own: str, pad: int) -> None:
        self._model, self._own, self._pad = model, own, pad

    def __call__(self, prompt: Sequence[int], most: int) -> list[int]:
        model = self._model

        def generate(tokens: Tensor, plain: Any) -> Any:
            mask = torch.ones_like(tokens)
            return model.generate(tokens, attention_mask=mask, generation_config=plain)

        return generate_greedily(
            model,
            self._own,
            prompt,
            generate,
            max_new_tokens=most,
            repetition_penalty=1.0,
            no_repeat_ngram_size=0,
            eos_token_id=generation_setting(model, "eos_token_id"),
            pad_token_id=self._pad,
            bos_token_id=generation_setting(model, "bos_token_id"),
        )
