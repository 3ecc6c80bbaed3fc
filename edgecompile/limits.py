"""How many buckets the constraints allow, and what a bucket costs where it is shipped."""

from __future__ import annotations

from dataclasses import dataclass

from edgecompile.errors import PlanError


@dataclass(frozen=True)
class BucketLimits:
    """Bounds on a bundle's size and build time, with what each bucket takes of them.

    Attributes:
        max_size: bytes that the bundle may have; None for no bound.
        base_size: bytes of the bundle without buckets (weights, runtime).
        bucket_size: bytes of one bucket, all variants together.
        max_build_s: seconds that the build may take; None for no bound.
        base_build_s: seconds of the build without buckets (export, verification).
        bucket_build_s: seconds to build one bucket, all variants together.
    """

    max_size: int | None = None
    base_size: int = 0
    bucket_size: int = 0
    max_build_s: float | None = None
    base_build_s: float = 0.0
    bucket_build_s: float = 0.0

    def most(self, max_buckets: int | None, wanted: int | None = None) -> int | None:
        """The largest number of buckets that every constraint allows, None without any bound.

        Args:
            max_buckets: a direct bound.
            wanted: a number of buckets that is asked for; it must be allowed.

        Raises:
            PlanError: a bound leaves no room for one bucket (or for ``wanted``); names every such
                bound and what it lacks.
        """
        needed = 1 if wanted is None else wanted
        problems = []
        if needed < 1:
            problems.append(f"{needed} buckets are asked for, but a plan has one at least")
            needed = 1
        bounds: list[int] = []
        if max_buckets is not None:
            if max_buckets < 1:
                problems.append(f"--max-buckets is {max_buckets}, but a plan has one at least")
            elif needed > max_buckets:
                problems.append(f"{needed} buckets are asked for, --max-buckets is {max_buckets}")
            bounds.append(max_buckets)
        axes = (
            ("--max-size", "bytes", self.max_size, self.base_size, self.bucket_size),
            ("--max-build-time", "s", self.max_build_s, self.base_build_s, self.bucket_build_s),
        )
        for name, unit, bound, base, each in axes:
            if bound is None:
                continue
            lacking = base + each * needed - bound
            if lacking > 0:
                problems.append(
                    f"{name} allows {bound:g} {unit}, but {needed} bucket{'s'[: needed > 1]} "
                    f"need {base + each * needed:g} {unit} ({base:g} without buckets, {each:g} for "
                    f"each), {lacking:g} {unit} too much"
                )
            elif each > 0:
                bounds.append(int((bound - base) // each))
        if problems:
            raise PlanError(
                "constraints that can't be met: " + "; ".join(problems),
                hint="raise the bound, or ask for fewer buckets or variants",
            )
        return min(bounds) if bounds else None


def price_per_bucket(
    *,
    runs: float,
    build_s: float = 0.0,
    load_ms: float = 0.0,
    size_mb: float = 0.0,
    ms_per_mb: float = 0.0,
) -> float:
    """What a bucket has to save in the mean run to be worth its cost, in milliseconds.

    (1000 · build_s + load_ms + size_mb · ms_per_mb) / runs: the bucket's cost over the time that
    the plan is in use, spread over the runs of that time.

    Args:
        runs: how many runs the bundle will serve.
        build_s: seconds to build the bucket.
        load_ms: milliseconds that it adds to loading, over all loads.
        size_mb: megabytes that it adds.
        ms_per_mb: milliseconds of run time that a megabyte is held to be worth.

    Raises:
        PlanError: ``runs`` isn't over 0, or another number is negative.
    """
    if not runs > 0:
        raise PlanError(f"the number of runs is {runs}, not over 0")
    parts = {"build_s": build_s, "load_ms": load_ms, "size_mb": size_mb, "ms_per_mb": ms_per_mb}
    bad = [f"{name} is {value}" for name, value in parts.items() if not 0 <= value < float("inf")]
    if bad:
        raise PlanError("a price needs numbers from 0 up: " + "; ".join(bad))
    return (1000.0 * build_s + load_ms + size_mb * ms_per_mb) / runs
