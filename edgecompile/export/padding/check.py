"""Decides whether a model may be padded: by a proof on its operators, and by running it.

A padded bucket is exported for one length; shorter inputs are filled up with pad values (mask 0)
and outputs cut back. That is right for a transformer with a mask and for a causal model; it is
wrong where padding leaks into real positions (a backward recurrence, a mean without a mask).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from weakref import WeakKeyDictionary

import torch

from edgecompile.export.checks import TOLERANCE, compare_outputs
from edgecompile.export.padding.proof import EARLY, FULL, LATE, find_leak
from edgecompile.models.examples import pad_inputs
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.specs import InputSpec, OutputSpec
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

Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class PaddingVerdict:
    """The outcome of :func:`check_padding`.

    Attributes:
        safe: proven, and padded inputs gave the unpadded outputs in every trial.
        reason: why not: with the lengths, or with the operator and its line; empty if safe.
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
        drawn = loaded.make_example({**sizes, axis: length}, seed=index + 11)
        example = _shaped(loaded, drawn, axis, kind)
        expected = loaded.run(example)
        outputs = cut_outputs(
            loaded.run(pad_inputs(loaded.inputs, example, axis, padded)),
            loaded.outputs,
            axis,
            length,
        )
        error = compare_outputs(outputs, expected)
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
    for pair in pairs:
        yield "", pair
    if not pairs:
        return
    lo, hi, step = _span(pairs)
    top = hi if lo + step > _LONGEST_TRIAL else min(hi, _LONGEST_TRIAL // step * step)
    short = _spread(lo, top, step) or pairs
    floats = any(BY_NAME[spec.dtype].kind == "f" and _is_drawn(spec) for spec in loaded.inputs)
    kinds = _KINDS if floats else {kind: _KINDS[kind] for kind in _WHOLE_KINDS}
    for index, kind in enumerate(kinds):
        for number in dict.fromkeys((0, index % len(short), (index + 2) % len(short))):
            yield kind, short[number]


def _is_drawn(spec: InputSpec) -> bool:
    return not (spec.is_mask or spec.within or spec.in_place or spec.dtype == "bool")


def _constant(x: torch.Tensor, dim: int, pad: float) -> torch.Tensor:
    return x.narrow(dim, 0, 1).expand_as(x)


def _sparse(x: torch.Tensor, dim: int, pad: float) -> torch.Tensor:
    mask = torch.zeros(x.numel(), dtype=torch.bool)
    mask[::11] = True
    return torch.where(mask.view(x.shape), x, torch.full_like(x, pad))


#: What inputs are made of draws, by what is said of them: of a tensor, its length dimension and the
#: value that it is padded with.
_KINDS: dict[str, Callable[[torch.Tensor, int, float], torch.Tensor]] = {
    "in ascending order": lambda x, dim, pad: x.sort(dim).values,
    "in descending order": lambda x, dim, pad: x.sort(dim, descending=True).values,
    "at their lowest": lambda x, dim, pad: -x.abs() - 0.1,
    "at their highest": lambda x, dim, pad: x.abs() + 0.1,
    "the same at all positions": _constant,
    "around -4": lambda x, dim, pad: x - 4,
    "100 times as large": lambda x, dim, pad: 100 * x,
    # All scores of a row are then far above or far below those of padding.
    "100 times as large and the same at all positions": lambda x, dim, pad: (
        100 * _constant(x, dim, pad)
    ),
    "a thousandth as large": lambda x, dim, pad: x / 1000,
    "mostly equal to the pad value": _sparse,
}
_WHOLE_KINDS = tuple(_KINDS)[:5]


def _shaped(
    loaded: LoadedModel, example: Mapping[str, torch.Tensor], axis: str, kind: str
) -> dict[str, torch.Tensor]:
    """The example with inputs of a kind; those with bounds stay within them."""
    result = dict(example)
    for spec in loaded.inputs if kind else ():
        if not _is_drawn(spec):
            continue
        x, span = example[spec.name], spec.draw or spec.bounds
        along = axis in spec.shape
        dim = spec.shape.index(axis) if along else 0
        if BY_NAME[spec.dtype].kind != "f":
            lo, hi = (int(end) for end in span or (0, 1))
            # What equals the pad value may count as padding, whatever the mask says.
            edge = {
                "at their lowest": lo + (spec.pad == lo),
                "at their highest": hi - (spec.pad == hi),
            }
            if kind in edge and lo < hi:
                x = torch.full_like(x, edge[kind])
            elif along and kind in _WHOLE_KINDS and x.dim():
                x = _KINDS[kind](x, dim, 0.0).to(x.dtype)
        elif x.dim() and (along or kind not in _WHOLE_KINDS[:2]):
            x = _KINDS[kind](x, dim, float(spec.pad or 0))
            x = x if span is None else x.clamp(float(span[0]), float(span[1]))
        result[spec.name] = x.to(example[spec.name].dtype).contiguous()
    return result
