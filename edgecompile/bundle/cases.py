"""Test cases: inputs for every bucket, with eager's outputs."""

from __future__ import annotations

import json
import math
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from edgecompile.buckets.ranges import Bucket
from edgecompile.bundle.reference import Arrays, Reference, References, run_eager
from edgecompile.errors import CostError, ModelError
from edgecompile.models.kinds import turn
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.samples import Samples
from edgecompile.models.specs import InputSpec, OutputSpec
from edgecompile.precision import TOLERANCES
from edgecompile.runtime.call.rows import ROWS, compare_rows, equal_rows, rows_alone
from edgecompile.runtime.format.dtypes import BY_NAME
from edgecompile.runtime.format.golden.ties import Ties
from edgecompile.runtime.format.sums import size_of

#: Which of the cases travel with the bundle as golden vectors.
GOLDEN_CASES = ("lower", "hint", "upper")

RANDOM_LENGTHS = 3
#: As many as in the first failure of this kind that was reported (NVIDIA/TensorRT#4813).
ROWS_OF_A_CASE = 4
#: Most bytes of such a case, which travels with the bundle.
ROWS_BYTES = 64 << 20
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
#: What names of cases begin with whose outputs are those of the model with its weights rounded.
ROUNDED = "rounded-"
#: Where the estimate is wrong by more than this, the rest is left out.
_PATIENCE = 6.0
#: How often inputs are drawn again whose answer near ties leave open. Of a detector's images about one in ten has such.
_REDRAWN = 3
#: Generated loops go in steps of these numbers of elements.
_STEPS = (8, 16, 32)


@dataclass(frozen=True)
class Case:
    """One test case: inputs and expected outputs.

    Attributes:
        bucket: its number.
        name: unlike others' of the bucket.
        inputs: the inputs by name.
        outputs: eager's, see :class:`edgecompile.bundle.reference.Reference`.
        rounding: the largest difference that float32 makes to eager itself, by output.
        problem: the reason why ``outputs`` are of float32; "" if they are of float64.
        skipped: whether float64 was left out because it took too long.
        margins: the difference, by output, that is allowed beyond the tolerance, by eager's own error
            (:func:`edgecompile.bundle.margins.allow_rounding`) and motion (``allow_motion``).
        limits: the difference, by output, that the build allows; at most the tolerance and the margin.
        cosines: the least cosine, by output, that the build allows
            (:func:`edgecompile.bundle.margins.allow_motion`).
        ties: the other possible outputs, where places of nearly equal values were chosen.
        apart: the least difference of nearly equal values that leave the outputs open beyond ``ties``, as a share of
            their scale; inf: there are none.
        redrawn: whether the inputs are other ones, independent, as those drawn first left outputs open.
    """

    bucket: int
    name: str
    inputs: Arrays
    outputs: Arrays
    rounding: Mapping[str, float] = field(default_factory=dict)
    problem: str = ""
    skipped: bool = False
    margins: Mapping[str, float] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)
    cosines: Mapping[str, float] = field(default_factory=dict)
    ties: Ties | None = None
    apart: float = math.inf
    redrawn: bool = False

    @property
    def open(self) -> bool:
        """Whether the outputs are only one of several right answers."""
        return self.apart < math.inf


def make_cases(
    model: LoadedModel,
    buckets: Sequence[Bucket],
    *,
    seed: int = 0,
    golden: bool = False,
    rtol: float = TOLERANCES["fp32"].rtol,
) -> Iterator[Case]:
    """Inputs for every bucket with eager's answers.

    For each bucket: the lower and the upper edge, the hint and random lengths between; where the
    model has a mask, two wider lengths with everything behind the hint masked. With ``golden`` those
    that travel with the bundle alone. Their values are like real ones in turn
    (:data:`edgecompile.models.kinds.TURNS`). Values tie that differ by ``rtol`` of their scale at most.
    Those that travel with the bundle have their answers in float64, whatever that takes.
    """
    references = References(model, rtol)
    number = -1
    for index, bucket in enumerate(buckets):
        random = np.random.default_rng([seed, index])
        chosen = {"lower": bucket.lo, "upper": bucket.hi, "hint": bucket.hint}
        own = bucket.axes[0][1]
        for which in range(RANDOM_LENGTHS):
            chosen[f"random{which}"] = own.below(int(random.integers(bucket.lo, bucket.hi + 1)))
        for name, length in chosen.items():
            number += 1
            if golden and name not in GOLDEN_CASES:
                continue
            sizes = _sizes(model, bucket, length, random)
            if name == "hint" and model.generation is not None:
                # This one travels with the bundle, and its caches are most of it.
                sizes.update({axis: extent.lo for axis, extent in bucket.other_axes})
            kind = turn(number, padded=bucket.mode == "pad")
            value = int(random.integers(1 << 31))
            always = name in GOLDEN_CASES
            yield _drawn(model, references, index, name, sizes, value, kind, always=always)
        if not golden:
            yield from _padded_cases(model, references, index, bucket, random)


def rows_cases(
    model: LoadedModel,
    buckets: Sequence[Bucket],
    *,
    seed: int = 0,
    rtol: float = TOLERANCES["fp32"].rtol,
) -> Iterator[Case]:
    """A batch of some rows for every bucket in which eager's rows don't change with those beside them.

    A device repeats on it what eager passed here: equal rows give equal answers, and rows together what they give
    alone.
    """
    shapes = [spec.shape for spec in model.inputs] + [spec.shape for spec in model.outputs]
    first = {shape[0] if shape else None for shape in shapes}
    axis = first.pop() if len(first) == 1 else None
    counted = any(None in shape for shape in shapes)  # the number of positions depends on values
    if not isinstance(axis, str) or axis == model.length_axis or counted or model.generation:
        return
    references = References(model, rtol)
    for index, bucket in enumerate(buckets):
        extent = dict(bucket.axes)[axis]
        sizes = {name: other.hint or other.hi for name, other in bucket.axes}
        sizes[axis] = min(extent.hi, max(ROWS_OF_A_CASE, 2 * extent.lo)) // extent.lo * extent.lo
        if model.length_axis is not None and _held(model, sizes) > ROWS_BYTES:
            sizes[model.length_axis] = bucket.lo
        if sizes[axis] < 2 * extent.lo or _held(model, sizes) > ROWS_BYTES:
            continue
        value = int(np.random.default_rng([seed, index, 2]).integers(1 << 31))
        draw = partial(_draw_rows, model, sizes, value, extent.lo)
        find = partial(references.find, always=True)
        with suppress(ModelError):
            inputs = draw(0)
            yield _settled(make_case(index, ROWS, inputs, find(inputs)), draw, find)


def _draw_rows(
    model: LoadedModel, sizes: Mapping[str, int], seed: int, step: int, more: int
) -> Arrays:
    """Inputs of several rows of which eager gives each the answer that it has alone.

    Raises:
        ModelError: eager takes no such batch, no single row, or doesn't.
    """
    inputs = draw_arrays(model, sizes, (seed + more) % (1 << 31))
    for check in (equal_rows, rows_alone):
        answers = check(lambda arrays: run_eager(model, arrays), inputs, step)
        if not all(found.ok for found in compare_rows(*answers, TOLERANCES["fp32"]).values()):
            raise ModelError("the rows of a batch change each other's answers")
    return inputs


def _held(model: LoadedModel, sizes: Mapping[str, int]) -> int:
    """Bytes of a case's inputs and outputs."""
    specs: list[InputSpec | OutputSpec] = [*model.inputs, *model.outputs]
    return sum(
        BY_NAME[spec.dtype].size * math.prod([size_of(dim, sizes) for dim in spec.shape])
        for spec in specs
    )


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
        model: the model to compile.
        buckets: the programs.
        also: sizes that are run at any cost, by bucket.
        seed: the seed of the inputs and the random lengths.
    """
    references = References(model)
    for index, kinds in (also or {}).items():
        for number, sizes in enumerate(kinds):
            yield _case(model, references, index, f"kind{number}", sizes, seed)
    count = sum(len(bucket.axes[0][1].sizes) for bucket in buckets)
    costs = _seconds(model, buckets) if count > len(buckets) else None
    if costs is None:
        return
    longest = max(range(len(buckets)), key=lambda index: buckets[index].hi)
    if costs(buckets[longest].hi) > _BUDGET_S / len(buckets):
        return
    ends = [_ends(model, bucket) for bucket in buckets]
    largest = {**ends[longest][-1], buckets[longest].length_axis: buckets[longest].hi}
    example = _case(model, references, longest, "", largest, seed)
    held = sum(a.nbytes for a in (*example.inputs.values(), *example.outputs.values()))
    every = [
        (index, length, end)
        for index, bucket in enumerate(buckets if count <= MOST_LENGTHS else ())
        for length in bucket.axes[0][1].sizes
        for end in range(len(ends[index]))
    ]
    total = sum(costs(buckets[index].run_length(length)) for index, length, _ in every)
    if not every or total > _BUDGET_S or held * len(every) / 2 > _BUDGET_BYTES:
        every = list(_spread(buckets, ends, costs, held, seed))
    started = time.monotonic()
    for number, (index, length, end) in enumerate(every):
        if time.monotonic() - started > _PATIENCE * _BUDGET_S:
            return
        sizes = {**ends[index][end], buckets[index].length_axis: length}
        name = f"{LENGTH}{length}" + (f"end{end}" if end else "")
        kind = turn(number, padded=buckets[index].mode == "pad")
        yield _case(model, references, index, name, sizes, seed, kind)


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
        own = bucket.axes[0][1]
        near = [
            *(bucket.lo + own.step, bucket.hi - own.step),
            *(bucket.hint - own.step, bucket.hint + own.step),
        ]
        others = random.integers(bucket.lo, bucket.hi + 1, SPREAD_LENGTHS).tolist()
        left = _BUDGET_S / len(buckets)
        chosen = [n for n in dict.fromkeys([*near, *steps, *map(own.below, others)]) if n in own]
        for number, length in enumerate(chosen[:room]):
            left -= costs(bucket.run_length(length))
            if left < 0:
                break
            yield index, length, number % len(ends[index])


def _case(
    model: LoadedModel,
    references: References,
    index: int,
    name: str,
    sizes: Mapping[str, int],
    seed: int,
    kind: str = "",
) -> Case:
    number = zlib.crc32(json.dumps([seed, index, name]).encode())
    return _drawn(model, references, index, name, sizes, number, kind)


def _drawn(
    model: LoadedModel,
    references: References,
    index: int,
    name: str,
    sizes: Mapping[str, int],
    seed: int,
    kind: str,
    *,
    always: bool = False,
) -> Case:
    """A case with values of a kind; with independent ones where the model refuses those, or float32 loses its digits.

    A norm of zeros, for instance, makes noise that eager and a program don't share. Nor do they share the ties that
    equal rows of floats make, and whole numbers such as the place of a maximum follow from ties. Where float64
    isn't run, nobody knows whether float32 loses its digits: values are independent, too. Where eager's answer is one
    of several right ones, by a choice between nearly equal values, other independent ones are drawn.
    """
    floats = any(BY_NAME[spec.dtype].kind == "f" for spec in model.inputs)
    if floats and any(BY_NAME[spec.dtype].kind != "f" for spec in model.outputs):
        kind = ""
    if references.spent and not always:
        kind = ""
    inputs = draw_arrays(model, sizes, seed, kind)
    try:
        reference = references.find(inputs, always=always)
    except ModelError:
        if not kind:
            raise
        return _drawn(model, references, index, name, sizes, seed, "", always=always)
    if kind and (reference.lost or reference.skipped):
        with suppress(ModelError):
            independent = _drawn(
                model, references, index, name, sizes, seed, "", always=always or reference.lost
            )
            if reference.skipped or not independent.problem:
                return independent
    first = make_case(index, name, inputs, reference)
    return _settled(
        first,
        lambda more: draw_arrays(model, sizes, (seed + more) % (1 << 31)),
        lambda other: references.find(other, always=always),
    )


def _settled(
    first: Case, draw: Callable[[int], Arrays], find: Callable[[Arrays], Reference]
) -> Case:
    """The case, or one with other inputs where near ties leave its answer open.

    Where they leave the answers to all inputs open, those are taken whose values are furthest apart: roundings are the
    least likely to swap these.

    Args:
        first: Case with the inputs that were drawn first.
        draw: Function that draws others, numbered from 1.
        find: Function that gives the reference of inputs. What raises ModelError is left out.
    """
    best = first
    for more in range(1, 1 + _REDRAWN):
        if not best.open:
            break
        with suppress(ModelError):
            inputs = draw(more)
            case = make_case(first.bucket, first.name, inputs, find(inputs))
            # An answer of float64 is worth more than one that is settled.
            if case.apart > best.apart and (first.problem or not case.problem):
                best = replace(case, redrawn=True)
    return best


def make_case(index: int, name: str, inputs: Arrays, reference: Reference) -> Case:
    """The case of a bucket's inputs with eager's answer to them."""
    return Case(
        index,
        name,
        inputs,
        reference.outputs,
        reference.rounding,
        reference.problem,
        reference.skipped,
        ties=reference.ties,
        apart=reference.apart,
    )


def sample_cases(
    model: LoadedModel,
    buckets: Sequence[Bucket],
    samples: Samples,
    *,
    rtol: float = TOLERANCES["fp32"].rtol,
) -> Iterator[Case]:
    """Given inputs with eager's answers, each in the first bucket that serves it."""
    references = References(model, rtol)
    for number, (inputs, length) in enumerate(zip(samples.inputs, samples.lengths, strict=True)):
        for index, bucket in enumerate(buckets):
            others = all(e.lo <= model.axes[name].lo <= e.hi for name, e in bucket.other_axes)
            if length in bucket.axes[0][1] and others:
                yield make_case(index, f"text{number}", inputs, references.find(inputs))
                break


def _padded_cases(
    model: LoadedModel,
    references: References,
    index: int,
    bucket: Bucket,
    random: np.random.Generator,
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
    own = bucket.axes[0][1]
    length = own.below(min(bucket.hint, bucket.hi - own.step))
    sizes = _sizes(model, bucket, length, random)
    seed = int(random.integers(1 << 31))
    short = draw_arrays(model, sizes, seed)
    for width in sorted({length + own.step, bucket.hi}):
        masks = {
            spec.name: pad_array(short[spec.name], spec.shape, {axis: width}, spec.pad)
            for spec in model.inputs
            if spec.is_mask
        }

        def draw(more: int, width: int = width, masks: Arrays = masks) -> Arrays:
            drawn = draw_arrays(model, {**sizes, axis: width}, (seed + more) % (1 << 31))
            return {**drawn, **masks}

        inputs = draw(0)
        first = make_case(index, f"padded{width}", inputs, references.find(inputs))
        yield _settled(first, draw, references.find)


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


def draw_arrays(model: LoadedModel, sizes: Mapping[str, int], seed: int, kind: str = "") -> Arrays:
    """Inputs of these sizes; see :func:`edgecompile.models.prompts.draw_inputs`."""
    from edgecompile.models.arrays import to_numpy
    from edgecompile.models.prompts import draw_inputs

    return to_numpy(draw_inputs(model, sizes, seed, kind))
