"""The result of comparing a bundle's traffic with its plan, and the verdict that follows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edgecompile.buckets.costs.grid import Mode
from edgecompile.buckets.plan import BucketPlan
from edgecompile.buckets.ranges import Bucket
from edgecompile.files import plain
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.lengths.served_traffic import ServedTraffic

#: From this many calls on, every share of the traffic up to a length is known to 5 % with 99 %
#: confidence: √(ln(2/0.01)/(2n)), the Dvoretzky-Kiefer-Wolfowitz bound with Massart's constant.
MIN_CALLS = 1000


@dataclass(frozen=True)
class Thresholds:
    """The limits from which on traffic has moved or a new plan pays; all shares are 0 to 1.

    Attributes:
        tolerance: the share by which the plan may cost more than the best for the new traffic.
        max_refused: the share of the calls that may be refused for their sizes, beyond what the
            plan knew it would refuse.
        distance: the distance that a move has to exceed.
        min_calls: fewer calls than this tell nothing.
    """

    tolerance: float = 0.05
    max_refused: float = 0.01
    distance: float = 0.1
    min_calls: int = MIN_CALLS


@dataclass(frozen=True)
class LengthShift:
    """The distance between planned and served lengths, where those over the plan's longest count as that one.

    Attributes:
        distance: the largest difference between the shares of calls up to a length.
        chance: the distance that samples of these sizes have by chance in 1 % of all cases.
        planned, asked: the lengths planned for, and those asked for, refused ones included.
    """

    distance: float
    chance: float
    planned: LengthDistribution
    asked: LengthDistribution

    def to_json(self) -> dict[str, Any]:
        """Both distances, and a summary of both samples."""
        return {
            "distance": self.distance,
            "chance": self.chance,
            "planned": self.planned.summary().to_json(),
            "asked": self.asked.summary().to_json(),
        }


@dataclass(frozen=True)
class CostDrift:
    """The plan's cost on the new traffic against the best plan's, by the plan's own cost model.

    Attributes:
        current_ms: mean run in the current buckets.
        optimum: the best plan for the new traffic under the same constraints.
        excess: share by which the current buckets cost more, the price of buckets included. The
            optimum fits the sample that it is judged on, so this is too large by a little: with
            1000 calls of unchanged traffic and 8 padded buckets by 1 to 2 %.
        planned_excess: the excess on the lengths that the plan was made for: over 0 for a plan that
            wasn't the optimum even then.
        modes, max_buckets: the constraints that the optimum had.
    """

    current_ms: float
    optimum: BucketPlan
    excess: float
    planned_excess: float
    modes: tuple[Mode, ...]
    max_buckets: int | None

    def to_json(self) -> dict[str, Any]:
        """Plain data; the optimum with its buckets."""
        optimum = self.optimum
        return {
            **{key: plain(value) for key, value in vars(self).items() if value is not optimum},
            "optimum_ms": optimum.expected_ms,
            "optimum_buckets": plain(optimum.buckets),
            "price_per_bucket": optimum.price_per_bucket,
        }


@dataclass(frozen=True)
class BucketDrift:
    """One bucket of the current plan.

    Attributes:
        bucket: it.
        planned_share, served_share: the share of the served calls, as planned for and now; None
            where the lengths alone don't tell the bucket.
        expected_ms: mean of its runs of the new lengths under the plan's cost model, if known.
        observed_ms: the time that the devices measured; None if it had no runs or the stats
            belong to another bundle. Beside ``expected_ms`` a hint on how far the cost model is
            off; nothing is decided by it.
    """

    bucket: Bucket
    planned_share: float | None
    served_share: float | None
    expected_ms: float | None
    observed_ms: float | None

    def to_json(self) -> dict[str, Any]:
        """The bucket's own JSON and these figures beside it."""
        figures = dict(vars(self))
        return {**figures.pop("bucket").to_json(), **figures}


@dataclass(frozen=True)
class ReleaseDrift:
    """The traffic of one bundle and release among those that were counted.

    Attributes:
        manifest_sha256: SHA-256 of the bundle's manifest.
        release: number of its release; None: the files don't tell.
        files: number of the files.
        since, until: the times when counting began and when the last file was written, UTC.
        calls: calls that were served or refused for their sizes.
        refused_share: share of the calls that was refused for its sizes.
        mean_length: mean length that was asked for; None without calls.
        distance: distance of the lengths from the planned ones; None without calls.
        mean_ms: mean time inside ``run`` in ms; None without runs.
    """

    manifest_sha256: str
    release: int | None
    files: int
    since: str
    until: str
    calls: int
    refused_share: float
    mean_length: float | None
    distance: float | None
    mean_ms: float | None


@dataclass(frozen=True)
class DriftReport:
    """The verdict and its basis.

    Attributes:
        name, manifest_sha256: the bundle's.
        traffic: the served traffic.
        thresholds: the thresholds that were applied.
        refused: calls that this bundle refuses for their sizes.
        planned_refused_share: the share of the planned lengths that it refuses.
        shift: the distance between the planned and the served lengths; None without calls.
        cost: None if the bundle has no cost model, serves none of the calls, or divides more than
            one axis.
        buckets: the buckets in the plan's order.
        releases: each bundle and release that was counted, by ascending number.
    """

    name: str
    manifest_sha256: str
    traffic: ServedTraffic
    thresholds: Thresholds
    refused: int
    planned_refused_share: float
    shift: LengthShift | None
    cost: CostDrift | None
    buckets: tuple[BucketDrift, ...]
    releases: tuple[ReleaseDrift, ...]

    @property
    def enough(self) -> bool:
        """Whether there were calls enough to tell anything."""
        return self.traffic.calls >= self.thresholds.min_calls

    @property
    def refused_share(self) -> float:
        """The share of the calls that is refused for its sizes; 0 without calls."""
        return self.refused / self.traffic.calls if self.traffic.calls else 0.0

    @property
    def moved(self) -> bool | None:
        """Whether the lengths have moved; None if there are too few calls to tell."""
        if not self.enough or self.shift is None:
            return None
        return self.shift.distance > max(self.thresholds.distance, self.shift.chance)

    @property
    def act(self) -> bool:
        """Whether a new plan pays."""
        return bool(self.reasons)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why a new plan pays, in sentences; empty if it doesn't, or nothing can be told."""
        if not self.enough:
            return ()
        reasons = []
        limits = self.thresholds
        if self.cost is not None and self.cost.excess > limits.tolerance:
            reasons.append(
                f"the buckets cost {_percent(self.cost.excess)} more than the best for this "
                f"traffic would ({_percent(limits.tolerance)} are tolerated)"
            )
        allowed = self.planned_refused_share + limits.max_refused
        if self.refused_share > allowed:
            reasons.append(
                f"{_percent(self.refused_share)} of the calls were refused for their sizes "
                f"({_percent(allowed)} are tolerated)"
            )
        return tuple(reasons)

    @property
    def verdict(self) -> str:
        """One line for people."""
        if not self.enough:
            return (
                f"too little traffic to tell: {self.traffic.calls} calls, "
                f"{self.thresholds.min_calls} are needed"
            )
        moved = "the lengths have moved" if self.moved else "the lengths haven't moved"
        if self.act:
            return f"plan again: {'; '.join(self.reasons)}; {moved}"
        if self.cost is None:
            untold = f"{moved}; what the buckets cost can't be told"
            return f"{untold}: plan again to compare" if self.moved else f"nothing to do: {untold}"
        over = max(0.0, self.cost.excess)
        joint = "but" if self.moved else "and"
        return f"nothing to do: {moved}, {joint} the buckets cost {_percent(over)} over the best"

    def to_json(self) -> dict[str, Any]:
        """Plain data; ``verdict``, ``act`` and ``moved`` are what a script wants."""
        traffic = self.traffic
        return {
            "bundle": self.name,
            "manifest_sha256": self.manifest_sha256,
            "verdict": self.verdict,
            "enough": self.enough,
            "act": self.act,
            "moved": self.moved,
            "reasons": list(self.reasons),
            "thresholds": plain(self.thresholds),
            "traffic": {
                "manifests": list(traffic.manifests),
                "since": traffic.since,
                "until": traffic.until,
                "files": len(traffic.sources),
                "calls": traffic.calls,
                "runs": traffic.runs,
                "refused": self.refused,
                "refused_share": self.refused_share,
                "planned_refused_share": self.planned_refused_share,
                "all_refused": traffic.refused,
            },
            "shift": plain(self.shift),
            "cost": plain(self.cost),
            "buckets": plain(self.buckets),
            "releases": plain(self.releases),
        }


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
