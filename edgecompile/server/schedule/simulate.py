"""Replays a trace of requests with any policy on a table of costs, as fast as it computes."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgecompile.server.schedule.admission import Admission
from edgecompile.server.schedule.by_cost import ByCost
from edgecompile.server.schedule.costs import CostTable, Speed
from edgecompile.server.schedule.jobs import Job, Policy, Refused, Run
from edgecompile.server.schedule.other_servers import InOrder, OneByOne, SameLength, SortedWindow
from edgecompile.server.schedule.queue import Queue
from edgecompile.server.schedule.streams import Cores, Division, Streams, plan_streams

#: By name: what they are.
POLICIES = {
    "by-cost": "batches of least cost by the table, threads by load, admission by predicted finish",
    "one-by-one": "no batches, one run at a time on all CPUs",
    "streams": "no batches, as many runs side by side as planned",
    "tei": "text-embeddings-inference's rule: in order, up to 8, filled up to the longest",
    "infinity": "infinity's rule: sorted by length, batches of up to 32",
    "same-length": "Triton's rule: up to 8 of one length",
}


@dataclass(frozen=True)
class Arrival:
    """A request: its arrival in seconds from the beginning, and the length of its one row."""

    at: float
    length: int


def percentile(ascending: Sequence[float], percent: float) -> float | None:
    """A quantile of ascending numbers; None of none."""
    if not ascending:
        return None
    return ascending[min(len(ascending) - 1, int(len(ascending) * percent / 100))]


def percentile_ms(ascending: Sequence[float], percent: float) -> float | None:
    """A quantile of ascending seconds, in milliseconds; None of none."""
    seconds = percentile(ascending, percent)
    return None if seconds is None else seconds * 1e3


@dataclass(frozen=True)
class Outcome:
    """The result of one trace under one policy.

    Attributes:
        policy: its name.
        offered: requests per second of the trace; infinite where all came at once.
        answered: the number of requests that got an answer.
        refused: the number of requests that were refused at arrival, or given up in the queue.
        seconds: the time from the first arrival to the last answer.
        latencies: the latencies of the answers, in seconds, ascending.
        in_time: answers within the SLO; all of them without one.
        batches: the number of runs by their number of rows.
        cpu_share: the mean share of the CPUs that was busy.
    """

    policy: str
    offered: float
    answered: int
    refused: int
    seconds: float
    latencies: tuple[float, ...]
    in_time: int
    batches: Mapping[int, int]
    cpu_share: float

    @property
    def rate(self) -> float:
        """Answers per second."""
        return self.answered / self.seconds if self.seconds else 0.0

    @property
    def goodput(self) -> float:
        """Answers within the SLO per second."""
        return self.in_time / self.seconds if self.seconds else 0.0

    def percentile(self, percent: float) -> float | None:
        """A quantile of the latencies, in seconds; None without an answer."""
        return percentile(self.latencies, percent)

    def to_json(self) -> dict[str, object]:
        """Plain data; times in milliseconds."""
        ms = {f"p{percent}_ms": percentile_ms(self.latencies, percent) for percent in (50, 90, 99)}
        return {
            "policy": self.policy,
            "offered_per_s": None if self.offered == float("inf") else self.offered,
            "answered": self.answered,
            "refused": self.refused,
            "seconds": self.seconds,
            "answers_per_s": self.rate,
            "goodput_per_s": self.goodput,
            **ms,
            "batches": {str(rows): count for rows, count in sorted(self.batches.items())},
            "cpu_share": self.cpu_share,
        }


def draw_trace(
    lengths: Mapping[int, int], count: int, rate: float = float("inf"), *, seed: int = 0
) -> list[Arrival]:
    """Requests at random times (Poisson), of lengths as often as these occur.

    Args:
        lengths: the count of each length.
        count: the number of requests.
        rate: requests per second; infinite: all come at once.
        seed: the seed of times and lengths.
    """
    draw = random.Random(seed)
    chosen = draw.choices(list(lengths), weights=list(lengths.values()), k=count)
    at, trace = 0.0, []
    for length in chosen:
        if rate != float("inf"):
            at += draw.expovariate(rate)
        trace.append(Arrival(at, length))
    return trace


def make_queue(
    policy: str,
    costs: CostTable,
    cpus: int,
    lengths: Mapping[int, int],
    *,
    streams: Streams | None = None,
    mixes: bool = True,
    limit: int = 1024,
    texts: int = 32768,
    cores: Cores | None = None,
) -> Queue:
    """A queue with a policy of ``POLICIES``.

    Args:
        policy: its name.
        costs: the table.
        cpus: the CPUs of the server.
        lengths: the lengths of the traffic, for the division of the CPUs.
        streams: the division of the CPUs, where it is known; the rule "by-cost" makes others by
            what comes.
        mixes: whether requests of other lengths may share a batch.
        limit, texts, cores: the arguments of ``Queue``.
    """
    streams = streams or plan_streams(costs, cpus, lengths)
    every = max((t for t in costs.threads if t <= cpus), default=costs.threads[0])
    speed = Speed()
    if policy == "by-cost":
        division = Division(costs, cpus, streams, speed)
        own = ByCost(costs, division, speed, mixes=mixes)
        admission = Admission(costs, division, speed, own)
        return Queue(
            costs,
            cpus,
            own,
            speed=speed,
            admission=admission,
            limit=limit,
            texts=texts,
            cores=cores,
        )
    rules: dict[str, Policy] = {
        "one-by-one": OneByOne(every),
        "streams": OneByOne(streams.threads),
        "tei": InOrder(every, min(8, costs.most_rows)),
        "infinity": SortedWindow(every, min(32, costs.most_rows)),
        "same-length": SameLength(every, min(8, costs.most_rows)),
    }
    return Queue(costs, cpus, rules[policy], speed=speed, limit=limit, texts=texts, cores=cores)


def make_plain_queue(
    cpus: int, least: int, limit: int, texts: int, cores: Cores | None = None
) -> Queue:
    """One for a model whose costs nobody knows: requests run one by one.

    Args:
        cpus: threads of a run.
        least: threads that a run is content with where others run beside it.
        limit, texts: the arguments of ``Queue``.
        cores: shared ones.
    """
    # One cost for all: it tells how long the queue is, once a run was seen.
    flat = CostTable([(n, 1, 1, cpus / n) for n in range(least, cpus + 1)])
    speed, alone = Speed(measured=False), OneByOne(cpus, least)
    return Queue(flat, cpus, alone, speed=speed, limit=limit, texts=texts, cores=cores)


def simulate(
    trace: Sequence[Arrival],
    queue: Queue,
    cpus: int,
    *,
    policy: str = "by-cost",
    slo: float | None = None,
    noise: float = 0.0,
    seed: int = 0,
) -> Outcome:
    """Runs a trace through a queue.

    Args:
        trace: ascending in time.
        queue: empty; its costs are what runs take.
        cpus: the CPUs of the server.
        policy: the name of the policy.
        slo: seconds in which an answer is wanted; each request's deadline where the policy is ours:
            the others know none.
        noise: runs take as long as the costs say times a lognormal number of this sigma.
        seed: the seed of the noise.
    """
    draw = random.Random(seed)
    ends: list[tuple[float, int, Run]] = []
    latencies: list[float] = []
    batches: Counter[int] = Counter()
    refused, busy, now, index, begun = 0, 0.0, 0.0, 0, 0
    while index < len(trace) or ends:
        if ends and (index == len(trace) or ends[0][0] <= trace[index].at):
            now, _, run = heapq.heappop(ends)
            queue.end(run, now)
            latencies.extend(now - job.arrived for job in run.jobs)
        else:
            request = trace[index]
            index, now = index + 1, max(now, request.at)
            due = request.at + slo if slo is not None and policy == "by-cost" else None
            try:
                queue.offer([Job(request.length, arrived=request.at, deadline=due)], now)
            except Refused:
                refused += 1
            if index < len(trace) and trace[index].at <= now:
                continue
        while True:
            run_or_none, expired = queue.next(now)
            refused += len(expired)
            if run_or_none is None:
                break
            run = run_or_none
            took = run.predicted * (draw.lognormvariate(0.0, noise) if noise else 1.0)
            batches[run.rows] += 1
            busy += took * run.threads
            begun += 1
            heapq.heappush(ends, (now + took, begun, run))
    latencies.sort()
    span = trace[-1].at - trace[0].at if trace else 0.0
    first = trace[0].at if trace else 0.0
    return Outcome(
        policy=policy,
        offered=len(trace) / span if span else float("inf"),
        answered=len(latencies),
        refused=refused,
        seconds=now - first,
        latencies=tuple(latencies),
        in_time=len(latencies) if slo is None else sum(x <= slo + 1e-9 for x in latencies),
        batches=batches,
        cpu_share=busy / cpus / (now - first) if now > first else 0.0,
    )
