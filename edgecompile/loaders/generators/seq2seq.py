"""Encoder-decoder models for generation.

The model that is loaded is the decoder's step; its :class:`~edgecompile.models.loaded.Seq2SeqGeneration` has the
encoder as a model of its own. See :mod:`edgecompile.loaders.generators.sources` and :mod:`edgecompile.loaders.generators.step` for what each takes.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from edgecompile.errors import ModelError
from edgecompile.loaders.folders.audio_inputs import audio_inputs
from edgecompile.loaders.folders.files import plain_name
from edgecompile.loaders.folders.position_limits import max_positions
from edgecompile.loaders.folders.pretrained import import_transformers, quiet
from edgecompile.loaders.folders.text_inputs import limit_length
from edgecompile.loaders.generators.attention import (
    SOURCE_WAYS,
    attending,
    generate_greedily,
    own_attention,
)
from edgecompile.loaders.generators.check import find_step, trial_tokens
from edgecompile.loaders.generators.settings import (
    CONTEXT,
    LENGTH,
    call_settings,
    context_limit,
    generation_setting,
    pad_token,
    refuse_unused,
    sampling_defaults,
    step_inputs,
    token_or_none,
    tokens_of,
    unheeded_settings,
)
from edgecompile.loaders.generators.sources import (
    SourceEncoder,
    decoder_alone,
    encoder_alone,
    find_projections,
)
from edgecompile.loaders.generators.step import GenerationStep
from edgecompile.models.loaded import (
    CONTEXT_STEP,
    LoadedModel,
    LoadOptions,
    ModelSource,
    Seq2SeqGeneration,
)
from edgecompile.models.probing import probe_model
from edgecompile.models.specs import AxisLimits, InputSpec
from edgecompile.models.tasks import reads

__all__ = ["SOURCE", "make_seq2seq"]

SOURCE = "source"

#: Tokens of one run of what a text is to begin with; longer beginnings take several.
LONGEST_RUN = 16
_TRIED = 11


def make_seq2seq(
    model: Any,
    options: LoadOptions,
    *,
    name: str,
    source: ModelSource,
    tokenizer: Path | None = None,
    notes: Sequence[str] = (),
) -> LoadedModel:
    """A transformers model of an encoder and a decoder with a head, to generate with.

    Args:
        model: in eval mode, float32, on the CPU.
        options: ``max_context`` bounds the new text, ``max_length`` the source.
        name: what to call it where the options don't say.
        source: where it came from.
        tokenizer: its ``tokenizer.json``; travels with the encoder.
        notes: what a person may want to know already.

    Raises:
        ModelError: a batch is asked for, the model isn't one of an encoder and a decoder, or doesn't
            agree with itself in two parts.
    """
    refuse_unused(options, "sources", without="seq2seq-encoder")
    if not getattr(model.config, "is_encoder_decoder", False):
        raise ModelError(
            f"{type(model).__name__} has no encoder of its own",
            hint="--task causal-lm is for models of a decoder alone",
        )
    said = list(notes)
    chosen = plain_name(options.name or name)
    decoder = model.get_decoder()
    max_context = context_limit(max_positions(decoder), options.max_context, said)
    vocabulary = int(decoder.get_input_embeddings().weight.shape[0])
    pad = pad_token(model, options, vocabulary)
    start = _start(model, vocabulary, said)
    said += unheeded_settings(model)
    with quiet(import_transformers()):
        own = own_attention(model)
        kind, inputs, axes = _source_inputs(model, options, pad, said)
        tried = _example(inputs, axes)
        with torch.no_grad(), attending(model, own):
            hidden = model.get_encoder()(**tried, return_dict=True).last_hidden_state
        projections = find_projections(model, own, hidden, start[0])
        encoder = encoder_alone(model)
        encoder.set_attn_implementation(own)
        whole = SourceEncoder(encoder, projections, [spec.name for spec in inputs]).eval()
        tokens = trial_tokens(model, max_context)
        with torch.no_grad():
            with attending(model, own):
                want = model(**tried, decoder_input_ids=tokens, use_cache=False).logits[0]
            alone = decoder_alone(model, projections)
            steps = (
                GenerationStep(alone, projections.caches, way, source=True).eval()
                for way in SOURCE_WAYS
            )
            hint = "--task seq2seq-encoder compiles the encoder alone"
            more = whole(**tried)
            step = find_step(steps, own, tokens, want, pad=pad, hint=hint, more=more)
    found = LoadedModel(
        name=chosen + "-encoder",
        module=whole,
        inputs=inputs,
        outputs=probe_model(whole, inputs, axes, chosen + "-encoder")[0],
        axes=axes,
        length_axis=LENGTH if LENGTH in axes else next(iter(axes)),
        source=source,
        tokenizer=tokenizer,
        load=options.to_json(),
    )
    rows = _source_rows(found)
    run = min(LONGEST_RUN, max_context)
    least = min(max_context, -(-run // CONTEXT_STEP) * CONTEXT_STEP)
    own_axes = {LENGTH: AxisLimits(1, run), CONTEXT: AxisLimits(least, max_context)}
    if rows == SOURCE:
        own_axes[SOURCE] = axes[LENGTH]
    taken = (
        *step_inputs(vocabulary, pad, max_context, run, step),
        *(
            InputSpec(cross, "float32", (rows, *part))
            for cross, part in zip(
                step.cross, (part for shape in projections.cross for part in shape), strict=True
            )
        ),
    )
    outputs, _ = probe_model(step, taken, own_axes, chosen)
    suppress = tokens_of(model, "suppress_tokens", vocabulary)
    first = tokens_of(model, "begin_suppress_tokens", vocabulary)
    settings = call_settings(model, step, outputs[0].name, max_context, pad, vocabulary)
    settings["defaults"] = _defaults(model, len(start))

    def translate(given: Mapping[str, Tensor], prompt: Sequence[int], most: int) -> list[int]:
        def generate(begun: Tensor, plain: Any) -> Tensor:
            # Whisper's own method is about recordings of any length; this is what it calls.
            text: Tensor = import_transformers().GenerationMixin.generate(
                model, **given, decoder_input_ids=begun, generation_config=plain
            )
            return text

        return generate_greedily(
            model,
            generate,
            prompt,
            max_new_tokens=most,
            eos_token_id=list(settings["eos"]) or None,
            pad_token_id=pad,
            decoder_start_token_id=prompt[0],
            suppress_tokens=list(suppress) or None,
            begin_suppress_tokens=list(first) or None,
        )

    return LoadedModel(
        name=chosen,
        module=step,
        inputs=taken,
        outputs=outputs,
        axes=own_axes,
        length_axis=LENGTH,
        source=source,
        notes=tuple(said),
        load=options.to_json(),
        generation=Seq2SeqGeneration(
            **settings,
            cross=step.cross,
            start=start,
            source=kind,
            suppress=suppress,
            suppress_first=first,
            encoder=found,
            translate=translate,
        ),
    )


def _source_inputs(
    model: Any, options: LoadOptions, pad: int, notes: list[str]
) -> tuple[str, tuple[InputSpec, ...], dict[str, AxisLimits]]:
    """The encoder's chief input, all of its inputs, and its axes."""
    encoder = model.get_encoder()
    name = str(model.main_input_name)
    if reads(name) == "audio":
        made = audio_inputs(model, Path(), options)
        if made.length_axis == LENGTH:
            raise ModelError(
                f"{type(model).__name__} reads {name} of any length, which generation doesn't take",
                hint="models of texts, and Whisper, are supported; the encoder alone: --task audio",
            )
        notes.extend(made.notes)
        return name, made.inputs, dict(made.axes)
    if reads(name) != "text":
        raise ModelError(
            f"{type(model).__name__} reads {name}, which generation doesn't take",
            hint="models of texts, and Whisper, are supported",
        )
    vocabulary = int(encoder.get_input_embeddings().weight.shape[0])
    shape = (1, LENGTH)
    inputs = [InputSpec(name, "int64", shape, min(pad, vocabulary - 1), (0, vocabulary - 1))]
    if "attention_mask" in inspect.signature(encoder.forward).parameters:
        inputs.append(InputSpec("attention_mask", "int64", shape, 0, (0, 1), (1, 1)))
    return name, tuple(inputs), {LENGTH: limit_length(max_positions(encoder), None, 1, options)}


def _example(inputs: Sequence[InputSpec], axes: Mapping[str, AxisLimits]) -> dict[str, Tensor]:
    from edgecompile.models.examples import make_example

    sizes = {name: min(_TRIED, limits.hi or _TRIED) for name, limits in axes.items()}
    return make_example(inputs, sizes, seed=3)


def _source_rows(encoder: LoadedModel) -> str | int:
    """The first dimension of what the encoder gives: the axis of sources, or a fixed size."""
    found = {spec.shape[0] for spec in encoder.outputs}
    rows = next(iter(found))
    if len(found) == 1 and rows == LENGTH:
        return SOURCE
    if len(found) == 1 and isinstance(rows, int):
        return rows
    raise ModelError(
        f"{encoder.name} gives another number of rows than it is given tokens",
        hint="--task seq2seq-encoder compiles the encoder alone",
    )


def _start(model: Any, vocabulary: int, notes: list[str]) -> tuple[int, ...]:
    """The first tokens of every text: the decoder's start token, and the next if that is forced."""
    asked = generation_setting(model, "decoder_start_token_id")
    if isinstance(asked, (list, tuple)) and len(set(asked)) == 1:
        asked = asked[0]
    start = token_or_none(asked, vocabulary)
    if start is None:
        start = token_or_none(generation_setting(model, "bos_token_id"), vocabulary)
    if start is None:
        raise ModelError(
            f"{type(model).__name__}: nothing says with which token a text begins",
            hint="config.json or generation_config.json has to have a decoder_start_token_id",
        )
    forced = token_or_none(generation_setting(model, "forced_bos_token_id"), vocabulary)
    if forced is None:
        return (start,)
    notes.append(f"every text begins with the token {forced} (forced_bos_token_id)")
    return start, forced


def _defaults(model: Any, begun: int) -> Mapping[str, Any]:
    """How the author wants to sample; a limit for the whole text becomes one for the new tokens."""
    found = dict(sampling_defaults(model))
    most = getattr(getattr(model, "generation_config", None), "max_length", None)
    if isinstance(most, int) and most > begun:
        found.setdefault("max_new_tokens", most - begun)
    return found
