"""What a plan means for a sample of traffic, in the figures that tables and pages show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edgecompile.buckets import Bucket, BucketPlan
from edgecompile.lengths import LengthDistribution

__all__ = ["BucketFigures", "PlanFigures", "plan_figures"]


@dataclass(frozen=True)
class BucketFigures:
    """One bucket and the part of the sample that it serves.

    Attributes:
        bucket: the bucket.
        share: of the samples, 0 to 1.
        padding_waste: of what the bucket computes, the share that is padding; 0 if it serves
            none of the samples.
        expected_ms: mean of its runs under the plan's cost model; None without a cost model or
            without samples.
    """

    bucket: Bucket
    share: float
    padding_waste: float
    expected_ms: float | None

    def to_json(self) -> dict[str, Any]:
        """The bucket's own JSON and these figures beside it."""
        return {
            **self.bucket.to_json(),
            "share": self.share,
            "padding_waste": self.padding_waste,
            "expected_ms": self.expected_ms,
        }


@dataclass(frozen=True)
class PlanFigures:
    """A plan against a sample.

    Attributes:
        buckets: in the plan's order.
        covered: share of the samples that some bucket serves.
        padding_waste: of all that is computed, the share that is padding.
        expected_ms: mean run of the covered samples; None without a cost model.
    """

    buckets: tuple[BucketFigures, ...]
    covered: float
    padding_waste: float
    expected_ms: float | None


def plan_figures(plan: BucketPlan, distribution: LengthDistribution) -> PlanFigures:
    """Sends every sample to the first bucket whose lengths hold it, and adds up.

    Only the length axis is looked at: a sample says nothing about the others.
    """
    samples = [0] * len(plan.buckets)
    useful = [0] * len(plan.buckets)
    run = [0] * len(plan.buckets)
    ms = [0.0] * len(plan.buckets)
    for length, count in zip(distribution.lengths, distribution.counts, strict=True):
        for i, bucket in enumerate(plan.buckets):
            if bucket.lo <= length <= bucket.hi:
                size = bucket.run_length(length)
                samples[i] += count
                useful[i] += count * length
                run[i] += count * size
                if plan.cost_model is not None:
                    ms[i] += count * plan.cost_model.cost(size, bucket.mode)
                break
    figures = tuple(
        BucketFigures(
            bucket=bucket,
            share=samples[i] / distribution.n,
            padding_waste=1.0 - useful[i] / run[i] if run[i] else 0.0,
            expected_ms=ms[i] / samples[i] if samples[i] and plan.cost_model is not None else None,
        )
        for i, bucket in enumerate(plan.buckets)
    )
    served = sum(samples)
    return PlanFigures(
        buckets=figures,
        covered=served / distribution.n,
        padding_waste=1.0 - sum(useful) / sum(run) if served else 0.0,
        expected_ms=sum(ms) / served if served and plan.cost_model is not None else None,
    )
