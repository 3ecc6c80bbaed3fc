"""How many texts run at once, by what was measured."""

from __future__ import annotations

import pytest

from edgecompile.server.schedule.pace import Pace
from edgecompile.server.schedule.simulate_texts import TextArrival, TextCosts, simulate_texts


def paced(*seconds: float) -> Pace:
    pace = Pace(len(seconds))
    for texts, value in enumerate(seconds, 1):
        pace.saw(texts, 2, value)
    return pace


@pytest.mark.parametrize(
    ("seconds", "waiting", "texts"),
    [
        ((1.0, 1.1, 1.2, 1.3), 4, 4),
        ((1.0, 1.1, 1.2, 1.3), 3, 3),
        ((1.0, 1.1, 1.2, 1.3), 9, 4),
        ((1.0, 2.0, 3.0, 4.0), 4, 1),
        ((1.0, 1.95, 2.9, 3.85), 4, 1),  # within what measurements can tell
        ((1.0, 1.2, 2.9, 3.9), 4, 2),
    ],
)
def test_as_many_run_as_are_fastest_for_each(
    seconds: tuple[float, ...], waiting: int, texts: int
) -> None:
    assert paced(*seconds).choose(waiting, 2) == texts


def test_nothing_is_guessed() -> None:
    pace = Pace(4)
    assert pace.choose(4, 2) == 1
    pace.measure(2, lambda texts: 1.0)
    assert pace.choose(4, 2) == 1, "one text alone wasn't measured"
    pace.saw(1, 2, 1.0)
    assert pace.choose(4, 2) == 4
    assert pace.choose(4, 1) == 1, "nothing is known of one thread"


def test_what_became_slow_is_left_and_tried_again() -> None:
    pace = paced(1.0, 1.1)
    for _ in range(100):
        pace.saw(2, 2, 5.0)
    assert pace.choose(2, 2) == 1
    chosen = [pace.choose(2, 2) for _ in range(10_000)]
    assert chosen[0] == 1 and chosen[-1] == 2


def test_a_known_size_is_not_measured_twice() -> None:
    asked = list[int]()

    def seconds_of(texts: int) -> float:
        asked.append(texts)
        return 1.0

    pace = paced(1.0, 1.0)
    pace.most = 3
    pace.measure(2, seconds_of)
    assert asked == [3, 3]


TRACE = [TextArrival(0.0, 10, 40) for _ in range(4)]


def test_a_trace_of_texts_takes_what_its_runs_take() -> None:
    costs = TextCosts(16, 0.01, {1: 1.0, 2: 1.1, 3: 1.2, 4: 1.3})
    together = simulate_texts(TRACE, costs)
    alone = simulate_texts(TRACE, TextCosts(16, 0.01, {1: 1.0}))
    assert alone.seconds == pytest.approx(4 * (10 * 0.01 + 39)) and set(alone.runs) == {1}
    assert together.seconds < alone.seconds / 2.5 and together.runs[4] >= 36
    assert sum(texts * runs for texts, runs in together.runs.items()) == 4 * 39
    assert len(together.first) == 4 and len(together.gaps) == 4 * 39


def test_batches_that_cost_as_much_are_not_run() -> None:
    costs = TextCosts(16, 0.01, {1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0})
    assert set(simulate_texts(TRACE, costs).runs) == {1}


def test_a_long_prompt_delays_a_token_by_one_chunk() -> None:
    trace = [TextArrival(0.0, 1, 60), TextArrival(5.5, 1000, 2)]
    outcome = simulate_texts(trace, TextCosts(100, 0.05, {1: 1.0}))
    assert max(outcome.gaps) == pytest.approx(1.0 + 100 * 0.05)
    whole = simulate_texts(trace, TextCosts(1000, 0.05, {1: 1.0}))
    assert max(whole.gaps) == pytest.approx(1.0 + 1000 * 0.05)
