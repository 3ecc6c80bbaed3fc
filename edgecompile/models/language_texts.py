"""Texts of a language model, as tokens: some that its weights are rounded for, others to judge them by."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from edgecompile.lengths.texts import load_tokenizer, read_lines, wants_lower_case
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.samples import SampleTexts, spread

#: Of a longer text only so many tokens are run.
MOST_TOKENS = 256
_JUDGING = 24
_CALIBRATING = 48
_MAX_LINES = 20_000
#: Of texts that the model writes itself.
_OWN, _BEGUN, _WRITTEN = 8, 4, 44


@dataclass(frozen=True)
class LanguageTexts:
    """Texts, each int64 [1, length] of two tokens at least; none is in both parts.

    Attributes:
        calibrating: the texts that weights are rounded for; () if there are too few.
        judging: the texts that the rounded model is judged by.
        source: a description of all of them, in words.
        real: whether they are the user's, not the model's own.
    """

    calibrating: tuple[Tensor, ...]
    judging: tuple[Tensor, ...]
    source: str
    real: bool


def language_texts(
    model: LoadedModel, texts: SampleTexts | None, *, seed: int = 0
) -> LanguageTexts:
    """The user's texts, or where there are none, texts that the model goes on with from drawn tokens.

    One of three texts judges, up to 24, and up to 48 of the others calibrate. They are spread over
    the file evenly. Equal texts count once.

    Raises:
        LengthsError: the file isn't UTF-8 text.
        ModelError, MissingDependencyError: the tokenizer can't be read, or the model fails.
        OSError: the file can't be read.
    """
    assert model.generation is not None
    most = min(MOST_TOKENS, model.generation.spec.max_context)
    given = [] if texts is None else _read(model, texts, most)
    if not given:
        drawn = _written(model, most, seed)
        said = "its own greedy texts behind drawn tokens"
        return LanguageTexts(drawn[::2], drawn[1::2], said, False)
    assert texts is not None
    count = max(1, min(_JUDGING, len(given) // 3))
    judging = spread(given, count)
    rest = [text for text in given if text not in set(judging)]
    calibrating = spread(rest, _CALIBRATING)
    source = f"{len(judging)} texts of {texts.file.name}, none of which calibrated"
    return LanguageTexts(_tensors(calibrating), _tensors(judging), source, True)


def _read(model: LoadedModel, texts: SampleTexts, most: int) -> list[tuple[int, ...]]:
    """The tokens of each text, cut to ``most``, once each."""
    assert model.generation is not None
    name = model.generation.spec.input
    bounds = next(spec.bounds for spec in model.inputs if spec.name == name)
    assert bounds is not None
    encoder, lower = load_tokenizer(texts.tokenizer), wants_lower_case(texts.tokenizer.parent)
    found: dict[tuple[int, ...], None] = {}
    with texts.file.open("rb") as stream:
        for line in islice(read_lines(stream, texts.file.name), _MAX_LINES):
            ids = tuple(encoder.encode(line.lower() if lower else line).ids[:most])
            if len(ids) >= 2 and bounds[0] <= min(ids) and max(ids) <= bounds[1]:
                found.setdefault(ids)
    return list(found)


def _written(model: LoadedModel, most: int, seed: int) -> tuple[Tensor, ...]:
    """Texts that begin with drawn tokens, and go on as the model does."""
    made = model.generation
    assert made is not None
    bounds = next(spec.bounds for spec in model.inputs if spec.name == made.spec.input)
    assert bounds is not None
    random = np.random.default_rng([seed, 31])
    begun = min(_BEGUN, most - 1)
    texts = []
    for _ in range(2 * _OWN):
        prompt = random.integers(int(bounds[0]), int(bounds[1]) + 1, begun).tolist()
        texts.append(tuple([*prompt, *made.greedy(prompt, min(_WRITTEN, most - begun))]))
    return _tensors(texts)


def _tensors(texts: list[tuple[int, ...]]) -> tuple[Tensor, ...]:
    return tuple(torch.tensor([text], dtype=torch.int64) for text in texts)
