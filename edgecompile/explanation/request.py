"""What ``edgecompile explain`` is to look at."""

from __future__ import annotations

from dataclasses import dataclass

from edgecompile.export.checks import Range
from edgecompile.precision import FP32, Precision
from edgecompile.targets.profile import TargetProfile

__all__ = ["ExplainRequest"]


@dataclass(frozen=True)
class ExplainRequest:
    """What to look at.

    Attributes:
        target: whose figures and variants count.
        precision: of the linears' weights.
        max_length: the longest length; None: the model's own limit, 512 at most.
        buckets: (lo, hi) lengths, ascending; None: powers of two up to the longest.
        compare: two lengths whose graphs are compared; None: chosen.
        code: generate code, to know all kernels that it calls.
        every: try every rung of the ladder and look for graph breaks, even if one was accepted.
    """

    target: TargetProfile
    precision: Precision = FP32
    max_length: int | None = None
    buckets: tuple[Range, ...] | None = None
    compare: tuple[int, int] | None = None
    code: bool = True
    every: bool = False
