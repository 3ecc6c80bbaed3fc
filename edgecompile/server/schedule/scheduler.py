"""The queue of a model: requests go in on the event loop, and run together on threads.

With costs in the bundle (``plan.server``) batches are composed by them, on as many CPUs each as they
suit; without, requests run one by one on all CPUs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from numpy.typing import NDArray

from edgecompile.runtime import Model
from edgecompile.runtime.base.errors import EdgecompileError, InputError, OutsideBucketsError
from edgecompile.runtime.call.inputs import CheckedInputs
from edgecompile.server.answers import Answer
from edgecompile.server.errors import (
    DeadlineExceeded,
    Draining,
    Overloaded,
    translate,
)
from edgecompile.server.journal import Journal
from edgecompile.server.schedule.batches import Batches, Result, Runner
from edgecompile.server.schedule.costs import CostTable, Speed, read_costs
from edgecompile.server.schedule.jobs import Job, Refused, Run, TooLate
from edgecompile.server.schedule.queue import Queue
from edgecompile.server.schedule.request_counts import RequestCounts
from edgecompile.server.schedule.simulate import make_plain_queue, make_queue
from edgecompile.server.schedule.streams import Cores, Streams, plan_streams
from edgecompile.server.schedule.threads import ShortSizes, Threads, rest

_log = logging.getLogger("edgecompile.server")

Inputs = Mapping[str, NDArray[Any]]
_Future = asyncio.Future[Answer]


@dataclass(eq=False)
class _QueuedRequest:
    inputs: CheckedInputs
    outputs: Sequence[str] | None
    future: asyncio.Future[Answer]


class Scheduler:
    """Runs the requests of one model. Everything but its runs happens on one event loop.

    Attributes:
        cores: the CPUs, perhaps shared with other models.
        streams: the division of the CPUs before the first request; None without costs.
        traffic: the requests, counted.
        batches, batch_s: the number of successful runs by their number of rows, and their seconds.
    """

    def __init__(
        self,
        model: Model,
        *,
        queue: int = 1024,
        texts: int = 32768,
        clock: Callable[[], float] = time.monotonic,
        slo: float | None = None,
        costs: Mapping[str, Any] | None = None,
        policy: str = "by-cost",
        journal: Journal | None = None,
        cores: Cores | None = None,
    ) -> None:
        """Reads the costs.

        Args:
            model: an open model; its ``concurrency`` should be its threads.
            queue: the largest number of waiting requests; further ones are refused.
            texts: the largest number of waiting texts of all lists together; one list alone may
                have more.
            clock: seconds that only go on; deadlines are its times.
            slo: seconds that are the deadline of requests which bring none; None: they have none.
            costs: the costs that ``bench --serving`` measured on this machine; None: those of the
                bundle.
            cores: the CPUs that it shares with other models; None: as many as the model's threads.
            journal: the journal of runs; None: none is kept.
            policy: one of ``simulate.POLICIES``, for comparisons.

        Raises:
            ValueError: the costs aren't of the form that they should have.
        """
        self.batches: dict[int, int] = {}
        self.batch_s: dict[int, float] = {}
        self.streams: Streams | None = None
        self._model, self._clock, self._slo = model, clock, slo
        self._journal = journal or Journal()
        built = model.manifest.plan.get("server")
        # A file of costs says nothing of padding and traffic.
        plan = {**(built if isinstance(built, dict) else {}), **(costs or {})}
        self.traffic = RequestCounts(model, plan.get("length_percentiles") or ())
        self._layout = Batches(model.manifest, plan)
        self._cpus = int(model.info.get("threads") or 1)
        self._queue = self._make_queue(queue, texts, plan, policy, cores)
        self.cores = self._queue.cores
        self.cores.share(self._pump)
        self._closed = False
        self._short = ShortSizes()
        self._threads = Threads(self._cpus)
        self._runner = Runner(model, self._layout, self._journal, self._cpus)
        self._following = 0  # runs that begin when others end
        self._idle = asyncio.Event()
        self._idle.set()

    def _make_queue(
        self, limit: int, texts: int, plan: Mapping[str, Any], policy: str, cores: Cores | None
    ) -> Queue:
        manifest, layout = self._model.manifest, self._layout
        if not layout.joins or "points" not in plan:
            if "points" in plan:
                _log.warning(
                    "%s: requests run one by one, as its build didn't find that rows of a batch leave "
                    "each other alone; build it with --profile server",
                    manifest.name,
                )
            least = 1 if self._model.info.get("run_threads") else self._cpus
            return make_plain_queue(self._cpus, least, limit, texts, cores)
        lengths = manifest.axes[str(manifest.length_axis)]
        costs: CostTable = read_costs(
            plan, most_rows=layout.most_rows, longest=lengths.hi, shortest=lengths.lo
        )
        planned = plan.get("length_percentiles") or [lengths.lo, lengths.hi]
        traffic = {length: planned.count(length) for length in planned}
        self.streams = plan_streams(costs, self._cpus, traffic)
        return make_queue(
            policy,
            costs,
            self._cpus,
            traffic,
            streams=self.streams,
            mixes=layout.mixes,
            limit=limit,
            texts=texts,
            cores=cores,
        )

    @property
    def waiting(self) -> int:
        """The number of tensors and texts in the queue."""
        return len(self._queue.waiting)

    @property
    def requests(self) -> int:
        """The number of requests in the queue; a list of texts is one."""
        return self._queue.requests

    @property
    def running_since(self) -> float | None:
        """The start of the oldest current run, by the clock; None: nothing runs."""
        return min((run.began for run in self._queue.running), default=None)

    @property
    def backlog(self) -> float:
        """Seconds until all that is in would be done, by the costs."""
        return self._queue.backlog(self._clock())

    @property
    def speed(self) -> Speed:
        """The factor by which the machine is slower than its costs."""
        return self._queue.speed

    def submit(
        self,
        inputs: Inputs,
        *,
        outputs: Sequence[str] | None = None,
        deadline: float | None = None,
        priority: int = 0,
    ) -> asyncio.Future[Answer]:
        """Puts a request into the queue, or runs it here and now; see ``submit_all``."""
        request = self._take(inputs, outputs)
        now = self._clock()
        if deadline is None and self._slo is None and self._run_at_once(request, now):
            return request.future
        return self._offer([request], now, deadline, priority)[0]

    def submit_all(
        self,
        requests: Sequence[Inputs],
        *,
        outputs: Sequence[str] | None = None,
        deadline: float | None = None,
        priority: int = 0,
    ) -> list[asyncio.Future[Answer]]:
        """Puts a client's requests into the queue, all or none; call it on the event loop.

        Args:
            requests: whole batches, as ``Model.run`` takes them; not changed until the answer.
            outputs: the outputs that are wanted; None: all.
            deadline: the time from which the answers are of no more use, by the clock.
            priority: the priority, see ``Job``.

        Returns:
            The answers to come. Cancelling one takes its request out of the queue.

        Raises:
            BadRequest: something is wrong with the inputs.
            Overloaded: the queue is full, or they would be late; it says when to try again.
            DeadlineExceeded: even an idle server would be too slow for the deadline.
            Draining: ``close`` was called.
            Quarantined: workers died while they ran it.
        """
        now = self._clock()
        entries = [self._take(inputs, outputs) for inputs in requests]
        return self._offer(entries, now, deadline, priority)

    def _take(self, inputs: Inputs, outputs: Sequence[str] | None) -> _QueuedRequest:
        """Checks a request."""
        if self._closed:
            raise Draining("the server is about to end", 1.0)
        try:
            arrays = self._model.check_once(inputs)
        except InputError as error:
            outside = isinstance(error, OutsideBucketsError)
            self.traffic.refuse(self._layout.sizes(inputs) if outside else None)
            raise translate(error) from None
        if self._journal.suspects():
            self._journal.check(self._runner.key(arrays))
        return _QueuedRequest(arrays, outputs, asyncio.get_running_loop().create_future())

    def _run_at_once(self, request: _QueuedRequest, now: float) -> bool:
        """Runs a request past the queue where nothing waits or runs and its sizes are short ones."""
        plan, cores = self._short.get(request.inputs.sizes), self.cores
        busy = self._queue.waiting or cores.free < cores.count
        if plan is None or busy or now < cores.loop_rests:
            return False
        threads, rows, predicted = plan
        (result,) = self._runner.run([request.inputs], threads)
        ended = self._clock()
        took = ended - now
        self._queue.pass_by(predicted, now, ended)
        self._short.see(request.inputs.sizes, took, plan)
        self._count([rows], [result], took)
        self._answer(request, result, 0.0, took, rows)
        self.traffic.tick(time.perf_counter_ns())
        cores.loop_rests = ended + rest(took)
        return True

    def _offer(
        self, requests: Sequence[_QueuedRequest], now: float, deadline: float | None, priority: int
    ) -> list[asyncio.Future[Answer]]:
        if deadline is None and self._slo is not None:
            deadline = now + self._slo
        jobs = []
        for request in requests:
            rows, length = self._layout.measure(request.inputs.sizes)
            jobs.append(Job(length, rows, now, deadline, priority, request))
        try:
            self._queue.offer(jobs, now)
        except Refused as refused:
            for _ in jobs:
                self.traffic.refuse()
            if isinstance(refused, TooLate):
                raise DeadlineExceeded(refused.message) from None
            raise Overloaded(refused.message, refused.retry_after) from None
        self._pump()
        for job in jobs:
            future: _Future = job.payload.future
            if not future.done():
                timer = None
                if deadline is not None:
                    loop = asyncio.get_running_loop()
                    timer = loop.call_later(max(0.0, deadline - now), self._expire, job)
                future.add_done_callback(partial(self._left, job, timer))
        return [request.future for request in requests]

    def _left(self, job: Job, timer: asyncio.TimerHandle | None, future: _Future) -> None:
        """Drops the request of a client that has gone. A run under way goes on."""
        if timer is not None:
            timer.cancel()
        if future.cancelled() and self._queue.cancel(job):
            self._look_idle()

    def _expire(self, job: Job) -> None:
        """A deadline passed: requests that still wait are refused, however long the runs before it take."""
        if self._queue.cancel(job):
            self._give_up(job)
            self._look_idle()

    def _give_up(self, job: Job) -> None:
        late = DeadlineExceeded("it can't be ready before its deadline any more")
        if not job.payload.future.done():
            job.payload.future.set_exception(late)
        self.traffic.refuse()

    def _pump(self) -> None:
        """Begins what can begin."""
        while self.cores.free > 0 and self._threads.lead():
            pass
        while self._queue.waiting:
            # Where runs are many, one of them often ends while the loop does something else.
            follow = self.cores.free <= 0
            under_way = len(self._queue.running) - self._following
            if follow and (self._following >= under_way // 4 or self.cores.shared):
                break
            run, expired = self._queue.next(self._clock(), follow=follow)
            for job in expired:
                self._give_up(job)
            if run is None:
                break
            self._start(run, follow)
        self._look_idle()

    def _start(self, run: Run, follow: bool) -> None:
        inputs = [job.payload.inputs for job in run.jobs]
        work, done = partial(self._work, run, inputs), partial(self._done, run)
        if follow:
            self._following += 1
            self._threads.follow(work, done, partial(self._begun, run))
        elif self._is_short(run):
            ended = self._finish(run, work())
            self.cores.loop_rests = ended + rest(ended - run.began)
        else:
            self._idle.clear()
            self._threads.run(work, done)

    def _work(self, run: Run, inputs: Sequence[CheckedInputs]) -> list[Result]:
        began, own = self._clock(), time.thread_time()
        results = self._runner.run(inputs, run.threads)
        # The thread may have waited for the loop, which holds Python's lock.
        run.alone = min(self._clock() - began, time.thread_time() - own) or None
        return results

    def _begun(self, run: Run) -> None:
        self._following -= 1
        self._queue.begin(run, self._clock())

    def _is_short(self, run: Run) -> bool:
        """Whether the event loop does a run itself: that costs less than to wake a thread up.

        One request of sizes that were short, and not all the time: with more to do, threads answer
        more, as they run side by side, and what waits meanwhile can share a run.
        """
        alone = len(run.jobs) == 1 and run.began >= self.cores.loop_rests
        return alone and self._short.get(run.jobs[0].payload.inputs.sizes) is not None

    def _done(self, run: Run, results: list[Result]) -> None:
        self._finish(run, results)
        self.cores.freed(self._pump)

    def _finish(self, run: Run, results: list[Result]) -> float:
        """Answers a run's requests; when it ended, by the clock."""
        now = self._clock()
        self._queue.end(run, now)
        took = now - run.began
        if len(run.jobs) == 1:
            plan = (run.threads, run.rows, run.predicted)
            self._short.see(run.jobs[0].payload.inputs.sizes, took, plan)
        self._count([job.rows for job in run.jobs], results, took)
        for job, result in zip(run.jobs, results, strict=True):
            waited = run.began - job.arrived
            self._answer(job.payload, result, waited, took, run.rows, job.rows / run.rows)
        self.traffic.tick(time.perf_counter_ns())
        return now

    def _count(self, rows: Sequence[int], results: Sequence[Result], took: float) -> None:
        """Counts the run of requests with so many rows each, and leaves out what failed."""
        total = sum(rows)
        parts = [n for n, r in zip(rows, results, strict=True) if not isinstance(r, Exception)]
        if len(parts) == len(rows):  # otherwise each one has run alone
            parts = [total]
        for part in parts:
            self.batches[part] = self.batches.get(part, 0) + 1
            self.batch_s[part] = self.batch_s.get(part, 0.0) + took * part / total

    def _answer(
        self,
        request: _QueuedRequest,
        result: Result,
        waited: float,
        took: float,
        rows: int,
        share: float = 1.0,
    ) -> None:
        """Counts a request that ran, its share of a run, and answers it."""
        future = request.future
        if isinstance(result, Exception):
            self.traffic.failed += 1
            own = isinstance(result, EdgecompileError)
            if not future.done():
                future.set_exception(translate(result) if own else result)  # type: ignore[arg-type]
            return
        self.traffic.count(request.inputs, waited, took, share)
        if request.outputs is not None:
            result = {name: result[name] for name in request.outputs}
        if not future.done():
            future.set_result(Answer(result, waited, took, rows))

    def _look_idle(self) -> None:
        if not self._queue.waiting and not self._queue.running:
            self._idle.set()

    async def close(self) -> None:
        """Refuses further requests and waits for those that are in."""
        self._closed = True
        await self._idle.wait()
        self.cores.leave(self._pump)
        self._threads.close()
        self.traffic.finish()
