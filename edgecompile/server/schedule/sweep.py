"""Several rules at several loads, for tables and plots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from edgecompile.server.schedule.costs import CostTable
from edgecompile.server.schedule.simulate import (
    Outcome,
    Request,
    draw_trace,
    make_queue,
    simulate,
)

#: Shares of what our rule answers at most, where no rates are given.
LOADS = (0.25, 0.5, 0.7, 0.85, 1.0, 1.2, 1.5)


def saturate(
    costs: CostTable,
    cpus: int,
    lengths: Mapping[int, int],
    policy: str,
    *,
    count: int,
    mixes: bool = True,
    seed: int = 0,
) -> Outcome:
    """All requests at once: what a rule answers at most."""
    queue = make_queue(policy, costs, cpus, lengths, mixes=mixes, limit=count)
    return simulate(draw_trace(lengths, count, seed=seed), queue, costs, cpus, policy=policy)


def sweep(
    costs: CostTable,
    cpus: int,
    lengths: Mapping[int, int],
    policies: Sequence[str],
    traces: Sequence[Sequence[Request]],
    *,
    slo: float | None = None,
    noise: float = 0.0,
    mixes: bool = True,
    seed: int = 0,
) -> Iterator[Outcome]:
    """Every trace with every rule, a rule at a time; each with a queue of its own, as long as it likes.

    Args:
        costs: what runs take.
        cpus: of the server.
        lengths: of the traffic, for the division of the CPUs.
        policies: names of ``simulate.POLICIES``.
        traces: ascending in load.
        slo: seconds in which an answer is wanted.
        noise: sigma of the lognormal number that each run's time is multiplied by.
        mixes: whether requests of other lengths may share a batch.
        seed: of the noise.
    """
    for policy in policies:
        for trace in traces:
            queue = make_queue(policy, costs, cpus, lengths, mixes=mixes, limit=max(1, len(trace)))
            yield simulate(
                trace, queue, costs, cpus, policy=policy, slo=slo, noise=noise, seed=seed
            )
