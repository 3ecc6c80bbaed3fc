"""A bundle's data about generation: the manifest's entry, and texts to repeat."""

from __future__ import annotations

import base64
import json
import math
from dataclasses import fields

import numpy as np

from edgecompile.models.loaded import LoadedModel, Seq2SeqGeneration
from edgecompile.runtime.format.schema import GenerationSpec

_NEW_TOKENS = 24
_PROMPTS = 4
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
    and a bit more, so that it comes in pieces.
    """
    made, axis = model.generation, model.length_axis
    assert made is not None and axis is not None
    longest = model.axes[axis].hi or 1
    tokens = next(spec.bounds for spec in model.inputs if spec.name == made.input)
    assert tokens is not None
    random = np.random.default_rng([seed, 7])
    room = made.max_context
    if isinstance(made, Seq2SeqGeneration):
        return _golden_translations(model, made, random)
    lengths = [1, min(7, room - 1), min(longest, room - 1), min(longest + 5, room - 1)]
    cases = []
    for length in dict.fromkeys(n for n in lengths[:_PROMPTS] if n >= 1):
        prompt = random.integers(int(tokens[0]), int(tokens[1]) + 1, length).tolist()
        generated = made.greedy(prompt, min(_NEW_TOKENS, room - length))
        cases.append({"prompt": prompt, "tokens": generated})
    return (json.dumps({"cases": cases}) + "\n").encode()


def _golden_translations(
    model: LoadedModel, made: Seq2SeqGeneration, random: np.random.Generator
) -> bytes:
    """The same behind random sources: short ones and the longest, and texts that begin with more than
    the start tokens, one of them in pieces.
    """
    assert model.length_axis is not None
    encoder = made.encoder
    tokens = next(spec.bounds for spec in model.inputs if spec.name == made.input)
    chief = next(spec for spec in encoder.inputs if spec.name == made.source)
    assert tokens is not None
    limits = next(iter(encoder.axes.values()))
    if encoder.length_axis is not None:
        limits = encoder.axes[encoder.length_axis]
    most = limits.hi or max(limits.lo, _FREE_SIZE)
    sizes = [min(max(n, limits.lo), most) for n in (5, 2, most, 9)]
    longest = model.axes[model.length_axis].hi or 1
    whole = math.prod(size for size in chief.shape if isinstance(size, int))
    if chief.dtype != "int64":
        sizes = sizes[: max(1, _SOURCE_ELEMENTS // whole)]
    more = (0, 3, 0, longest + 3)
    cases = []
    for number, size in enumerate(sizes):
        source = encoder.make_example(
            dict.fromkeys(encoder.axes, size), seed=int(random.integers(1 << 31))
        )
        begun = min(more[number], max(0, made.max_context - len(made.start) - 1))
        given = random.integers(int(tokens[0]), int(tokens[1]) + 1, begun).tolist()
        prompt = [*made.start, *given]
        generated = made.translate(source, prompt, min(_NEW_TOKENS, made.max_context - len(prompt)))
        array = source[made.source].numpy()
        content: object = array.reshape(-1).tolist()
        if chief.dtype != "int64":
            data = base64.b64encode(np.ascontiguousarray(array, "<f4").tobytes())
            content = {"shape": list(array.shape), "float32": data.decode()}
        cases.append({"source": content, "prompt": prompt, "tokens": generated})
    return (json.dumps({"cases": cases}) + "\n").encode()
