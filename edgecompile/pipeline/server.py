"""Bundles for servers: whether requests can share a run, the costs of batches, the division of the CPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgecompile.errors import PlanError, VerificationError
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.planning.costs.measure import bench_serving
from edgecompile.planning.padding import require_paddable
from edgecompile.planning.planning import Planned
from edgecompile.planning.rows import why_rows_mix
from edgecompile.planning.subject import Subject
from edgecompile.runtime.format.manifest.schema import Manifest
from edgecompile.server.schedule.batches import INDEPENDENT
from edgecompile.server.schedule.costs import read_costs
from edgecompile.server.schedule.streams import plan_streams

#: The manifest keeps the lengths of the traffic at each hundredth of it.
_STEPS = 100


@dataclass(frozen=True)
class ServerPlan:
    """A server's settings beside the costs.

    Attributes:
        joins: whether requests may share a run: no row changes with those beside it.
        padding: ``proven`` or ``assumed`` where requests of other lengths may share a run, filled up;
            empty where they may not.
        lengths: the lengths of the traffic.
        threads: the threads to measure with; None: every CPU that the process may use.
        variant: the variant to measure; None: nothing is measured, as this machine runs none of
            them or no batch will run.
    """

    joins: bool
    padding: str
    lengths: LengthDistribution
    threads: int | None
    variant: str | None

    @property
    def percentiles(self) -> list[int]:
        """The lengths of the traffic at 0, 1, …, 100 percent."""
        total, below, result = self.lengths.n, 0, list[int]()
        for length, count in zip(self.lengths.lengths, self.lengths.counts, strict=True):
            below += int(count)
            while len(result) <= _STEPS and len(result) * total <= below * _STEPS:
                result.append(int(length))
        return result


def plan_server(subject: Subject, planned: Planned) -> ServerPlan:
    """Finds out whether rows are independent, and whether filling up changes a result.

    Notes go to those of the subject.

    Raises:
        PlanError: the model has no batch and length that vary.
    """
    plan, request = planned.plan, subject.request
    axis = plan.length_axis
    extents = dict(plan.buckets[0].axes)
    if len(extents) < 2 or all(
        extent.lo == extent.hi for name, extent in extents.items() if name != axis
    ):
        raise PlanError(
            f"{subject.model.name} has no batch that varies beside its length, so a server can't run "
            "requests together",
            hint="leave `profile` out: a server runs such a bundle's requests one by one",
        )
    mixed = why_rows_mix(subject.model, dict(planned.scope.axes))
    if mixed:
        subject.notes.add(f"a server runs its requests one by one: {mixed}")
        return ServerPlan(False, "", request.traffic, request.threads, None)
    spans = [(name, extent) for name, extent in planned.scope.axes if name == axis]
    padding = ""
    try:
        padding = require_paddable(subject.model, spans, assume=request.assume_paddable)
    except PlanError as error:
        subject.notes.add(f"requests of one length alone share a run: {error.message}")
    runnable = subject.runnable
    return ServerPlan(
        True, padding, request.traffic, request.threads, runnable[-1].name if runnable else None
    )


def measure_server(
    server: ServerPlan, bundle: Path, manifest: Manifest, tell: Callable[[str], None]
) -> Mapping[str, Any]:
    """Measures costs, and makes the manifest's ``plan.server``; see FORMAT.md.

    Raises:
        VerificationError: the bundle's runtime failed.
    """
    result: dict[str, Any] = {
        "rows": INDEPENDENT if server.joins else "mixed",
        "length_percentiles": server.percentiles,
    }
    if server.padding:
        result["padding"] = server.padding
    if server.variant is None:
        return result
    measurement = bench_serving(bundle, server.threads, server.variant, tell)
    axis = str(manifest.length_axis)
    lengths = manifest.axes[axis]
    most = max(extent.hi for name, extent in manifest.axes.items() if name != axis)
    try:
        costs = read_costs(measurement, most_rows=most, longest=lengths.hi, shortest=lengths.lo)
    except ValueError as error:
        raise VerificationError(f"the runtime's measurement makes no sense: {error}") from None
    traffic = {int(n): server.percentiles.count(n) for n in set(server.percentiles)}
    streams = plan_streams(costs, measurement["cpus"], traffic)
    return {
        **result,
        "cpus": measurement["cpus"],
        "cpu": measurement["host"].get("cpu"),
        "date": measurement["date"],
        "variant": measurement["variant"],
        "streams": streams.count,
        "threads": streams.threads,
        "rows_per_second": round(streams.rows_per_second, 3),
        "points": measurement["points"],
    }
