"""Several texts that get a token each in one run: each has the tokens, and the logits, that it has alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgecompile.runtime import InputError, Model, NativeError, open_bundle
from edgecompile.runtime.generation.stream import TokenStream
from edgecompile.runtime.generation.together import Together
from tests.runtime.generation.test_constraints import Rule

NEW = 20
PROMPTS = [
    [1 + (i * step) % 50 for i in range(length)] for step, length in enumerate((3, 40, 70, 1), 5)
]


@pytest.fixture(scope="module", params=[1, 2], ids=["one thread", "two threads"])
def model(request: pytest.FixtureRequest, together_bundle: Path) -> Iterator[Model]:
    with open_bundle(together_bundle, threads=request.param, warmup=False) as opened:
        yield opened


def begin(model: Model, prompts: list[list[int]], **options: Any) -> list[TokenStream]:
    """Streams whose prompts have been run, and whose first tokens are there."""
    asked: dict[str, Any] = {"max_new_tokens": NEW, "eos": (), **options}
    streams = [model.session().stream(prompt, **asked) for prompt in prompts]
    for stream in streams:
        next(stream)
    return streams


@pytest.mark.parametrize("count", [2, 3, 4])
def test_no_bit_differs(model: Model, count: int) -> None:
    together = Together(model)
    assert together.most == 4
    texts, alone = (begin(model, PROMPTS[:count]) for _ in range(2))
    for _ in range(NEW - 1):
        together.run(texts)
        for text, other in zip(texts, alone, strict=True):
            assert not text.run(), "nothing is left to run"
            assert not other.run()
            assert text.logits is not None and other.logits is not None
            np.testing.assert_array_equal(text.logits, other.logits)
            assert next(text) == next(other)
    assert [text.finish_reason for text in texts] == ["length"] * count
    for text, other in zip(texts, alone, strict=True):
        mine, theirs = text._session._caches.arrays, other._session._caches.arrays  # type: ignore[attr-defined]
        assert all(np.array_equal(mine[name], theirs[name]) for name in mine)


def test_texts_join_and_leave(model: Model) -> None:
    """They run alone between, another turn follows, and no token differs."""
    together = Together(model)
    wanted = [model.generate(p, max_new_tokens=NEW, eos=()) for p in PROMPTS]
    texts = begin(model, PROMPTS)
    for step in range(NEW - 1):
        chosen = [text for index, text in enumerate(texts) if (step + index) % 3]
        if len(chosen) > 1:
            together.run(chosen)
        for text in texts:
            next(text)
    assert [text.tokens for text in texts] == wanted
    session: Any = texts[1]._session
    turn = [*PROMPTS[1], *wanted[1], 7]
    stream = session.stream(turn, max_new_tokens=5, eos=())
    assert list(stream) == model.generate(turn, max_new_tokens=5, eos=())
    assert stream.reused == len(turn) - 2, "the last token of the answer wasn't run"


def test_sampling_and_constraints_are_each_text_s_own(model: Model) -> None:
    every = np.ones(model.info["outputs"][0]["shape"][1], bool)
    options: list[dict[str, Any]] = [
        {"temperature": 1.5, "seed": 3},
        {"do_sample": False},
        {"constraint": Rule(lambda made: every & (np.arange(every.size) % 2 == made % 2))},
        {"constraint": Rule(lambda made: every, {3: [5, 6], 9: [8]})},
    ]
    wanted = []
    for prompt, item in zip(PROMPTS, options, strict=True):
        wanted.append(model.generate(prompt, max_new_tokens=NEW, eos=(), **item))
        if "constraint" in item:
            item["constraint"].accepted.clear()
    together = Together(model)
    texts = [
        begin(model, [prompt], **item)[0] for prompt, item in zip(PROMPTS, options, strict=True)
    ]
    while any(text.finish_reason is None for text in texts):
        ready = [text for text in texts if text.single() is not None]
        if len(ready) > 1:
            together.run(ready)
        for text in texts:
            if text.finish_reason is None:
                next(text)
    assert [text.tokens for text in texts] == wanted


def test_forced_tokens_and_prompts_need_no_single_run(model: Model) -> None:
    every = np.ones(model.info["outputs"][0]["shape"][1], bool)
    stream = model.session().stream([3], constraint=Rule(lambda made: every, {1: [5, 6]}), eos=())
    assert stream.single() is None
    next(stream)
    for _ in range(2):
        assert stream.single() is None
        next(stream)
    assert stream.single() is None, "two tokens have to be run"
    token = next(stream)
    assert stream.single() == token
    stream.close()
    assert stream.single() is None


def test_a_run_that_failed_leaves_each_text_as_it_was(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    together, texts = Together(model), begin(model, PROMPTS[:3])
    wanted = [model.generate(p, max_new_tokens=NEW, eos=()) for p in PROMPTS[:3]]
    together.run(texts)

    def fail(*given: Any) -> None:
        raise NativeError("broken")

    for text in texts:
        next(text)
    with monkeypatch.context() as patch:
        patch.setattr(model, "run_bound", fail)
        with pytest.raises(NativeError, match="broken"):
            together.run(texts)
    assert [[*text.tokens[:2], *text] for text in texts] == wanted


def test_a_text_whose_session_has_another_one_stops_all(model: Model) -> None:
    together, texts = Together(model), begin(model, PROMPTS[:2])
    session: Any = texts[0]._session
    session.generate([9, 9], max_new_tokens=1)
    with pytest.raises(InputError, match="another generation of this session began"):
        together.run(texts)
    assert [*texts[1].tokens, *texts[1]] == model.generate(PROMPTS[1], max_new_tokens=NEW, eos=())


def test_texts_of_nothing_can_be_run(model: Model) -> None:
    together = Together(model)
    for count in range(2, 5):
        together.run_nothing(count)
