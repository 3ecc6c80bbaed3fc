"""Traces of texts on given costs: what runs together, who waits and how long."""

from __future__ import annotations

import pytest

from edgecompile.server.schedule.simulate_texts import TextArrival, TextCosts, simulate_texts

ALONE, FASTER = {1: 1.0}, {1: 1.0, 2: 1.1, 3: 1.2, 4: 1.3}


def costs_of(chunk: int, token: float, steps: dict[int, float]) -> TextCosts:
    """Costs of prompts that grow with their tokens."""
    return TextCosts({1: token, chunk: chunk * token}, steps)


TRACE = [TextArrival(0.0, 10, 40) for _ in range(4)]


def test_a_trace_of_texts_takes_what_its_runs_take() -> None:
    together = simulate_texts(TRACE, costs_of(16, 0.01, FASTER))
    alone = simulate_texts(TRACE, costs_of(16, 0.01, ALONE))
    assert alone.seconds == pytest.approx(4 * (10 * 0.01 + 39)) and alone.runs == {1: 4 * 39}
    assert together.seconds < alone.seconds / 2.5 and together.runs[4] >= 36
    assert sum(texts * runs for texts, runs in together.runs.items()) == 4 * 39
    assert len(together.first) == 4 and len(together.gaps) == 4 * 39


def test_batches_that_cost_as_much_are_not_run() -> None:
    costs = costs_of(16, 0.01, {1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0})
    assert simulate_texts(TRACE, costs).runs == {1: 4 * 39, 2: 0, 3: 0, 4: 0}


def test_one_by_one_is_what_a_bundle_without_the_program_does() -> None:
    costs = costs_of(16, 0.01, FASTER)
    single = simulate_texts(TRACE, costs, policy="one-by-one")
    alone = simulate_texts(TRACE, costs_of(16, 0.01, ALONE))
    assert (single.seconds, single.gaps) == (alone.seconds, alone.gaps)


def test_further_texts_wait_for_a_place() -> None:
    costs = costs_of(16, 0.01, FASTER)
    two = simulate_texts(TRACE, costs, places=2)
    assert not two.runs[3] and not two.runs[4] and two.runs[2] >= 2 * 37
    assert two.first[-1] > 39, "the last one waits until another one has ended"
    assert simulate_texts(TRACE, costs, places=4).first[-1] < 4


def test_noise_is_that_of_its_seed() -> None:
    costs = costs_of(16, 0.01, FASTER)
    one, same, other = (simulate_texts(TRACE, costs, noise=0.2, seed=s) for s in (1, 1, 2))
    assert one == same != other


def test_a_long_prompt_delays_a_token_by_one_chunk() -> None:
    trace = [TextArrival(0.0, 1, 60), TextArrival(5.5, 1000, 2)]
    outcome = simulate_texts(trace, costs_of(100, 0.05, ALONE))
    assert max(outcome.gaps) == pytest.approx(1.0 + 100 * 0.05)
    whole = simulate_texts(trace, costs_of(1000, 0.05, ALONE))
    assert max(whole.gaps) == pytest.approx(1.0 + 1000 * 0.05)
