"""Counters of a worker, as Prometheus' text format 0.0.4 has them."""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator

from edgecompile.server.answers import Answer, TextAnswer
from edgecompile.server.serving import Repository

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64)
#: Answers that are noted, and counted together later: at once it costs each of them more.
_MOST_PENDING = 512


class _Histogram:
    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Metrics:
    """Everything is counted on the event loop."""

    def __init__(self) -> None:
        self._started = time.time()
        self.requests: defaultdict[tuple[str, int], int] = defaultdict(int)
        self.in_flight = 0
        self._queue: dict[str, _Histogram] = {}
        self._run: dict[str, _Histogram] = {}
        self._batch: dict[str, _Histogram] = {}
        self._tokens: defaultdict[str, int] = defaultdict(int)
        self._truncated: defaultdict[str, int] = defaultdict(int)
        self._pending: list[tuple[str, float, float, int | None]] = []

    def request(self, route: str, status: int) -> None:
        """Counts an answered request; 499: its client went away before."""
        self.requests[route, status] += 1

    def answer(self, model: str, answer: Answer | TextAnswer) -> None:
        """Counts what a model answered."""
        rows = answer.batch if isinstance(answer, Answer) else None
        if isinstance(answer, TextAnswer):
            self._truncated[model] += len(answer.truncated)
        self._pending.append((model, answer.queue_s, answer.run_s, rows))
        if len(self._pending) >= _MOST_PENDING:
            self._settle()

    def _settle(self) -> None:
        for model, queue_s, run_s, rows in self._pending:
            if model not in self._queue:
                self._queue[model] = _Histogram(_SECONDS)
                self._run[model] = _Histogram(_SECONDS)
                self._batch[model] = _Histogram(_ROWS)
            self._queue[model].add(queue_s)
            self._run[model].add(run_s)
            if rows is not None:
                self._batch[model].add(rows)
        self._pending.clear()

    def tokens(self, model: str, count: int) -> None:
        """Counts generated tokens."""
        self._tokens[model] += count

    def text(
        self, repository: Repository, connections: int, body_bytes: int, draining: bool
    ) -> bytes:
        """All of it."""
        self._settle()
        lines: list[str] = []
        requests = [
            (f'route="{route}",status="{status}"', count)
            for (route, status), count in sorted(self.requests.items())
        ]
        lines += _family("requests_total", "counter", "Requests by route and status.", requests)
        lines += _family(
            "requests_in_flight", "gauge", "Requests under way.", [("", self.in_flight)]
        )
        lines += _family("connections", "gauge", "Open connections.", [("", connections)])
        lines += _family(
            "body_bytes", "gauge", "Large bodies of requests under way.", [("", body_bytes)]
        )
        lines += _family("draining", "gauge", "1 once the server ends.", [("", int(draining))])
        lines += _family(
            "start_time_seconds", "gauge", "Start of the worker.", [("", self._started)]
        )
        lines += _family("resident_bytes", "gauge", "Resident memory.", [("", _resident())])
        models = list(repository)
        ready = [(_model(m.name) + f',version="{m.version}"', int(m.ready)) for m in models]
        lines += _family("model_ready", "gauge", "1 once a model takes requests.", ready)
        waiting = [(_model(m.name), m.scheduler.requests) for m in models]
        lines += _family("queue_requests", "gauge", "Requests that wait.", waiting)
        items = [(_model(m.name), m.scheduler.waiting) for m in models]
        lines += _family("queue_items", "gauge", "Their tensors and texts.", items)
        backlog = [(_model(m.name), m.scheduler.backlog) for m in models]
        lines += _family(
            "backlog_seconds", "gauge", "Until all that is in would be done, predicted.", backlog
        )
        speed = [(_model(m.name), m.scheduler.speed.factor) for m in models]
        lines += _family("cost_ratio", "gauge", "Seconds of runs over those predicted.", speed)
        drift = [(_model(m.name), m.scheduler.traffic.drift) for m in models]
        drifts = [(name, value) for name, value in drift if value is not None]
        lines += _family(
            "length_drift",
            "gauge",
            "Distance of the lengths from those planned for, 0 to 1.",
            drifts,
        )
        stats = [(_model(m.name), m.model.stats) for m in models]
        runs = [(name, item["runs"]) for name, item in stats]
        lines += _family("runs_total", "counter", "Runs of a model.", runs)
        refused = [(_model(m.name), m.scheduler.traffic.snapshot()["refused"]) for m in models]
        lines += _family("refused_total", "counter", "Requests that were refused.", refused)
        batches = [
            (_model(m.name) + f',texts="{texts}"', count)
            for m in models
            if m.generator is not None
            for texts, count in m.generator.steps.pace.runs.items()
        ]
        lines += _family(
            "token_runs_total", "counter", "Runs of so many texts, a token of each.", batches
        )
        tokens = [(_model(name), count) for name, count in self._tokens.items()]
        lines += _family("generated_tokens_total", "counter", "Tokens made.", tokens)
        cut = [(_model(name), count) for name, count in self._truncated.items()]
        lines += _family("truncated_texts_total", "counter", "Texts whose end was cut off.", cut)
        for name, about, histograms in (
            ("queue_seconds", "Seconds in the queue, by answer.", self._queue),
            ("run_seconds", "Seconds of runs, by answer.", self._run),
            ("batch_rows", "Rows that ran together, by answer.", self._batch),
        ):
            lines += _histograms(name, about, histograms)
        return ("\n".join(lines) + "\n").encode()


def _model(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'model="{escaped}"'


def _family(
    name: str, kind: str, about: str, samples: Iterable[tuple[str, float]]
) -> Iterator[str]:
    yield f"# HELP edgecompile_{name} {about}"
    yield f"# TYPE edgecompile_{name} {kind}"
    for labels, value in samples:
        yield f"edgecompile_{name}{{{labels}}} {value}" if labels else f"edgecompile_{name} {value}"


def _histograms(name: str, about: str, histograms: dict[str, _Histogram]) -> Iterator[str]:
    yield from _family(name, "histogram", about, ())
    for model, histogram in histograms.items():
        label, total = _model(model), 0
        for bound, count in zip(
            (*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True
        ):
            total += count
            yield f'edgecompile_{name}_bucket{{{label},le="{bound}"}} {total}'
        yield f"edgecompile_{name}_sum{{{label}}} {histogram.total}"
        yield f"edgecompile_{name}_count{{{label}}} {total}"


def _resident() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
