"""The number of buckets that the constraints allow, and the cost of a bucket where it is shipped."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from edgecompile.errors import PlanError
from edgecompile.units import format_bytes, format_duration

#: Buckets that a plan may have when nothing else bounds it: each costs a compilation.
DEFAULT_MAX_BUCKETS = 8
#: So many where nobody gave a number, and nothing but a program for each range of lengths serves a model.
MOST_SIDES = 32

#: Of what one bucket takes, in any unit: sums and products of such numbers stay finite.
_MOST = 1e18


@dataclass(frozen=True)
class BucketCost:
    """The cost of buckets where they are built and shipped; estimates from a few that were built.

    Attributes:
        base_size: bytes of the bundle without buckets (weights, runtime).
        bucket_size: bytes of one bucket, all variants together.
        base_build_s: seconds of the build without buckets (loading the model, measuring).
        bucket_build_s: seconds to build one bucket, all variants together.
        load_ms: milliseconds that loading one more bucket takes on the device.
        base_memory: bytes of the device's memory that a process takes without buckets, where that is known.
        bucket_memory: bytes of it for each bucket.
    """

    base_size: int = 0
    bucket_size: int = 0
    base_build_s: float = 0.0
    bucket_build_s: float = 0.0
    load_ms: float = 0.0
    base_memory: int = 0
    bucket_memory: int = 0

    def size(self, buckets: int) -> int:
        """Bytes of a bundle with this number of buckets."""
        return self.base_size + buckets * self.bucket_size

    def build_s(self, buckets: int) -> float:
        """Seconds to build a bundle with this number of buckets."""
        return self.base_build_s + buckets * self.bucket_build_s

    def price(self, runs: float) -> float:
        """The saving in the mean run that makes a bucket worth its cost, in milliseconds.

        (1000 · bucket_build_s + load_ms) / runs: the bucket's cost, spread over the runs of the time
        that the plan is in use.

        Raises:
            PlanError: ``runs`` isn't over 0.
        """
        if not runs > 0:
            raise PlanError(f"the number of runs is {runs}, not over 0")
        return (1000.0 * self.bucket_build_s + self.load_ms) / runs

    def to_json(self) -> dict[str, float]:
        """A dict of plain numbers."""
        return dict(vars(self))

    @classmethod
    def from_json(cls, value: object) -> BucketCost:
        """The inverse of :meth:`to_json`; what is missing is 0, unknown keys are ignored.

        Raises:
            PlanError: ``value`` has another form or holds bad numbers.
        """
        if not isinstance(value, dict):
            raise PlanError(f"a bucket's cost is a {type(value).__name__}, not an object")
        numbers = {field.name: value.get(field.name, 0) for field in fields(cls)}
        bad = [
            f"{name} is {number!r}"
            for name, number in numbers.items()
            if isinstance(number, bool)
            or not isinstance(number, int | float)
            or not 0 <= number <= _MOST
        ]
        if bad:
            raise PlanError(f"a bucket's cost needs numbers from 0 to {_MOST:g}: " + "; ".join(bad))
        for name in ("base_size", "bucket_size", "base_memory", "bucket_memory"):
            numbers[name] = int(numbers[name])
        return cls(**numbers)


@dataclass(frozen=True)
class BucketLimits:
    """Bounds on a bundle's size, build time and memory, with the share of each bucket.

    Attributes:
        max_size: bytes that the bundle may have; None for no bound.
        max_build_s: seconds that the build may take; None for no bound.
        cost: the cost of a bucket.
        max_memory: bytes that a process may take of the device's memory; None for no bound.
    """

    max_size: int | None = None
    max_build_s: float | None = None
    cost: BucketCost = field(default_factory=BucketCost)
    max_memory: int | None = None

    def most(
        self, max_buckets: int | None, buckets: int | None = None, least: int = 1
    ) -> int | None:
        """The largest number of buckets that every constraint allows, None without any bound.

        Args:
            max_buckets: a direct bound.
            buckets: a number of buckets that is asked for; it must be allowed.
            least: the fewest buckets that serve all lengths.

        Raises:
            PlanError: a bound leaves no room for ``least`` (or for ``buckets``); names every such
                bound and what it lacks.
        """
        needed = 1 if buckets is None else buckets
        problems = []
        if needed < 1:
            problems.append(f"{needed} buckets are asked for, but a plan has one at least")
            needed = 1
        if needed < least:
            if buckets is not None:
                problems.append(f"{needed} buckets are asked for, but {_fewest(least)}")
            elif max_buckets is not None and 1 <= max_buckets < least:
                problems.append(f"`max_buckets` is {max_buckets}, but {_fewest(least)}")
            needed = least
        bounds: list[int] = []
        if max_buckets is not None:
            if max_buckets < 1:
                problems.append(f"`max_buckets` is {max_buckets}, but a plan has one at least")
            elif needed > max_buckets and buckets is not None:
                problems.append(f"{needed} buckets are asked for, `max_buckets` is {max_buckets}")
            bounds.append(max_buckets)
        cost = self.cost
        bounded = (
            ("`max_size`", format_bytes, self.max_size, cost.base_size, cost.bucket_size),
            (
                "`max_build_time`",
                format_duration,
                self.max_build_s,
                cost.base_build_s,
                cost.bucket_build_s,
            ),
            (
                "the device's memory",
                format_bytes,
                self.max_memory,
                cost.base_memory,
                cost.bucket_memory,
            ),
        )
        for name, spell, bound, base, each in bounded:
            if bound is None:
                continue
            lacking = base + each * needed - bound
            noun = "bucket needs" if needed == 1 else "buckets need"
            if lacking > 0:
                problems.append(
                    f"{name} allows {spell(bound)}, but {needed} {noun} "
                    f"{spell(base + each * needed)} ({spell(base)} without buckets, {spell(each)} "
                    f"for each), {spell(lacking)} too much"
                )
            elif each > 0:
                bounds.append(int((bound - base) // each))
        if problems:
            raise PlanError(
                "constraints that can't be met: " + "; ".join(problems),
                hint="raise the bound, or ask for fewer buckets or variants",
            )
        return min(bounds) if bounds else None


def _fewest(least: int) -> str:
    return f"the model's code takes {least} ways by the length, and each needs a bucket"
