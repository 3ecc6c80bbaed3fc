"""Buckets to look at for a sample of lengths, without measuring anything."""

from __future__ import annotations

from edgecompile.buckets.planner import plan_buckets
from edgecompile.errors import ModelError
from edgecompile.export.workcount import count_work
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.models.loaded import LoadedModel
from edgecompile.planning.gpu_roofline import gpu_curve
from edgecompile.planning.roofline import modelled_curve
from edgecompile.targets.profile import TargetProfile

__all__ = ["plan_roughly"]

_BUCKETS = 4


def plan_roughly(
    lengths: LengthDistribution,
    loaded: LoadedModel,
    target: TargetProfile,
    max_length: int | None = None,
) -> tuple[tuple[int, int], ...]:
    """The four padded buckets of least cost by the target's roofline: (lo, hi), ascending.

    Raises:
        ModelError: the model has no length axis, or fails.
        CostError: the target's profile lacks figures.
        LengthsError, PlanError: the lengths don't fit the model.
    """
    axis = loaded.length_axis
    if axis is None:
        raise ModelError(
            f"the model '{loaded.name}' has no length axis", hint="leave --lengths out"
        )
    limits = loaded.axes[axis]
    longest = min(x for x in (max_length, limits.hi, lengths.max) if x is not None)
    work = count_work(loaded, [limits.lo, longest])
    sizes = list(range(max(1, limits.lo), longest + 1))
    if target.gpu is not None:
        curve = gpu_curve(work, target, sizes)
    else:
        curve = modelled_curve(work, target, sizes)
    plan = plan_buckets(
        lengths,
        curve,
        max_buckets=_BUCKETS,
        min_sizes={axis: max(1, limits.lo)},
        max_sizes={axis: longest},
        modes=("pad",),
        length_axis=axis,
    )
    return tuple((bucket.lo, bucket.hi) for bucket in plan.buckets)
