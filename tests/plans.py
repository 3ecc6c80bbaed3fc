"""Plans given to builds whose tests aren't about planning: then no costs are measured for them."""

from __future__ import annotations

from edgecompile.buckets.plan import BucketPlan
from edgecompile.buckets.ranges import AxisRange, Bucket


def exact_plan(*longest: int, batch: int = 0) -> BucketPlan:
    """Exact buckets of lengths that end at ``longest``, the first begins at 1; batches from 1 to ``batch``, 0: none."""
    starts = [1, *(end + 1 for end in longest)]
    batches = [("batch", AxisRange(1, batch, 1))] if batch else []
    buckets = (
        Bucket("exact", (("length", AxisRange(lo, hi, (lo + hi) // 2)), *batches))
        for lo, hi in zip(starts, longest, strict=False)
    )
    return BucketPlan("length", tuple(buckets))
