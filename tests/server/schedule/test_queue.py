"""The queue with its clock as an argument: admission, order, starvation, the rules of others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgecompile.server.schedule.costs import CostTable
from edgecompile.server.schedule.jobs import Job, Refused, TooLate
from edgecompile.server.schedule.simulate import (
    POLICIES,
    Arrival,
    draw_trace,
    make_queue,
    simulate,
)
from tests.server.schedule.queues import LENGTHS, PLAIN, TABLE, drain


@given(
    st.lists(
        st.tuples(st.floats(0, 0.05), st.integers(1, 100), st.floats(0.001, 0.4)),
        min_size=1,
        max_size=25,
    ),
    st.sampled_from([0, 30, 100, 600]),
)
def test_who_is_taken_in_is_ready_in_time(
    requests: list[tuple[float, int, float]], patient: int
) -> None:
    """One CPU, exact costs, deadlines in any order, behind a list without: what was admitted ends in time."""
    queue = make_queue("by-cost", PLAIN, 1, {50: 1})
    taken = [Job(20) for _ in range(patient)]
    queue.offer(taken, 0.0)
    now, ended = 0.0, []
    for gap, length, allowed in requests:
        arrives = now + gap
        reached, done = drain(queue, now, arrives)
        ended += done
        now = max(arrives, reached) if reached == arrives or not queue.running else arrives
        job = Job(length, arrived=now, deadline=now + allowed)
        try:
            queue.offer([job], now)
        except Refused:
            continue
        taken.append(job)
    ended += drain(queue, now)[1]
    assert {job for job, _ in ended} == set(taken)
    for job, end in ended:
        assert job.deadline is None or end <= job.deadline + 1e-9


@given(st.lists(st.integers(1, 100), min_size=1, max_size=20), st.floats(0.05, 0.3))
def test_retry_after_is_true(lengths: list[int], allowed: float) -> None:
    """Refused, and again after so many seconds with nothing else coming: taken. Sooner: refused."""
    queue = make_queue("by-cost", PLAIN, 1, {50: 1})
    for length in lengths:
        queue.offer([Job(length, priority=1)], 0.0)  # of no deadline: all of them are taken
    queue.next(0.0)
    job = Job(30, arrived=0.0, deadline=allowed)
    try:
        queue.offer([job], 0.0)
        return
    except Refused as error:
        retry = error.retry_after
    assert retry is not None and retry > 0
    half = retry / 2
    drain(queue, 0.0, half)
    with pytest.raises(Refused):
        queue.offer([Job(30, arrived=half, deadline=half + allowed)], half)
    later = retry + 1e-6
    drain(queue, half, later)
    queue.offer([Job(30, arrived=later, deadline=later + allowed)], later)


def test_a_refusal_says_by_how_much() -> None:
    queue = make_queue("by-cost", PLAIN, 1, {50: 1})
    queue.offer([Job(100, deadline=0.15)], 0.0)
    with pytest.raises(Refused, match=r"ready in 200 ms, 40 ms too late") as caught:
        queue.offer([Job(100, deadline=0.16)], 0.0)
    assert caught.value.retry_after == pytest.approx(0.04)
    with pytest.raises(TooLate, match=r"takes 100 ms here, and the deadline is in 90 ms"):
        queue.offer([Job(100, deadline=0.09)], 0.0)


def test_an_urgent_request_may_not_make_others_late() -> None:
    queue = make_queue("by-cost", PLAIN, 1, {50: 1})
    queue.offer([Job(40, deadline=0.1)], 0.0)
    queue.offer([Job(50, deadline=0.095)], 0.0)
    with pytest.raises(Refused, match="taken before"):
        queue.offer([Job(20, deadline=0.03)], 0.0)
    queue.offer([Job(9, deadline=0.03)], 0.0)


def test_a_long_list_is_taken_where_only_its_first_texts_go_before_others() -> None:
    queue = make_queue("by-cost", PLAIN, 1, {50: 1})
    promised = Job(40, deadline=1.5)
    queue.offer([promised], 0.0)
    queue.offer([Job(50) for _ in range(100)], 0.0)  # five seconds
    assert dict(drain(queue, 0.0)[1])[promised] <= 1.5
    queue.offer([Job(40, arrived=5.0, deadline=6.1)], 5.0)
    with pytest.raises(Refused, match="taken before"):
        queue.offer([Job(100, arrived=5.0, priority=1) for _ in range(20)], 5.0)


def test_a_list_is_taken_whole_or_not_at_all() -> None:
    queue = make_queue("by-cost", PLAIN, 1, {50: 1})
    with pytest.raises(TooLate, match="takes 150 ms here, and the deadline is in 120 ms"):
        queue.offer([Job(50, deadline=0.12) for _ in range(3)], 0.0)
    assert not queue.waiting
    queue.offer([Job(50, deadline=0.12) for _ in range(2)], 0.0)
    assert len(queue.waiting) == 2


def test_who_has_gone_costs_nothing() -> None:
    queue = make_queue("by-cost", PLAIN, 1, {50: 1})
    first, second = Job(50, deadline=1.0), Job(100, deadline=1.0)
    queue.offer([first], 0.0)
    queue.offer([second], 0.0)
    assert queue.backlog(0.0) == pytest.approx(0.15)
    assert queue.cancel(second) and not queue.cancel(second)
    assert queue.backlog(0.0) == pytest.approx(0.05)
    end, ended = drain(queue, 0.0)
    assert [job for job, _ in ended] == [first] and end == pytest.approx(0.05)
    assert not queue.cancel(first)


def test_what_cannot_be_in_time_any_more_is_given_up() -> None:
    queue = make_queue("by-cost", PLAIN, 1, {50: 1})
    job, other = Job(50, deadline=0.06), Job(50, deadline=0.2)
    queue.offer([job], 0.0)
    queue.offer([other], 0.0)
    run, expired = queue.next(0.03)
    assert expired == [job] and run is not None and list(run.jobs) == [other]


def test_overload_leaves_the_answers_in_time() -> None:
    queue = make_queue("by-cost", TABLE, 2, LENGTHS, limit=5000)
    capacity = simulate(draw_trace(LENGTHS, 2000), queue, 2).rate
    trace = draw_trace(LENGTHS, 4000, 1.5 * capacity, seed=2)
    ours = simulate(trace, make_queue("by-cost", TABLE, 2, LENGTHS), 2, slo=0.1, noise=0.05)
    p99 = ours.percentile(99)
    assert p99 is not None and p99 <= 0.1 and ours.goodput >= 0.95 * capacity
    other = simulate(trace, make_queue("streams", TABLE, 2, LENGTHS), 2, policy="streams", slo=0.1)
    assert other.goodput < 0.5 * ours.goodput


def test_what_takes_more_than_usual_is_refused_a_little_sooner() -> None:
    queue = make_queue("by-cost", PLAIN, 1, {50: 1})
    for _ in range(8):
        queue.offer([Job(10, deadline=0.08)], 0.0)
    with pytest.raises(Refused, match=r"ready in 100 ms, but takes more than others do") as caught:
        queue.offer([Job(20, deadline=0.105)], 0.0)
    retry = caught.value.retry_after
    assert retry is not None and 0.002 < retry < 0.004
    now, _ = drain(queue, 0.0, retry)
    with pytest.raises(Refused):
        queue.offer([Job(20, arrived=now, deadline=now + 0.105 - 2e-3)], now)
    queue.offer([Job(20, arrived=now, deadline=now + 0.105)], now)
    queue.offer([Job(5, arrived=now, deadline=now + 0.105)], now)


def test_all_long_requests_run_one_behind_the_other_on_more_threads() -> None:
    """60 ms on one thread and 32 on two: in 100 ms there is time for one or three."""
    capacity = 2 / TABLE.seconds(1, 1, 256)
    trace = draw_trace({256: 1}, 600, 1.5 * capacity, seed=2)
    queue = make_queue("by-cost", TABLE, 2, LENGTHS)
    outcome = simulate(trace, queue, 2, slo=0.1, noise=0.05)
    assert outcome.goodput >= 0.85 * capacity  # 0.75 in runs of a thread
    assert outcome.in_time >= 0.99 * outcome.answered


def test_what_is_true_of_short_requests_makes_no_margin_for_long_ones() -> None:
    """Short ones wait behind long ones, and cost much where few share their batches."""
    lengths = {4: 70, 16: 20, 256: 10}
    trace = draw_trace(lengths, 6000, 80)  # 40 % of what the CPUs can do
    queue = make_queue("by-cost", TABLE, 2, lengths)
    outcome = simulate(trace, queue, 2, slo=0.15, noise=0.1)
    assert outcome.refused <= 0.002 * len(trace)
    assert outcome.in_time >= 0.999 * outcome.answered


def test_requests_at_once_are_simulated_too() -> None:
    queue = make_queue("by-cost", TABLE, 2, LENGTHS)
    outcome = simulate([Arrival(0.0, 4)] * 8, queue, 2)
    assert outcome.answered == 8 and outcome.offered == float("inf")
    assert outcome.to_json()["offered_per_s"] is None


@pytest.mark.parametrize("policy", list(POLICIES))
def test_costs_of_more_threads_than_there_are_cpus(policy: str) -> None:
    """Measured on two CPUs, where a run couldn't choose; served on one."""
    table = CostTable([(2, b, n, 1.0 * b * n) for b in (1, 2) for n in (1, 64)])
    outcome = simulate(
        draw_trace(LENGTHS, 20), make_queue(policy, table, 1, LENGTHS), 1, policy=policy
    )
    assert outcome.answered == 20


def test_a_machine_that_was_slow_for_a_while_serves_again() -> None:
    """All requests have deadlines: where none is taken, nothing runs that shows how fast it is."""
    queue = make_queue("by-cost", PLAIN, 1, {50: 1})
    now = 0.0
    with pytest.raises(Refused):
        for _ in range(50):
            queue.offer([Job(20, arrived=now, deadline=now + 0.05)], now)
            run, _ = queue.next(now)
            assert run is not None
            now += 8 * run.predicted
            queue.end(run, now)
    now += 0.5
    with pytest.raises(Refused):
        queue.offer([Job(20, arrived=now, deadline=now + 0.05)], now)
    now += 1.0
    with pytest.raises(TooLate):  # no machine like this one does that
        queue.offer([Job(20, arrived=now, deadline=now + 0.01)], now)
    for _ in range(3):
        queue.offer([Job(20, arrived=now, deadline=now + 0.05)], now)
        now, ended = drain(queue, now)
        assert len(ended) == 1


def test_an_idle_server_takes_what_all_its_threads_can_do() -> None:
    table = CostTable([(1, 1, 1, 1.0), (1, 1, 100, 100.0), (2, 1, 1, 0.6), (2, 1, 100, 60.0)])
    queue = make_queue("by-cost", table, 2, {50: 1})
    job = Job(100, deadline=0.08)
    queue.offer([job], 0.0)
    run, _ = queue.next(0.0)
    assert run is not None and run.threads == 2 and run.predicted == pytest.approx(0.06)


@given(
    st.lists(
        st.tuples(st.sampled_from(["offer", "cancel", "next", "end"]), st.integers(1, 100)),
        max_size=40,
    )
)
def test_the_backlog_is_what_waits_and_what_runs(steps: list[tuple[str, int]]) -> None:
    """Whatever comes, goes, begins and ends; one CPU, where batches save nothing."""
    queue = make_queue("by-cost", PLAIN, 1, {50: 1})
    now = 0.0
    for step, number in steps:
        if step == "offer":
            deadline = None if number % 3 else now + 100.0 + number
            queue.offer([Job(number, arrived=now, deadline=deadline)], now)
        elif step == "cancel" and queue.waiting:
            queue.cancel([*queue.waiting][number % len(queue.waiting)])
        elif step == "next":
            queue.next(now)
        elif step == "end" and queue.running:
            (run,) = queue.running
            now = run.began + run.predicted
            queue.end(run, now)
        left = sum(job.length for job in queue.waiting) / 1e3
        left += sum(max(0.0, run.began + run.predicted - now) for run in queue.running)
        assert queue.backlog(now) == pytest.approx(left, abs=1e-9)


def test_admission_looks_each_size_up_once() -> None:
    """Under overload the event loop admits and refuses on the CPUs that run the model."""
    asked = 0

    class Counted(CostTable):
        def seconds(self, threads: int, rows: int, length: int) -> float:
            nonlocal asked
            asked += 1
            return super().seconds(threads, rows, length)

    queue = make_queue("by-cost", Counted([(1, 1, 1, 1.0), (1, 1, 100, 100.0)]), 1, {50: 1})
    for _ in range(5):
        queue.offer([Job(10, deadline=0.1)], 0.0)
    before, refused = asked, 0
    for _ in range(20):
        try:
            queue.offer([Job(10, deadline=0.1)], 0.0)
        except Refused:
            refused += 1
    assert 0 < refused < 20 and asked == before


def test_a_list_is_one_request() -> None:
    """A client's 1,000 texts keep out neither another one's list nor what comes alone."""
    queue = make_queue("by-cost", PLAIN, 1, {50: 1}, limit=16)
    queue.offer([Job(10) for _ in range(1000)], 0.0)
    for _ in range(13):
        queue.offer([Job(10) for _ in range(20)], 0.0)
    assert queue.requests == 14 and len(queue.waiting) == 1260
    with pytest.raises(Refused, match="14 lists wait and 1 came, the limit is 14") as refused:
        queue.offer([Job(10) for _ in range(2)], 0.0)
    # When the first small one is over: the lists that wait take turns.
    assert refused.value.retry_after == pytest.approx(1.3, abs=0.02)
    queue.offer([Job(10)], 0.0)
    queue.offer([Job(10)], 0.0)
    with pytest.raises(Refused, match="16 requests wait and 1 came, the limit is 16"):
        queue.offer([Job(10)], 0.0)
    first = [*queue.waiting][1000:1020]
    for job in first:
        queue.cancel(job)
    assert queue.requests == 15
    queue.offer([Job(10) for _ in range(2)], 0.0)
    drain(queue, 0.0)
    assert not queue.requests and not queue._left and not queue._lists


@pytest.mark.parametrize(
    "sizes", [[100] * 14, [20] * 13 + [1000], [1000] * 13 + [10], [500] * 7 + [30] * 7]
)
def test_a_list_has_room_when_its_refusal_says(sizes: list[int]) -> None:
    queue = make_queue("by-cost", PLAIN, 1, {50: 1}, limit=16)
    for size in sizes:
        queue.offer([Job(10) for _ in range(size)], 0.0)
    queue.next(0.0)
    with pytest.raises(Refused, match="14 lists wait") as refused:
        queue.offer([Job(10), Job(10)], 0.0)
    later = refused.value.retry_after
    assert later is not None
    sooner, later = 0.95 * later, later + 0.05
    drain(queue, 0.0, sooner)
    with pytest.raises(Refused, match="14 lists wait"):
        queue.offer([Job(10, arrived=sooner) for _ in range(2)], sooner)
    drain(queue, sooner, later)
    queue.offer([Job(10, arrived=later) for _ in range(2)], later)


def test_small_lists_find_room_beside_all_that_large_ones_bring() -> None:
    queue = make_queue("by-cost", PLAIN, 1, {50: 1}, limit=1000, texts=1600)
    queue.offer([Job(10) for _ in range(2000)], 0.0)  # one alone may have more
    drain(queue, 0.0)
    taken = 0
    with pytest.raises(Refused) as refused:
        while True:
            queue.offer([Job(10) for _ in range(100)], 0.0)
            taken += 1
    assert taken == 9
    told = "900 texts wait in lists and 100 came, for which 800 must have room, the limit is 1600"
    assert refused.value.message == told
    assert refused.value.retry_after == pytest.approx(1.0)
    drain(queue, 0.0, until=1.0)
    queue.offer([Job(10) for _ in range(100)], 1.0)
    for size in (20, 2):
        queue.offer([Job(10) for _ in range(size)], 1.0)
    queue.offer([Job(10)], 1.0)


def test_a_list_with_a_deadline_is_promised_as_a_whole() -> None:
    queue = make_queue("by-cost", PLAIN, 1, {50: 1})
    queue.offer([Job(50, deadline=9.0)], 0.0)
    queue.offer([Job(10, deadline=2.0) for _ in range(3)], 0.0)
    admission = queue._admission
    assert admission is not None
    promised = sorted(admission._promised[job] for job in queue.waiting)
    assert promised == pytest.approx([0.01, 0.02, 0.03, 0.05])
