"""Constraints of callers: what they allow is what comes, forced tokens cost no run, and every failure is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgecompile.runtime import (
    ConstraintError,
    InputError,
    Model,
    ModelClosedError,
    NativeError,
    open_bundle,
)
from tests.generative import EOS

pytest.importorskip("torch")
from tests.factories import decoder as d

EVERY = np.ones(d.VOCABULARY, bool)
NEW = 24


class Rule:
    """Allows the tokens that ``allow`` says for the number made; forces some; ends at a number."""

    def __init__(
        self,
        allow: Callable[[int], Any] = lambda made: EVERY,
        forced: dict[int, list[int]] | None = None,
        end: int | None = None,
    ) -> None:
        self.allow, self.by_place, self.end = allow, forced or {}, end
        self.accepted: list[int] = []

    def mask(self) -> Any:
        return self.allow(len(self.accepted))

    def accept(self, token: int) -> None:
        self.accepted.append(token)

    def forced(self) -> Sequence[int]:
        return self.by_place.get(len(self.accepted), [])

    def ended(self) -> bool:
        return len(self.accepted) == self.end


def only(*tokens: int) -> Any:
    mask = np.zeros(d.VOCABULARY, bool)
    mask[list(tokens)] = True
    return mask


def words_of(mask: Any) -> Any:
    bits = np.zeros(-(-mask.size // 32) * 32, np.uint8)
    bits[: mask.size] = mask
    return np.packbits(bits, bitorder="little").view(np.uint32)


def drawn(made: int) -> Any:
    """Other tokens at each place, about a third of all."""
    return np.random.RandomState(made).random_sample(d.VOCABULARY) < 0.3


def best(model: Model, text: list[int], allowed: Any) -> int:
    """The likeliest allowed token behind a text, which is read anew."""
    session = model.session()
    stream = session.stream(text, max_new_tokens=1)
    while stream.run():
        pass
    assert stream._logits is not None
    logits = stream._logits.copy()
    logits[~allowed] = -np.inf
    return int(logits.argmax())


@pytest.mark.parametrize("form", [lambda mask: mask, words_of], ids=["bool", "bits"])
def test_the_likeliest_allowed_token_comes(model: Model, form: Any) -> None:
    text, rule = [3, 1, 4], Rule(lambda made: form(drawn(made)))
    got = model.generate(text, max_new_tokens=NEW, eos=(), constraint=rule)
    assert got == rule.accepted and len(got) == NEW
    for made, token in enumerate(got):
        assert token == best(model, [*text, *got[:made]], drawn(made))


def test_what_allows_all_changes_nothing(model: Model) -> None:
    for options in ({}, {"temperature": 1.5, "seed": 5}, {"repetition_penalty": 1.3}):
        want = model.generate([3, 4], max_new_tokens=NEW, **options)
        assert model.generate([3, 4], max_new_tokens=NEW, constraint=Rule(), **options) == want


@pytest.mark.parametrize(
    "options",
    [{"top_k": 4}, {"top_p": 0.5}, {"temperature": 5.0}, {"repetition_penalty": 0.1}],
    ids=str,
)
def test_sampling_obeys(model: Model, options: dict[str, Any]) -> None:
    for seed in range(4):
        got = model.generate(
            [3, 4], max_new_tokens=NEW, eos=(), seed=seed, constraint=Rule(drawn), **options
        )
        assert all(drawn(made)[token] for made, token in enumerate(got))


FORCED = {0: [9, 8, 7], 5: [1], 7: [2] * 9, 16: [3, 4], 18: [5], 20: [6] * 90}


@pytest.mark.parametrize("bundle", ["decoder_bundle", "hybrid_bundle"])
def test_forced_tokens_go_into_the_next_run(request: pytest.FixtureRequest, bundle: str) -> None:
    """Those of the beginning with the prompt. Tokens that follow are those of a fresh reading."""
    with open_bundle(request.getfixturevalue(bundle), threads=1) as model:
        text, every = [3, 1, 4, 1, 5], np.ones(model.info["outputs"][0]["shape"][1], bool)
        for options in ({"checkpoint_every": 4}, {}):
            session, rule = model.session(**options), Rule(lambda made: every, FORCED)
            before = dict(model.stats["lengths"])
            stream = session.stream(text, max_new_tokens=30, eos=(), constraint=rule)
            got = list(stream)
            assert got == rule.accepted and len(got) == 30 and stream.finish_reason == "length"
            chosen = [3, 4, 6, 19]
            for place, tokens in FORCED.items():
                assert got[place : place + len(tokens)] == tokens[: 30 - place]
            for place in chosen:
                assert got[place] == best(model, [*text, *got[:place]], every)
            assert session.tokens == text + got[:19], "what no choice needs isn't run"
            if not options:
                runs = {
                    int(length): count - before.get(length, 0)
                    for length, count in model.stats["lengths"].items()
                }
                # Besides the readings for comparison, of which there is one for each choice.
                for place in chosen:
                    runs[len(text) + place] -= 1
                # States are kept at the prompt's end, so its run ends there.
                begun = {8: 1} if bundle == "decoder_bundle" else {5: 1, 3: 1}
                assert {length: n for length, n in runs.items() if n} == {
                    **begun,
                    1: 1,
                    2: 1,
                    13: 1,
                }
            # The next text goes on from there.
            more = session.stream([*text, *got, 9], max_new_tokens=5, eos=())
            assert list(more) == model.generate([*text, *got, 9], max_new_tokens=5, eos=())
            assert more.reused == len(text) + 19


def test_a_prompt_behind_which_tokens_were_forced_can_be_answered_anew(hybrid_bundle: Path) -> None:
    with open_bundle(hybrid_bundle, threads=1) as model:
        session, text = model.session(), [3, 1, 4, 1, 5]
        every = np.ones(model.info["outputs"][0]["shape"][1], bool)
        rule = Rule(lambda made: every, {0: [9] * 4})
        stream = session.stream(text, max_new_tokens=6, eos=(), constraint=rule)
        assert len(list(stream)) == 6 and stream.reused == 0
        again = session.stream([*text, 7], max_new_tokens=6, eos=())
        assert list(again) == model.generate([*text, 7], max_new_tokens=6, eos=())
        assert again.reused == len(text)


@pytest.mark.parametrize("masks", [True, False])
def test_masks_are_asked_before_runs_that_leave_logits_out(
    model: Model, monkeypatch: pytest.MonkeyPatch, masks: bool
) -> None:
    if not masks:  # as on a GPU, and of an older bundle
        monkeypatch.setattr(model._runtime, "_lacks", {"ec_program_run_masked"})
    assert model.masks_logits == masks
    text, asked = [3, 1, 4], list[int]()
    rule = Rule(lambda made: asked.append(made) or EVERY, {2: [9, 8]})  # type: ignore[func-returns-value]
    stream = model.session().stream(text, max_new_tokens=7, eos=(), constraint=rule)
    for place in (0, 1, 4, 5):
        while stream.run():
            pass
        assert asked == [0, 1, 4, 5][: [0, 1, 4, 5].index(place) + (masks and place > 0)]
        if masks and place > 0:
            assert stream.logits is None
        else:
            fresh = model.stream([*text, *stream.tokens], max_new_tokens=1)
            while fresh.run():
                pass
            np.testing.assert_allclose(stream.logits, fresh.logits, rtol=1e-4, atol=1e-5)
        next(stream)
        if place == 1:
            assert [next(stream), next(stream)] == [9, 8]
    assert asked == [0, 1, 4, 5]


def test_ends(model: Model) -> None:
    def run(rule: Rule, **options: Any) -> tuple[list[int], str | None]:
        stream = model.stream([3, 4], **{"max_new_tokens": 9, **options}, constraint=rule)
        return list(stream), stream.finish_reason

    assert run(Rule(lambda made: only(5), end=4)) == ([5] * 4, "constraint")
    assert run(Rule(end=0)) == ([], "constraint")
    assert run(Rule(lambda made: only(5))) == ([5] * 9, "length")
    assert run(Rule(forced={0: [5] * 99}, end=99)) == ([5] * 9, "length")
    assert run(Rule(lambda made: only(5), end=9)) == ([5] * 9, "constraint")
    assert run(Rule(lambda made: only(EOS if made == 2 else 5))) == ([5, 5, EOS], "eos")
    assert run(Rule(forced={0: [5, EOS, 5]})) == ([5, EOS], "eos")
    assert run(Rule(forced={0: [5, 6, 8]}), stop=[[5, 6]]) == ([5, 6], "stop")
    # Forced tokens are of the text even if it is complete within them.
    assert run(Rule(forced={0: [5, 6, 8]}, end=3)) == ([5, 6, 8], "constraint")


def fails(*given: Any) -> Any:
    raise ValueError("no idea")


BAD: list[tuple[dict[str, Any], str]] = [
    ({"mask": lambda: only()}, "allows no token"),
    ({"mask": fails}, "raised ValueError: no idea"),
    ({"accept": fails}, "raised ValueError: no idea"),
    ({"forced": fails}, "raised ValueError: no idea"),
    ({"ended": fails}, "raised ValueError: no idea"),
    ({"mask": lambda: EVERY[1:]}, r"mask is bool\[60\], must be bool\[61\] or uint32\[2\]"),
    ({"mask": lambda: EVERY[None]}, r"mask is bool\[1, 61\]"),
    ({"mask": lambda: words_of(EVERY)[:1]}, r"mask is uint32\[1\]"),
    ({"mask": lambda: EVERY.astype(np.uint8)}, r"mask is uint8\[61\]"),
    ({"mask": lambda: [True] * 61}, "mask is list"),
    ({"mask": lambda: None}, "mask is NoneType"),
    ({"forced": lambda: [61]}, r"forces \[61\], must be token ids within 0..60"),
    ({"forced": lambda: [1.0]}, r"forces \[1.0\]"),
    ({"forced": lambda: [True]}, r"forces \[True\]"),
    ({"forced": lambda: "ab"}, "forces 'ab'"),
    ({"forced": lambda: None}, "forces None"),
]


@pytest.mark.parametrize("when", [0, 3], ids=["first", "later"])
@pytest.mark.parametrize(("methods", "text"), BAD, ids=[item[1][:24] for item in BAD])
def test_a_failure_ends_the_text_and_no_session(
    model: Model, methods: dict[str, Any], text: str, when: int
) -> None:
    session, rule = model.session(), Rule()
    for name, method in methods.items():
        whole = getattr(rule, name)

        def late(*given: Any, method: Any = method, whole: Any = whole) -> Any:
            return (method if len(rule.accepted) >= when else whole)(*given)

        setattr(rule, name, late)
    stream = session.stream([3, 4], max_new_tokens=9, eos=(), constraint=rule)
    with pytest.raises(ConstraintError, match=text) as caught:
        list(stream)
    raised = caught.value.__cause__
    assert isinstance(raised, ValueError) == ("raised" in text) and caught.value.exit_code == 10
    assert stream.tokens == rule.accepted and stream.finish_reason == "closed"
    assert list(stream) == []
    # The session goes on from what it ran.
    assert session.tokens == [3, 4, *stream.tokens][: len(session.tokens)]
    again = [3, 4, *stream.tokens, 9]
    assert session.generate(again, max_new_tokens=9) == model.generate(again, max_new_tokens=9)


def test_suppressed_tokens_stay_so(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    session = model.session()
    first = np.array([4])
    monkeypatch.setattr(session, "suppressed", (np.array([5]), first))
    got = session.generate(
        [3], max_new_tokens=9, eos=(), constraint=Rule(lambda made: only(4, 5, 6))
    )
    assert got[0] == 6 and set(got) <= {4, 6}
    with pytest.raises(ConstraintError, match="allows no token"):
        session.generate([3], max_new_tokens=9, constraint=Rule(lambda made: only(5)))
    with pytest.raises(ConstraintError, match="allows no token"):
        session.generate([3], max_new_tokens=9, constraint=Rule(lambda made: only(4, 5)))


def test_what_is_no_constraint_is_refused(model: Model) -> None:
    half = {"mask": lambda self: EVERY}
    odd = {**half, "accept": print, "ended": True}
    for value in (3, "json", type("Half", (), half)(), type("Odd", (), odd)()):
        with pytest.raises(InputError, match="must have methods mask and accept"):
            model.generate([3], constraint=value)


def test_another_text_of_the_session_ends_this_one(model: Model) -> None:
    session = model.session()
    stream = session.stream([1, 2], max_new_tokens=9, constraint=Rule(forced={1: [5] * 5}))
    next(stream)
    session.generate([1, 3], max_new_tokens=2)
    with pytest.raises(InputError, match="another generation of this session began"):
        next(stream)
    assert stream.finish_reason == "closed"


def test_a_closed_model_refuses_the_next_run(decoder_bundle: Path) -> None:
    model = open_bundle(decoder_bundle, threads=1, warmup=False)
    stream = model.stream([1, 2], max_new_tokens=9, constraint=Rule(forced={1: [5]}))
    next(stream)
    model.close()
    assert next(stream) == 5
    with pytest.raises(ModelClosedError):
        next(stream)


def test_logits_that_are_no_numbers_are_told(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    session = model.session()
    begin = session.begin

    def broken(*given: Any) -> Any:
        logits = (yield from begin(*given)).copy()
        logits[5] = np.nan
        return logits

    monkeypatch.setattr(session, "begin", broken)
    with pytest.raises(NativeError, match="the largest is nan"):
        session.generate([3], max_new_tokens=2, constraint=Rule(lambda made: only(5, 6)))


@pytest.mark.parametrize("bundle", ["decoder_bundle", "hybrid_bundle"])
def test_a_run_of_forced_tokens_that_failed(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, bundle: str
) -> None:
    """It is run again as a whole, where the model has no states; these are lost, which is told."""
    with open_bundle(request.getfixturevalue(bundle), threads=1) as model:
        every = np.ones(model.info["outputs"][0]["shape"][1], bool)
        run, runs = model.run_bound, list[int]()

        def break_one(*given: Any) -> Any:
            runs.append(1)
            if len(runs) == 3:  # the prompt's, the first chunk's of the forced tokens, and this one
                raise NativeError("broken")
            return run(*given)

        for states in ({}, {"checkpoint_every": 16}):
            forced = {1: [5] * 60}
            text = {"input_ids": [3, 1, 4], "max_new_tokens": 64, "eos": ()}
            want = model.generate(**text, constraint=Rule(lambda made: every, forced))
            session = model.session(**states)
            stream = session.stream(**text, constraint=Rule(lambda made: every, forced))
            runs.clear()
            monkeypatch.setattr(model, "run_bound", break_one)
            with pytest.raises(NativeError, match="broken"):
                list(stream)
            assert stream.tokens == want[:61]
            if bundle == "decoder_bundle":
                assert session.tokens == [3, 1, 4]
                assert list(stream) == want[61:] and stream.tokens == want
            else:
                with pytest.raises(InputError, match="its states are lost"):
                    next(stream)
            monkeypatch.undo()
            again = [3, 1, 4, *stream.tokens, 9]
            assert session.generate(again, max_new_tokens=4) == model.generate(
                again, max_new_tokens=4
            )
