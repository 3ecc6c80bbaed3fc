"""Texts for a bundle to repeat: what the model's own library generates."""

from __future__ import annotations

import base64
import json
import math

import numpy as np
import numpy.typing as npt
import torch

from edgecompile.errors import ModelError
from edgecompile.models.arrays import to_numpy
from edgecompile.models.cache_rows import dequantize_rows
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.modules import run_module

_NEW_TOKENS = 24
# Numbers of all the sources together that aren't tokens: the file may have 4 MiB.
_SOURCE_ELEMENTS = 500_000
_FREE_SIZE = 64


def golden_texts(model: LoadedModel, *, seed: int = 0, margin: float = 0.0) -> bytes:
    """Prompts of random tokens, and the tokens that the model's own library generates from them, greedily.

    Prompts of one token, of a few, of the longest run and, where the context has room, of a run
    and a bit more, so that it comes in pieces; and the model's prefix with one more. Behind a source: random ones, short and the longest,
    and texts that begin with more than the start tokens, one of them in pieces.

    Args:
        model: A generating model.
        seed: Seed of the prompts.
        margin: Difference of a logit that eager's own error or motion allows beyond the tolerance, as a share of the
            largest (:mod:`edgecompile.bundle.margins`).
    """
    generation, axis = model.generation, model.length_axis
    assert generation is not None and axis is not None
    spec, encoder = generation.spec, generation.encoder
    longest, room = model.axes[axis].hi or 1, spec.max_context
    tokens = next(item.bounds for item in model.inputs if item.name == spec.input)
    assert tokens is not None
    low, high = int(tokens[0]), int(tokens[1])
    random = np.random.default_rng([seed, 7])
    cases: list[dict[str, object]] = []
    if encoder is not None:
        least = {name: limits.lo for name, limits in encoder.axes.items()}
        along = encoder.length_axis or next(iter(least))
        counts = _source_sizes(encoder, spec.source, along)
        for size, more in zip(counts, (0, 3, 0, longest + 3), strict=False):
            sizes = {**least, along: size}
            source = encoder.make_example(sizes, seed=int(random.integers(1 << 31)))
            begun = min(more, max(0, room - len(spec.start) - 1))
            prompt = [*spec.start, *random.integers(low, high + 1, begun).tolist()]
            generated = generation.greedy(prompt, min(_NEW_TOKENS, room - len(prompt)), source)
            content = _source_content(source[spec.source].numpy())
            cases.append({"source": content, "prompt": prompt, "tokens": generated})
    else:
        for length in dict.fromkeys(min(n, room - 1) for n in (1, 7, longest, longest + 5)):
            prompt = random.integers(low, high + 1, length).tolist()
            generated = generation.greedy(prompt, min(_NEW_TOKENS, room - length))
            cases.append({"prompt": prompt, "tokens": generated})
        if generation.prefix:
            prompt = [*generation.prefix, int(random.integers(low, high + 1))]
            generated = generation.greedy(prompt, min(_NEW_TOKENS, room - len(prompt)))
            cases.append({"prompt": prompt, "tokens": generated})
    document = {"cases": cases, **({"margin": margin} if margin else {})}
    return (json.dumps(document) + "\n").encode()


def prefix_caches(model: LoadedModel) -> bytes:
    """The content of ``prefix/caches.bin``, as FORMAT.md has it, by one eager run of the prefix.

    Raises:
        ModelError: the run fails, or leaves NaN or infinity.
    """
    made = model.generation
    assert made is not None
    spec, count = made.spec, len(made.prefix)
    inputs = {
        spec.input: torch.tensor([made.prefix]),
        spec.position: torch.zeros(1, dtype=torch.int64),
        spec.last: torch.full((1,), count - 1),
    }
    for item in model.inputs:
        if item.name in spec.caches:
            shape = [count if size == spec.context_axis else int(size) for size in item.shape]
            inputs[item.name] = torch.zeros(shape, dtype=getattr(torch, item.dtype))
    run_module(model.module, inputs, model.name)  # changes the caches in place
    growing = {item.name for item in model.inputs if item.shape[:1] == (spec.context_axis,)}
    ordered = sorted(spec.caches, key=lambda name: name not in growing)
    scaled = {item.name for item in model.inputs if item.has_scales}
    numbers = (dequantize_rows(inputs[x]) if x in scaled else inputs[x] for x in ordered)
    if not all(x.isfinite().all() for x in numbers):
        raise ModelError(f"{model.name} leaves NaN or infinity behind the prefix")
    arrays = to_numpy({name: inputs[name] for name in ordered}).values()
    return b"".join([np.array(made.prefix, "<i8").tobytes(), *(x.tobytes() for x in arrays)])


def _source_sizes(encoder: LoadedModel, source: str, axis: str) -> list[int]:
    """Sizes of the sources: of those that aren't tokens as many, and as large ones, as the file has room for."""
    limits = encoder.axes[axis]
    most = limits.hi or max(limits.lo, _FREE_SIZE)
    sizes = [min(max(n, limits.lo), most) for n in (5, 2, most, 9)]
    chief = next(spec for spec in encoder.inputs if spec.name == source)
    if chief.dtype == "int64":
        return sizes
    whole = math.prod(size for size in chief.shape if isinstance(size, int))
    if axis in chief.shape:
        room = _SOURCE_ELEMENTS // whole - sum(sizes) + most
        return [min(size, max(room, limits.lo)) for size in sizes]
    return sizes[: max(1, _SOURCE_ELEMENTS // whole)]


def _source_content(array: npt.NDArray[np.generic]) -> object:
    """A source as the file has it: tokens as a list, other numbers as bytes."""
    if array.dtype == np.int64:
        return array.reshape(-1).tolist()
    data = base64.b64encode(np.ascontiguousarray(array, "<f4").tobytes())
    return {"shape": list(array.shape), "float32": data.decode()}
