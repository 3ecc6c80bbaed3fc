"""Replays texts that are generated side by side, by the order and the pace of the server, on given costs."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgecompile.server.schedule.pace import Pace
from edgecompile.server.schedule.turns import Turns


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
        chunk: the largest number of a prompt's tokens in one run.
        prompt_s: seconds for each token of a prompt.
        step_s: seconds of a run that gives a token to so many texts; 1 is among them.
    """

    chunk: int
    prompt_s: float
    step_s: Mapping[int, float]


@dataclass(frozen=True)
class TextsOutcome:
    """The result of a trace of texts.

    Attributes:
        seconds: from the first arrival to the last token.
        first: seconds until each text's first token, ascending.
        gaps: seconds between two tokens of a text, ascending.
        runs: runs that gave tokens, by their number of texts.
    """

    seconds: float
    first: tuple[float, ...]
    gaps: tuple[float, ...]
    runs: Mapping[int, int]


@dataclass
class _Text:
    arrival: TextArrival
    unread: int
    made: int = 0
    last: float = 0.0
    wanted: bool = True


def simulate_texts(trace: Sequence[TextArrival], costs: TextCosts) -> TextsOutcome:
    """Runs a trace, ascending in time, through the server's order of steps and its choice of their texts."""
    turns, pace = Turns[_Text](), Pace(max(costs.step_s))
    for texts, seconds in costs.step_s.items():
        pace.saw(texts, 1, seconds)
    waiting = [(arrival.at, index, arrival) for index, arrival in enumerate(trace)]
    heapq.heapify(waiting)
    now, first, gaps, runs = 0.0, list[float](), list[float](), Counter[int]()
    while waiting or len(turns):
        if not len(turns):
            now = max(now, waiting[0][0])
        while waiting and waiting[0][0] <= now:
            arrival = heapq.heappop(waiting)[2]
            turns.add(_Text(arrival, arrival.prompt), chunk=True)
        text = turns.next()
        assert text is not None
        if text.unread:
            taken = min(text.unread, costs.chunk)
            text.unread -= taken
            now += taken * costs.prompt_s
            if text.unread:
                turns.add(text, chunk=True)
                continue
            texts_run = [text]
        else:
            texts_run = [text, *turns.take(pace.choose(1 + turns.tokens, 1) - 1)]
            now += costs.step_s[len(texts_run)]
            runs[len(texts_run)] += 1
        for one in texts_run:
            if one.made:
                gaps.append(now - one.last)
            else:
                first.append(now - one.arrival.at)
            one.made, one.last = one.made + 1, now
            if one.made < one.arrival.new:
                turns.add(one, chunk=False)
    start = trace[0].at if trace else 0.0
    return TextsOutcome(now - start, tuple(sorted(first)), tuple(sorted(gaps)), runs)
