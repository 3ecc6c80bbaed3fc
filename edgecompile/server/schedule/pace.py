"""The number of texts that get a token in one run, by the measured seconds of such runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

#: Of learning how long a run takes, and of forgetting what isn't chosen: what was slow once is tried again.
_FOLLOW, _FORGET = 0.1, 0.9998
#: The share of its time that a run of more texts has to save for each text.
_LEAST_GAIN = 0.05


class Pace:
    """Seconds of runs by their texts and threads. Whoever measures calls from one thread at a time.

    Attributes:
        most: the largest number of texts of a run.
        runs: the number of runs by their number of texts.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.runs = dict.fromkeys(range(1, most + 1), 0)
        self._seconds: dict[tuple[int, int], float] = {}
        # What was only tried, on tokens of no text: the first real run replaces it.
        self._tried = set[tuple[int, int]]()

    def seconds(self, texts: int, threads: int) -> float | None:
        """The seconds of a run of so many texts; None: it wasn't measured."""
        return self._seconds.get((texts, threads))

    def measure(self, threads: int, seconds_of: Callable[[int], float]) -> None:
        """Measures the least number of texts that isn't known yet of these threads; ``seconds_of`` runs one.

        Of the others each waits for a call of its own, since texts wait meanwhile.
        """
        for texts in range(2, self.most + 1):
            if (texts, threads) not in self._seconds:
                self._seconds[texts, threads] = min(seconds_of(texts) for _ in range(2))
                self._tried.add((texts, threads))
                return

    def saw(self, texts: int, threads: int, seconds: float | None) -> None:
        """A run took so many seconds; None: they don't count."""
        key = texts, threads
        self.runs[texts] += 1
        if seconds is None:
            return
        before = seconds if key in self._tried else self._seconds.get(key, seconds)
        self._tried.discard(key)
        self._seconds[key] = before + _FOLLOW * (seconds - before)

    def choose(self, waiting: int, threads: int) -> int:
        """The number of waiting texts to run together: 1, unless more are known to be faster."""
        best, least = 1, self._seconds.get((1, threads))
        if least is None:
            return 1
        for texts in range(2, min(waiting, self.most) + 1):
            seconds = self._seconds.get((texts, threads))
            if seconds is not None and seconds / texts < least * (1 - _LEAST_GAIN):
                best, least = texts, seconds / texts
        for texts in range(1, min(waiting, self.most) + 1):
            if texts != best and (texts, threads) in self._seconds:
                self._seconds[texts, threads] *= _FORGET
        return best

    def leave_out(self, tries: Sequence[tuple[float, float] | None], threads: int) -> set[int]:
        """The texts that run alone, several tokens each, so that a token of all of them takes the least time.

        Args:
            tries: seconds of a run for each text that could run with the others, and how many tokens it
                gives in the mean; None: it would run one token.
            threads: threads of each run.

        Returns:
            Their indices.
        """
        able = [(run[0] / run[1], index, run) for index, run in enumerate(tries) if run is not None]
        able.sort()
        best, least, seconds, tokens = 0, math.inf, 0.0, 0.0
        for alone in range(len(able) + 1):
            if alone:
                seconds += able[alone - 1][2][0]
                tokens += able[alone - 1][2][1]
            rest = len(tries) - alone
            others = self._seconds.get((rest, threads)) if rest else 0.0
            if others is not None and (seconds + others) / (tokens + rest) < least:
                best, least = alone, (seconds + others) / (tokens + rest)
        return {index for _, index, _ in able[:best]}
