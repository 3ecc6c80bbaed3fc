"""The costs of buckets on traffic: every plan and baseline is judged by these functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgecompile.buckets.costs.grid import MODES, CostGrid, FloatArray
from edgecompile.buckets.ranges import Bucket
from edgecompile.buckets.traffic import IntArray, Sizes, Traffic
from edgecompile.errors import PlanError


@dataclass(frozen=True)
class Evaluation:
    """Figures of one set of buckets under one grid of costs and traffic.

    Attributes:
        expected_ms: mean milliseconds of a run.
        p50_ms, p99_ms: the times that 50 % and 99 % of the runs don't exceed, as far as the sizes
            decide.
        padding_waste: share of the computed elements that are padding, 0 where nothing is padded.
            A run has as many elements as the product of its sizes.
        programs: number of buckets.
    """

    expected_ms: float
    p50_ms: float
    p99_ms: float
    padding_waste: float
    programs: int


def evaluate_buckets(buckets: Sequence[Bucket], sizes: Sizes, costs: CostGrid) -> Evaluation:
    """The figures of buckets that serve all of the traffic.

    Args:
        buckets: the first one that holds a run's sizes serves it.
        sizes: the traffic, over the axes of the costs; of lengths alone, over the buckets' length
            axis.
        costs: milliseconds by sizes and mode.

    Raises:
        PlanError: some sizes are outside every bucket, or the buckets lack an axis.
        CostError: there are no costs in a bucket's mode.
    """
    traffic = Traffic.of(sizes, buckets[0].length_axis)
    which = find_buckets(buckets, traffic)
    run = run_sizes(buckets, traffic, which)
    ms = _costs(buckets, run, which, costs)
    computed, real = (
        float(x.prod(axis=1, dtype=np.float64) @ traffic.counts) for x in (run, traffic.sizes)
    )
    return Evaluation(
        expected_ms=float(ms @ traffic.counts) / traffic.n,
        p50_ms=_quantile(ms, traffic.counts, 0.5),
        p99_ms=_quantile(ms, traffic.counts, 0.99),
        padding_waste=(computed - real) / computed,
        programs=len(buckets),
    )


def expected_cost(buckets: Sequence[Bucket], sizes: Sizes, costs: CostGrid) -> float:
    """Mean milliseconds of one run over the traffic; see :func:`evaluate_buckets`."""
    traffic = Traffic.of(sizes, buckets[0].length_axis)
    return float(run_costs(buckets, traffic, costs) @ traffic.counts) / traffic.n


def run_costs(buckets: Sequence[Bucket], sizes: Sizes, costs: CostGrid) -> FloatArray:
    """Milliseconds of one run at each distinct combination of sizes, shape [cells].

    Raises:
        PlanError, CostError: see :func:`evaluate_buckets`.
    """
    traffic = Traffic.of(sizes, buckets[0].length_axis)
    which = find_buckets(buckets, traffic)
    return _costs(buckets, run_sizes(buckets, traffic, which), which, costs)


def find_buckets(buckets: Sequence[Bucket], traffic: Traffic, partly: bool = False) -> IntArray:
    """Index of the first bucket that serves each distinct combination of sizes, shape [cells].

    Args:
        buckets: the buckets in any order; axes that the traffic doesn't have are of no account.
        traffic: the traffic.
        partly: give −1 for sizes outside every bucket instead of refusing them.

    Raises:
        PlanError: some sizes are outside every bucket, or the buckets lack an axis.
    """
    names = [name for name, _ in buckets[0].axes]
    missing = [axis for axis in traffic.axes if axis not in names]
    if missing:
        raise PlanError(
            f"the buckets have the axes {', '.join(names)}, but the sample has sizes of "
            f"{' and '.join(missing)}"
        )
    which = np.full(len(traffic.sizes), -1, dtype=np.int64)
    for index in range(len(buckets) - 1, -1, -1):
        ranges = [buckets[index].range(axis) for axis in traffic.axes]
        los, his, steps = ([getattr(own, key) for own in ranges] for key in ("lo", "hi", "step"))
        inside = (traffic.sizes >= los) & (traffic.sizes <= his)
        which[(inside & ((traffic.sizes - los) % steps == 0)).all(axis=1)] = index
    outside = which < 0
    if outside.any() and not partly:
        shown = "; ".join(
            ", ".join(f"{axis} {n}" for axis, n in zip(traffic.axes, cell, strict=True))
            for cell in traffic.sizes[outside][:5].tolist()
        )
        raise PlanError(
            f"no bucket serves {shown}" + (" and others" if outside.sum() > 5 else ""),
            hint="clip the sample, or plan with larger sizes",
        )
    return which


def run_sizes(buckets: Sequence[Bucket], traffic: Traffic, which: IntArray) -> IntArray:
    """The sizes at which each combination runs, shape [cells, axes]; ``which`` as found above."""
    ends = np.array(
        [[b.range(a).hi if a in b.pad_axes else 0 for a in traffic.axes] for b in buckets]
    )
    run: IntArray = np.maximum(traffic.sizes, ends[which])
    return run


def _costs(
    buckets: Sequence[Bucket], run: IntArray, which: IntArray, costs: CostGrid
) -> FloatArray:
    ms = np.empty(len(run))
    for mode in MODES:
        where = np.array([bucket.mode == mode for bucket in buckets])[which]
        if where.any():
            ms[where] = costs.at(run[where], mode)
    return ms


def _quantile(ms: FloatArray, counts: IntArray, q: float) -> float:
    """The least cost that a share ``q`` of the samples doesn't exceed."""
    order = np.argsort(ms, kind="stable")
    reached = np.cumsum(counts[order])
    return float(ms[order][np.searchsorted(reached, np.ceil(q * int(counts.sum()) - 1e-6))])
