"""The request of ``edgecompile explain``, and the model at the sizes that are looked at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgecompile.export.checks import Range
from edgecompile.models.loaded import LoadedModel
from edgecompile.precision import FP32, Precision
from edgecompile.targets.profile import TargetProfile

__all__ = ["ExplainRequest", "Subject"]


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


@dataclass(frozen=True)
class Subject:
    """A model with the smallest and largest size of each axis, and the sizes to trace it with."""

    loaded: LoadedModel
    ranges: Mapping[str, Range]
    traced: Mapping[str, int]

    @property
    def varies(self) -> bool:
        """Whether any axis has more than one size."""
        return any(lo < hi for lo, hi in self.ranges.values())
