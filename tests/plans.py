"""Plans given to builds whose tests aren't about planning: then no costs are measured for them."""

from __future__ import annotations

from edgecompile.buckets.plan import BucketPlan
from edgecompile.buckets.ranges import AxisRange, Bucket


def exact_plan(*longest: int, batch: int) -> BucketPlan:
    """Exact buckets of lengths that end at ``longest``, the first begins at 1; batches from 1 to ``batch``."""
    starts = [1, *(end + 1 for end in longest)]
    buckets = (
        Bucket(
            "exact",
            (("length", AxisRange(lo, hi, (lo + hi) // 2)), ("batch", AxisRange(1, batch, 1))),
        )
        for lo, hi in zip(starts, longest, strict=False)
    )
    return BucketPlan("length", tuple(buckets))
