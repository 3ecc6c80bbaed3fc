"""Inputs such as the model will see: real texts where there are some, else drawn at real lengths."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.lengths.texts import load_tokenizer, read_lines, wants_lower_case
from edgecompile.models.kinds import turn

if TYPE_CHECKING:
    from edgecompile.models.loaded import LoadedModel

T = TypeVar("T")
DEFAULT_SAMPLES = 24
_MAX_LINES = 20_000
_DRAWN = 8

#: What of a tokenizer's answer an input of this name takes.
TOKENIZER_PARTS: Mapping[str, str] = {
    "input_ids": "ids",
    "ids": "ids",
    "attention_mask": "attention_mask",
    "mask": "attention_mask",
    "token_type_ids": "type_ids",
}


@dataclass(frozen=True)
class SampleTexts:
    """A file of texts, one a line, and the ``tokenizer.json`` that makes tokens of them."""

    file: Path
    tokenizer: Path


@dataclass(frozen=True)
class Samples:
    """Inputs at the smallest size of every axis but the length axis.

    Attributes:
        inputs: the inputs of one run each, by name.
        lengths: the length of each.
        source: a description of them, in words.
        real: whether their values are real, not drawn.
    """

    inputs: tuple[Mapping[str, npt.NDArray[np.generic]], ...]
    lengths: tuple[int, ...]
    source: str
    real: bool = False

    def within(self, lengths: Container[int]) -> Samples | None:
        """The samples of these lengths; None where there are none."""
        inside = [i for i, length in enumerate(self.lengths) if length in lengths]
        if len(inside) == len(self.lengths):
            return self
        return (
            replace(
                self,
                inputs=tuple(self.inputs[i] for i in inside),
                lengths=tuple(self.lengths[i] for i in inside),
                source=f"{len(inside)} of {self.source}",
            )
            if inside
            else None
        )


def text_samples(
    model: LoadedModel, texts: SampleTexts | None, longest: int, count: int = DEFAULT_SAMPLES
) -> Samples | None:
    """Samples of a file of texts, evenly spread over it; texts over ``longest`` tokens left out.

    Returns:
        None where there are no texts, the model has inputs that no tokenizer gives, or no text fits.

    Raises:
        LengthsError: the file isn't UTF-8 text.
        ModelError, MissingDependencyError: the tokenizer can't be read.
        OSError: the file can't be read.
    """
    plain = all(spec.name in TOKENIZER_PARTS and len(spec.shape) == 2 for spec in model.inputs)
    if texts is None or not plain:
        return None
    encoder = load_tokenizer(texts.tokenizer)
    lower = wants_lower_case(texts.tokenizer.parent)
    with texts.file.open("rb") as stream:
        lines = list(islice(read_lines(stream, texts.file.name), _MAX_LINES))
    shortest = model.axes[model.length_axis].lo if model.length_axis else 1
    encoded = []
    # Some may not fit: as many are tried as there are until enough do.
    for line in spread(lines, 4 * count):
        encoding = encoder.encode(line.lower() if lower else line)
        if shortest <= len(encoding.ids) <= longest:
            encoded.append(encoding)
    encoded = spread(encoded, count)
    if not encoded:
        return None
    made = tuple(_inputs(model, encoding) for encoding in encoded)
    lengths = tuple(len(encoding.ids) for encoding in encoded)
    return Samples(made, lengths, f"{len(made)} texts of {texts.file.name}", real=True)


def draw_samples(
    model: LoadedModel,
    traffic: LengthDistribution,
    longest: int,
    *,
    shortest: int | None = None,
    step: int = 1,
    seed: int = 0,
) -> Samples:
    """Samples with drawn values at the quantiles of the lengths.

    ``shortest`` is the least length that is served, the model's own by default. The others follow it in
    steps of ``step``.
    """
    assert model.length_axis is not None
    served, _ = traffic.clip(longest)
    shortest = model.axes[model.length_axis].lo if shortest is None else shortest
    lengths = tuple(max(shortest, served.quantile((i + 0.5) / _DRAWN)) for i in range(_DRAWN))
    lengths = tuple(length - (length - shortest) % step for length in lengths)
    made = tuple(_drawn(model, length, seed + index) for index, length in enumerate(lengths))
    return Samples(made, lengths, f"{_DRAWN} drawn inputs of the traffic's lengths")


def add_drawn(
    samples: Samples,
    model: LoadedModel,
    longest: int,
    *,
    shortest: int | None = None,
    step: int = 1,
    count: int = _DRAWN,
    seed: int = 0,
) -> Samples:
    """The samples and inputs with drawn values at lengths from the least to ``longest``.

    A bundle is verified with such inputs too, and values that no text has (random tokens, say)
    can be harder than real ones. They alternate, as far as there are both.
    """
    assert model.length_axis is not None
    shortest = model.axes[model.length_axis].lo if shortest is None else shortest
    inputs, lengths = [], []
    for index in range(max(count, len(samples.inputs))):
        if index < len(samples.inputs):
            inputs.append(samples.inputs[index])
            lengths.append(samples.lengths[index])
        if index < count:
            length = shortest + round((longest - shortest) * index / max(1, count - 1))
            length -= (length - shortest) % step
            inputs.append(_drawn(model, length, seed + index, turn(index, padded=True)))
            lengths.append(length)
    source = f"{samples.source} and {count} drawn inputs of all lengths"
    return Samples(tuple(inputs), tuple(lengths), source, samples.real)


def _drawn(
    model: LoadedModel, length: int, seed: int, kind: str = ""
) -> dict[str, npt.NDArray[np.generic]]:
    """Drawn inputs of a length, at the smallest size of every other axis."""
    from edgecompile.models.arrays import to_numpy
    from edgecompile.models.prompts import draw_inputs

    sizes = {name: length if name == model.length_axis else e.lo for name, e in model.axes.items()}
    return to_numpy(draw_inputs(model, sizes, seed, kind))


def spread(items: Sequence[T], count: int) -> list[T]:
    """At most ``count`` of some items, evenly spread."""
    count = min(len(items), count)
    return [items[(2 * i + 1) * len(items) // (2 * count)] for i in range(count)]


def _inputs(model: LoadedModel, encoded: Any) -> dict[str, npt.NDArray[np.generic]]:
    made = {}
    for spec in model.inputs:
        row = np.asarray(getattr(encoded, TOKENIZER_PARTS[spec.name]), dtype=spec.dtype)
        first = spec.shape[0]
        batch = model.axes[first].lo if isinstance(first, str) else first
        made[spec.name] = np.repeat(row[None], batch, axis=0)
    return made
