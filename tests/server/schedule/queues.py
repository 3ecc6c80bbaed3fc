"""Costs, and a queue that is run as they predict."""

from __future__ import annotations

from edgecompile.server.schedule.costs import CostTable
from edgecompile.server.schedule.jobs import Job
from edgecompile.server.schedule.queue import Queue

#: Batches pay for short requests and lose for long ones; two threads help the long ones.
TABLE = CostTable(
    [(t, b, n, ms * b**power / gain)
     for n, ms, power, two in ((4, 2.0, 0.4, 1.1), (16, 3.0, 0.7, 1.3), (64, 10.0, 1.02, 1.8), (256, 60.0, 1.1, 1.9))
     for t, gain in ((1, 1.0), (2, two))
     for b in (1, 2, 4, 8, 16, 32)]
)  # fmt: skip
#: Where batches never pay, every prediction is exact.
PLAIN = CostTable([(1, 1, 1, 1.0), (1, 1, 100, 100.0), (1, 2, 1, 2.0), (1, 2, 100, 200.0)])
LENGTHS = {4: 5, 8: 5, 16: 4, 40: 3, 64: 2, 200: 1}


def drain(
    queue: Queue, now: float, until: float = float("inf")
) -> tuple[float, list[tuple[Job, float]]]:
    """Runs what there is, each run as long as predicted; gives each job's end."""
    ended: list[tuple[Job, float]] = []
    while True:
        while True:
            run, _ = queue.next(now)
            if run is None:
                break
        if not queue.running:
            return now, ended
        run = min(queue.running, key=lambda x: x.began + x.predicted)
        end = run.began + run.predicted
        if end > until:
            return until, ended
        now = end
        queue.end(run, now)
        ended.extend((job, now) for job in run.jobs)
