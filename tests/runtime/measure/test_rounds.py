"""rounds: every thing in every round, in random order, until the time is up."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import pytest

from edgecompile.runtime.base.errors import InputError
from edgecompile.runtime.measure import rounds as timing
from edgecompile.runtime.measure.rounds import check_budget, measure_rounds, median_error


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


def test_what_is_known_well_enough_takes_no_more_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    def rounds(steps: list[int], error: float, most_error: float = 0.0) -> int:
        """Rounds over a thing that takes these milliseconds in turn, of a clock that only it moves."""
        now = [0]

        def run(index: int, _: int) -> None:
            now[0] += 1_000_000 * next(turns)

        turns = itertools.cycle(steps)
        clock = SimpleNamespace(perf_counter=lambda: now[0] / 1e9, perf_counter_ns=lambda: now[0])
        monkeypatch.setattr(timing, "time", clock)
        samples = measure_rounds(
            1, lambda i: i, run, seconds=10, least=5, error=error, most_error=most_error, seed=0
        )
        return len(samples[0])

    assert rounds([1], 0.005) == 16
    assert rounds([1], 0.0) == 10_000
    # The quartiles are 9 and 11 ms: the error of 10 is 4.6 % after 16 rounds, 1.9 % after 96.
    assert rounds([9, 11, 10, 9, 11], 0.05) == 16 < rounds([9, 11, 10, 9, 11], 0.02) == 96
    assert rounds([5, 20], 0.005) == 800, "not before the time is up"
    # A sixteenth of 20 % is 1.25 %, which 224 rounds tell. Of 150 % it is more than 8 %, and 2.5 % are allowed.
    assert rounds([9, 11, 10, 9, 11], 0.005) > rounds([9, 11, 10, 9, 11], 0.005, 0.025) == 224
    assert rounds([9, 11, 10, 9, 11], 0.02, 0.025) == 96, "what is allowed anyway stays allowed"
    assert rounds([5, 20], 0.005, 0.025) == 800 and rounds([1], 0.005, 0.025) == 16


def test_the_error_of_a_median() -> None:
    assert median_error(1.35, 100) == pytest.approx(0.125)


def test_an_error_out_of_range() -> None:
    for error in (-0.1, 1.0, math.nan):
        with pytest.raises(InputError, match="error is"):
            check_budget(1, 1, error)
    for most_error in (0.01, 1.0, math.nan):
        with pytest.raises(InputError, match="most-error is"):
            check_budget(1, 1, 0.02, most_error)


@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf])
def test_seconds_out_of_range(seconds: float) -> None:
    with pytest.raises(InputError, match="seconds is"):
        check_budget(seconds, 1)


def test_cold_runs_out_of_range() -> None:
    for count in (-1, 10**6):
        with pytest.raises(InputError, match=f"cold-runs is {count}"):
            check_budget(1, count)
    check_budget(0, 0)
