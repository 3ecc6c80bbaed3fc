"""The traffic of devices, added up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from edgecompile.errors import LengthsError, UsageError
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.lengths.joint import JointDistribution
from edgecompile.lengths.rows import Sizes

STATS_HINT = "give a file that the device's runtime wrote for its bundle (open_bundle's stats_file)"


def missing_lengths() -> UsageError:
    """The error where nothing says which lengths there are."""
    return UsageError(
        "the lengths of the traffic are missing",
        hint="give `lengths`, `texts`, or as `stats` what devices counted",
    )


@dataclass(frozen=True)
class BucketTraffic:
    """One bucket's runs, and their mean time inside ``run`` in ms; None without runs."""

    runs: int
    mean_ms: float | None


@dataclass(frozen=True)
class ServedTraffic:
    """The traffic of one or several devices.

    Attributes:
        bundle: name of the bundle; several names where files of several were merged.
        manifests: the SHA-256 of the manifest of each bundle, ascending.
        length_axis: name of the axis whose lengths were counted.
        length_bin: the number of lengths that one count stands for, the largest of any file.
        distribution: lengths of the runs; None if there were none.
        outside: calls that no bucket took, because of their length or another size, by length.
        refused: all refused calls, whatever the reason.
        since, until: the times when counting began and when the last file was written, UTC.
        buckets: per bucket; empty where files of several bundles were merged.
        joint: lengths of the runs with another size, where two axes vary and it was counted.
        sources: the files.
        release: number of the bundle's release; None: it is unknown, or there are several.
        releases: the same for each bundle and release, ascending; empty where there is one.
    """

    bundle: str
    manifests: tuple[str, ...]
    length_axis: str
    length_bin: int
    distribution: LengthDistribution | None
    outside: Mapping[int, int] = field(hash=False)
    refused: int
    since: str
    until: str
    buckets: tuple[BucketTraffic, ...] = ()
    joint: JointDistribution | None = None
    sources: tuple[str, ...] = ()
    release: int | None = None
    releases: tuple[ServedTraffic, ...] = ()

    @property
    def by_release(self) -> tuple[ServedTraffic, ...]:
        """The traffic of each bundle and release, also where there is one."""
        return self.releases or (self,)

    @property
    def mean_ms(self) -> float | None:
        """Mean time inside ``run`` in ms; None without runs, or where files of several bundles were merged."""
        timed = [item for item in self.buckets if item.runs and item.mean_ms is not None]
        runs = sum(item.runs for item in timed)
        return sum(item.runs * (item.mean_ms or 0.0) for item in timed) / runs if runs else None

    @property
    def runs(self) -> int:
        """Calls that were served."""
        return 0 if self.distribution is None else self.distribution.n

    @property
    def calls(self) -> int:
        """Calls that were served or refused for their sizes."""
        return self.runs + sum(self.outside.values())

    def demand(self, *, outside: bool = True) -> LengthDistribution:
        """The lengths that were asked for, to plan from.

        Args:
            outside: count the lengths of calls that no bucket took, too; they are what a new plan
                should serve.

        Raises:
            LengthsError: there are none.
        """
        counts = _counts(self.distribution)
        if outside:
            counts.update(self.outside)
        if not counts:
            raise LengthsError(
                f"{self.describe()}: no call was counted yet", hint="wait for traffic"
            )
        return LengthDistribution.from_counts(counts, self.describe())

    def sizes(self) -> tuple[LengthDistribution, JointDistribution | None]:
        """The lengths that were asked for, and with another axis where it was counted, too."""
        lengths = self.demand()
        return lengths, self.joint and replace(self.joint, source=lengths.source)

    def describe(self) -> str:
        """The origin of the lengths, for people; used as the source of distributions."""
        files = "1 file" if len(self.sources) == 1 else f"{len(self.sources)} files"
        return f"stats of {self.bundle}, {self.since} to {self.until}, {files}"


def merge_traffic(parts: Sequence[ServedTraffic], *, any_bundle: bool = False) -> ServedTraffic:
    """Adds up what several devices served.

    Buckets are kept only if all belong to one bundle, joint counts only if all parts with runs have
    them for the same axes. Each bundle and release is added up by itself, too.

    Args:
        parts: one at least.
        any_bundle: allow different bundles.

    Raises:
        LengthsError: there are none, the bundles or their length axes differ, or the counts are
            more than 2^53 in all.
    """
    if not parts:
        raise LengthsError("no stats files were given", hint=STATS_HINT)
    manifests = tuple(sorted({sha for part in parts for sha in part.manifests}))
    if len(manifests) > 1 and not any_bundle:
        first = {sha: part for part in reversed(parts) for sha in part.manifests}
        listed = "\n".join(f"  {first[sha].sources[0]}: {sha}" for sha in manifests)
        raise LengthsError(
            f"the stats belong to {len(manifests)} different bundles:\n{listed}",
            hint="give the files of one bundle; edgecompile drift --any-bundle takes several",
        )
    axes = sorted({part.length_axis for part in parts})
    if len(axes) > 1:
        raise LengthsError(
            f"the stats count different axes: {', '.join(axes)}",
            hint="give files of one model",
        )
    groups: dict[tuple[int, str], list[ServedTraffic]] = {}
    for part in parts:
        number = -1 if part.release is None else part.release
        groups.setdefault((number, part.manifests[0]), []).append(part)
    whole = _add(parts)
    if len(groups) == 1:
        return whole
    return replace(whole, releases=tuple(_add(groups[key]) for key in sorted(groups)))


def _add(parts: Sequence[ServedTraffic]) -> ServedTraffic:
    served: Counter[int] = Counter()
    outside: Counter[int] = Counter()
    for part in parts:
        served.update(_counts(part.distribution))
        outside.update(part.outside)
    manifests = tuple(sorted({sha for part in parts for sha in part.manifests}))
    releases = {part.release for part in parts}
    bundle = ", ".join(dict.fromkeys(part.bundle for part in parts))
    sources = tuple(source for part in parts for source in part.sources)
    merged = LengthDistribution.from_counts(served, "; ".join(sources)) if served else None
    return ServedTraffic(
        bundle=bundle,
        manifests=manifests,
        length_axis=parts[0].length_axis,
        length_bin=max(part.length_bin for part in parts),
        distribution=merged,
        outside=dict(sorted(outside.items())),
        refused=sum(part.refused for part in parts),
        # Without the Z, times of this form are ordered as their texts are.
        since=min((part.since for part in parts), key=lambda text: text.rstrip("Z")),
        until=max((part.until for part in parts), key=lambda text: text.rstrip("Z")),
        buckets=_add_buckets([part.buckets for part in parts]) if len(manifests) == 1 else (),
        joint=_add_joint([part.joint for part in parts if part.runs]),
        sources=sources,
        release=releases.pop() if len(releases) == 1 else None,
    )


def _add_buckets(parts: Sequence[tuple[BucketTraffic, ...]]) -> tuple[BucketTraffic, ...]:
    if len({len(part) for part in parts}) != 1:
        raise LengthsError("the stats are of one bundle, but have different numbers of buckets")
    result = []
    for items in zip(*parts, strict=True):
        runs = sum(item.runs for item in items)
        total = sum(item.runs * item.mean_ms for item in items if item.mean_ms is not None)
        result.append(BucketTraffic(runs, total / runs if runs else None))
    return tuple(result)


def _add_joint(parts: Sequence[JointDistribution | None]) -> JointDistribution | None:
    joints = [part for part in parts if part is not None]
    if not joints or len(joints) < len(parts) or len({part.axes for part in joints}) > 1:
        return None
    cells: Counter[Sizes] = Counter()
    for part in joints:
        cells.update(dict(zip(part.sizes, part.counts, strict=True)))
    return JointDistribution.from_counts(joints[0].axes, cells, joints[0].source)


def _counts(distribution: LengthDistribution | None) -> Counter[int]:
    if distribution is None:
        return Counter()
    return Counter(dict(zip(distribution.lengths, distribution.counts, strict=True)))
