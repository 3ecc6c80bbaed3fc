"""The share of the traffic that each bucket serves, and the table that shows it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgecompile.buckets.evaluation import find_buckets, run_costs, run_sizes
from edgecompile.buckets.plan import BucketPlan
from edgecompile.buckets.ranges import Bucket
from edgecompile.buckets.traffic import Sizes, Traffic
from edgecompile.units import format_ms, format_share

TextTable = tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]


@dataclass(frozen=True)
class BucketFigures:
    """One bucket and the part of the traffic that it serves.

    Attributes:
        bucket: the bucket.
        share: the share of the samples, 0 to 1.
        padding_waste: the share of padding in the bucket's computation; 0 if it serves
            none of the samples.
        expected_ms: mean of its runs under the plan's costs; None without costs or samples.
    """

    bucket: Bucket
    share: float
    padding_waste: float
    expected_ms: float | None


def bucket_figures(plan: BucketPlan, sizes: Sizes) -> tuple[BucketFigures, ...]:
    """The figures of every bucket, in the plan's order.

    Every sample goes to the first bucket that holds its sizes; those outside every bucket count
    as not served. A run has as many elements as the product of its sizes.
    """
    traffic = Traffic.of(sizes, plan.length_axis)
    which = find_buckets(plan.buckets, traffic, partly=True)
    figures = []
    for index, bucket in enumerate(plan.buckets):
        at = which == index
        part = Traffic(traffic.axes, traffic.sizes[at], traffic.counts[at])
        run = run_sizes([bucket], part, np.zeros(int(at.sum()), dtype=np.int64))
        useful, computed = (
            float(x.prod(axis=1, dtype=np.float64) @ part.counts) for x in (part.sizes, run)
        )
        ms = None
        if part.n and plan.cost_model is not None:
            ms = float(run_costs([bucket], part, plan.cost_model) @ part.counts) / part.n
        waste = 1.0 - useful / computed if computed else 0.0
        figures.append(BucketFigures(bucket, part.n / traffic.n, waste, ms))
    return tuple(figures)


def bucket_table(plan: BucketPlan, sizes: Sizes) -> TextTable:
    """Headings and rows of the buckets, as texts; the last column has their mean run."""
    axes = Traffic.of(sizes, plan.length_axis).axes
    rows = []
    for index, item in enumerate(bucket_figures(plan, sizes)):
        ranges = [item.bucket.range(axis) for axis in axes]
        rows.append(
            (
                f"{index}",
                item.bucket.mode,
                *(own.label for own in ranges),
                " × ".join(f"{own.hint}" for own in ranges),
                format_share(item.share),
                format_share(item.padding_waste),
                format_ms(item.expected_ms),
            )
        )
    names = axes if len(axes) > 1 else ("lengths",)
    columns = ("bucket", "mode", *names, "tuned for", "inputs", "padding", "mean ms")
    return columns, tuple(rows)
