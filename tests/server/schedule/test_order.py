"""What runs next, and with whom."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from benchmarks.serving.loads.offline import offline_seconds
from edgecompile.server.schedule.jobs import Job, Refused, Run
from edgecompile.server.schedule.queue import Queue
from edgecompile.server.schedule.simulate import POLICIES, draw_trace, make_queue, simulate
from edgecompile.server.schedule.streams import Cores, Division
from tests.server.schedule.queues import LENGTHS, PLAIN, TABLE, drain


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_nobody_waits_for_ever(seed: int) -> None:
    """One long request of no deadline under an endless stream of short ones with near deadlines."""
    queue = make_queue("by-cost", TABLE, 2, LENGTHS)
    old = Job(256, arrived=0.0)
    queue.offer([old], 0.0)
    trace = draw_trace({4: 3, 16: 1}, 3000, 900.0, seed=seed)
    now, ends = 0.0, None
    for request in trace:
        now, done = drain(queue, now, request.at)
        if any(job is old for job, _ in done):
            ends = now
            break
        now = request.at
        with contextlib.suppress(Refused):
            queue.offer([Job(request.length, arrived=now, deadline=now + 0.05)], now)
        while queue.next(now)[0] is not None:
            pass
    assert ends is not None and ends < 1.0 + 0.3


@pytest.mark.parametrize("policy", list(POLICIES))
def test_every_rule_answers_every_request_once(policy: str) -> None:
    trace = draw_trace(LENGTHS, 500, 120.0, seed=3)
    outcome = simulate(trace, make_queue(policy, TABLE, 2, LENGTHS, limit=500), 2, policy=policy)
    assert outcome.answered == 500 and outcome.refused == 0
    rows = sum(count * rows for rows, count in outcome.batches.items())
    assert rows == 500 and 0 < outcome.cpu_share <= 1.0 + 1e-9


def test_rules_cut_as_they_say() -> None:
    jobs = [Job(n) for n in (10, 100, 12, 11, 90, 10, 10, 10, 10, 10)]

    def first(policy: str) -> list[int]:
        queue = make_queue(policy, TABLE, 2, LENGTHS)
        for job in jobs:
            queue.offer([Job(job.length)], 0.0)
        run, _ = queue.next(0.0)
        assert isinstance(run, Run)
        return [job.length for job in run.jobs]

    assert first("one-by-one") == first("streams") == [10]
    assert first("tei") == [10, 100, 12, 11, 90, 10, 10, 10]
    assert first("same-length") == [10] * 6
    assert first("infinity") == sorted(job.length for job in jobs)


def test_ours_is_near_what_nobody_beats() -> None:
    trace = draw_trace(LENGTHS, 1500, seed=1)
    best = offline_seconds(trace, TABLE, 2)
    rates = {
        policy: simulate(trace, make_queue(policy, TABLE, 2, LENGTHS, limit=1500), 2, policy=policy).rate
        for policy in POLICIES
    }  # fmt: skip
    assert rates["by-cost"] >= 0.97 * 1500 / best
    assert max(rates.values()) == rates["by-cost"]


def test_wider_runs_wait_for_those_before_and_not_for_others() -> None:
    def busy(taken: int) -> tuple[Queue, Cores]:
        """A queue of a thread a run, one run under way; of the CPUs another queue has so many."""
        cores = Cores(2 + taken)
        queue = make_queue("by-cost", TABLE, 2 + taken, {4: 1}, cores=cores)
        cores.free -= taken
        queue.offer([Job(4), Job(200)], 0.0)
        assert queue.next(0.0)[0] is not None and cores.free == 1
        return queue, cores

    def widen(queue: Queue) -> None:
        for _ in range(Division.SEEN):
            with contextlib.suppress(Refused):
                queue.offer([Job(256, arrived=5.0, deadline=5.1)], 5.0)

    queue, cores = busy(0)
    widen(queue)
    assert queue.next(5.0) == (None, [])
    (run,) = queue.running
    queue.end(run, 5.0)
    following, _ = queue.next(5.0)
    assert following is not None and following.threads == 2 and cores.free == 0
    queue, _ = busy(1)
    widen(queue)
    following, _ = queue.next(5.0)
    assert following is not None and following.threads == 1


def test_little_to_do_runs_wide_and_much_runs_side_by_side() -> None:
    queue = make_queue("by-cost", TABLE, 2, {4: 1})
    queue.offer([Job(200)], 0.0)
    run, _ = queue.next(0.0)
    assert run is not None and run.threads == 2
    queue.end(run, 0.05)
    queue.offer([Job(200), Job(190), Job(4)], 0.05)
    assert [run.threads for run, _ in (queue.next(0.05), queue.next(0.05)) if run] == [1, 1]


def test_who_goes_while_as_many_come_is_not_run() -> None:
    queue = make_queue("by-cost", PLAIN, 1, {50: 1})
    jobs = [Job(length) for length in (10, 20, 30, 40)]
    queue.offer(jobs, 0.0)
    run, _ = queue.next(0.0)
    assert run is not None
    gone, come = [*queue.waiting], [Job(50), Job(60), Job(70)]
    for job in gone:
        assert queue.cancel(job)
    queue.offer(come, 0.005)
    queue.end(run, run.predicted)
    assert {job for job, _ in drain(queue, run.predicted)[1]} == set(come)


def wait_of(late: Job, bulk: list[Job], at: float = 0.05, policy: str = "by-cost") -> float:
    """Seconds from a job's arrival to its end, behind jobs that came together before it."""
    queue = make_queue(policy, TABLE, 2, LENGTHS)
    queue.offer(bulk, 0.0)
    now, ended = drain(queue, 0.0, at)
    queue.offer([late], now)
    ended += drain(queue, now)[1]
    assert {job for job, _ in ended} == {late, *bulk}
    return next(end for job, end in ended if job is late) - at


#: Seconds of three runs of a request of 64, of which batches don't pay.
RUNS = 3 * TABLE.seconds(1, 1, 64)


@pytest.mark.parametrize("size", [60, 100, 300, 700])
@pytest.mark.parametrize("how", [{}, {"deadline": 0.05 + RUNS}, {"priority": 1}], ids=str)
def test_who_comes_behind_a_list_waits_for_the_runs_under_way(
    size: int, how: dict[str, Any]
) -> None:
    late = Job(4, arrived=0.05, **how)
    assert wait_of(late, [Job(64) for _ in range(size)]) <= RUNS


def test_requests_without_costs_go_by_their_urgency_too() -> None:
    bulk = [Job(64) for _ in range(100)]
    assert wait_of(Job(4, arrived=0.05), bulk, policy="one-by-one") <= RUNS
    late = Job(4, arrived=0.05, priority=1)
    assert wait_of(late, [Job(64) for _ in range(100)], policy="streams") <= RUNS


def test_lists_share_the_cpus() -> None:
    """A short list behind two long ones, which are as far as each other: it waits for a part of them."""
    queue = make_queue("by-cost", TABLE, 2, LENGTHS)
    long, other, short = ([Job(64) for _ in range(n)] for n in (300, 300, 30))
    ends: dict[Job, float] = {}
    queue.offer(long, 0.0)
    queue.offer(other, 0.0)
    now, ended = drain(queue, 0.0, 0.1)
    ends.update(ended)
    for job in short:
        job.arrived = now
    queue.offer(short, now)
    ends.update(drain(queue, now)[1])
    over = [max(ends[job] for job in jobs) for jobs in (short, long, other)]
    assert over[0] - 0.1 < 0.4 * (max(over) - 0.1)
    assert min(over[1:]) > 0.7 * max(over)


def test_a_list_alone_runs_as_it_did() -> None:
    """Nobody comes behind it: its batches take no longer than those of requests that came apart."""
    lengths = [request.length for request in draw_trace(LENGTHS, 400, seed=4)]
    ends = []
    for apart in (False, True):
        queue = make_queue("by-cost", TABLE, 2, LENGTHS)
        jobs = [Job(length) for length in lengths]
        for some in [[job] for job in jobs] if apart else [jobs]:
            queue.offer(some, 0.0)
        ends.append(drain(queue, 0.0)[0])
    assert ends[0] <= 1.01 * ends[1]


def test_priorities_are_those_of_triton() -> None:
    """1 goes first, then 2, and so on; who has none goes last, whatever its deadline is."""
    queue = make_queue("by-cost", PLAIN, 1, {50: 1})
    jobs = {
        name: Job(10, priority=priority, deadline=deadline)
        for name, priority, deadline in (
            ("none", 0, 0.9), ("second", 2, None), ("first", 1, None), ("far", 9, None), ("near", 2, 0.8)
        )
    }  # fmt: skip
    for job in jobs.values():
        queue.offer([job], 0.0)
    order = [job for job, _ in drain(queue, 0.0)[1]]
    names = [next(name for name, job in jobs.items() if job is each) for each in order]
    assert names == ["first", "near", "second", "far", "none"]
