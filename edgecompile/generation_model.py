"""Causal language models for generation: a folder's, or a transformers model that code made.

The model's inputs are new tokens and the caches of the tokens before them; see
:class:`edgecompile.generation_step.GenerationStep`. One signature serves prompts and single steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from edgecompile.errors import ModelError
from edgecompile.folder_files import find_weights, hash_files, read_object
from edgecompile.generation_attention import attending, own_attention
from edgecompile.generation_check import find_step
from edgecompile.generation_settings import (
    CONTEXT,
    LENGTH,
    context_limit,
    end_tokens,
    generation_setting,
    pad_token,
    plain_name,
    refuse_unused,
    sampling_defaults,
    step_inputs,
    token_or_none,
)
from edgecompile.generation_step import INPUT, LAST, POSITION, cache_shapes
from edgecompile.models import AxisLimits, Generation, LoadedModel, LoadOptions, ModelSource
from edgecompile.position_limits import max_positions
from edgecompile.pretrained import import_transformers, load_pretrained, quiet
from edgecompile.probing import probe_outputs
from edgecompile.tasks import find_task

__all__ = ["CONTEXT", "LENGTH", "load_causal_lm", "make_generator"]

#: Tokens of one run of a prompt where nobody says otherwise: the widest program that has to be
#: verified grows with them.
DEFAULT_LENGTH = 512


def load_causal_lm(folder: Path, options: LoadOptions) -> LoadedModel:
    """Loads a folder with a causal language model, to generate with.

    Inputs and outputs are those of :class:`~edgecompile.generation_step.GenerationStep`.

    Raises:
        ModelError: the folder is incomplete, or its model isn't supported: it keeps another state
            than keys and values, or doesn't agree with itself over a cache from outside.
        MissingDependencyError: transformers isn't installed.
    """
    config = read_object(folder / "config.json", "the model's configuration")
    weights = find_weights(folder)
    pretrained = load_pretrained(folder, config, find_task("causal-lm"))
    tokenizer = folder / "tokenizer.json"
    source = ModelSource(
        kind="folder",
        spec=str(folder),
        sha256=hash_files(folder, [folder / "config.json", *weights]),
        details={
            "architecture": type(pretrained.model).__name__,
            "model_type": str(config.get("model_type")),
            "task": "causal-lm",
        },
    )
    return make_generator(
        pretrained.model,
        options,
        name=folder.resolve().name,
        source=source,
        tokenizer=tokenizer if tokenizer.is_file() else None,
        notes=pretrained.notes,
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

    Args:
        model: in eval mode, float32, on the CPU.
        options: ``max_context`` bounds the context, ``max_length`` the tokens of one run.
        name: what to call it where the options don't say.
        source: where it came from.
        tokenizer: its ``tokenizer.json``.
        notes: what a person may want to know already.

    Raises:
        ModelError: see :func:`load_causal_lm`.
    """
    refuse_unused(options)
    batch = options.batch or (1, 1)
    if batch != (1, 1):
        raise ModelError(
            f"a batch of {batch[0]}..{batch[1]} was asked for, but generation has a batch of 1",
            hint="leave --batch out: prompts are served one after another",
        )
    told = list(notes)
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
        generation=Generation(
            input=INPUT,
            position=POSITION,
            last=LAST,
            logits=outputs[0].name,
            context_axis=CONTEXT,
            caches=step.caches,
            max_context=max_context,
            eos=end_tokens(model, vocabulary),
            bos=token_or_none(generation_setting(model, "bos_token_id"), vocabulary),
            pad=pad,
            defaults=sampling_defaults(model),
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
        plain = import_transformers().GenerationConfig(
            do_sample=False,
            num_beams=1,
            max_new_tokens=most,
            repetition_penalty=1.0,
            no_repeat_ngram_size=0,
            eos_token_id=generation_setting(model, "eos_token_id"),
            pad_token_id=self._pad,
            bos_token_id=generation_setting(model, "bos_token_id"),
            use_cache=True,
        )
        # generate() fills what a configuration leaves open from the model's own.
        before, model.generation_config = model.generation_config, plain
        tokens = torch.tensor([list(prompt)])
        try:
            with quiet(import_transformers()), attending(model, self._own), torch.no_grad():
                mask = torch.ones_like(tokens)
                found = model.generate(tokens, attention_mask=mask, generation_config=plain)
        finally:
            model.generation_config = before
        return [int(token) for token in found[0, tokens.shape[1] :]]
