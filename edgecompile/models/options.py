"""Options of loading a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from edgecompile import checks
from edgecompile.errors import UsageError
from edgecompile.models.tasks import TASK_NAMES
from edgecompile.runtime.format.dtypes import Number
from edgecompile.runtime.format.manifest.schema import MAX_LOOKUP

#: Types of keys and values in caches.
CACHE_PRECISIONS = ("fp32", "bf16", "int8")
#: Options of language models that generate, and of no others.
FOR_GENERATION = ("max_context", "cache_precision", "lookup")
#: Options of ONNX files, and of no others.
FOR_ONNX = ("fixed_input", "input_shape", "state")
#: How token embeddings become one, in the order in which sentence-transformers concatenates several.
POOLING_MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
#: How a masked language model's logits become one weight for each word of the vocabulary.
SPLADE = "splade"


@dataclass(frozen=True)
class LoadOptions:
    """Options for loading a model.

    Attributes:
        batch: smallest and largest batch; None: 1 for folders, what it declares for factories.
        max_length: upper limit of the length axis; None: the model's own.
        token_type_ids: whether a folder's model takes them; None: as the task needs.
        pad: pad values by input name, over those that the model declares.
        name: the model's name; None: made from the specification.
        task: the task of a folder's model, a name of :data:`edgecompile.models.tasks.TASKS`; None:
            what its config.json says.
        pooling: the pooling of a text's token embeddings into one, a name of
            :data:`POOLING_MODES`, or :data:`SPLADE` of a masked language model's logits; for
            folders without modules.json.
        normalize: division of the embedding by its Euclidean norm.
        softmax: a softmax after a classifier.
        image_size: height and width, each one size or (smallest, largest); None: what the folder says.
        max_context: tokens that a prompt and what follows it may have together, for generation;
            None: the model's limit, at most 2048.
        cache_precision: the type of keys and values in the caches of a language model on a CPU: fp32,
            bf16 or int8; None: fp32.
        lookup: the largest number of tokens that one run checks for lookup (speculative decoding with tokens of
            the text so far); None: no lookup.
        fixed_input: numbers that inputs of an ONNX file always are, such as a sampling rate, by input name.
        input_shape: sizes of an ONNX file's inputs by name: numbers, and names of axes for those that vary.
        state: outputs of an ONNX file that are inputs in a stream's next run, by input name.

    Raises:
        UsageError: a value is of the wrong type or out of its range.
    """

    batch: tuple[int, int] | None = None
    max_length: int | None = None
    token_type_ids: bool | None = None
    pad: Mapping[str, Number] = field(default_factory=dict)
    name: str | None = None
    task: str | None = None
    pooling: str | None = None
    normalize: bool = False
    softmax: bool = False
    image_size: tuple[tuple[int, int], tuple[int, int]] | None = None
    max_context: int | None = None
    cache_precision: str | None = None
    lookup: int | None = None
    fixed_input: Mapping[str, Number] = field(default_factory=dict)
    input_shape: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict)
    state: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        checks.settle(
            self,
            batch=checks.span,
            max_length=checks.whole,
            token_type_ids=lambda name, value: None if value is None else checks.flag(name, value),
            pad=_numbers,
            name=checks.text,
            task=partial(checks.choice, choices=(None, *TASK_NAMES)),
            pooling=partial(checks.choice, choices=(None, *POOLING_MODES, SPLADE)),
            normalize=checks.flag,
            softmax=checks.flag,
            image_size=_image_size,
            max_context=checks.whole,
            cache_precision=partial(checks.choice, choices=(None, *CACHE_PRECISIONS)),
            lookup=_lookup,
            fixed_input=_numbers,
            input_shape=_shapes,
            state=_states,
        )

    def to_json(self) -> dict[str, Any]:
        """The options that change what is computed, as far as they aren't the defaults.

        They travel in a bundle, so that what is compared with it is loaded the same way.
        """
        plain = LoadOptions()
        values = {name: getattr(self, name) for name in _SHAPING}
        if self.image_size is not None:
            values["image_size"] = [list(span) for span in self.image_size]
        values["input_shape"] = {name: list(shape) for name, shape in self.input_shape.items()}
        return {name: value for name, value in values.items() if value != getattr(plain, name)}

    @classmethod
    def from_json(cls, value: object) -> LoadOptions:
        """The inverse of :meth:`to_json`; what isn't known or makes no sense is left out."""
        document = value if isinstance(value, Mapping) else {}
        options = cls()
        for name in _SHAPING:
            with suppress(UsageError):
                options = replace(options, **{name: document.get(name, getattr(options, name))})
        return options


def _by_input(name: str, value: Any, fits: Callable[[Any], bool], form: str) -> dict[str, Any]:
    """A mapping from inputs' names to what fits; ``form`` says how it is written."""
    named = isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
    if not named or not all(fits(item) for item in value.values()):
        raise UsageError(f"`{name}` is {value!r}", hint=f"give {form}")
    return dict(value)


def _numbers(name: str, value: Any) -> Mapping[str, Number]:
    def fits(number: Any) -> bool:
        return isinstance(number, (int, float)) and -math.inf < number < math.inf

    return _by_input(name, value, fits, 'numbers by input name, such as {"ids": 0}')


def _shapes(name: str, value: Any) -> Mapping[str, tuple[int | str, ...]]:
    def fits(shape: Any) -> bool:
        return isinstance(shape, (list, tuple)) and all(
            (isinstance(size, int) and size > 0) or (isinstance(size, str) and size.isidentifier())
            for size in shape
        )

    form = 'sizes by input name, such as {"frames": (1, "length", 80)}'
    return {key: tuple(shape) for key, shape in _by_input(name, value, fits, form).items()}


def _states(name: str, value: Any) -> Mapping[str, str]:
    form = 'outputs by input name, such as {"h": "h_next"}'
    return _by_input(name, value, lambda output: isinstance(output, str), form)


def _lookup(name: str, value: Any) -> int | None:
    lookup: int | None = checks.whole(name, value)
    if lookup is None or 2 <= lookup <= MAX_LOOKUP:
        return lookup
    raise UsageError(f"`{name}` is {value}, must be 2 to {MAX_LOOKUP}")


def _image_size(name: str, value: Any) -> tuple[Any, ...] | None:
    if value is None:
        return None
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise UsageError(
            f"`{name}` is {value!r}",
            hint="give (height, width), each one size or (smallest, largest)",
        )
    return tuple(checks.span(name, (0, 0) if item is None else item) for item in value)


#: Options that change what is computed.
_SHAPING = (
    "task", "pooling", "normalize", "softmax", "token_type_ids", "image_size", *FOR_GENERATION, *FOR_ONNX,
)  # fmt: skip
