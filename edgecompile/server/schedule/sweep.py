"""Replays requests with several rules at several loads, for tables and plots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgecompile.server.schedule.costs import CostTable
from edgecompile.server.schedule.simulate import (
    POLICIES,
    Arrival,
    Outcome,
    draw_trace,
    make_queue,
    simulate,
)
from edgecompile.server.schedule.streams import Streams, plan_streams

#: Shares of what our rule answers at most, where no rates are given.
LOADS = (0.25, 0.5, 0.7, 0.85, 1.0, 1.2, 1.5)


@dataclass(frozen=True)
class Workload:
    """The requests of a replay.

    Attributes:
        lengths: the count of each length.
        trace: the requests, ascending in time; empty: they are drawn.
        rates: requests per second to draw them at; empty: :data:`LOADS`.
        count: requests of each drawn trace.
        seed: the seed of the draws, and of the noise.
    """

    lengths: Mapping[int, int]
    trace: tuple[Arrival, ...] = ()
    rates: tuple[float, ...] = ()
    count: int = 2000
    seed: int = 0

    def longer_than(self, length: int) -> int:
        """The number of requests that are longer."""
        return sum(n for size, n in self.lengths.items() if size > length)


@dataclass(frozen=True)
class Replay:
    """The outcomes of a replay.

    Attributes:
        cpus: the CPUs of the server.
        streams: their division.
        slo_ms: milliseconds in which an answer was wanted; None: any time.
        saturated: answers per second where all requests come at once, by rule.
        outcomes: the outcomes of every rule at every load, a rule at a time.
    """

    cpus: int
    streams: Streams
    slo_ms: float | None
    saturated: Mapping[str, float]
    outcomes: tuple[Outcome, ...]

    def to_json(self) -> dict[str, Any]:
        """A dict of plain values."""
        return {
            "cpus": self.cpus,
            "streams": self.streams.count,
            "threads": self.streams.threads,
            "slo_ms": self.slo_ms,
            "saturated_per_s": dict(self.saturated),
            "replays": [outcome.to_json() for outcome in self.outcomes],
        }


def count_lengths(trace: Sequence[Arrival]) -> dict[int, int]:
    """The count of each length, ascending."""
    return dict(sorted(Counter(request.length for request in trace).items()))


def replay(
    costs: CostTable,
    cpus: int,
    workload: Workload,
    policies: Sequence[str] = (),
    *,
    slo_ms: float | None = None,
    noise: float = 0.0,
    mixes: bool = True,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> Replay:
    """Runs every trace with every rule, a rule at a time; each with a queue as long as it likes.

    Args:
        costs: the costs of runs.
        cpus: the CPUs of the server.
        workload: the requests.
        policies: names of ``simulate.POLICIES``; empty: all of them.
        slo_ms: milliseconds in which an answer is wanted.
        noise: sigma of the lognormal number that each run's time is multiplied by.
        mixes: whether requests of other lengths may share a batch.
        progress: a function that is called with the number of traces done and in all.
    """
    lengths, seed = workload.lengths, workload.seed

    def run(policy: str, trace: Sequence[Arrival], noise: float, slo: float | None) -> Outcome:
        queue = make_queue(policy, costs, cpus, lengths, mixes=mixes, limit=max(1, len(trace)))
        return simulate(trace, queue, cpus, policy=policy, slo=slo, noise=noise, seed=seed)

    def saturate(policy: str) -> float:
        return run(policy, draw_trace(lengths, workload.count, seed=seed), 0.0, None).rate

    traces: list[Sequence[Arrival]] = [workload.trace]
    if not workload.trace:
        rates = sorted(workload.rates)
        if not rates:
            capacity = saturate("by-cost")
            rates = [share * capacity for share in LOADS]
        traces = [draw_trace(lengths, workload.count, rate, seed=seed) for rate in rates]
    names, outcomes = tuple(policies) or tuple(POLICIES), list[Outcome]()
    for name in names:
        for trace in traces:
            outcomes.append(run(name, trace, noise, None if slo_ms is None else slo_ms / 1e3))
            progress(len(outcomes), len(names) * len(traces))
    return Replay(
        cpus,
        plan_streams(costs, cpus, lengths),
        slo_ms,
        {name: saturate(name) for name in names},
        tuple(outcomes),
    )
