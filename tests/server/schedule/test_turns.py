"""Whose step comes next, where prompts are read while texts go on."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from edgecompile.server.schedule.turns import Turns


@dataclass
class Step:
    name: str
    wanted: bool = True


def names(turns: Turns[Step]) -> str:
    """All that is there, in its order."""
    return "".join(step.name for step in iter(turns.next, None))


def test_chunks_come_between_the_tokens_of_all_texts() -> None:
    turns = Turns[Step]()
    turns.add(Step("P"), chunk=True)
    turns.add(Step("Q"), chunk=True)
    order = ""
    for token in "aabbb":
        turns.add(Step(token), chunk=False)
    for _ in range(4):
        step = turns.next()
        assert step is not None
        order += step.name
        turns.add(step, chunk=step.name in "PQ")
    # The first chunk had nobody to wait for: no step had been before it.
    assert order == "Paab"


def test_prompts_take_turns() -> None:
    turns = Turns[Step]()
    for name in "PQ":
        turns.add(Step(name), chunk=True)
    order = ""
    for _ in range(6):
        step = turns.next()
        assert step is not None
        order += step.name
        turns.add(step, chunk=True)
    assert order == "PQPQPQ"


def test_what_nobody_waits_for_takes_no_turn() -> None:
    turns = Turns[Step]()
    for name, chunk in (("a", False), ("P", True), ("b", False), ("Q", True)):
        turns.add(Step(name, wanted=name in "bQ"), chunk=chunk)
    assert names(turns) == "Qb" and len(turns) == 0


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 4))
def test_a_token_waits_for_one_chunk_at_most(arrivals: list[int], texts: int) -> None:
    """Whatever comes in whatever order: nor for more than one step of each other text."""
    turns, waiting = Turns[Step](), dict[str, list[str]]()
    for arrival in arrivals:
        name = f"t{arrival % texts}"
        if arrival == 0:
            turns.add(Step("chunk"), chunk=True)
        elif name not in waiting:
            waiting[name] = []
            turns.add(Step(name), chunk=False)
        step = turns.next()
        if step is None:
            continue
        seen = waiting.pop(step.name, [])
        assert seen.count("chunk") <= 1 and len(seen) <= texts
        for steps in waiting.values():
            steps.append(step.name)
