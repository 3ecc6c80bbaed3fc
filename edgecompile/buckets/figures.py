"""What each bucket of a plan serves, and the tables that show it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgecompile.buckets.costs.grid import FloatArray
from edgecompile.buckets.evaluation import find_buckets, run_costs, run_sizes
from edgecompile.buckets.plan import BucketPlan
from edgecompile.buckets.ranges import Bucket
from edgecompile.buckets.traffic import Sizes, Traffic
from edgecompile.units import format_ms, format_share


@dataclass(frozen=True)
class BucketFigures:
    """One bucket and the part of the traffic that it serves.

    Attributes:
        bucket: the bucket.
        share: of the samples, 0 to 1.
        padding_waste: of what the bucket computes, the share that is padding; 0 if it serves
            none of the samples.
        expected_ms: mean of its runs under the plan's costs; None without costs or samples.
    """

    bucket: Bucket
    share: float
    padding_waste: float
    expected_ms: float | None


@dataclass(frozen=True)
class PlanFigures:
    """A plan against traffic.

    Attributes:
        axes: those of the traffic, the length axis first.
        buckets: in the plan's order.
        covered: share of the samples that some bucket serves.
        padding_waste: of all that is computed, the share that is padding.
        expected_ms: mean run of the covered samples; None without costs.
    """

    axes: tuple[str, ...]
    buckets: tuple[BucketFigures, ...]
    covered: float
    padding_waste: float
    expected_ms: float | None

    def table(self) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
        """Headings and rows of the buckets, as texts; the last column has their mean run."""
        names = self.axes if len(self.axes) > 1 else ("lengths",)
        rows = []
        for index, item in enumerate(self.buckets):
            ranges = [item.bucket.range(axis) for axis in self.axes]
            rows.append(
                (
                    f"{index}",
                    item.bucket.mode,
                    *(f"{own.lo}–{own.hi}" for own in ranges),
                    " × ".join(f"{own.hint}" for own in ranges),
                    format_share(item.share),
                    format_share(item.padding_waste),
                    format_ms(item.expected_ms),
                )
            )
        columns = ("bucket", "mode", *names, "tuned for", "inputs", "padding", "mean ms")
        return columns, tuple(rows)


def plan_figures(plan: BucketPlan, sizes: Sizes) -> PlanFigures:
    """Sends every sample to the first bucket that holds its sizes, and adds up.

    Only the axes of the traffic are looked at. Samples outside every bucket count as not covered.
    A run has as many elements as the product of its sizes.
    """
    traffic = Traffic.of(sizes, plan.length_axis)
    which = find_buckets(plan.buckets, traffic, partly=True)
    inside = which >= 0
    part = Traffic(traffic.axes, traffic.sizes[inside], traffic.counts[inside], traffic.source)
    index, count = which[inside], len(plan.buckets)

    def add(values: FloatArray) -> list[float]:
        """The sum over the samples of each bucket."""
        sums: list[float] = np.bincount(index, part.counts * values, count).tolist()
        return sums

    run = run_sizes(plan.buckets, part, index)
    samples = add(np.ones(len(index)))
    useful, computed = (add(x.prod(axis=1, dtype=np.float64)) for x in (part.sizes, run))
    ms = None
    if plan.cost_model is not None and len(index):
        ms = add(run_costs(plan.buckets, part, plan.cost_model))
    figures = tuple(
        BucketFigures(
            bucket=bucket,
            share=samples[i] / traffic.n,
            padding_waste=1.0 - useful[i] / computed[i] if computed[i] else 0.0,
            expected_ms=ms[i] / samples[i] if ms is not None and samples[i] else None,
        )
        for i, bucket in enumerate(plan.buckets)
    )
    served = sum(samples)
    return PlanFigures(
        axes=traffic.axes,
        buckets=figures,
        covered=served / traffic.n,
        padding_waste=1.0 - sum(useful) / sum(computed) if served else 0.0,
        expected_ms=sum(ms) / served if ms is not None else None,
    )
