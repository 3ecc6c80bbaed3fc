"""What given buckets cost on a sample of two axes; :mod:`edgecompile.buckets.evaluation` has one axis."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edgecompile.buckets.costs.curves import FloatArray
from edgecompile.buckets.costs.surfaces import CostSurface
from edgecompile.buckets.evaluation import Evaluation, weighted_quantile
from edgecompile.buckets.ranges import Bucket
from edgecompile.errors import PlanError
from edgecompile.lengths.joint import JointDistribution

IntArray = npt.NDArray[np.int64]


def evaluate_joint(
    buckets: Sequence[Bucket], distribution: JointDistribution, surface: CostSurface
) -> Evaluation:
    """Judges buckets that serve the whole sample.

    The padding waste is the share of computed elements that are padding, where a run has as many
    elements as the product of its two sizes.

    Raises:
        PlanError: some sizes lie outside every bucket, or the buckets lack an axis.
        CostError: the surface has no costs in a bucket's mode.
    """
    which = find_buckets(buckets, distribution)
    costs = _costs(buckets, distribution, surface, which)
    counts = distribution.count_array
    computed = _run_sizes(buckets, distribution, which).prod(axis=1, dtype=np.float64)
    real = distribution.size_array.prod(axis=1, dtype=np.float64)
    total = float(computed @ counts)
    return Evaluation(
        expected_ms=float(costs @ counts) / distribution.n,
        p50_ms=weighted_quantile(costs, counts, 0.5),
        p99_ms=weighted_quantile(costs, counts, 0.99),
        padding_waste=(total - float(real @ counts)) / total,
        programs=len(buckets),
    )


def joint_cost(
    buckets: Sequence[Bucket], distribution: JointDistribution, surface: CostSurface
) -> float:
    """Mean milliseconds of one run over the sample; see :func:`evaluate_joint`."""
    costs = joint_run_costs(buckets, distribution, surface)
    return float(costs @ distribution.count_array) / distribution.n


def joint_run_costs(
    buckets: Sequence[Bucket], distribution: JointDistribution, surface: CostSurface
) -> FloatArray:
    """Milliseconds of one run at each distinct pair of sizes, shape [cells].

    Raises:
        PlanError: some sizes lie outside every bucket, or the buckets lack an axis.
        CostError: the surface has no costs in a bucket's mode.
    """
    return _costs(buckets, distribution, surface, find_buckets(buckets, distribution))


def find_buckets(
    buckets: Sequence[Bucket], distribution: JointDistribution, partly: bool = False
) -> IntArray:
    """Index of the first bucket that serves each distinct pair of sizes, shape [cells].

    Args:
        buckets: in any order.
        distribution: the sample.
        partly: give −1 for sizes outside every bucket instead of refusing them.

    Raises:
        PlanError: some sizes lie outside every bucket, or the buckets lack an axis.
    """
    names = [name for name, _ in buckets[0].axes]
    missing = [axis for axis in distribution.axes if axis not in names]
    if missing:
        raise PlanError(
            f"the buckets have the axes {', '.join(names)}, but the sample has sizes of "
            f"{' and '.join(missing)}"
        )
    sizes = distribution.size_array
    which = np.full(len(sizes), -1, dtype=np.int64)
    for index in range(len(buckets) - 1, -1, -1):
        inside = np.ones(len(sizes), dtype=bool)
        for column, axis in enumerate(distribution.axes):
            own = buckets[index].range(axis)
            inside &= (sizes[:, column] >= own.lo) & (sizes[:, column] <= own.hi)
        which[inside] = index
    outside = which < 0
    if outside.any() and not partly:
        shown = "; ".join(
            ", ".join(f"{a} {n}" for a, n in zip(distribution.axes, cell, strict=True))
            for cell in sizes[outside][:5].tolist()
        )
        raise PlanError(
            f"no bucket serves {shown}" + (" and others" if outside.sum() > 5 else ""),
            hint="clip the sample, or plan with larger sizes",
        )
    return which


def _run_sizes(
    buckets: Sequence[Bucket], distribution: JointDistribution, which: IntArray
) -> IntArray:
    """The sizes at which each pair runs, shape [cells, 2]."""
    run = distribution.size_array.copy()
    for column, axis in enumerate(distribution.axes):
        ends = np.array([b.range(axis).hi if axis in b.pad_axes else 0 for b in buckets])[which]
        run[:, column] = np.where(ends > 0, ends, run[:, column])
    return run


def _costs(
    buckets: Sequence[Bucket],
    distribution: JointDistribution,
    surface: CostSurface,
    which: IntArray,
) -> FloatArray:
    run = _run_sizes(buckets, distribution, which)
    padded = np.array([bucket.mode == "pad" for bucket in buckets])[which]
    costs = np.empty(len(run))
    for mode, where in (("pad", padded), ("exact", ~padded)):
        if where.any():
            costs[where] = surface.cost(
                run[where, 0], run[where, 1], "pad" if mode == "pad" else "exact"
            )
    return costs
