"""Causal language models for generation.

The model's inputs are new tokens and the caches of the tokens before them; see
:class:`edgecompile.loaders.generators.step.GenerationStep`. One signature serves prompts and single steps.
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
from edgecompile.loaders.generators.attention import (
    WAYS,
    attend_always,
    attending,
    generate_greedily,
    own_attention,
)
from edgecompile.loaders.generators.check import find_step, short_windows, trial_tokens
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
from edgecompile.loaders.generators.step import GenerationStep, find_caches
from edgecompile.models.loaded import CausalGeneration, LoadedModel, LoadOptions, ModelSource
from edgecompile.models.probing import probe_model
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

    Inputs and outputs are those of :class:`~edgecompile.loaders.generators.step.GenerationStep`.

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
    said = [*notes, *unheeded_settings(model, _ONLY_BEHIND_SOURCES)]
    max_context = context_limit(max_positions(model), options.max_context, said)
    length = options.max_length or min(DEFAULT_LENGTH, max_context)
    vocabulary = int(model.get_input_embeddings().weight.shape[0])
    pad = pad_token(model, options, vocabulary)
    tokens = trial_tokens(model, max_context)
    own = own_attention(model)
    with quiet(import_transformers()):
        with attending(model, own), short_windows(model), torch.no_grad():
            shapes = find_caches(model)
            want = model(input_ids=tokens, use_cache=False).logits[0]
            steps = (GenerationStep(model, shapes, way).eval() for way in WAYS)
            hint = "--task logits compiles it without a cache"
            step = find_step(steps, own, tokens, want, pad=pad, hint=hint)
        attend_always(model, step.way.attention or own)

    def greedy(prompt: Sequence[int], most: int) -> list[int]:
        def generate(given: Tensor, plain: Any) -> Tensor:
            text: Tensor = model.generate(
                given, attention_mask=torch.ones_like(given), generation_config=plain
            )
            return text

        return generate_greedily(
            model,
            generate,
            prompt,
            max_new_tokens=most,
            repetition_penalty=1.0,
            no_repeat_ngram_size=0,
            eos_token_id=generation_setting(model, "eos_token_id"),
            pad_token_id=pad,
            bos_token_id=generation_setting(model, "bos_token_id"),
        )

    axes = {LENGTH: AxisLimits(1, max_context), CONTEXT: AxisLimits(max_context, max_context)}
    inputs = step_inputs(vocabulary, pad, max_context, max_context, step)
    chosen = plain_name(options.name or name)
    outputs, _ = probe_model(step, inputs, axes, chosen)
    made = LoadedModel(
        name=chosen,
        module=step,
        inputs=inputs,
        outputs=outputs,
        axes=axes,
        length_axis=LENGTH,
        source=source,
        tokenizer=tokenizer,
        notes=tuple(said),
        load=options.to_json(),
        generation=CausalGeneration(
            **call_settings(model, step, outputs[0].name, max_context, pad, vocabulary),
            greedy=greedy,
        ),
    )
    return made.with_longest(length)
