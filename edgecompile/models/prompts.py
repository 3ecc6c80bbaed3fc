"""Inputs of language models as they are in use: caches that hold what a text leaves in them.

Numbers that are drawn aren't keys, values or states of any text. A model may answer them with activations
that no text leads to, where float32 itself has few digits left.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from edgecompile.models.modules import run_module

if TYPE_CHECKING:
    from edgecompile.models.loaded import LoadedModel

# Tokens of a run that fills caches.
_CHUNK = 256
#: By model: the rows of its text that were run, and caches that hold at least these.
_texts: WeakKeyDictionary[nn.Module, tuple[int, dict[str, Tensor]]] = WeakKeyDictionary()


def draw_inputs(
    model: LoadedModel, sizes: Mapping[str, int], seed: int = 0, kind: str = ""
) -> dict[str, Tensor]:
    """Inputs as in use: random valid ones, but the caches of a language model as a text leaves them.

    Args:
        model: the model that takes them.
        sizes: Size of every axis.
        seed: Seed of the draw.
        kind: Kind of the drawn values (:mod:`edgecompile.models.kinds`), "" for independent ones.

    Raises:
        ModelError: the model fails on the text.
    """
    inputs = model.make_example(sizes, seed=seed, kind=kind)
    return inputs if model.generation is None else _fill_caches(model, inputs, seed)


def _fill_caches(model: LoadedModel, inputs: dict[str, Tensor], seed: int) -> dict[str, Tensor]:
    """The inputs of a generating model with caches as a drawn text leaves them.

    Rows before ``position`` hold keys and values of that text, states are those behind these rows. The
    rows behind, which no result may depend on, keep their values. A source's keys and values are those of
    a drawn source.

    Args:
        model: the model that generates.
        inputs: valid ones.
        seed: Seed of the source. The text is the same for all inputs of a model without sources.

    Raises:
        ModelError: the model fails.
    """
    made = model.generation
    assert made is not None
    spec, rows = made.spec, int(inputs[made.spec.position])
    states = {
        item.name
        for item in model.inputs
        if item.name in spec.caches and spec.context_axis not in item.shape
    }
    if made.encoder is not None or states:
        if made.encoder is not None:
            inputs = {**inputs, **_source(model, inputs, seed)}
        filled = {name: inputs[name].clone() for name in spec.caches}
        _run_text(model, {**inputs, **filled}, 0, rows)
    else:
        filled = _text(model, inputs, rows)
    caches = {
        n: filled[n] if n in states else torch.cat([filled[n][:rows], inputs[n][rows:]])
        for n in spec.caches
    }
    return {**inputs, **caches}


def _source(model: LoadedModel, inputs: Mapping[str, Tensor], seed: int) -> dict[str, Tensor]:
    """Keys and values of a drawn source that is as long as those of ``inputs``."""
    made = model.generation
    assert made is not None and made.encoder is not None
    encoder, names = made.encoder, made.spec.cross
    rows, sizes = inputs[names[0]].shape[0], {n: own.lo for n, own in encoder.axes.items()}
    if encoder.outputs[0].shape[0] is None:
        # No length is known that gives so many rows: the first ones of the longest source have values as in use.
        sizes = {name: own.hi or own.lo * rows for name, own in encoder.axes.items()}
    elif encoder.outputs[0].shape[0] == encoder.length_axis:
        sizes[encoder.length_axis] = rows
    outputs = encoder.run(encoder.make_example(sizes, seed=seed))
    return {name: value[:rows] for name, value in outputs.items()}


def _text(model: LoadedModel, inputs: Mapping[str, Tensor], rows: int) -> dict[str, Tensor]:
    """The caches of the model's text with at least so many rows filled."""
    assert model.generation is not None
    done, caches = _texts.get(model.module, (0, {}))
    # Whole chunks alone: so a row is computed in the same run whoever asks for it first.
    until = min(-(-rows // _CHUNK) * _CHUNK, model.generation.spec.max_context)
    if until > done:
        grown = {
            name: inputs[name].new_zeros(until, *inputs[name].shape[1:])
            for name in model.generation.spec.caches
        }
        for name, old in caches.items():
            grown[name][:done] = old[:done]
        _run_text(model, {**inputs, **grown}, done, until)
        _texts[model.module] = until, grown
        caches = grown
    return caches


def text_tokens(model: LoadedModel) -> Tensor:
    """The text that fills caches, as long as the context: int64 [1, max_context]."""
    assert model.generation is not None
    spec = model.generation.spec
    tokens = next(item for item in model.inputs if item.name == spec.input)
    assert tokens.bounds is not None
    low, high = int(tokens.bounds[0]), int(tokens.bounds[1])
    generator = torch.Generator().manual_seed(29)
    text = torch.randint(low, high + 1, (1, spec.max_context), generator=generator)
    begin = spec.start or (() if spec.bos is None else (spec.bos,))
    text[0, : len(begin)] = torch.tensor(begin, dtype=torch.int64)
    return text


def _run_text(model: LoadedModel, inputs: Mapping[str, Tensor], start: int, end: int) -> None:
    """Runs tokens ``start`` to ``end`` of the text, which fills the caches of ``inputs``."""
    assert model.generation is not None
    spec, text = model.generation.spec, text_tokens(model)
    for at in range(start, end, _CHUNK):
        part = text[:, at : min(at + _CHUNK, end)]
        place = {
            spec.position: torch.tensor([at]),
            spec.last: torch.tensor([part.shape[1] - 1]),
        }
        run_module(model.module, {**inputs, spec.input: part, **place}, model.name)
