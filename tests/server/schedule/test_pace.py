"""How many texts run at once, by what was measured."""

from __future__ import annotations

import pytest

from edgecompile.server.schedule.pace import Pace


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
    for _ in range(3):
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


def test_a_single_run_that_was_slow_is_tried_again() -> None:
    pace = paced(5.0, 1.1)
    chosen = [pace.choose(2, 2) for _ in range(20_000)]
    assert chosen[0] == 2 and chosen[-1] == 1
    for _ in range(100):
        pace.saw(1, 2, 5.0)
    assert pace.choose(2, 2) == 2


def test_a_known_size_is_not_measured_twice() -> None:
    asked = list[int]()

    def seconds_of(texts: int) -> float:
        asked.append(texts)
        return 1.0

    pace = paced(1.0, 1.0)
    pace.most = 3
    pace.measure(2, seconds_of)
    assert asked == [3, 3]


def test_one_number_of_texts_is_measured_at_a_time() -> None:
    asked = list[int]()

    def seconds_of(texts: int) -> float:
        asked.append(texts)
        return 1.0

    pace = Pace(4)
    for texts in (2, 3, 4):
        pace.measure(2, seconds_of)
        assert asked == [texts, texts] and pace.seconds(texts, 2) == 1.0
        asked.clear()
    pace.measure(2, seconds_of)
    assert not asked, "all are known"
    pace.measure(1, seconds_of)
    assert asked == [2, 2], "of one thread none is"


def test_a_trial_counts_until_the_first_real_run() -> None:
    pace = Pace(2)
    pace.saw(1, 2, 1.0)
    pace.measure(2, lambda texts: 0.1)
    assert pace.seconds(2, 2) == 0.1
    pace.saw(2, 2, 3.0)
    assert pace.seconds(2, 2) == 3.0 and pace.choose(2, 2) == 1
    pace.saw(2, 2, 2.0)
    assert pace.seconds(2, 2) == pytest.approx(2.9, rel=1e-3)


def test_a_run_whose_time_does_not_count_is_a_run() -> None:
    pace = Pace(2)
    pace.saw(1, 2, None)
    assert pace.runs == {1: 1, 2: 0} and pace.seconds(1, 2) is None


@pytest.mark.parametrize(
    ("seconds", "tries", "alone"),
    [
        ((1.0, 1.1), [None, None], set()),
        ((1.0, 1.1), [(0.2, 3.0), None], {0}),
        ((1.0, 1.1), [None, (0.2, 3.0)], {1}),
        # A token of it takes 0.5 s and one of both 0.55 s, but then the other one takes 1 s.
        ((1.0, 1.1), [(1.5, 3.0), None], set()),
        ((1.0, 1.1), [(1.5, 3.0), (1.5, 3.0)], {0, 1}),
        ((1.0, 1.1, 1.2), [(9.0, 3.0), None, (0.6, 3.0)], {2}),
        ((1.0, 1.1, 1.2), [(9.0, 3.0), None, (9.0, 4.0)], set()),
    ],
)
def test_who_tries_tokens_runs_alone_where_that_is_faster(
    seconds: tuple[float, ...], tries: list[tuple[float, float] | None], alone: set[int]
) -> None:
    assert paced(*seconds).leave_out(tries, 2) == alone


def test_nobody_is_left_out_where_no_time_is_known() -> None:
    assert Pace(4).leave_out([(0.1, 3.0), None, None], 2) == set()
