"""When requests come: at random, in bursts, or more of them from some time on; and of what lengths."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from itertools import accumulate
from pathlib import Path

#: Lengths of short queries: a mean of 8.6 tokens, two of them special ones.
QUERIES = {4: 4, 5: 8, 6: 14, 7: 17, 8: 16, 9: 13, 10: 9, 11: 7, 12: 5, 13: 3, 14: 2, 16: 1, 20: 1}

#: Those of a load of so many requests a second, by name.
SHAPES = {
    "poisson": "at random times (Poisson)",
    "bursts": "gaps of a Gamma distribution, their standard deviation four times their mean",
    "eights": "eight at once, at random times",
}
#: At random times, half of the rate for half of the time, then one and a half of it.
STEP = "step"

#: Of the gaps in "bursts".
_VARIATION = 4
_TOGETHER = 8


def draw_times(shape: str, rate: float, seconds: float, seed: int) -> list[float]:
    """When each request is due, in seconds from the beginning, ascending.

    There are ``rate * seconds`` requests, whatever was drawn: else a round of bursts would have a load of its own.
    """
    draw, count = random.Random(seed), round(rate * seconds)
    if shape == STEP:
        half = seconds / 2
        early = draw_times("poisson", rate * 0.5, half, seed)
        late = draw_times("poisson", rate * 1.5, half, seed + 1)
        return early + [half + at for at in late]
    if shape == "bursts":
        least = 1 / _VARIATION**2
        gaps = [draw.gammavariate(least, 1.0) for _ in range(count + 1)]
    else:
        size = _TOGETHER if shape == "eights" else 1
        gaps = [0.0 if i % size else draw.expovariate(1.0) for i in range(count + 1)]
    scale = seconds / sum(gaps)
    return [at * scale for at in accumulate(gaps[:-1])]


def read_lengths(path: str | Path) -> dict[int, int]:
    """How often each length occurs, of a JSON histogram."""
    document = json.loads(Path(path).read_text())
    return dict(zip(document["lengths"], document["counts"], strict=True))


def percentiles(lengths: Iterable[int]) -> list[int]:
    """The lengths at 0, 1, …, 100 percent, as a bundle's plan holds them."""
    many = sorted(lengths)
    return [many[min(len(many) - 1, len(many) * i // 100)] for i in range(101)]


def mixtures(mixed: Mapping[int, int], longest: int) -> dict[str, Mapping[int, int]]:
    """Lengths and how often each occurs, by the name of the traffic.

    Args:
        mixed: of the texts that a bundle was planned for.
        longest: that it takes.
    """
    both = {
        length: round(
            1e6 * (0.7 * QUERIES.get(length, 0) / sum(QUERIES.values()))
            + 1e6 * (0.3 * mixed.get(length, 0) / sum(mixed.values()))
        )
        for length in sorted({*QUERIES, *mixed})
    }
    return {"mixed": mixed, "queries": QUERIES, "both": both, "long": {min(256, longest): 1}}
