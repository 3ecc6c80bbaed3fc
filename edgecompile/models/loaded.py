"""Model specifications and what becomes of them: a module with described inputs and outputs.

``load_model`` takes a folder in Hugging Face layout, ``file.py:factory`` or
``package.module:factory``, or a saved ``.pt2``. Importing this module loads no framework; loading
a model does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgecompile.errors import ModelError
from edgecompile.loaders.kinds import check_form, split_factory
from edgecompile.models.options import LoadOptions
from edgecompile.models.tasks import SEQ2SEQ_LM
from edgecompile.runtime.dtypes import Number
from edgecompile.runtime.schema import CAUSAL_LM

if TYPE_CHECKING:
    import torch

__all__ = [
    "CONTEXT_STEP",
    "AxisLimits",
    "Generation",
    "InputSpec",
    "LoadOptions",
    "LoadedModel",
    "ModelSource",
    "OutputSpec",
    "check_model",
    "load_model",
]

#: Callers of a model that generates pass whole multiples of so many rows of a cache.
CONTEXT_STEP = 64


@dataclass(frozen=True)
class AxisLimits:
    """Sizes that the model itself allows for an axis, inclusive; ``hi`` None: no limit known."""

    lo: int
    hi: int | None = None

    def __str__(self) -> str:
        return f"{self.lo} and up" if self.hi is None else f"{self.lo}..{self.hi}"


@dataclass(frozen=True)
class InputSpec:
    """One input.

    Attributes:
        name: the argument's name in the module's ``forward``.
        dtype: numpy's name of the element type.
        shape: per dimension a fixed size, or the name of an axis.
        pad: what fills the input behind its real content in pad mode; None: it can't be padded.
        bounds: smallest and largest allowed value, checked by the runtime; None: any.
        draw: range from which examples draw values of real positions, where it is narrower than
            ``bounds``; a mask has (1, 1).
        within: names of one or two axes, for an input that is a place along an axis: examples draw
            it from 0 to the first one's size less the second one's, or less 1.
        in_place: whether the model changes it; a caller passes memory of its own.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    pad: Number | None = None
    bounds: tuple[Number, Number] | None = None
    draw: tuple[Number, Number] | None = None
    within: tuple[str, ...] = ()
    in_place: bool = False

    @property
    def is_mask(self) -> bool:
        """Whether the input only tells real positions (1) from padding (0)."""
        return self.pad == 0 and self.draw == (1, 1)

    def to_json(self) -> dict[str, Any]:
        """A dict of plain values."""
        return {
            "name": self.name,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "pad": self.pad,
            "bounds": None if self.bounds is None else list(self.bounds),
            "draw": None if self.draw is None else list(self.draw),
            "within": list(self.within),
            "in_place": self.in_place,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> InputSpec:
        """The inverse of :meth:`to_json`."""
        bounds, draw = value.get("bounds"), value.get("draw")
        return cls(
            name=value["name"],
            dtype=value["dtype"],
            shape=tuple(value["shape"]),
            pad=value.get("pad"),
            bounds=None if bounds is None else (bounds[0], bounds[1]),
            draw=None if draw is None else (draw[0], draw[1]),
            within=tuple(value.get("within", ())),
            in_place=bool(value.get("in_place", False)),
        )


@dataclass(frozen=True)
class OutputSpec:
    """One output.

    ``shape`` has a fixed size, the name of an axis whose size the dimension always has, or None
    for a size that varies in another way (the frames behind a strided convolution).
    """

    name: str
    dtype: str
    shape: tuple[int | str | None, ...]

    def to_json(self) -> dict[str, Any]:
        """A dict of plain values."""
        return {"name": self.name, "dtype": self.dtype, "shape": list(self.shape)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> OutputSpec:
        """The inverse of :meth:`to_json`."""
        return cls(value["name"], value["dtype"], tuple(value["shape"]))


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

    def to_json(self) -> dict[str, Any]:
        """A dict of plain values."""
        return {
            "kind": self.kind,
            "spec": self.spec,
            "sha256": dict(self.sha256),
            "details": dict(self.details),
        }


@dataclass(frozen=True)
class Generation:
    """How a model that generates tokens over caches from outside is called.

    Attributes:
        input, position, last, caches: names of its inputs: the new tokens, the place of the first
            one, which one's logits are wanted, and what is changed in place.
        logits: its output's name.
        context_axis: the axis of the caches' rows.
        max_context: the most rows.
        eos, bos, pad: token ids; ``eos`` end a text.
        defaults: how its author wants to sample; names as in a manifest's "generation".
        greedy: gives the tokens that follow a prompt, at most so many, by the library that the
            model comes from.
        kind: ``causal-lm``, or ``seq2seq`` for a decoder that attends to a source; the others
            are for this one.
        cross: names of the inputs with the source's keys and values, which are only read.
        start: tokens that every text begins with.
        source: name of the encoder's input that is the source.
        suppress: tokens that are never chosen.
        suppress_first: tokens that aren't chosen first.
        encoder: makes what ``cross`` names of a source: its outputs have these names.
        translate: gives the tokens that follow the encoder's inputs and a beginning, at most so
            many, by the library that the model comes from.
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
    greedy: Callable[[Sequence[int], int], list[int]]
    kind: str = CAUSAL_LM
    cross: tuple[str, ...] = ()
    start: tuple[int, ...] = ()
    source: str = ""
    suppress: tuple[int, ...] = ()
    suppress_first: tuple[int, ...] = ()
    encoder: LoadedModel | None = None
    translate: Callable[[Mapping[str, torch.Tensor], Sequence[int], int], list[int]] | None = None


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
        pad_safe: what the model's author says about padding; None: nothing. A hint only,
            :func:`edgecompile.export.padding.check.check_padding` finds out.
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
    pad_safe: bool | None = None
    notes: tuple[str, ...] = ()
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    load: Mapping[str, Any] = field(default_factory=dict)
    generation: Generation | None = None

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
        if made is None or made.encoder is not None or axis is None or length is None:
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
        if made is None or made.encoder is None:
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


def load_model(
    spec: str | Path | object, options: LoadOptions | None = None, **changes: Any
) -> LoadedModel:
    """Loads a model from what the user wrote; nothing is ever fetched.

    Args:
        spec: a folder in Hugging Face layout, ``file.py:factory``, ``package.module:factory``, a
            ``.pt2`` file, or what a factory returns (:mod:`edgecompile.loaders.factories`).
        options: how; None: the defaults.
        changes: fields of :class:`LoadOptions` by name, over those of ``options``.

    Raises:
        ModelError: there is no such model, or it can't be loaded; says why and what helps.
        MissingDependencyError: a package that this form of model needs isn't installed.
    """
    options = replace(options or LoadOptions(), **changes)
    options.check()
    if isinstance(spec, LoadedModel):
        return spec
    loaded = _load(spec, options)
    if loaded.tokenizer is not None and not loaded.tokenizer.is_file():
        # Only the last stage of a build reads it.
        raise ModelError(f"{loaded.name}: there is no tokenizer '{loaded.tokenizer}'")
    if loaded.generation is None:
        given = ["--max-context"] if options.max_context is not None else []
        given += [f"--task {options.task}"] if options.task in (CAUSAL_LM, SEQ2SEQ_LM) else []
        if given:
            raise ModelError(
                f"{', '.join(given)}: for language models that generate, which {loaded.name} isn't",
                hint="leave it out; --max-length bounds the lengths of other models",
            )
    from edgecompile.loaders.input_specs import with_one_size

    return with_one_size(loaded, options.batch)


def check_model(spec: str | Path, options: LoadOptions) -> None:
    """Refuses what is no model, or doesn't go with the options, before anything is loaded.

    Raises:
        ModelError: see :func:`edgecompile.loaders.kinds.check_form` and :meth:`LoadOptions.check`.
    """
    options.check()
    check_form(spec)
    if not Path(str(spec)).expanduser().is_dir():
        _refuse_folder_options(str(spec), options)


def _load(spec: str | Path | object, options: LoadOptions) -> LoadedModel:
    if not isinstance(spec, (str, Path)):
        _refuse_folder_options(type(spec).__name__, options)
        from edgecompile.loaders.factories import load_object

        return load_object(spec, options)
    check_model(spec, options)
    text = str(spec)
    path = Path(text).expanduser()
    if path.is_dir():
        from edgecompile.loaders.folders.folder import load_folder

        return load_folder(path, options)
    if path.is_file():
        from edgecompile.loaders.saved_programs import load_saved_program

        return load_saved_program(path, options)
    factory = split_factory(text)
    assert factory is not None  # it has a form
    from edgecompile.loaders.factories import load_factory

    return load_factory(*factory, options)


def _refuse_folder_options(spec: str, options: LoadOptions) -> None:
    """A factory and a saved program say themselves what they compute."""
    given = [name for name in options.to_json() if name != "max_context"]
    if given and not (given == ["task"] and options.task in (CAUSAL_LM, SEQ2SEQ_LM)):
        options_given = ", ".join("--" + name.replace("_", "-") for name in given)
        raise ModelError(
            f"'{spec}' is no folder: {options_given} is for folders in Hugging Face layout",
            hint="leave it out; what a factory's module does is up to its code",
        )
