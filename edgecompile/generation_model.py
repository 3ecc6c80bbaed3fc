"""Causal language models for generation: a folder's, or a transformers model that code made.

The model's inputs are new tokens and the caches of the tokens before them; see
:class:`edgecompile.generation_step.GenerationStep`. One signature serves prompts and single steps.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from edgecompile.errors import ModelError
from edgecompile.folder_files import find_weights, hash_files, read_object
from edgecompile.generation_attention import attending, own_attention
from edgecompile.generation_check import find_step
from edgecompile.generation_step import INPUT, LAST, POSITION, KeyValueShape, cache_shapes
from edgecompile.models import (
    AxisLimits,
    Generation,
    InputSpec,
    LoadedModel,
    LoadOptions,
    ModelSource,
)
from edgecompile.position_limits import max_positions
from edgecompile.pretrained import import_transformers, load_pretrained, quiet
from edgecompile.probing import probe_outputs
from edgecompile.tasks import find_task

__all__ = ["CONTEXT", "LENGTH", "load_causal_lm", "make_generator"]

LENGTH, CONTEXT = "length", "context"

#: Rows of the context, and tokens of one run of a prompt, where nobody says otherwise. Both can be
#: asked for; memory and the widest program that has to be verified grow with them.
DEFAULT_CONTEXT, DEFAULT_LENGTH = 2048, 512


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
    _refuse_unused(options)
    batch = options.batch or (1, 1)
    if batch != (1, 1):
        raise ModelError(
            f"a batch of {batch[0]}..{batch[1]} was asked for, but generation has a batch of 1",
            hint="leave --batch out: prompts are served one after another",
        )
    told = list(notes)
    max_context = _context_limit(model, options, told)
    length = options.max_length or min(DEFAULT_LENGTH, max_context)
    vocabulary = int(model.get_input_embeddings().weight.shape[0])
    with quiet(import_transformers()):
        own = own_attention(model)
        with attending(model, own):
            shapes = cache_shapes(model)
        pad = _pad(model, options, vocabulary)
        step = find_step(model, shapes, max_context, pad)
    axes = {LENGTH: AxisLimits(1, max_context), CONTEXT: AxisLimits(max_context, max_context)}
    inputs = _inputs(vocabulary, pad, max_context, step.caches, shapes)
    chosen = _plain_name(options.name or name)
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
            eos=_eos(model, vocabulary),
            bos=_token(_setting(model, "bos_token_id"), vocabulary),
            pad=pad,
            defaults=_defaults(model),
            greedy=_Greedy(model, own, pad),
        ),
    )
    return made.with_longest(length)


def _refuse_unused(options: LoadOptions) -> None:
    """Refuses what says how other models are loaded: it would be passed over."""
    given = [name for name in options.to_json() if name not in ("task", "max_context")]
    problems = ["--" + name.replace("_", "-") for name in given if getattr(options, name)]
    problems += [f"a pad value for {name}" for name in options.pad if name != INPUT]
    if problems:
        raise ModelError(
            f"{', '.join(problems)}: not for generation, whose inputs and outputs are settled",
            hint="leave it out, or compile the model without a cache: --task logits",
        )


def _context_limit(model: Any, options: LoadOptions, notes: list[str]) -> int:
    own = max_positions(model)
    wanted = options.max_context
    if wanted is not None and own is not None and wanted > own:
        raise ModelError(
            f"a context of {wanted} tokens was asked for, but the model has {own} positions",
            hint=f"--max-context {own} or less",
        )
    if wanted is None and (own is None or own > DEFAULT_CONTEXT):
        allowed = "any length" if own is None else f"{own} tokens"
        notes.append(
            f"the context is {DEFAULT_CONTEXT} tokens; the model allows {allowed} (--max-context)"
        )
    return wanted or min(own or DEFAULT_CONTEXT, DEFAULT_CONTEXT)


def _inputs(
    vocabulary: int,
    pad: int,
    max_context: int,
    caches: Sequence[str],
    shapes: Sequence[KeyValueShape],
) -> tuple[InputSpec, ...]:
    parts = [part for shape in shapes for part in shape]
    return (
        InputSpec(INPUT, "int64", (1, LENGTH), pad, (0, vocabulary - 1)),
        InputSpec(POSITION, "int64", (1,), bounds=(0, max_context - 1), within=(CONTEXT, LENGTH)),
        InputSpec(LAST, "int64", (1,), bounds=(0, max_context - 1), within=(LENGTH,)),
        *(
            InputSpec(name, "float32", (CONTEXT, *part), in_place=True)
            for name, part in zip(caches, parts, strict=True)
        ),
    )


def _setting(model: Any, name: str) -> Any:
    """What the generation configuration says, else the model's."""
    found = getattr(getattr(model, "generation_config", None), name, None)
    return getattr(model.config, name, None) if found is None else found


def _token(value: Any, vocabulary: int) -> int | None:
    return value if isinstance(value, int) and 0 <= value < vocabulary else None


def _eos(model: Any, vocabulary: int) -> tuple[int, ...]:
    found = _setting(model, "eos_token_id")
    items = found if isinstance(found, (list, tuple)) else [found]
    tokens = [_token(item, vocabulary) for item in items]
    return tuple(dict.fromkeys(token for token in tokens if token is not None))


def _pad(model: Any, options: LoadOptions, vocabulary: int) -> int:
    asked = options.pad.get(INPUT)
    found = asked if asked is not None else _setting(model, "pad_token_id")
    token = _token(found, vocabulary)
    return token if token is not None else next(iter(_eos(model, vocabulary)), 0)


def _defaults(model: Any) -> Mapping[str, Any]:
    """How the model's author wants to sample, as far as transformers' files say and it is sane."""
    config = getattr(model, "generation_config", None)
    known: Mapping[str, Callable[[Any], bool]] = {
        "do_sample": lambda v: isinstance(v, bool),
        "temperature": lambda v: v >= 0,
        "top_k": lambda v: v >= 0 and v == int(v),
        "top_p": lambda v: 0 < v <= 1,
        "repetition_penalty": lambda v: v > 0,
        "max_new_tokens": lambda v: v >= 1,
    }
    result: dict[str, Any] = {}
    for name, good in known.items():
        value = getattr(config, name, None)
        if isinstance(value, (bool, int, float)) and good(value):
            result[name] = value
    return result


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
            eos_token_id=_setting(model, "eos_token_id"),
            pad_token_id=self._pad,
            bos_token_id=_setting(model, "bos_token_id"),
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


def _plain_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.+-]+", "-", text).strip(".+-")[:100] or "model"
