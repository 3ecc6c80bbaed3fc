"""The request of ``edgecompile explain``."""

from __future__ import annotations

from dataclasses import dataclass

from edgecompile.precision import FP32, Precision
from edgecompile.targets.profile import TargetProfile


@dataclass(frozen=True)
class ExplainRequest:
    """Options of an explanation.

    Attributes:
        target: the target, whose figures and variants count.
        precision: data type of the linear layers' weights.
        max_length: the longest length; None: the model's own limit, 512 at most.
        code: generate code, to know all kernels that it calls.
        every: try every export strategy and look for graph breaks, even if one was accepted.
    """

    target: TargetProfile
    precision: Precision = FP32
    max_length: int | None = None
    code: bool = True
    every: bool = False
