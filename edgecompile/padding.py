"""Whether a model may be padded: checked by running it, never assumed.

A padded bucket is exported for one length; shorter inputs are filled up with pad values (mask 0)
and outputs cut back. That is right for a transformer with a mask and for a causal model; it is
wrong where padding leaks into real positions (a backward recurrence, a mean without a mask).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from edgecompile.examples import pad_inputs
from edgecompile.export_checks import TOLERANCE, compare_outputs
from edgecompile.models import LoadedModel, OutputSpec


@dataclass(frozen=True)
class PaddingVerdict:
    """The outcome of :func:`check_padding`.

    Attributes:
        safe: padded inputs gave the unpadded outputs at every length tried.
        reason: why not, with the lengths; empty if safe.
        max_error: largest difference seen, relative to an output's scale.
        tried: pairs (length, padded length).
    """

    safe: bool
    reason: str
    max_error: float
    tried: tuple[tuple[int, int], ...]


def check_padding(
    loaded: LoadedModel,
    lengths: Sequence[tuple[int, int]] | None = None,
    *,
    other_sizes: Mapping[str, int] | None = None,
    tolerance: float = TOLERANCE,
) -> PaddingVerdict:
    """Runs the eager model on inputs and on their padded forms and compares the outputs.

    Args:
        loaded: the model.
        lengths: pairs (length, padded length) to try; None: short and long ones within the
            model's limits, padded by a little and by much.
        other_sizes: sizes of the other axes; default: their lower limits, 2 where they allow it.
        tolerance: allowed difference relative to an output's scale.

    Raises:
        ModelError: the eager model fails.
    """
    axis = loaded.length_axis
    if axis is None:
        return PaddingVerdict(False, "the model has no length axis", 0.0, ())
    without = [s.name for s in loaded.inputs if axis in s.shape and s.pad is None]
    if without:
        return PaddingVerdict(False, f"no pad value is known for {', '.join(without)}", 0.0, ())
    strange = [spec.name for spec in loaded.outputs if None in spec.shape]
    if strange:
        reason = f"the size of {', '.join(strange)} varies with {axis}, but isn't equal to it"
        return PaddingVerdict(False, reason, 0.0, ())
    pairs = tuple(lengths if lengths is not None else _default_pairs(loaded, axis))
    sizes = {**_other_sizes(loaded, axis), **(other_sizes or {})}
    worst = 0.0
    for index, (length, padded) in enumerate(pairs):
        example = loaded.make_example({**sizes, axis: length}, seed=index + 11)
        want = loaded.run(example)
        got = cut_outputs(
            loaded.run(pad_inputs(loaded.inputs, example, axis, padded)),
            loaded.outputs,
            axis,
            length,
        )
        error = compare_outputs(got, want)
        if isinstance(error, str) or not error <= tolerance:
            text = (
                error if isinstance(error, str) else f"outputs change by {error:.2g} of their scale"
            )
            reason = f"{axis} {length} padded to {padded}: {text}"
            return PaddingVerdict(False, reason, worst, pairs[: index + 1])
        worst = max(worst, error)
    return PaddingVerdict(True, "", worst, pairs)


def padding_is_safe(loaded: LoadedModel, **options: object) -> bool:
    """Shorthand for ``check_padding(...).safe``."""
    return check_padding(loaded, **options).safe  # type: ignore[arg-type]


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


def _default_pairs(loaded: LoadedModel, axis: str) -> list[tuple[int, int]]:
    limits = loaded.axes[axis]
    top = min(limits.hi or 96, 96)
    lo = limits.lo
    third, half = max(lo, top // 3), max(lo, top // 2)
    wanted = [(lo, top), (lo, lo + 1), (third, top), (half, half + 1), (half, top), (top - 1, top)]
    return [(a, b) for a, b in dict.fromkeys(wanted) if lo <= a < b <= top]


def _other_sizes(loaded: LoadedModel, axis: str) -> dict[str, int]:
    return {
        name: 2 if limits.lo <= 2 <= (limits.hi or 2) else limits.lo
        for name, limits in loaded.axes.items()
        if name != axis
    }
