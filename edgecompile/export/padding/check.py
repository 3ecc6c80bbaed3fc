"""Decides whether a model may be padded: by a proof on its operators, and by running it.

A padded bucket is exported for one length; shorter inputs are filled up with pad values (mask 0)
and outputs cut back. That is right for a transformer with a mask and for a causal model; it is
wrong where padding leaks into real positions (a backward recurrence, a mean without a mask).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from weakref import WeakKeyDictionary

import torch

from edgecompile.export.checks import TOLERANCE, compare_outputs
from edgecompile.export.padding.proof import EARLY, FULL, LATE, find_leak
from edgecompile.models.draws import is_drawn
from edgecompile.models.examples import pad_inputs
from edgecompile.models.kinds import (
    ASCENDING,
    CONSTANT,
    DESCENDING,
    FEW,
    HIGHEST,
    LOWEST,
    RUNS,
    SPARSE,
)
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.rounding import find_margins
from edgecompile.models.specs import OutputSpec, tied_sizes
from edgecompile.runtime.format.dtypes import BY_NAME

#: What a plan says about the padding of its buckets.
PROVEN, ASSUMED = "proven", "assumed"

#: Lengths of the two runs of a proof: the codes are the same at any length, so short ones will do.
_PROOF_LENGTHS = ((7, 12), (30, 41))
#: Masks of the runs of a proof, by row: a model may branch on a mask without zeros, and a batch may
#: have one row.
_PROOF_MASKS = ((FULL,), (LATE, EARLY), (EARLY, LATE))
#: No trial with inputs drawn against the model is longer, unless the model takes none as short.
_LONGEST_TRIAL = 96

#: How trials draw whole numbers, none of which may equal the pad value, and other numbers.
_WHOLE_KINDS = (ASCENDING, DESCENDING, LOWEST, HIGHEST, CONSTANT)
_KINDS = (
    *_WHOLE_KINDS,
    "around -4",
    "100 times as large",
    "100 times as large and the same at all positions",
    "a thousandth as large",
    SPARSE,
)

Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class PaddingVerdict:
    """The outcome of :func:`check_padding`.

    Attributes:
        safe: proven, and padded inputs gave the unpadded outputs in every trial.
        reason: the reason if it isn't safe: with the lengths, or with the operator and its line.
        max_error: largest difference seen, relative to an output's scale.
        tried: pairs (length, padded length).
        harmful: a trial changed the outputs, or the model can't be padded at all. Where neither
            this nor ``safe``, nothing is known against padding and nothing proves it.
    """

    safe: bool
    reason: str
    max_error: float
    tried: Pairs
    harmful: bool


_known: WeakKeyDictionary[torch.nn.Module, dict[object, PaddingVerdict]] = WeakKeyDictionary()


def check_padding(
    loaded: LoadedModel,
    lengths: Sequence[tuple[int, int]] | None = None,
) -> PaddingVerdict:
    """Proves that padding can't matter, and runs the eager model on inputs drawn against it.

    What was found out for a module is kept as long as it lives.

    Args:
        loaded: the model.
        lengths: pairs (length, padded length) to try; None: short and long ones within the
            model's limits, padded by a little and by much.

    Raises:
        ModelError: the eager model fails.
    """
    axis = loaded.length_axis
    if axis is None or loaded.axes[axis].lo == loaded.axes[axis].hi:
        return _refused("the model has one size, so nothing is padded")
    if tied := tied_sizes(loaded.inputs, (axis,)):
        return _refused(f"the size {tied[0]} of an input follows from {axis}")
    without = [s.name for s in loaded.inputs if axis in s.shape and s.pad is None]
    if without:
        return _refused(f"no pad value is known for {', '.join(without)}")
    strange = [spec.name for spec in loaded.outputs if None in spec.shape]
    if strange:
        return _refused(
            f"the size of {', '.join(strange)} varies with {axis}, but isn't equal to it"
        )
    pairs = tuple(lengths if lengths is not None else _default_pairs(loaded, axis))
    verdicts = _known.setdefault(loaded.module, {})
    key = (loaded.inputs, loaded.outputs, axis, pairs, tuple(loaded.axes.items()))
    if key not in verdicts:
        verdicts[key] = _check(loaded, axis, pairs)
    return verdicts[key]


def _refused(reason: str) -> PaddingVerdict:
    return PaddingVerdict(False, reason, 0.0, (), True)


def _check(loaded: LoadedModel, axis: str, pairs: Pairs) -> PaddingVerdict:
    worst, tried = 0.0, []
    sizes = {
        name: 2 if limits.lo <= 2 <= (limits.hi or 2) else limits.lo
        for name, limits in loaded.axes.items()
        if name != axis
    }
    runs = zip(cycle(_proof_pairs(pairs)), _PROOF_MASKS, strict=False)
    leaks = (find_leak(loaded, *pair, sizes, masks) for pair, masks in runs)
    leak = next((leak for leak in leaks if leak is not None), None)
    for index, (kind, (length, padded)) in enumerate(_trials(loaded, pairs)):
        tried.append((length, padded))
        example = loaded.make_example({**sizes, axis: length}, seed=index + 11, kind=kind)
        expected = loaded.run(example)
        outputs = cut_outputs(
            loaded.run(pad_inputs(loaded.inputs, example, axis, padded)),
            loaded.outputs,
            axis,
            length,
        )
        error = compare_outputs(outputs, expected)
        if isinstance(error, float) and error > TOLERANCE:
            margins = find_margins(loaded.module, loaded.fresh(example), expected)
            error = compare_outputs(outputs, expected, margins)
        if isinstance(error, str) or not error <= TOLERANCE:
            text = (
                error if isinstance(error, str) else f"outputs change by {error:.2g} of their scale"
            )
            drawn_as = f", inputs {kind}" if kind else ""
            reason = f"{axis} {length} padded to {padded}{drawn_as}: {text}"
            reason += "" if leak is None else f"; {leak}"
            return PaddingVerdict(False, reason, worst, tuple(tried), True)
        worst = max(worst, error)
    if leak is not None:
        reason = (
            f"padding changed nothing in {len(tried)} trials, but isn't proven harmless: {leak}"
        )
        return PaddingVerdict(False, reason, worst, tuple(tried), False)
    return PaddingVerdict(True, "", worst, tuple(tried), False)


def cut_outputs(
    outputs: Mapping[str, torch.Tensor], specs: Sequence[OutputSpec], axis: str, length: int
) -> dict[str, torch.Tensor]:
    """Cuts every output dimension that has the length axis back to ``length``."""
    result = {}
    for spec in specs:
        tensor = outputs[spec.name]
        for dim, name in enumerate(spec.shape):
            if name == axis:
                tensor = tensor.narrow(dim, 0, length)
        result[spec.name] = tensor
    return result


def _default_pairs(loaded: LoadedModel, axis: str) -> Pairs:
    limits = loaded.axes[axis]
    return _spread(limits.lo, min(limits.hi or _LONGEST_TRIAL, _LONGEST_TRIAL), 1)


def _spread(lo: int, top: int, step: int) -> Pairs:
    """Pairs of multiples of a step: short and long lengths, padded by a little and by much."""

    def near(length: int) -> int:
        return max(lo, length // step * step)

    third, half = near(top // 3), near(top // 2)
    pairs = [(lo, top), (lo, lo + step), (third, top), (half, half + step), (half, top)]
    pairs.append((top - step, top))
    return tuple((a, b) for a, b in dict.fromkeys(pairs) if lo <= a < b <= top)


def _span(pairs: Pairs) -> tuple[int, int, int]:
    """The least and the largest length of some pairs, and what all lengths are multiples of."""
    every = [length for pair in pairs for length in pair]
    return min(every), max(every), math.gcd(*every)


def _proof_pairs(pairs: Pairs) -> Iterator[tuple[int, int]]:
    if not pairs:
        return
    lo, hi, step = _span(pairs)
    for least, most in _PROOF_LENGTHS:
        padded = min(hi, -(-max(most, lo + step) // step) * step)
        length = min(max(lo, -(-least // step) * step), padded - step)
        if length >= lo:
            yield length, padded
        if padded == hi:
            return


def _trials(loaded: LoadedModel, pairs: Pairs) -> Iterator[tuple[str, tuple[int, int]]]:
    """Kinds of inputs with the lengths to try them at: those that were asked for, then short ones."""
    for number, pair in enumerate(pairs):
        yield ("", FEW, RUNS)[number % 3], pair
    if not pairs:
        return
    lo, hi, step = _span(pairs)
    top = hi if lo + step > _LONGEST_TRIAL else min(hi, _LONGEST_TRIAL // step * step)
    short = _spread(lo, top, step) or pairs
    floats = any(BY_NAME[spec.dtype].kind == "f" and is_drawn(spec) for spec in loaded.inputs)
    for index, kind in enumerate(_KINDS if floats else _WHOLE_KINDS):
        for number in dict.fromkeys((0, index % len(short), (index + 2) % len(short))):
            yield kind, short[number]
