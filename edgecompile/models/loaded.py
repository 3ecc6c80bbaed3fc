"""Model specifications and loaded models: a module with described inputs and outputs.

``load_model`` takes a folder in Hugging Face layout, ``file.py:factory`` or
``package.module:factory``, a saved ``.pt2`` or an ``.onnx`` file. Importing this module loads no framework; loading
a model does.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgecompile.errors import ModelError
from edgecompile.models.specs import AxisLimits, InputSpec, OutputSpec, tied_sizes
from edgecompile.runtime.format.manifest.policy_schema import PolicySpec
from edgecompile.runtime.format.manifest.schema import GenerationSpec, StateSpec
from edgecompile.runtime.format.manifest.speech_schema import SpeechSpec

if TYPE_CHECKING:
    import torch

    from edgecompile.models.stored import StoredWeights

#: Callers of a model that generates pass whole multiples of so many rows of a cache.
_CONTEXT_STEP = 64
#: The folder, in a bundle, of the bundle that reads sources.
ENCODER = "encoder"


@dataclass(frozen=True)
class ModelSource:
    """The origin of a model.

    Attributes:
        kind: ``folder``, ``gguf``, ``factory``, ``pt2``, ``onnx`` or ``object``.
        spec: the specification that the user wrote.
        sha256: hashes of all files that shape it, by their path in its folder; none of a factory.
        details: facts for people and reports, such as the architecture's name.
    """

    kind: str
    spec: str
    sha256: Mapping[str, str] = field(default_factory=dict)
    details: Mapping[str, str] = field(default_factory=dict)

    @property
    def lasting(self) -> bool:
        """Whether another process can tell that it loads the same: a factory's code can't be hashed."""
        return self.kind in ("folder", "gguf", "pt2", "onnx")


@dataclass(frozen=True)
class Generation:
    """The settings with which a model generates tokens over caches from outside.

    Attributes:
        spec: the entry of a manifest: names of inputs, output and axes, and tokens.
        greedy: a function that gives the tokens that follow a prompt, up to a number, by the
            library that the model comes from; where there is an encoder, it is given its inputs as
            well.
        encoder: makes the ``cross`` inputs of a source: its outputs have these names. None: the
            model has no source.
        logits: a function from a whole text, int64 [1, length], to the logits behind each of its
            tokens, [length, vocabulary], by that library. None: there is none, as behind a source.
        prefix: tokens of a prompt that the bundle will hold the caches of.
        storing: makes a context in which ``logits`` computes with keys and values as the caches store them.
    """

    spec: GenerationSpec
    greedy: Callable[..., list[int]]
    encoder: LoadedModel | None = None
    logits: Callable[[torch.Tensor], torch.Tensor] | None = None
    prefix: tuple[int, ...] = ()
    storing: Callable[[], AbstractContextManager[None]] = nullcontext


@dataclass(frozen=True)
class Speech:
    """The way from a recording to text.

    Attributes:
        spec: the entry of a manifest.
        files: contents of the files that it names, by path.
        tokenizer: the ``tokenizer.json`` of the text, or its content; None: there is none.
    """

    spec: SpeechSpec
    files: Mapping[str, bytes] = field(default_factory=dict)
    tokenizer: Path | bytes | None = None


@dataclass(frozen=True)
class LoadedModel:
    """A module in eval mode, float32 on the CPU, with named inputs, outputs and axes.

    Attributes:
        name: a short name made of what a manifest allows in names.
        module: takes the inputs by name (or in the order of ``inputs``), gives a dict of tensors.
        inputs, outputs: the inputs and outputs; outputs as seen on example inputs.
        axes: limits of every axis that occurs in an input's shape.
        length_axis: the axis that varies with traffic; None: there is none.
        source: the origin of the model.
        tokenizer: its ``tokenizer.json``, if it has one.
        notes: choices made while loading that a person may want to know.
        labels: names of the classes by output, whose last dimension they count.
        load: the options that shaped it, as :meth:`LoadOptions.to_json` has them.
        generation: the settings of generation; None: it doesn't generate.
        state: the outputs that are inputs of the next run of a stream.
        policy: the way from observations to actions; None: it is no policy.
        speech: the way from a recording to text; None: it takes no recordings.
        stored: weights as its checkpoint stores them; None: as plain floats.
    """

    name: str
    module: torch.nn.Module
    inputs: tuple[InputSpec, ...]
    outputs: tuple[OutputSpec, ...]
    axes: Mapping[str, AxisLimits]
    length_axis: str | None
    source: ModelSource
    tokenizer: Path | None = None
    notes: tuple[str, ...] = ()
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    load: Mapping[str, Any] = field(default_factory=dict)
    generation: Generation | None = None
    state: tuple[StateSpec, ...] = ()
    policy: PolicySpec | None = None
    speech: Speech | None = None
    stored: StoredWeights | None = None

    @property
    def encoder(self) -> LoadedModel | None:
        """The model of the sources, where this one generates from a source."""
        return None if self.generation is None else self.generation.encoder

    @property
    def has_mask(self) -> bool:
        """Whether an input along the length axis tells real positions from padding."""
        return any(spec.is_mask and self.length_axis in spec.shape for spec in self.inputs)

    @property
    def paddable(self) -> bool:
        """Whether every input along the length axis has a pad value, and no other size follows from it."""
        if self.length_axis is None or tied_sizes(self.inputs, (self.length_axis,)):
            return False
        along = [spec for spec in self.inputs if self.length_axis in spec.shape]
        return all(spec.pad is not None for spec in along)

    def make_example(
        self,
        sizes: Mapping[str, int],
        seed: int = 0,
        padding: int | Sequence[int] = 0,
        kind: str = "",
    ) -> dict[str, torch.Tensor]:
        """Random valid inputs; see :func:`edgecompile.models.examples.make_example`."""
        from edgecompile.models.examples import make_example

        return make_example(
            self.inputs,
            sizes,
            seed=seed,
            length_axis=self.length_axis,
            padding=padding,
            kind=kind,
        )

    def run(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Runs the module eagerly; what it changes in place is a copy of what is given.

        Raises:
            ModelError: the module raises; the message names the line of its code.
        """
        from edgecompile.models.modules import run_module

        return run_module(self.module, self.fresh(inputs), self.name)

    def with_longest(self, length: int | None) -> LoadedModel:
        """The model as it is for runs of at most so many tokens, if it generates; else itself.

        The least context then holds the longest run, so that every pair of sizes fits together.
        One that goes on from a source stays as it is: its runs are short, and sources are lengths of
        its encoder.

        Raises:
            ModelError: the context is smaller, or less than two tokens were asked for.
        """
        made, axis = self.generation, self.length_axis
        if made is None or made.encoder is not None or axis is None or length is None:
            return self
        most = made.spec.max_context
        if not 2 <= length <= most:
            raise ModelError(
                f"a run can't have {length} tokens: {self.name} takes 2 to {most}",
                hint="`max_length` bounds the tokens of one run of a prompt, longer prompts take "
                "several; `max_context` bounds a whole text",
            )
        limits = {axis: AxisLimits(1, length)}
        if made.spec.context_axis is not None:
            limits[made.spec.context_axis] = AxisLimits(least_context(length, most), most)
        inputs = tuple(
            replace(spec, bounds=(0, length - 1)) if spec.name == made.spec.last else spec
            for spec in self.inputs
        )
        return replace(self, inputs=inputs, axes={**self.axes, **limits})

    def with_sources(self, lo: int, hi: int) -> LoadedModel:
        """The model as it is for sources of these lengths, if they vary; else itself."""
        made = self.generation
        if made is None or made.encoder is None:
            return self
        rows = next(spec.shape[0] for spec in self.inputs if spec.name == made.spec.cross[0])
        encoder, limits = made.encoder, AxisLimits(lo, hi)
        if not isinstance(rows, str) or encoder.length_axis is None:
            return self
        encoder = replace(encoder, axes={**encoder.axes, encoder.length_axis: limits})
        made = replace(made, encoder=encoder)
        axes = {**self.axes, rows: encoder.source_rows(limits)}
        return replace(self, axes=axes, generation=made)

    def source_rows(self, limits: AxisLimits) -> AxisLimits:
        """The rows that the outputs have for sources of these lengths, found by runs where another size follows.

        Raises:
            ModelError: it fails on a source of these lengths.
        """
        rows, axis = self.outputs[0].shape[0], self.length_axis
        if rows is not None or axis is None:
            return limits
        counts = []
        for size in (limits.lo, limits.hi):
            sizes = {**{name: own.lo for name, own in self.axes.items()}, axis: size or 0}
            made = self.run(self.make_example(sizes)) if size else {}
            counts.append(made[self.outputs[0].name].shape[0] if made else None)
        return AxisLimits(counts[0] or 1, counts[1])

    def fresh(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The same inputs, with copies of those that the module changes."""
        changed = {spec.name for spec in self.inputs if spec.in_place}
        return {name: t.clone() if name in changed else t for name, t in inputs.items()}


def least_context(run: int, most: int) -> int:
    """The least rows of a context of at most ``most`` that hold a run."""
    return min(most, -(-run // _CONTEXT_STEP) * _CONTEXT_STEP)


def model_structure(model: LoadedModel) -> str:
    """A SHA-256, in hexadecimal, of the model's modules, tensors, inputs and outputs.

    Modules count by name, class and printed options, tensors by name, shape and dtype. Values
    don't count: a model that was trained further costs the same, so measured costs stay good. An
    axis' upper limit doesn't count either, as it bounds what is served, not what it costs.
    """
    modules = []
    for name, module in model.module.named_modules():
        kind = type(module)
        modules.append([name, kind.__module__, kind.__qualname__, module.extra_repr()])
    tensors = sorted(
        [name, list(tensor.shape), str(tensor.dtype)]
        for name, tensor in model.module.state_dict().items()
    )
    inputs = [[i.name, i.dtype, list(i.shape)] for i in model.inputs]
    outputs = [[o.name, o.dtype, list(o.shape)] for o in model.outputs]
    text = json.dumps([modules, tensors, inputs, outputs], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
