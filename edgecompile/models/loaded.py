"""Model specifications and what becomes of them: a module with described inputs and outputs.

``load_model`` takes a folder in Hugging Face layout, ``file.py:factory`` or
``package.module:factory``, or a saved ``.pt2``. Importing this module loads no framework; loading
a model does.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from edgecompile.errors import ModelError
from edgecompile.files import plain_fields
from edgecompile.models.options import LoadOptions
from edgecompile.models.specs import AxisLimits, InputSpec, OutputSpec
from edgecompile.runtime.format.schema import CAUSAL_LM, SEQ2SEQ

if TYPE_CHECKING:
    import torch

__all__ = [
    "CONTEXT_STEP",
    "CausalGeneration",
    "Generation",
    "LoadOptions",
    "LoadedModel",
    "ModelSource",
    "Seq2SeqGeneration",
    "model_structure",
]

#: Callers of a model that generates pass whole multiples of so many rows of a cache.
CONTEXT_STEP = 64


@dataclass(frozen=True)
class ModelSource:
    """Where a model came from.

    Attributes:
        kind: ``folder``, ``factory``, ``pt2`` or ``object``.
        spec: what the user wrote.
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
        return self.kind in ("folder", "pt2")

    def to_json(self) -> dict[str, Any]:
        """A dict of plain values."""
        return plain_fields(self)


@dataclass(frozen=True)
class Generation:
    """How a model that generates tokens over caches from outside is called.

    Attributes:
        input, position, last, caches: names of its inputs: the new tokens, the place of the first
            one, which one's logits are wanted, and the tensors that it changes in place.
        logits: its output's name.
        context_axis: the axis of the caches' rows.
        max_context: the most rows.
        eos, bos, pad: token ids; ``eos`` end a text.
        defaults: how its author wants to sample; names as in a manifest's "generation".
    """

    input: str
    position: str
    last: str
    logits: str
    context_axis: str
    caches: tuple[str, ...]
    max_context: int
    eos: tuple[int, ...]
    bos: int | None
    pad: int
    defaults: Mapping[str, Any]


@dataclass(frozen=True)
class CausalGeneration(Generation):
    """Generation behind a prompt.

    Attributes:
        greedy: gives the tokens that follow a prompt, up to a number, by the library that the model
            comes from.
    """

    greedy: Callable[[Sequence[int], int], list[int]]
    kind: ClassVar[str] = CAUSAL_LM


@dataclass(frozen=True)
class Seq2SeqGeneration(Generation):
    """Generation by a decoder that attends to a source.

    Attributes:
        cross: names of the inputs with the source's keys and values, which are only read.
        start: tokens that every text begins with.
        source: name of the encoder's input that is the source.
        suppress: tokens that are never chosen.
        suppress_first: tokens that aren't chosen first.
        encoder: makes the ``cross`` inputs of a source: its outputs have these names.
        translate: gives the tokens that follow the encoder's inputs and a beginning, up to a number,
            by the library that the model comes from.
    """

    cross: tuple[str, ...]
    start: tuple[int, ...]
    source: str
    suppress: tuple[int, ...]
    suppress_first: tuple[int, ...]
    encoder: LoadedModel
    translate: Callable[[Mapping[str, torch.Tensor], Sequence[int], int], list[int]]
    kind: ClassVar[str] = SEQ2SEQ


@dataclass(frozen=True)
class LoadedModel:
    """A module in eval mode, float32 on the CPU, with named inputs, outputs and axes.

    Attributes:
        name: a short name made of what a manifest allows in names.
        module: takes the inputs by name (or in the order of ``inputs``), gives a dict of tensors.
        inputs, outputs: what it takes and gives; outputs as seen on example inputs.
        axes: limits of every axis that occurs in an input's shape.
        length_axis: the axis that varies with traffic; None: there is none.
        source: where it came from.
        tokenizer: its ``tokenizer.json``, if it has one.
        notes: choices made while loading that a person may want to know.
        labels: names of the classes by output, whose last dimension they count.
        load: the options that shaped it, as :meth:`LoadOptions.to_json` has them.
        generation: how it generates; None: it doesn't.
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
    generation: CausalGeneration | Seq2SeqGeneration | None = None

    @property
    def encoder(self) -> LoadedModel | None:
        """The model of the sources, where this one generates from a source."""
        made = self.generation
        return made.encoder if isinstance(made, Seq2SeqGeneration) else None

    @property
    def has_mask(self) -> bool:
        """Whether an input along the length axis tells real positions from padding."""
        return any(spec.is_mask and self.length_axis in spec.shape for spec in self.inputs)

    @property
    def paddable(self) -> bool:
        """Whether every input along the length axis has a pad value."""
        along = [spec for spec in self.inputs if self.length_axis in spec.shape]
        return self.length_axis is not None and all(spec.pad is not None for spec in along)

    def make_example(
        self, sizes: Mapping[str, int], seed: int = 0, padding: int | Sequence[int] = 0
    ) -> dict[str, torch.Tensor]:
        """Random valid inputs; see :func:`edgecompile.models.examples.make_example`."""
        from edgecompile.models.examples import make_example

        return make_example(
            self.inputs, sizes, seed=seed, length_axis=self.length_axis, padding=padding
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
        if not isinstance(made, CausalGeneration) or axis is None or length is None:
            return self
        if not 2 <= length <= made.max_context:
            raise ModelError(
                f"a run can't have {length} tokens: {self.name} takes 2 to {made.max_context}",
                hint="--max-length bounds the tokens of one run of a prompt, longer prompts take "
                "several; --max-context bounds a whole text",
            )
        least = min(made.max_context, -(-length // CONTEXT_STEP) * CONTEXT_STEP)
        limits = {axis: AxisLimits(1, length)}
        limits[made.context_axis] = AxisLimits(least, made.max_context)
        inputs = tuple(
            replace(spec, bounds=(0, length - 1)) if spec.name == made.last else spec
            for spec in self.inputs
        )
        return replace(self, inputs=inputs, axes={**self.axes, **limits})

    def with_sources(self, lo: int, hi: int) -> LoadedModel:
        """The model as it is for sources of these lengths, if they vary; else itself."""
        made = self.generation
        if not isinstance(made, Seq2SeqGeneration):
            return self
        rows = next(spec.shape[0] for spec in self.inputs if spec.name == made.cross[0])
        encoder, limits = made.encoder, AxisLimits(lo, hi)
        if not isinstance(rows, str) or encoder.length_axis is None:
            return self
        encoder = replace(encoder, axes={**encoder.axes, encoder.length_axis: limits})
        made = replace(made, encoder=encoder)
        return replace(self, axes={**self.axes, rows: limits}, generation=made)

    def fresh(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The same inputs, with copies of those that the module changes."""
        changed = {spec.name for spec in self.inputs if spec.in_place}
        return {name: t.clone() if name in changed else t for name, t in inputs.items()}


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
