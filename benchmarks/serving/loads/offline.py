"""A bound on what any schedule answers."""

from __future__ import annotations

from collections.abc import Sequence

from edgecompile.server.schedule.compose import composed_seconds
from edgecompile.server.schedule.costs import CostTable
from edgecompile.server.schedule.simulate import Arrival


def offline_seconds(trace: Sequence[Arrival], costs: CostTable, cpus: int) -> float:
    """A bound on every schedule that knows all requests beforehand: the best batches of all of them,
    on as many parts of the CPUs as fit, all busy to the end."""
    lengths = sorted(request.length for request in trace)
    return min(
        composed_seconds(costs, threads, lengths) / max(1, cpus // threads)
        for threads in costs.threads
        if threads <= cpus or threads == costs.threads[0]
    )
