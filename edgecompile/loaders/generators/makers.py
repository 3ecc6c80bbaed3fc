"""Models that generate: language models of a decoder alone, and of an encoder and a decoder.

The model that is loaded is a step over caches (:class:`edgecompile.loaders.generators.step.GenerationStep`): its
inputs are new tokens and the caches of the tokens before them, so one signature serves prompts and single
steps. Behind a source the encoder is a model of its own; see :mod:`edgecompile.loaders.generators.sources`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from edgecompile.errors import ModelError
from edgecompile.loaders.folders.files import plain_name
from edgecompile.loaders.folders.inputs import audio_inputs, limit_length
from edgecompile.loaders.folders.position_limits import max_positions
from edgecompile.loaders.folders.pretrained import import_transformers, quiet
from edgecompile.loaders.generators.attention import (
    PLACED,
    SOURCE_WAYS,
    WAYS,
    attend_always,
    attending,
    greedy_of,
    own_attention,
)
from edgecompile.loaders.generators.check import (
    find_step,
    generating_model,
    short_windows,
    trial_tokens,
    whole_model,
)
from edgecompile.loaders.generators.settings import (
    CONTEXT,
    LENGTH,
    context_limit,
    generation_setting,
    pad_token,
    refuse_storage,
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
from edgecompile.loaders.generators.speech import find_speech
from edgecompile.loaders.generators.step import (
    INPUT,
    LAST,
    POSITION,
    GenerationStep,
    find_caches,
)
from edgecompile.loaders.generators.storage import FLOAT32, STORAGES
from edgecompile.loaders.generators.text_part import text_part
from edgecompile.models.examples import make_example
from edgecompile.models.loaded import ENCODER, Generation, LoadedModel, ModelSource, least_context
from edgecompile.models.options import LoadOptions
from edgecompile.models.probing import probe_model
from edgecompile.models.specs import AxisLimits, InputSpec
from edgecompile.models.tasks import SEQ2SEQ_LM, reads
from edgecompile.runtime.format.manifest.schema import (
    CAUSAL_LM,
    RECURRENT_LM,
    SEQ2SEQ,
    GenerationSpec,
)

SOURCE = "source"

#: Tokens of one run of a prompt where nobody says otherwise: the widest program that has to be
#: verified grows with them.
DEFAULT_LENGTH = 512

#: Tokens of one run of what a text behind a source is to begin with; longer beginnings take several.
LONGEST_RUN = 16
_TRIED = 11

#: What is done behind an encoder's source, or taken from there, but not for language models.
_ONLY_BEHIND_SOURCES = (
    *("suppress_tokens", "begin_suppress_tokens", "forced_bos_token_id"),
    "max_length",  # of the whole text, so that it is no number of new tokens
)


class GeneratorMaker:
    """Makes a transformers model with a language modelling head one to generate with.

    Args:
        task: ``causal-lm``, or ``seq2seq-lm`` for an encoder and a decoder.
        model: the model in eval mode, float32, on the CPU.
        options: ``max_context`` bounds the context, or the new text behind a source, ``max_length``
            the tokens of one run, or the source.
        name: its name where the options have none.
        source: the origin of the model.
        tokenizer: its ``tokenizer.json``; travels with the encoder.
        folder: the folder of its feature extractor, if it reads sound.
        notes: remarks for the user that are known already.

    Raises:
        ModelError: a batch is asked for, or the model isn't one of an encoder and a decoder.
    """

    def __init__(
        self,
        task: str,
        model: Any,
        options: LoadOptions,
        *,
        name: str,
        source: ModelSource,
        tokenizer: Path | None = None,
        folder: Path | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        self.behind_sources, text = task == SEQ2SEQ_LM, model
        self.storage = STORAGES[options.cache_precision or FLOAT32.precision]
        if self.behind_sources:
            refuse_unused(options, "sources", without="seq2seq-encoder")
            if self.storage is not FLOAT32:
                raise refuse_storage(self.storage, f"{type(model).__name__} has an encoder")
            if options.lookup is not None:
                raise ModelError(
                    f"{type(model).__name__} has an encoder, and `lookup` is for models without one",
                    hint="leave `lookup` out",
                )
            if not getattr(model.config, "is_encoder_decoder", False):
                raise ModelError(
                    f"{type(model).__name__} has no encoder of its own",
                    hint='`task="causal-lm"` is for models of a decoder alone',
                )
            text = model.get_decoder()
        else:
            refuse_unused(options, "prompts", without="logits")
            whole, model = model, text_part(model)
            if model is not whole:
                notes = [*notes, f"{type(whole).__name__}: its text part alone is compiled"]
            text = model
        self.model, self.options, self.source, self.notes = model, options, source, list(notes)
        self.name, self.tokenizer = plain_name(options.name or name), tokenizer
        self.load, self.folder = options.to_json(), folder
        self.own = own_attention(model)
        self.max_context = context_limit(max_positions(text), options.max_context, self.notes)
        self.vocabulary = int(text.get_input_embeddings().weight.shape[0])
        self.pad = pad_token(model, options, self.vocabulary)
        self.tokens = trial_tokens(self.vocabulary, self.max_context)

    def make(self) -> LoadedModel:
        """The model; inputs and outputs are those of
        :class:`~edgecompile.loaders.generators.step.GenerationStep`.

        Raises:
            ModelError: it isn't supported: it keeps something else than keys, values and states of a fixed
                size, or doesn't agree with itself over a cache from outside, or in two parts.
        """
        return self._seq2seq() if self.behind_sources else self._causal()

    def _made(
        self,
        step: GenerationStep,
        axes: Mapping[str, AxisLimits],
        *,
        cross: Sequence[InputSpec] = (),
        encoder: LoadedModel | None = None,
        logits: Callable[[Tensor], Tensor] | None = None,
        **settings: Any,
    ) -> LoadedModel:
        """The model whose module is ``step``.

        Args:
            axes: the axes of its inputs.
            cross: inputs with the keys and values of a source.
            encoder: the encoder that makes them.
            logits: the model on whole texts.
            settings: further fields of the specification.
        """
        longest = axes[LENGTH].hi or self.max_context
        own = step_inputs(self.vocabulary, self.pad, self.max_context, longest, step)
        inputs = (*own, *cross)
        outputs, _ = probe_model(step, inputs, axes, self.name)
        if step.lookup > 1:
            outputs = (replace(outputs[0], shape=(None, outputs[0].shape[1])),)
        settings.setdefault("defaults", sampling_defaults(self.model))
        spec = GenerationSpec(
            kind=SEQ2SEQ if encoder else RECURRENT_LM if step.has_states else CAUSAL_LM,
            encoder="" if encoder is None else ENCODER,
            input=INPUT,
            position=POSITION,
            last=LAST,
            logits=outputs[0].name,
            length_axis=LENGTH,
            context_axis=CONTEXT if step.has_rows else None,
            max_context=self.max_context,
            lookup=step.lookup,
            caches=step.caches,
            cross=step.cross,
            eos=tokens_of(self.model, "eos_token_id", self.vocabulary),
            bos=token_or_none(generation_setting(self.model, "bos_token_id"), self.vocabulary),
            pad=self.pad,
            **settings,
        )
        return LoadedModel(
            name=self.name,
            module=step,
            inputs=inputs,
            outputs=outputs,
            axes=axes,
            length_axis=LENGTH,
            source=self.source,
            tokenizer=self.tokenizer if encoder is None else None,
            notes=tuple(self.notes),
            load=self.load,
            generation=Generation(
                spec,
                greedy_of(self.model, spec, self.storage.rounding),
                encoder,
                logits,
                storing=self.storage.rounding,
            ),
        )

    def _causal(self) -> LoadedModel:
        model, most = self.model, self.max_context
        self.notes += unheeded_settings(model, _ONLY_BEHIND_SOURCES)
        with quiet(import_transformers()):
            with attending(model, self.own), short_windows(model), torch.no_grad():
                kept, past = find_caches(model)
                whole = whole_model(model, self.own, INPUT)
                steps = (GenerationStep(model, kept, way, most, past=past).eval() for way in WAYS)
                hint = '`task="logits"` compiles it without a cache'
                generated = generating_model(model, self.own, past)
                step = find_step(
                    steps,
                    self.own,
                    self.tokens,
                    whole,
                    pad=self.pad,
                    hint=hint,
                    notes=self.notes,
                    generated=generated,
                )
            attend_always(model, step.way.attention or self.own)
        if self.storage is not FLOAT32 and not step.has_rows:
            raise refuse_storage(self.storage, f"{type(model).__name__} keeps no keys and values")
        step.storage = self.storage
        step.lookup = self._lookup(step)
        axes = {LENGTH: AxisLimits(1, most)}
        if step.has_rows:
            axes[CONTEXT] = AxisLimits(most, most)
        made = self._made(step, axes, logits=whole)
        return made.with_longest(self.options.max_length or min(DEFAULT_LENGTH, most))

    def _lookup(self, step: GenerationStep) -> int:
        """Tokens of the longest run that gives logits behind each of its tokens."""
        lookup = self.options.lookup or 1
        longest = self.options.max_length or min(DEFAULT_LENGTH, self.max_context)
        if lookup == 1:
            return lookup
        if step.way.attention != PLACED:
            raise ModelError(
                f"{type(self.model).__name__} attends by masks, so a run of several tokens isn't "
                "bit-equal to single ones",
                hint="leave `lookup` out",
            )
        if lookup >= longest:
            raise ModelError(
                f"`lookup` is {lookup}, but a run has {longest} tokens at most",
                hint="`lookup` has to be less than `max_length`",
            )
        return lookup

    def _seq2seq(self) -> LoadedModel:
        model, own, tokens, vocabulary = self.model, self.own, self.tokens, self.vocabulary
        start = _start(model, vocabulary, self.notes)
        self.notes += unheeded_settings(model)
        with quiet(import_transformers()):
            folder = self.folder or Path()
            kind, inputs, axes = _source_inputs(model, folder, self.options, self.pad, self.notes)
            sizes = {
                axis: min(limits.lo * _TRIED, limits.hi or limits.lo * _TRIED)
                for axis, limits in axes.items()
            }
            tried = make_example(inputs, sizes, seed=3)
            with torch.no_grad(), attending(model, own):
                hidden = model.get_encoder()(**tried, return_dict=True).last_hidden_state
            projections = find_projections(model, own, hidden, start[0])
            reader = encoder_alone(model)
            reader.set_attn_implementation(own)
            whole = SourceEncoder(reader, projections, [spec.name for spec in inputs]).eval()
            with torch.no_grad():
                alone = decoder_alone(model, projections)
                steps = (
                    GenerationStep(
                        alone,
                        projections.caches,
                        way,
                        self.max_context,
                        source=len(projections.cross),
                    ).eval()
                    for way in SOURCE_WAYS
                )
                hint = '`task="seq2seq-encoder"` compiles the encoder alone'
                more = whole(**tried)
                answer = whole_model(model, own, "decoder_input_ids", tried)
                known: dict[str, Any] = {"pad": self.pad, "hint": hint, "notes": self.notes}
                step = find_step(steps, own, tokens, answer, **known, more=more)
        encoder = LoadedModel(
            name=self.name + "-encoder",
            module=whole,
            inputs=inputs,
            outputs=probe_model(whole, inputs, axes, self.name + "-encoder")[0],
            axes=axes,
            length_axis=LENGTH if LENGTH in axes else next(iter(axes)),
            source=self.source,
            tokenizer=self.tokenizer,
            load=self.load,
        )
        speech = find_speech(model, self.folder, self.tokenizer, kind, self.notes)
        if speech is not None:
            encoder = replace(encoder, tokenizer=None)  # its source is no text
        rows, sources = _source_rows(encoder)
        run, most = min(LONGEST_RUN, self.max_context), self.max_context
        own_axes = {LENGTH: AxisLimits(1, run), CONTEXT: AxisLimits(least_context(run, most), most)}
        if rows == SOURCE:
            own_axes[SOURCE] = sources
        parts = [part for shape in projections.cross for part in shape]
        made = self._made(
            step,
            own_axes,
            cross=[
                InputSpec(cross, "float32", (rows, *part))
                for cross, part in zip(step.cross, parts, strict=True)
            ],
            encoder=encoder,
            defaults=_defaults(model, len(start)),
            source=kind,
            start=start,
            suppress=tokens_of(model, "suppress_tokens", vocabulary),
            suppress_first=tokens_of(model, "begin_suppress_tokens", vocabulary),
        )
        return replace(made, speech=speech)


def _source_inputs(
    model: Any, folder: Path, options: LoadOptions, pad: int, notes: list[str]
) -> tuple[str, tuple[InputSpec, ...], dict[str, AxisLimits]]:
    """The encoder's chief input, all of its inputs, and its axes."""
    encoder = model.get_encoder()
    name = str(model.main_input_name)
    if reads(name) == "audio":
        made = audio_inputs(model, folder, options)
        # A recording of any length is read alone and whole, so it needs no mask, nor a note about one.
        notes.extend(() if LENGTH in made.axes else made.notes)
        return name, tuple(spec for spec in made.inputs if not spec.is_mask), dict(made.axes)
    if reads(name) != "text":
        raise ModelError(
            f"{type(model).__name__} reads {name}, which generation doesn't take",
            hint="models of texts and of sound are supported",
        )
    vocabulary = int(encoder.get_input_embeddings().weight.shape[0])
    shape = (1, LENGTH)
    inputs = [InputSpec(name, "int64", shape, min(pad, vocabulary - 1), (0, vocabulary - 1))]
    if "attention_mask" in inspect.signature(encoder.forward).parameters:
        inputs.append(InputSpec("attention_mask", "int64", shape, 0, (0, 1), (1, 1)))
    return name, tuple(inputs), {LENGTH: limit_length(max_positions(encoder), None, 1, options)}


def _source_rows(encoder: LoadedModel) -> tuple[str | int, AxisLimits]:
    """The first dimension of the encoder's outputs, the axis of sources or a fixed size, and that axis' limits."""
    sizes = {spec.shape[0] for spec in encoder.outputs}
    rows, limits = next(iter(sizes)), encoder.axes[encoder.length_axis or LENGTH]
    if len(sizes) == 1 and isinstance(rows, int):
        return rows, limits
    if len(sizes) == 1 and encoder.length_axis == LENGTH:
        return SOURCE, encoder.source_rows(limits)
    raise ModelError(
        f"{encoder.name} gives keys and values of different numbers of rows",
        hint='`task="seq2seq-encoder"` compiles the encoder alone',
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
    """The author's settings for sampling; a limit for the whole text becomes one for the new tokens."""
    defaults = dict(sampling_defaults(model))
    most = getattr(getattr(model, "generation_config", None), "max_length", None)
    if isinstance(most, int) and most > begun:
        defaults.setdefault("max_new_tokens", most - begun)
    return defaults
