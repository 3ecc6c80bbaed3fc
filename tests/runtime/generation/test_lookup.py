"""Lookup: the tokens of single steps, whatever was tried."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")

from edgecompile.runtime import InputError, Model, open_bundle
from edgecompile.runtime.generation import golden
from edgecompile.runtime.generation.cached_text import CachedText
from edgecompile.runtime.generation.golden import replay_generations
from edgecompile.runtime.generation.lookup import Costs, Draft, Worth


@pytest.fixture(scope="module")
def lookup(lookup_bundle: Path) -> Iterator[Model]:
    with open_bundle(lookup_bundle, threads=1) as opened:
        yield opened


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Whatever was found is tried, whether it pays or not; the list gets the tokens of each run, and those kept."""
    runs: list[tuple[int, int]] = []
    try_tokens, confirm = CachedText.try_tokens, CachedText.confirm

    def tried(self: CachedText, tokens: Any) -> Any:
        runs.append((len(tokens), 1))
        return try_tokens(self, tokens)

    def confirmed(self: CachedText) -> bool:
        kept = confirm(self)
        runs[-1] = runs[-1][0], runs[-1][1] + kept
        return kept

    monkeypatch.setattr(Worth, "choose", lambda self, most, *_: most)
    monkeypatch.setattr(CachedText, "try_tokens", tried)
    monkeypatch.setattr(CachedText, "confirm", confirmed)
    return runs


def draw_prompts(count: int) -> list[list[int]]:
    """Prompts of which parts come twice, so that something is found in them."""
    rng, prompts = np.random.default_rng(38), []
    for _ in range(count):
        part = rng.integers(3, 97, rng.integers(2, 12)).tolist()
        prompts.append([*part, *rng.integers(3, 97, rng.integers(0, 5)).tolist(), *part])
    return prompts


def test_200_prompts_give_the_same_tokens(lookup: Model, eager: list[tuple[int, int]]) -> None:
    plain, trying = lookup.session(), lookup.session()
    for number, prompt in enumerate(draw_prompts(200)):
        how: dict[str, Any] = {"max_new_tokens": 16, "do_sample": False}
        if number % 2:
            how = {
                "max_new_tokens": 16,
                "temperature": 0.3,
                "repetition_penalty": 1.1,
                "seed": number,
            }
        assert trying.generate(prompt, lookup=True, **how) == plain.generate(prompt, **how)
    # Some runs were right to the end, some in part, some not at all.
    assert any(kept == tried for tried, kept in eager)
    assert any(1 < kept < tried for tried, kept in eager)
    assert any(kept == 1 for tried, kept in eager)


def test_turns_go_on(lookup: Model, eager: list[tuple[int, int]]) -> None:
    rng = np.random.default_rng(2)
    plain, trying = lookup.session(), lookup.session()
    text = rng.integers(3, 97, 9).tolist() * 2
    for _ in range(3):
        text = [*text, *rng.integers(3, 97, 3).tolist()]
        how: dict[str, Any] = {"max_new_tokens": 9, "seed": 4, "eos": ()}
        tokens = plain.generate(text, **how)
        assert trying.generate(text, lookup=True, **how) == tokens
        assert plain.tokens == trying.tokens
        text = [*text, *tokens]
    assert any(kept < tried for tried, kept in eager)


def test_a_text_that_ends_early_leaves_a_session_that_can_be_saved(
    lookup: Model, eager: list[tuple[int, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Draft, "find", lambda self, most: [5] * most)
    prompt = [5, 6, 7, 8, 9, 10] * 3
    session = lookup.session()
    stream = session.stream(prompt, max_new_tokens=12, do_sample=False, eos=(), lookup=True)
    first = [next(stream), next(stream)]
    assert eager  # a run whose other tokens nobody has asked for yet
    session.save(tmp_path / "text")
    loaded = lookup.session(load=tmp_path / "text")
    assert loaded.tokens == session.tokens == [*prompt, first[0]]
    want = lookup.generate(prompt, max_new_tokens=12, do_sample=False, eos=())
    again = loaded.generate([*prompt, *first], max_new_tokens=10, do_sample=False, eos=())
    assert [*first, *again] == want
    # The stream goes on where its session was saved.
    assert [*first, *stream] == want


def test_right_guesses_are_run_again_where_the_session_was_saved(
    lookup: Model, eager: list[tuple[int, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = [5, 6, 7, 8, 9, 10] * 3
    want = lookup.generate(prompt, max_new_tokens=12, do_sample=False, eos=())
    find = lambda self, most: want[self._count - self._prompt :][:most]  # noqa: E731
    monkeypatch.setattr(Draft, "find", find)
    session = lookup.session()
    stream = session.stream(prompt, max_new_tokens=12, do_sample=False, eos=(), lookup=True)
    first = [next(stream), next(stream)]
    assert eager
    session.save(tmp_path / "text")
    assert [*first, *stream] == want


def test_a_text_without_its_turn_takes_nothing_from_another(
    lookup: Model, eager: list[tuple[int, int]]
) -> None:
    prompt, session = [5, 6, 7, 8, 9, 10] * 3, lookup.session()
    how: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False, "eos": (), "lookup": True}
    want = lookup.generate(prompt, **how)
    old = session.stream([3, 4], **how)
    next(old)
    stream = session.stream(prompt, **how)
    first = [next(stream), next(stream)]
    with pytest.raises(InputError, match="another generation of this session began meanwhile"):
        next(old)
    assert [*first, *stream] == want


def test_another_text_ends_one_that_has_tried_tokens(
    lookup: Model, eager: list[tuple[int, int]]
) -> None:
    prompt, session = [5, 6, 7, 8, 9, 10] * 3, lookup.session()
    stream = session.stream(prompt, max_new_tokens=12, do_sample=False, eos=(), lookup=True)
    next(stream), next(stream)
    next(session.stream([3, 4], max_new_tokens=2))
    with pytest.raises(InputError, match="another generation of this session began meanwhile"):
        list(stream)


def test_the_self_test_compares_each_number_of_tokens(
    lookup: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = set()
    try_tokens = CachedText.try_tokens

    def noted(self: CachedText, tokens: Any) -> Any:
        counts.add(len(tokens))
        return try_tokens(self, tokens)

    monkeypatch.setattr(CachedText, "try_tokens", noted)
    assert all(result["ok"] for result in replay_generations(lookup))
    assert {2, 3, 4, 5} <= counts

    def off_by_a_bit(self: CachedText, tokens: Any) -> Any:
        rows = try_tokens(self, tokens).copy()
        rows.view(np.uint32)[-1, 0] ^= 1
        return rows

    monkeypatch.setattr(CachedText, "try_tokens", off_by_a_bit)
    errors = [result["error"] for result in golden.replay_generations(lookup)]
    assert "gives other logits than runs of single ones" in errors[0]


def test_a_bundle_without_the_program_says_so(model: Model) -> None:
    with pytest.raises(InputError, match="lookup was asked for, but the bundle has no program"):
        model.generate([1, 2], lookup=True)


def test_what_followed_the_same_tokens_is_found() -> None:
    draft = Draft([1, 2, 3, 4, 9, 2, 3], 5)
    assert draft.find(3) == [4, 9, 2]
    assert draft.matched == 2
    draft.follow([4])
    assert draft.find(2) == [9, 2]
    draft.follow([4, 8])
    assert draft.find(4) == []  # 4, 8 is new
    # Three equal tokens go before two, and what repeats itself goes on.
    assert Draft([7, 1, 2, 5, 8, 1, 2, 6, 7, 1, 2], 1).find(1) == [5]
    assert Draft([1, 2, 1, 2, 1, 2], 1).find(4) == [1, 2, 1, 2]
    assert Draft([1, 2], 1).find(4) == []


def test_what_does_not_pay_is_left_out_and_tried_again_later() -> None:
    worth = Worth(Costs(4))
    assert worth.choose(3) == 0  # a single step has to be measured first
    for tokens in (1, 2, 3, 4):
        for ns in (50.0, 1.0):  # the first run loads the program
            worth.costs.note(tokens, ns)
    for _ in range(50):
        worth.note_token(True)
    assert worth.choose(3) == 3
    for _ in range(50):
        worth.note_token(False)
        worth.costs.note(4, 9.0)
        worth.costs.note(3, 9.0)
        worth.costs.note(2, 1.5)
    assert worth.choose(3) == 0
    for _ in range(50):
        worth.note_token(True)
    assert worth.choose(3) == 1
    assert next(n for n in range(1000) if worth.choose(3) == 3) > 10


def test_costs_between_measured_ones_lie_on_a_line() -> None:
    costs = Costs(8)
    for tokens, ns in ((1, 10.0), (8, 24.0)):
        assert costs.ns[tokens] == 0
        costs.note(tokens, 99.0)  # loads the program
        costs.note(tokens, ns)
    assert costs.ns[1:] == [10.0 + 2 * further for further in range(8)]
    for ns in (0.0, 12.0):
        costs.note(3, ns)
    assert costs.ns[1:5] == [10.0, 11.0, 12.0, pytest.approx(14.4)]


def test_a_text_begins_with_earlier_costs_and_refines_its_own() -> None:
    shared = Costs(8)
    short, long = Costs(8, shared), Costs(8, shared)
    for tokens, ns in ((1, 10.0), (8, 20.0)):
        short.note(tokens, 99.0)  # loads the program for all
        short.note(tokens, ns)
    assert long.ns[1] == 0 and Costs(8, shared).ns == short.ns
    for _ in range(100):
        long.note(1, 30.0)
        long.note(8, 90.0)
    assert long.ns[1] == pytest.approx(30.0, rel=0.01)
    assert (short.ns[1], short.ns[8]) == (10.0, 20.0)
    later = Costs(8, shared)
    assert later.ns[8] > 80.0
    later.note(8, later.ns[8])
    assert short.ns[8] == 20.0


def test_refusals_are_one_texts_and_stop_at_the_offered_run() -> None:
    costs = Costs(8)
    refusing = Worth(costs)
    for tokens, ns in ((1, 10.0), (8, 27.0)):
        for cost in (0.0, ns):
            refusing.costs.note(tokens, cost)
    refusing.right = [0.0] * 5
    assert not any(refusing.choose(3) for _ in range(100))
    other = Worth(costs)
    other.right = refusing.right = [1.0] * 5
    # Eight tokens weren't on offer; four were, and count as less in that text until they run.
    assert refusing.weigh(7) == other.weigh(7) == (7, 27.0, 8.0)
    assert refusing.weigh(3)[1] == pytest.approx(0.998**100 * other.weigh(3)[1])
    refusing.note_run(4, 0.0)  # loads the program
    assert refusing.weigh(3) == other.weigh(3)


def test_what_one_text_measured_all_of_the_bundle_know(lookup: Model, lookup_bundle: Path) -> None:
    prompt = [5, 6, 7, 8, 9, 10] * 3
    lookup.generate(prompt, max_new_tokens=12, do_sample=False, eos=(), lookup=True)
    first, second = lookup.session().worth, lookup.session().worth
    assert first.costs.ns == second.costs.ns and first.costs.ns[1] > 0
    # Texts differ in what is right.
    first.note_token(False)
    assert first.right < second.right
    with open_bundle(lookup_bundle, threads=1) as other:
        assert other.session().worth.costs.ns[1] == 0


def measured(costs: list[float], *, right: float, states: bool = False) -> Worth:
    """One that has seen each number of tokens take ``costs``, and tried tokens be right that often."""
    worth = Worth(Costs(len(costs)), states=states)
    for tokens, ns in enumerate(costs, 1):
        for cost in (0.0, ns):
            worth.costs.note(tokens, cost)
    worth.right = [right] * 5
    return worth


def test_long_matches_try_more_tokens() -> None:
    worth = measured([10.0, 14.0, 18.0, 22.0], right=0.9)
    worth.right[1] = 0.2
    assert worth.choose(3, 0, 1) == 0
    assert worth.choose(3, 0, 2) == worth.choose(3, 0, 9) == 3
    for _ in range(50):
        worth.note_token(True, 1)
        worth.note_token(False, 4)
    # What is right behind one token says nothing of what is behind four.
    assert worth.choose(3, 0, 1) == 3
    assert worth.choose(3, 0, 4) == 0


def test_states_must_pay_for_what_goes_in_again() -> None:
    costs = [10.0, 14.0, 20.0, 26.0]
    assert measured(costs, right=0.5).choose(3) == 1
    # Each second time the next run has a token more.
    assert measured(costs, right=0.5, states=True).choose(3) == 0
    assert measured(costs, right=1.0, states=True).choose(3) == 3
    # With a token that goes in anyway, one more costs little; with two, there is room for one.
    assert measured([10.0, 19.0, 20.0, 21.0], right=0.2).choose(2) == 0
    assert measured([10.0, 19.0, 20.0, 21.0], right=0.2).choose(2, again=1) > 0
    assert measured([10.0, 11.0, 12.0, 30.0], right=0.9).choose(1, again=2) == 0
