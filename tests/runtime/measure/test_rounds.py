"""rounds: every thing in every round, in random order, until the time is up."""

from __future__ import annotations

import math

import pytest

from edgecompile.runtime.base.errors import InputError
from edgecompile.runtime.measure.rounds import check_budget, measure_rounds


def test_the_least_number_of_rounds() -> None:
    seen: list[tuple[int, str]] = []
    reported: list[int] = []
    samples = measure_rounds(
        3,
        lambda i: "abc"[i],
        lambda i, prepared: seen.append((i, prepared)),
        seconds=0,
        least=4,
        seed=1,
        progress=lambda rounds, elapsed: reported.append(rounds),
    )
    assert [len(times) for times in samples] == [4, 4, 4]
    assert all(ms >= 0 for times in samples for ms in times)
    rounds = [seen[i : i + 3] for i in range(0, 12, 3)]
    assert all(sorted(item) == [(0, "a"), (1, "b"), (2, "c")] for item in rounds)
    assert len({tuple(item) for item in rounds}) > 1, "the order changes"
    assert reported == [1, 2, 3, 4]


def test_the_same_seed_gives_the_same_order() -> None:
    def order(seed: int) -> list[int]:
        seen: list[int] = []
        measure_rounds(5, lambda i: i, lambda i, _: seen.append(i), seconds=0, least=3, seed=seed)
        return seen

    assert order(7) == order(7) != order(8)


def test_the_time_is_used() -> None:
    samples = measure_rounds(1, lambda i: i, lambda i, _: None, seconds=0.05, least=1, seed=0)
    assert len(samples[0]) > 100


@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf])
def test_seconds_out_of_range(seconds: float) -> None:
    with pytest.raises(InputError, match="seconds is"):
        check_budget(seconds, 1)


def test_cold_runs_out_of_range() -> None:
    for count in (-1, 10**6):
        with pytest.raises(InputError, match=f"cold-runs is {count}"):
            check_budget(1, count)
    check_budget(0, 0)
