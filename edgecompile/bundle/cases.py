"""Test cases: inputs for every bucket, with what eager gives for them."""

from __future__ import annotations

import json
import math
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edgecompile.buckets.ranges import Bucket
from edgecompile.errors import CostError, ModelError
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.samples import Samples

Arrays = Mapping[str, npt.NDArray[np.generic]]

#: Which of the cases travel with the bundle as golden vectors.
GOLDEN_CASES = ("lower", "hint", "upper")

RANDOM_LENGTHS = 3
# Numbers in all caches of a case together: 64 MiB.
_CACHE_ELEMENTS = 16 << 20

#: Lengths of a model that are all run where that is cheap, and those that are run where it isn't.
MOST_LENGTHS = 4096
SPREAD_LENGTHS = 32
#: What :func:`length_cases` may take: seconds by estimate, and bytes that its cases hold.
_BUDGET_S = 10.0
_BUDGET_BYTES = 256 << 20
# The estimate is of a slow machine, and never measured: equal inputs make equal bundles.
_FLOPS_PER_S = 2e9
_BYTES_PER_S = 2e9
_CALL_S = 50e-6
_CASE_S = 1e-3
#: What names of cases begin with that are one of many lengths.
LENGTH = "length"
#: Where the estimate is wrong by more than this, the rest is left out.
_PATIENCE = 6.0
#: Generated loops go in steps of these numbers of elements.
_STEPS = (8, 16, 32)


@dataclass(frozen=True)
class Case:
    """One test case: what goes in, and what eager gives for it."""

    bucket: int
    name: str
    inputs: Arrays
    outputs: Arrays


def make_cases(
    model: LoadedModel, buckets: Sequence[Bucket], *, seed: int = 0, golden: bool = False
) -> Iterator[Case]:
    """Inputs for every bucket with eager's answers.

    For each bucket: the lower and the upper edge, the hint and random lengths between; where the
    model has a mask, two wider lengths with everything behind the hint masked. With ``golden`` those
    that travel with the bundle alone.
    """
    for index, bucket in enumerate(buckets):
        random = np.random.default_rng([seed, index])
        chosen = {"lower": bucket.lo, "upper": bucket.hi, "hint": bucket.hint}
        for number in range(RANDOM_LENGTHS):
            chosen[f"random{number}"] = int(random.integers(bucket.lo, bucket.hi + 1))
        for name, length in chosen.items():
            if golden and name not in GOLDEN_CASES:
                continue
            sizes = _sizes(model, bucket, length, random)
            if name == "hint" and model.generation is not None:
                # This one travels with the bundle, and its caches are most of it.
                sizes.update({axis: extent.lo for axis, extent in bucket.other_axes})
            inputs = _draw(model, sizes, int(random.integers(1 << 31)))
            yield Case(index, name, inputs, run_eager(model, inputs))
        if not golden:
            yield from _padded_cases(model, index, bucket, random)


def length_cases(
    model: LoadedModel,
    buckets: Sequence[Bucket],
    *,
    also: Mapping[int, Sequence[Mapping[str, int]]] | None = None,
    seed: int = 0,
) -> Iterator[Case]:
    """Every length of every bucket with eager's answers, where that takes seconds; else a spread.

    All lengths are run where there are at most :data:`MOST_LENGTHS` and little is computed: each at
    the smallest and at the largest sizes of the other axes. Of others some are run, as far as the
    budget goes: near the ends and the hint, around steps of vector code, and random ones.

    Args:
        model: what is compiled.
        buckets: the programs.
        also: sizes that are run at any cost, by bucket.
        seed: of the inputs and the random lengths.
    """
    for index, kinds in (also or {}).items():
        for number, sizes in enumerate(kinds):
            yield _case(model, index, f"kind{number}", sizes, seed)
    count = sum(bucket.hi - bucket.lo + 1 for bucket in buckets)
    costs = _seconds(model, buckets) if count > len(buckets) else None
    if costs is None:
        return
    longest = max(range(len(buckets)), key=lambda index: buckets[index].hi)
    if costs(buckets[longest].hi) > _BUDGET_S / len(buckets):
        return
    ends = [_ends(model, bucket) for bucket in buckets]
    largest = {**ends[longest][-1], buckets[longest].length_axis: buckets[longest].hi}
    example = _case(model, longest, "", largest, seed)
    held = sum(a.nbytes for a in (*example.inputs.values(), *example.outputs.values()))
    every = [
        (index, length, end)
        for index, bucket in enumerate(buckets if count <= MOST_LENGTHS else ())
        for length in range(bucket.lo, bucket.hi + 1)
        for end in range(len(ends[index]))
    ]
    total = sum(costs(buckets[index].run_length(length)) for index, length, _ in every)
    if not every or total > _BUDGET_S or held * len(every) / 2 > _BUDGET_BYTES:
        every = list(_spread(buckets, ends, costs, held, seed))
    started = time.monotonic()
    for index, length, end in every:
        if time.monotonic() - started > _PATIENCE * _BUDGET_S:
            return
        sizes = {**ends[index][end], buckets[index].length_axis: length}
        yield _case(model, index, f"{LENGTH}{length}" + (f"end{end}" if end else ""), sizes, seed)


def _ends(model: LoadedModel, bucket: Bucket) -> list[dict[str, int]]:
    """The smallest sizes of the axes beside the length, and the largest if they are others."""
    low = {name: extent.lo for name, extent in bucket.other_axes}
    high = {n: min(e.hi, max(e.lo, _most_rows(model, n))) for n, e in bucket.other_axes}
    return [low] if low == high else [low, high]


def _seconds(model: LoadedModel, buckets: Sequence[Bucket]) -> Callable[[int], float] | None:
    """About what a run of a length takes on a slow machine at most; None: unknown."""
    from edgecompile.export.workcount import count_work

    longest = max(buckets, key=lambda bucket: bucket.hi)
    try:
        work = count_work(model, [longest.hi], sizes=_ends(model, longest)[-1])
    except (CostError, ModelError):
        return None
    fixed = _CASE_S + work.calls * _CALL_S
    return lambda n: fixed + work.flops_at(n) / _FLOPS_PER_S + work.bytes_at(n) / _BYTES_PER_S


def _spread(
    buckets: Sequence[Bucket],
    ends: Sequence[Sequence[Mapping[str, int]]],
    costs: Callable[[int], float],
    held: int,
    seed: int,
) -> Iterator[tuple[int, int, int]]:
    """(bucket, length, which end of the other axes), as many as the budget has room for."""
    room = min(SPREAD_LENGTHS, _BUDGET_BYTES // max(1, held)) // len(buckets)
    for index, bucket in enumerate(buckets):
        random = np.random.default_rng([seed, index, 1])
        steps = [
            step * int(random.integers(bucket.lo // step, bucket.hi // step + 1)) + beside
            for step in _STEPS
            for beside in (-1, 0, 1)
        ]
        near = [bucket.lo + 1, bucket.hi - 1, bucket.hint - 1, bucket.hint + 1]
        others = random.integers(bucket.lo, bucket.hi + 1, SPREAD_LENGTHS).tolist()
        left = _BUDGET_S / len(buckets)
        chosen = [n for n in dict.fromkeys([*near, *steps, *others]) if bucket.lo <= n <= bucket.hi]
        for number, length in enumerate(chosen[:room]):
            left -= costs(bucket.run_length(length))
            if left < 0:
                break
            yield index, length, number % len(ends[index])


def _case(model: LoadedModel, index: int, name: str, sizes: Mapping[str, int], seed: int) -> Case:
    number = zlib.crc32(json.dumps([seed, index, name]).encode())
    inputs = _draw(model, sizes, number)
    return Case(index, name, inputs, run_eager(model, inputs))


def sample_cases(model: LoadedModel, buckets: Sequence[Bucket], samples: Samples) -> Iterator[Case]:
    """Given inputs with eager's answers, each in the first bucket that serves it."""
    for number, (inputs, length) in enumerate(zip(samples.inputs, samples.lengths, strict=True)):
        for index, bucket in enumerate(buckets):
            others = all(e.lo <= model.axes[name].lo <= e.hi for name, e in bucket.other_axes)
            if bucket.lo <= length <= bucket.hi and others:
                yield Case(index, f"text{number}", inputs, run_eager(model, inputs))
                break


def _padded_cases(
    model: LoadedModel, index: int, bucket: Bucket, random: np.random.Generator
) -> Iterator[Case]:
    """Inputs of two wider lengths whose mask ends at the hint.

    What must come out is what eager makes of the same input; a model that lets padding leak isn't
    made better, nor refused. Random values stand behind the mask: they show that it is heeded, and
    outputs at places filled with one value depend on rounding (in MiniLM float32 differs there from
    float64 by 30 times as much as elsewhere).
    """
    axis = model.length_axis
    if not model.has_mask or axis is None or bucket.hi == bucket.lo:
        return
    if bucket.mode == "pad" and any(axis in spec.shape for spec in model.outputs):
        # The bucket pads further than eager did, and what stands at padded positions of such an
        # output may depend on how far. The shorter lengths above have shown the real positions.
        return
    length = min(bucket.hint, bucket.hi - 1)
    sizes = _sizes(model, bucket, length, random)
    seed = int(random.integers(1 << 31))
    short = _draw(model, sizes, seed)
    for width in sorted({length + 1, bucket.hi}):
        wide = _draw(model, {**sizes, axis: width}, seed)
        masks = {
            spec.name: pad_array(short[spec.name], spec.shape, {axis: width}, spec.pad)
            for spec in model.inputs
            if spec.is_mask
        }
        inputs = {**wide, **masks}
        yield Case(index, f"padded{width}", inputs, run_eager(model, inputs))


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
    array: npt.NDArray[Any],
    shape: Sequence[int | str],
    sizes: Mapping[str, int],
    value: float | None,
) -> npt.NDArray[Any]:
    """Fills an array up at the end of every dimension whose axis has a larger one of ``sizes``."""
    widths = [
        (0, max(0, sizes.get(str(name), size) - size))
        for name, size in zip(shape, array.shape, strict=True)
    ]
    return np.pad(array, widths, constant_values=0 if value is None else value)


def _to_numpy(tensors: Mapping[str, Any]) -> dict[str, npt.NDArray[np.generic]]:
    return {name: t.detach().cpu().contiguous().numpy() for name, t in tensors.items()}


def _draw(model: LoadedModel, sizes: Mapping[str, int], seed: int) -> Arrays:
    return _to_numpy(model.make_example(sizes, seed=seed))


def run_eager(model: LoadedModel, inputs: Arrays) -> Arrays:
    """The model's own outputs of one run, by name."""
    import torch

    return _to_numpy(model.run({name: torch.from_numpy(a) for name, a in inputs.items()}))
