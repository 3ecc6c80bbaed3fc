"""Test cases: inputs for every bucket, with what eager gives for them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edgecompile.buckets import Bucket
from edgecompile.models import LoadedModel
from edgecompile.samples import Samples

__all__ = [
    "GOLDEN_CASES",
    "RANDOM_LENGTHS",
    "Arrays",
    "Case",
    "make_cases",
    "pad_array",
    "sample_cases",
]

Arrays = Mapping[str, npt.NDArray[np.generic]]

#: Which of the cases travel with the bundle as golden vectors.
GOLDEN_CASES = ("lower", "hint", "upper")

RANDOM_LENGTHS = 3
# Numbers in all caches of a case together: 64 MiB.
_CACHE_ELEMENTS = 16 << 20


@dataclass(frozen=True)
class Case:
    """One test case: what goes in, and what eager gives for it."""

    bucket: int
    name: str
    inputs: Arrays
    outputs: Arrays


def make_cases(model: LoadedModel, buckets: Sequence[Bucket], *, seed: int = 0) -> Iterator[Case]:
    """Inputs for every bucket with eager's answers.

    For each bucket: the lower and the upper edge, the hint and random lengths between; where the
    model has a mask, the hint's input again at two wider lengths with the tail masked.
    """
    for index, bucket in enumerate(buckets):
        random = np.random.default_rng([seed, index])
        chosen = {"lower": bucket.lo, "upper": bucket.hi, "hint": bucket.hint}
        for number in range(RANDOM_LENGTHS):
            chosen[f"random{number}"] = int(random.integers(bucket.lo, bucket.hi + 1))
        for name, length in chosen.items():
            sizes = _sizes(model, bucket, length, random)
            if name == "hint" and model.generation is not None:
                # This one travels with the bundle, and its caches are most of it.
                sizes.update({axis: extent.lo for axis, extent in bucket.other_axes})
            inputs = model.make_example(sizes, seed=int(random.integers(1 << 31)))
            yield Case(index, name, _to_numpy(inputs), _eager(model, inputs))
        yield from _padded_cases(model, index, bucket, random)


def sample_cases(model: LoadedModel, buckets: Sequence[Bucket], samples: Samples) -> Iterator[Case]:
    """Given inputs with eager's answers, each in the first bucket that serves it."""
    import torch

    for number, (inputs, length) in enumerate(zip(samples.inputs, samples.lengths, strict=True)):
        for index, bucket in enumerate(buckets):
            others = all(e.lo <= model.axes[name].lo <= e.hi for name, e in bucket.other_axes)
            if bucket.lo <= length <= bucket.hi and others:
                tensors = {name: torch.from_numpy(array) for name, array in inputs.items()}
                yield Case(index, f"text{number}", inputs, _eager(model, tensors))
                break


def _padded_cases(
    model: LoadedModel, index: int, bucket: Bucket, random: np.random.Generator
) -> Iterator[Case]:
    """The same content at two padded widths.

    What must come out is what eager makes of the padded input. For most models that is its answer
    to the unpadded one; a model that lets padding leak isn't made better, nor refused.
    """
    import torch

    if not model.has_mask or bucket.hi == bucket.lo:
        return
    if bucket.mode == "pad" and any(model.length_axis in spec.shape for spec in model.outputs):
        # The bucket pads further than eager did, and what stands at padded positions of such an
        # output may depend on how far. The shorter lengths above have shown the real positions.
        return
    length = min(bucket.hint, bucket.hi - 1)
    sizes = _sizes(model, bucket, length, random)
    inputs = _to_numpy(model.make_example(sizes, seed=int(random.integers(1 << 31))))
    for width in sorted({length + 1, bucket.hi}):
        padded = {
            spec.name: pad_array(inputs[spec.name], spec.shape, model.length_axis, width, spec.pad)
            for spec in model.inputs
        }
        want = _eager(model, {name: torch.from_numpy(array) for name, array in padded.items()})
        yield Case(index, f"padded{width}", padded, want)


def _sizes(
    model: LoadedModel, bucket: Bucket, length: int, random: np.random.Generator
) -> dict[str, int]:
    sizes = {bucket.length_axis: length}
    for name, extent in bucket.other_axes:
        top = min(extent.hi, max(extent.lo, _most_rows(model, name)))
        sizes[name] = min(top, int(random.choice([extent.lo, top, extent.hint])))
    return sizes


def _most_rows(model: LoadedModel, axis: str) -> int:
    """The largest size of an axis with which caches that a case has to hold stay small."""
    rows = [
        math.prod(size for size in spec.shape if isinstance(size, int))
        for spec in model.inputs
        if spec.in_place and axis in spec.shape
    ]
    return _CACHE_ELEMENTS // sum(rows) if rows else 1 << 31


def pad_array(
    array: npt.NDArray[np.generic],
    shape: Sequence[int | str],
    axis: str | None,
    width: int,
    value: float | None,
) -> npt.NDArray[np.generic]:
    """Fills an array up at the end of every dimension that is the axis."""
    if value is None:
        value = 0
    widths = [
        (0, width - n if name == axis else 0) for name, n in zip(shape, array.shape, strict=True)
    ]
    return np.pad(array, widths, constant_values=value)


def _to_numpy(tensors: Mapping[str, Any]) -> dict[str, npt.NDArray[np.generic]]:
    return {name: np.ascontiguousarray(t.detach().cpu().numpy()) for name, t in tensors.items()}


def _eager(model: LoadedModel, inputs: Mapping[str, Any]) -> dict[str, npt.NDArray[np.generic]]:
    return _to_numpy(model.run(inputs))
