"""What a bundle says about generation: the manifest's entry, and texts to repeat."""

from __future__ import annotations

import json
from dataclasses import fields

import numpy as np

from edgecompile.models import LoadedModel
from edgecompile.runtime.schema import GenerationSpec

__all__ = ["golden_texts", "manifest_generation"]

_NEW_TOKENS = 24
_PROMPTS = 4


def manifest_generation(model: LoadedModel) -> GenerationSpec | None:
    """The manifest's entry; None for a model that doesn't generate."""
    made = model.generation
    if made is None:
        return None
    assert model.length_axis is not None
    known = {item.name for item in fields(GenerationSpec)}
    values = {name: value for name, value in vars(made).items() if name in known}
    return GenerationSpec(length_axis=model.length_axis, **values)


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
    wanted = [1, min(7, room - 1), min(longest, room - 1), min(longest + 5, room - 1)]
    cases = []
    for length in dict.fromkeys(n for n in wanted[:_PROMPTS] if n >= 1):
        prompt = random.integers(int(tokens[0]), int(tokens[1]) + 1, length).tolist()
        found = made.greedy(prompt, min(_NEW_TOKENS, room - length))
        cases.append({"prompt": prompt, "tokens": found})
    return (json.dumps({"cases": cases}) + "\n").encode()
