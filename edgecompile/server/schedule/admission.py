"""Admission: when a request would be ready, and whether that is in time.

Work is counted in CPU seconds. A request waits for the rest of what runs and for what is more urgent,
spread over all CPUs, and then runs as long as its batch does.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from edgecompile.server.schedule.by_cost import ByCost
from edgecompile.server.schedule.costs import CostTable, Speed
from edgecompile.server.schedule.jobs import Job, Refused, Run, TooLate, by_urgency
from edgecompile.server.schedule.streams import Division

#: By how much longer a wait counts for a request that takes twice as much as the usual one, or more. Under overload
#: the wait is always about as long as is allowed, so a little makes a large difference: answers are more
#: by a tenth than without, where requests of all lengths are refused as often as each other.
_LONG_RUN = 0.1
#: Of learning what requests usually take.
_FOLLOW = 0.02
#: Of learning how late jobs are: small enough that a lucky hundred don't count.
_STEP = 0.05
#: Seconds without a run after which what runs taught says no more how fast the machine is.
_STALE = 1.0
#: Sizes that are remembered.
_KEPT = 4096

_Waiting = tuple[tuple[int, float], int, float, Job]


class _Size(NamedTuple):
    """The table's costs of requests of one size, in seconds.

    ``shared``: CPU seconds in the best batches of such rows; ``single``: in a run of its own; ``own``: of
    that run, on the threads that are planned; ``alone``: of one on those that end it soonest.
    """

    shared: float
    single: float
    own: float
    alone: float


class Admission:
    """Predicts when requests end, and refuses those that would be late or make others late.

    Requests that take more than usual are refused a little sooner.
    """

    def __init__(self, costs: CostTable, division: Division, speed: Speed, policy: ByCost) -> None:
        self._costs, self._cpus, self._division = costs, division.cpus, division
        self._streams = division.streams
        self._speed, self._policy = speed, policy
        self._waiting: list[_Waiting] = []  # the most urgent first: key, number, CPU seconds, job
        self._keys: dict[Job, _Waiting] = {}
        self._work_waiting = 0.0  # CPU seconds of all that wait
        self._before: dict[int, float] = {}  # and of so many of the most urgent ones
        self._sizes: dict[tuple[int, int], _Size] = {}
        self._count = 0
        self._promised: dict[Job, float] = {}
        self._slip = 0.0  # seconds
        self._usual = 0.0  # seconds that were promised, in the mean
        self._ended = 0.0  # the last run, by the clock
        self._typical = 0.0  # CPU seconds that requests with a deadline take, in the mean

    def admit(self, jobs: Sequence[Job], now: float, running: Collection[Run]) -> None:
        """Takes jobs in that come together, so that they wait; none, if one of them would be late or make another one late.

        Raises:
            Refused: with what its message says.
        """
        timed = [job for job in jobs if job.deadline is not None]
        for job in jobs:
            allowed = None if job.deadline is None else job.deadline - now
            self._division.see(job.length, allowed, now)
        if self._streams is not self._division.streams:
            self._streams = self._division.streams
            self._sizes.clear()
        begun = 0.0
        if timed or self._promised:
            begun = self._rest(now, running)
            try:
                self._judge(jobs, timed, now, begun)
            except Refused:
                # Nothing runs where all are refused: a machine that was slow for a while would stay so.
                if self._waiting or running or now - self._ended < _STALE:
                    raise
                self._speed.forget()
                self._slip = 0.0
                self._judge(jobs, timed, now, 0.0)
        # Before they are in: what is ahead of one job of a list is ahead of all, and looked up once.
        together = 0.0
        for job in timed:
            together += self.work(job)
            self._promised[job] = sum(self._times(job, begun, together))
        self._before.clear()
        for job in jobs:
            work = self.work(job)
            self._count += 1
            item = (job.urgency, self._count, work, job)
            self._keys[job] = item
            self._work_waiting += work
            insort(self._waiting, item)

    def _judge(self, jobs: Sequence[Job], timed: Sequence[Job], now: float, begun: float) -> None:
        bound = self._speed.bound
        work = sum(map(self.work, jobs))
        late, message = 0.0, ""
        for job in timed:
            assert job.deadline is not None
            alone, allowed = self._size(job).alone * bound, job.deadline - now
            if alone > allowed:
                raise TooLate(
                    f"a run of {job.rows} x {job.length} takes {_ms(alone)} here, and the deadline "
                    f"is in {_ms(max(0.0, allowed))}"
                )
            wait, own = self._times(job, begun, work)
            # For the others that came with it it waits on an idle server, too.
            least = (work - self.work(job)) * bound / self._cpus
            if least > 0 and least + own > allowed:
                raise TooLate(
                    f"with what came with it, a run of {job.rows} x {job.length} takes "
                    f"{_ms(least + own)} here, and the deadline is in {_ms(max(0.0, allowed))}"
                )
            own += self._slip if wait else 0.0
            factor = self._wait_factor(job)
            over = ((wait - least) * factor + least + own - allowed) / factor
            if over > late:
                why = f"{_ms(over)} too late"
                if wait + own <= allowed:
                    why = f"but takes more than others do; taken when {_ms(over)} less wait"
                late, message = over, f"it would be ready in {_ms(wait + own)}, {why}"
        if late > 0:
            raise Refused(message, late)
        late = self._lateness(jobs, now, begun)
        if late > 0:
            raise Refused(
                f"with it, requests that were taken before would be {_ms(late)} late", late
            )

    def backlog(self, now: float, running: Iterable[Run]) -> float:
        """Seconds until all that waits and runs is done, if nothing comes."""
        work = self._work_waiting * self._speed.factor
        return (self._rest(now, running) + work) / self._cpus

    def remove(self, job: Job) -> None:
        """A job waits no more, as it runs or is given up."""
        item = self._keys.pop(job)
        self._before.clear()
        del self._waiting[bisect_right(self._waiting, item) - 1]
        # From nothing it begins again: no error of rounding stays.
        self._work_waiting = self._work_waiting - item[2] if self._waiting else 0.0

    def end(self, jobs: Iterable[Job], now: float) -> None:
        """A run of these jobs is over: learns by how much they were later than promised.

        ``slip`` follows the seconds that one job in a hundred exceeds: it grows by 99 parts with each
        that does, and falls by one with each that doesn't. Seconds, and no share of the promise: short
        jobs are the most, and what they wait behind a long one says nothing of long ones.
        """
        self._ended = now
        for job in jobs:
            promised = self._promised.pop(job, None)
            if promised is not None:
                late = now - job.arrived > promised + self._slip
                self._usual += _STEP * (promised - self._usual)
                self._slip += _STEP * self._usual * (0.99 if late else -0.01)
        self._slip = min(max(self._slip, 0.0), 3 * self._usual)

    def forget(self, job: Job) -> None:
        """A job was given up or cancelled."""
        self._promised.pop(job, None)

    def work(self, job: Job) -> float:
        """CPU seconds of a job in the batches that are usual, at the speed of the table."""
        size = self._size(job)
        # What batches cost short jobs, long ones don't pay: alone they would cost less.
        return min(size.shared * self._policy.packing, size.single)

    def _size(self, job: Job) -> _Size:
        """The table's words on a job, which are looked up once for each size."""
        size = self._sizes.get((job.rows, job.length))
        if size is None:
            costs, threads = self._costs, self._streams.threads
            own = costs.seconds(threads, job.rows, job.length)
            most = max(self._cpus, costs.threads[0])
            size = _Size(
                threads * job.rows * costs.cheapest(threads, job.length),
                threads * own,
                own,
                min(costs.seconds(t, job.rows, job.length) for t in costs.threads if t <= most),
            )
            if len(self._sizes) >= _KEPT:
                self._sizes.clear()
            self._sizes[job.rows, job.length] = size
        return size

    def _rest(self, now: float, running: Iterable[Run]) -> float:
        """CPU seconds that are left of the runs under way."""
        rest, factor = 0.0, self._speed.factor
        for run in running:
            remaining = run.began + run.predicted * factor - now
            if remaining > 0:
                rest += remaining * run.threads
        return rest

    def _times(self, job: Job, begun: float, work: float) -> tuple[float, float]:
        """Seconds that a job that isn't in waits, and those of its run; without what it may be late.

        With ``begun`` left of what runs, and jobs of ``work`` that come together, this one last.
        """
        before = bisect_right(self._waiting, (job.urgency, self._count + 1, 0.0, job))
        ahead = work - self.work(job)
        if before == len(self._waiting):  # the usual one: nobody that waits is less urgent
            ahead += self._work_waiting
        else:
            if before not in self._before:
                self._before[before] = sum(item[2] for item in self._waiting[:before])
            ahead += self._before[before]
        # With nothing beside it a run gets the threads that end it soonest, and waits for nobody who could be late.
        bound = self._speed.bound
        if not begun and not ahead:
            return 0.0, self._size(job).alone * bound
        return (begun + ahead * bound) / self._cpus, self._size(job).own * bound

    def _wait_factor(self, job: Job) -> float:
        """The factor on a job's wait before it is judged: more than 1 for one that takes more than usual.

        Where not all can be answered, of those that take little more are."""
        takes = self._size(job).shared
        self._typical += (_FOLLOW if self._typical else 1.0) * (takes - self._typical)
        return 1.0 + _LONG_RUN * min(max(takes / self._typical - 1.0, 0.0), 1.0)

    def _lateness(self, jobs: Sequence[Job], now: float, begun: float) -> float:
        """The delay that these jobs would cause to a less urgent one that is in time without them."""
        coming = sorted(jobs, key=by_urgency)
        place = bisect_right(self._waiting, (coming[0].urgency, self._count + 1))
        if place == len(self._waiting):
            return 0.0
        bound, late, added = self._speed.bound, 0.0, 0.0
        ahead = sum(item[2] for item in self._waiting[:place])
        for urgency, _, own, job in self._waiting[place:]:
            while coming and coming[0].urgency < urgency:
                added += self.work(coming.pop(0))
            if job.deadline is not None:
                run = self._size(job).own * bound
                without = now + (begun + ahead * bound) / self._cpus + run
                if without <= job.deadline:
                    late = max(late, without + added * bound / self._cpus - job.deadline)
            ahead += own
        return late


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
