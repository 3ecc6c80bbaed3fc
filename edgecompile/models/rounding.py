"""The difference of eager from float64, and the difference that it allows to others.

Eager is a rounded result as others are. What sums in another order may lose other digits, so a
difference counts against a multiple of eager's own error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from edgecompile.models.double import run_in_float64
from edgecompile.precision import TOLERANCES

#: How many times eager's own error a program may be off. Two orders of summation round by up to
#: twice as much as each other in a layer. Where layers amplify that, six times was seen at the end
#: (GPT-2 with outliers in its residual stream, the worst of 72 cases).
FACTOR = 8.0
#: Most that a margin may be, of the output's scale, unless twice eager's own error is more. A layer in
#: half precision, or another form of GELU, changes an output by about as much.
WIDEST = 1e-3
#: Of an output's scale. Where eager's error is larger, float64 says nothing of float32: a value at
#: an edge (a rounding, a largest of several) fell to its other side, or no digits are left.
MOST = 1e-3
#: The same of a model that computes in half precision itself: bfloat16 rounds each result by up to 0.4 %, and some
#: layers of a transformer in it are off by 1 to 2 %.
MOST_OF_HALVES = 5e-2


def margin(error: float, largest: float) -> float:
    """The difference that eager's own error allows, for an output of this scale."""
    return min(FACTOR * error, max(2 * error, WIDEST * largest))


@dataclass(frozen=True)
class Rounding:
    """The error of one of eager's outputs, over the elements that are finite there and in float64.

    Attributes:
        error: Largest difference from float64.
        largest: Largest magnitude in float64.
        exact: The values of float64 in the output's type [as the output]; its own where one isn't finite.
        lost: Whether the error is so large that float64 says nothing of the output.
    """

    error: float
    largest: float
    exact: Tensor
    lost: bool


def measure(narrow: Tensor, wide: Tensor, most: float = MOST) -> Rounding:
    """The error of one of eager's outputs.

    Args:
        narrow: The output, of a floating type.
        wide: The same output in float64, of the same shape.
        most: The error, as a share of the scale, above which float64 says nothing of the output.
    """
    rounded = wide.to(narrow.dtype)
    finite = rounded.isfinite() & narrow.isfinite()
    if not bool(finite.any()):
        return Rounding(0.0, 0.0, narrow, False)
    error = (narrow[finite].double() - wide[finite]).abs().max().item()
    largest = wide[finite].abs().max().item()
    lost = error > most * largest + TOLERANCES["fp32"].atol
    return Rounding(error, largest, torch.where(finite, rounded, narrow), lost)


def find_margins(
    run: Callable[..., Mapping[str, Tensor]],
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
) -> dict[str, float]:
    """The margins of outputs in float32, as shares of their scales; of those that have one.

    Args:
        run: A module or function, which is run in float64. An output has no margin where that fails.
        inputs: Its keyword arguments, which it may change.
        outputs: The outputs of the same run in float32, by name.
    """
    try:
        exact = run_in_float64(run, inputs)
    except Exception:  # a model that only float32 will do for
        return {}
    margins = {}
    for name, narrow in outputs.items():
        wide = exact.get(name)
        if wide is None or narrow.dtype != torch.float32 or wide.shape != narrow.shape:
            continue
        found = measure(narrow, wide)
        if found.error > 0 and found.largest > 0 and not found.lost:
            margins[name] = margin(found.error, found.largest) / found.largest
    return margins
