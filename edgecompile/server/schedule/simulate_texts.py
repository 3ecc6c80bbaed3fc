"""Replays texts that are generated side by side, by the order and the pace of the server, on given costs."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgecompile.server.schedule.pace import Pace
from edgecompile.server.schedule.simulate import Arrival, draw_trace, percentile_ms
from edgecompile.server.schedule.sweep import LOADS, Workload
from edgecompile.server.schedule.turns import Turns
from edgecompile.server.settings import DEFAULT_LIMITS

#: By name: what they are.
TEXT_POLICIES = {
    "by-cost": "a token of as many texts in one run as the costs say",
    "one-by-one": "a token of one text in each run",
}
_EVER = float("inf")


@dataclass(frozen=True)
class TextArrival:
    """A prompt that comes at a time in seconds, and the number of tokens that follow it."""

    at: float
    prompt: int
    new: int


@dataclass(frozen=True)
class TextCosts:
    """Seconds of runs.

    Attributes:
        prompt_s: seconds of a run by the number of a prompt's tokens in it; the largest is the longest run.
        step_s: seconds of a run that gives a token to so many texts: of each number from 1 on.
    """

    prompt_s: Mapping[int, float]
    step_s: Mapping[int, float]

    @property
    def longest(self) -> int:
        """The largest number of a prompt's tokens in one run."""
        return max(self.prompt_s)

    def seconds_of(self, tokens: int) -> float:
        """Seconds of a run of so many of a prompt's tokens, on the line between those that are known."""
        known = sorted(self.prompt_s)
        return float(np.interp(tokens, known, [self.prompt_s[n] for n in known]))


@dataclass(frozen=True)
class TextsOutcome:
    """The result of a trace of texts.

    Attributes:
        policy: one of :data:`TEXT_POLICIES`.
        offered: texts per second of the trace; infinite where all came at once.
        texts: the number of texts.
        seconds: the time from the first arrival to the last token.
        first: seconds until each text's first token, ascending.
        gaps: seconds between two tokens of a text, ascending.
        runs: the number of runs that gave tokens behind the first ones, by their number of texts.
    """

    policy: str
    offered: float
    texts: int
    seconds: float
    first: tuple[float, ...]
    gaps: tuple[float, ...]
    runs: Mapping[int, int]

    @property
    def rate(self) -> float:
        """Texts per second."""
        return self.texts / self.seconds if self.seconds else 0.0

    @property
    def tokens_per_s(self) -> float:
        """New tokens of all texts per second."""
        return (len(self.first) + len(self.gaps)) / self.seconds if self.seconds else 0.0

    def to_json(self) -> dict[str, Any]:
        """Plain data; times in milliseconds."""
        return {
            "policy": self.policy,
            "offered_per_s": None if self.offered == _EVER else self.offered,
            "texts": self.texts,
            "seconds": self.seconds,
            "texts_per_s": self.rate,
            "tokens_per_s": self.tokens_per_s,
            **{
                f"{name}_p{percent}_ms": percentile_ms(times, percent)
                for name, times in (("first", self.first), ("gap", self.gaps))
                for percent in (50, 99)
            },
            "runs": {str(texts): count for texts, count in self.runs.items() if count},
        }


@dataclass
class _Text:
    arrival: TextArrival
    unread: int
    made: int = 0
    last: float = 0.0
    wanted: bool = True


def simulate_texts(
    trace: Sequence[TextArrival],
    costs: TextCosts,
    *,
    policy: str = "by-cost",
    places: int = DEFAULT_LIMITS.generations,
    noise: float = 0.0,
    seed: int = 0,
) -> TextsOutcome:
    """Runs a trace through the server's order of steps and its choice of their texts.

    Args:
        trace: the texts, ascending in time.
        costs: the costs of runs.
        policy: one of :data:`TEXT_POLICIES`.
        places: the largest number of texts at a time; further ones wait.
        noise: sigma of the lognormal number that each run's time is multiplied by.
        seed: the seed of the noise.
    """
    draw = random.Random(seed)
    turns, pace = Turns[_Text](), Pace(max(costs.step_s) if policy == "by-cost" else 1)
    for texts in pace.runs:
        pace.saw(texts, 1, costs.step_s[texts])
    known = dict(pace.runs)
    waiting = deque(trace)
    now, inside, first, gaps = 0.0, 0, list[float](), list[float]()

    def taken_by(seconds: float) -> float:
        return seconds * draw.lognormvariate(0.0, noise) if noise else seconds

    while waiting or inside:
        if not inside:
            now = max(now, waiting[0].at)
        while waiting and waiting[0].at <= now and inside < places:
            arrival = waiting.popleft()
            turns.add(_Text(arrival, arrival.prompt), chunk=True)
            inside += 1
        text = turns.next()
        assert text is not None
        if text.unread:
            tokens = min(text.unread, costs.longest)
            text.unread -= tokens
            now += taken_by(costs.seconds_of(tokens))
            if text.unread:
                turns.add(text, chunk=True)
                continue
            steps = [text]
        else:
            steps = [text, *turns.take(pace.choose(1 + turns.tokens, 1) - 1)]
            seconds = taken_by(costs.step_s[len(steps)])
            pace.saw(len(steps), 1, seconds)
            now += seconds
        for one in steps:
            if one.made:
                gaps.append(now - one.last)
            else:
                first.append(now - one.arrival.at)
            one.made, one.last = one.made + 1, now
            if one.made < one.arrival.new:
                turns.add(one, chunk=False)
            else:
                inside -= 1
    start = trace[0].at if trace else 0.0
    span = trace[-1].at - start if trace else 0.0
    return TextsOutcome(
        policy,
        len(trace) / span if span else _EVER,
        len(trace),
        now - start,
        tuple(sorted(first)),
        tuple(sorted(gaps)),
        {texts: count - known[texts] for texts, count in pace.runs.items()},
    )


@dataclass(frozen=True)
class TextsReplay:
    """The outcomes of a replay of texts.

    Attributes:
        cpus: the CPUs of the server.
        saturated: texts per second where all come at once, by rule.
        outcomes: the outcomes of every rule at every load, a rule at a time.
    """

    cpus: int
    saturated: Mapping[str, float]
    outcomes: tuple[TextsOutcome, ...]

    def to_json(self) -> dict[str, Any]:
        """A dict of plain values."""
        return {
            "cpus": self.cpus,
            "saturated_per_s": dict(self.saturated),
            "replays": [outcome.to_json() for outcome in self.outcomes],
        }


def replay_texts(
    costs: TextCosts,
    cpus: int,
    workload: Workload,
    trace: Sequence[TextArrival] = (),
    policies: Sequence[str] = (),
    *,
    new: int = 128,
    noise: float = 0.0,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> TextsReplay:
    """Runs every trace with every rule, a rule at a time.

    Args:
        costs: the costs of runs.
        cpus: the CPUs that they were measured on.
        workload: the lengths of the prompts, and how texts are drawn where there is no ``trace``.
        trace: the texts, ascending in time.
        policies: names of :data:`TEXT_POLICIES`; empty: all of them.
        new: the number of tokens behind each drawn prompt.
        noise: sigma of the lognormal number that each run's time is multiplied by.
        progress: a function that is called with the number of traces done and in all.
    """
    names = tuple(policies) or tuple(TEXT_POLICIES)

    def drawn(rate: float) -> list[TextArrival]:
        made = draw_trace(workload.lengths, workload.count, rate, seed=workload.seed)
        return [_of(arrival, new) for arrival in made]

    at_once = [TextArrival(0.0, text.prompt, text.new) for text in trace] or drawn(_EVER)
    saturated = {name: simulate_texts(at_once, costs, policy=name).rate for name in names}
    traces: list[Sequence[TextArrival]] = [trace]
    if not trace:
        most = max(saturated.values())
        rates = sorted(workload.rates) or [share * most for share in LOADS]
        traces = [drawn(rate) for rate in rates]
    outcomes = list[TextsOutcome]()
    for name in names:
        for texts in traces:
            outcomes.append(
                simulate_texts(texts, costs, policy=name, noise=noise, seed=workload.seed)
            )
            progress(len(outcomes), len(names) * len(traces))
    return TextsReplay(cpus, saturated, tuple(outcomes))


def _of(arrival: Arrival, new: int) -> TextArrival:
    return TextArrival(arrival.at, arrival.length, new)
