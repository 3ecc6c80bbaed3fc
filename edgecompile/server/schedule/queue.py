"""The queue of a model: what waits, what runs, and on how many CPUs. No clock, threads or arrays.

The scheduler of the server and the simulator are both built on it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from edgecompile.server.schedule.admission import Admission
from edgecompile.server.schedule.costs import CostTable, Speed
from edgecompile.server.schedule.jobs import Job, Policy, Refused, Run, by_length
from edgecompile.server.schedule.streams import Cores

#: A list may take so many times as long as it could: others run beside it, and costs are guesses. With
#: less to spare, what comes behind it would wait for as long as it is late.
_RESERVE = 2
#: Lists together leave so great a part of the requests to jobs that come alone.
_ALONE = 8
#: A list is taken where so many times as many texts had room: however much large ones bring, small ones still find some.
_ROOM = 8


class Queue:
    """Jobs go in with ``offer``, come out in runs with ``next``, and are over with ``end``.

    Attributes:
        waiting: the waiting jobs in the order of their arrival.
        running: the runs under way.
        cores: the CPUs, perhaps shared with other queues.
        speed: learned from the runs.
    """

    def __init__(
        self,
        costs: CostTable,
        cpus: int,
        policy: Policy,
        *,
        speed: Speed | None = None,
        admission: Admission | None = None,
        limit: int = 1024,
        texts: int = 32768,
        cores: Cores | None = None,
    ) -> None:
        """Makes it.

        Args:
            costs: the costs of runs.
            cpus: the CPUs that there are.
            policy: says what runs next.
            speed: None: a new one.
            admission: None takes all that the limit allows.
            limit: the largest number of waiting requests; jobs that come together are one.
            texts: the largest number of waiting jobs of all lists together. One list alone may have
                more.
            cores: shared ones; None: its own.
        """
        self.waiting: dict[Job, None] = {}
        self.running: dict[Run, None] = {}
        # Of those that came with others, and wait: the first of them.
        self._lists: dict[Job, Job] = {}
        self._left: Counter[Job] = Counter()  # how many of each list wait
        least = costs.threads[0]  # there are no costs of a smaller run
        shared = cores is not None and cores.count >= least
        self.cores = cores if shared and cores is not None else Cores(max(cpus, least))
        self._own = 0  # CPUs of the runs under way
        self.speed = speed or Speed()
        self._cpus, self._costs, self._limit, self._texts = cpus, costs, limit, texts
        self._policy, self._admission = policy, admission

    def offer(self, jobs: Sequence[Job], now: float) -> None:
        """Takes jobs in, all of them or none.

        Jobs that come together are a list: each counts as having come when the longer ones of it could
        be done, if the lists that wait shared half of the CPUs equally. So none keeps waiting what comes
        later.

        Raises:
            Refused: there are too many already, or it can't be in time.
        """
        several = len(jobs) > 1
        self._check(self.requests, 1, self._limit, "requests wait and 1 came", now)
        if several:
            lists = self._limit - self._limit // _ALONE
            self._check(len(self._left), 1, lists, "lists wait and 1 came", now, self._until_a_list)
            came = f"texts wait in lists and {len(jobs)} came, for which {_ROOM * len(jobs)} must have room"
            self._check(len(self._lists), _ROOM * len(jobs), self._texts, came, now)
            before, shares = 0.0, _RESERVE * (1 + len(self._left))
            for job in sorted(jobs, key=by_length, reverse=True):
                job.stand_behind(before * shares)
                before += self._seconds(job)
        if self._admission is not None:
            self._admission.admit(jobs, now, self.running)
        for job in jobs:
            self.waiting[job] = None
        if several:
            self._lists.update(dict.fromkeys(jobs, jobs[0]))
            self._left[jobs[0]] = len(jobs)

    @property
    def requests(self) -> int:
        """The number of waiting requests: a list is one until the last of it has begun."""
        return len(self.waiting) - len(self._lists) + len(self._left)

    def _check(
        self,
        there: int,
        more: int,
        limit: int,
        what: str,
        now: float,
        part: Callable[[], float] | None = None,
    ) -> None:
        """Raises Refused where so many more have no room, unless there are none.

        ``part``: of all that waits, what has to be done before there is room; None: as many as are too many.
        """
        over = there + more - limit
        if there and over > 0:
            after = self.backlog(now) * (min(1.0, over / there) if part is None else part())
            raise Refused(f"{there} {what}, the limit is {limit}", after)

    def _until_a_list(self) -> float:
        """The part of all that waits which goes before the last job of some list, in the order of urgency."""
        last: dict[Job, tuple[int, float]] = {}
        for job, first in self._lists.items():
            last[first] = max(last.get(first, job.urgency), job.urgency)
        soonest = min(last.values())
        return sum(job.urgency <= soonest for job in self.waiting) / len(self.waiting)

    def cancel(self, job: Job) -> bool:
        """Takes a job out that waits; False: it runs, or is over."""
        if job not in self.waiting:
            return False
        self._remove(job)
        if self._admission is not None:
            self._admission.forget(job)
        return True

    def next(self, now: float, *, follow: bool = False) -> tuple[Run | None, list[Job]]:
        """The run that begins now, if one does; and jobs that can't be in time any more, taken out.

        With ``follow`` it is one that begins when one of those under way ends, which ``begin`` learns.
        """
        expired: list[Job] = []
        while self.waiting and (follow or self.cores.free > 0):
            # The oldest run probably ends first.
            free = next(iter(self.running)).threads if follow else self.cores.free
            choice = self._policy.choose(self.waiting, now, free, self._own)
            if choice is None:
                break
            jobs, threads = choice
            hopeless = [job for job in jobs if self._is_hopeless(job, now)]
            expired += hopeless
            if self._admission is not None:
                for job in hopeless:
                    self._admission.forget(job)
            for job in jobs:
                self._remove(job)
            jobs = [job for job in jobs if job not in hopeless] if hopeless else jobs
            if not jobs:
                continue
            run = Run(jobs, threads, now)
            run.predicted = self._costs.seconds(run.threads, run.rows, run.length)
            self.running[run] = None
            if not follow:
                self.begin(run, now)
            return run, expired
        return None, expired

    def begin(self, run: Run, now: float) -> None:
        """A run that ``next`` gave takes its CPUs."""
        run.began = now
        self.cores.free -= run.threads
        self._own += run.threads

    def end(self, run: Run, now: float) -> None:
        """A run is over."""
        del self.running[run]
        self.cores.free += run.threads
        self._own -= run.threads
        if self._admission is not None:
            self._admission.end(run.jobs, now)
        if now > run.began:
            self.speed.see(run.predicted, now - run.began, run.alone)

    def pass_by(self, predicted: float, began: float, now: float) -> None:
        """A run is over that never was in here."""
        if self._admission is not None:
            self._admission.end((), now)
        if now > began:
            self.speed.see(predicted, now - began)

    def backlog(self, now: float) -> float:
        """Seconds until all that is in would be done, by the costs."""
        if self._admission is not None:
            return self._admission.backlog(now, self.running)
        return sum(map(self._seconds, self.waiting))

    def _seconds(self, job: Job) -> float:
        """The seconds that a job takes of all CPUs, by the costs."""
        if self._admission is not None:
            work = self._admission.work(job)
        else:
            threads = self._costs.threads[0]
            work = threads * self._costs.seconds(threads, job.rows, job.length)
        return work * self.speed.factor / self._cpus

    def _is_hopeless(self, job: Job, now: float) -> bool:
        if job.deadline is None:
            return False
        if self._admission is None:
            return now >= job.deadline
        least = min(self._costs.seconds(t, job.rows, job.length) for t in self._costs.threads)
        return now + least * self.speed.factor > job.deadline

    def _remove(self, job: Job) -> None:
        del self.waiting[job]
        first = self._lists.pop(job, None)
        if first is not None:
            self._left[first] -= 1
            if not self._left[first]:
                del self._left[first]
        if self._admission is not None:
            self._admission.remove(job)
