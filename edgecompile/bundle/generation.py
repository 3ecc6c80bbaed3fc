"""A bundle's data about generation: the manifest's entry, and texts to repeat."""

from __future__ import annotations

import base64
import json
import math
from dataclasses import fields

import numpy as np
import numpy.typing as npt

from edgecompile.models.loaded import LoadedModel, Seq2SeqGeneration
from edgecompile.runtime.format.schema import GenerationSpec

_NEW_TOKENS = 24
#: The folder, in a bundle, of the bundle that reads sources.
ENCODER = "encoder"
# Numbers of all the sources together that aren't tokens: the file may have 4 MiB.
_SOURCE_ELEMENTS = 500_000
_FREE_SIZE = 64


def manifest_generation(model: LoadedModel) -> GenerationSpec | None:
    """The manifest's entry; None for a model that doesn't generate."""
    made = model.generation
    if made is None:
        return None
    assert model.length_axis is not None
    known = {item.name for item in fields(GenerationSpec)}
    values = {name: value for name, value in vars(made).items() if name in known}
    values["encoder"] = "" if model.encoder is None else ENCODER
    return GenerationSpec(length_axis=model.length_axis, kind=made.kind, **values)


def golden_texts(model: LoadedModel, *, seed: int = 0) -> bytes:
    """Prompts of random tokens and what the model's own library generates from them, greedily.

    Prompts of one token, of a few, of the longest run and, where the context has room, of a run
    and a bit more, so that it comes in pieces. Behind a source: random ones, short and the longest,
    and texts that begin with more than the start tokens, one of them in pieces.
    """
    made, axis = model.generation, model.length_axis
    assert made is not None and axis is not None
    longest, room = model.axes[axis].hi or 1, made.max_context
    tokens = next(spec.bounds for spec in model.inputs if spec.name == made.input)
    assert tokens is not None
    low, high = int(tokens[0]), int(tokens[1])
    random = np.random.default_rng([seed, 7])
    cases: list[dict[str, object]] = []
    if isinstance(made, Seq2SeqGeneration):
        for size, more in zip(_source_sizes(made), (0, 3, 0, longest + 3), strict=False):
            sizes = dict.fromkeys(made.encoder.axes, size)
            source = made.encoder.make_example(sizes, seed=int(random.integers(1 << 31)))
            begun = min(more, max(0, room - len(made.start) - 1))
            prompt = [*made.start, *random.integers(low, high + 1, begun).tolist()]
            generated = made.translate(source, prompt, min(_NEW_TOKENS, room - len(prompt)))
            content = _source_content(source[made.source].numpy())
            cases.append({"source": content, "prompt": prompt, "tokens": generated})
    else:
        for length in dict.fromkeys(min(n, room - 1) for n in (1, 7, longest, longest + 5)):
            prompt = random.integers(low, high + 1, length).tolist()
            generated = made.greedy(prompt, min(_NEW_TOKENS, room - length))
            cases.append({"prompt": prompt, "tokens": generated})
    return (json.dumps({"cases": cases}) + "\n").encode()


def _source_sizes(made: Seq2SeqGeneration) -> list[int]:
    """Sizes of the sources: of those that aren't tokens as many as the file has room for."""
    encoder = made.encoder
    limits = encoder.axes[encoder.length_axis or next(iter(encoder.axes))]
    most = limits.hi or max(limits.lo, _FREE_SIZE)
    sizes = [min(max(n, limits.lo), most) for n in (5, 2, most, 9)]
    chief = next(spec for spec in encoder.inputs if spec.name == made.source)
    if chief.dtype == "int64":
        return sizes
    whole = math.prod(size for size in chief.shape if isinstance(size, int))
    return sizes[: max(1, _SOURCE_ELEMENTS // whole)]


def _source_content(array: npt.NDArray[np.generic]) -> object:
    """A source as the file has it: tokens as a list, other numbers as bytes."""
    if array.dtype == np.int64:
        return array.reshape(-1).tolist()
    data = base64.b64encode(np.ascontiguousarray(array, "<f4").tobytes())
    return {"shape": list(array.shape), "float32": data.decode()}
