"""Prompts whose chunks are run one by one, with other texts between them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgecompile.runtime import InputError, open_bundle
from edgecompile.runtime.generation.stream import TokenStream
from tests.runtime.generation.test_constraints import Rule

PROMPTS = [[1 + (i * step) % 50 for i in range(100)] for step in (7, 11)]


def chunks_of(stream: TokenStream) -> int:
    """Runs all chunks, one by one; the number of those that had another one behind them."""
    return sum(iter(stream.run, False))


@pytest.fixture(scope="module", params=["decoder_bundle", "hybrid_bundle"])
def model(request: pytest.FixtureRequest) -> Any:
    with open_bundle(request.getfixturevalue(request.param), threads=1, warmup=False) as opened:
        yield opened


def test_texts_between_chunks_change_nothing(model: Any) -> None:
    options: dict[str, Any] = {"max_new_tokens": 6, "eos": ()}
    wanted = [model.generate(prompt, **options) for prompt in PROMPTS]
    streams = [model.session().stream(prompt, **options) for prompt in PROMPTS]
    between = model.session().stream([3, 1, 4], max_new_tokens=40, eos=())
    left, chunks = list(streams), 0
    while left:
        left = [stream for stream in left if stream.run()]
        chunks += len(left)
        next(between)
    assert chunks >= 2 * 2, "each has several"
    runs = model.stats["runs"]
    firsts = [next(stream) for stream in streams]
    assert model.stats["runs"] == runs, "all that the first tokens need has been run"
    assert [[first, *stream] for first, stream in zip(firsts, streams, strict=True)] == wanted
    assert [stream.run() for stream in streams] == [False, False], (
        "nothing needs to be run any more"
    )


def test_a_token_is_run_once(model: Any) -> None:
    stream = model.session().stream([3, 1, 4], max_new_tokens=3, eos=())
    for _ in range(3):
        assert not stream.run()
        runs = model.stats["runs"]
        assert not stream.run()
        next(stream)
        assert model.stats["runs"] == runs


def test_forced_tokens_come_in_chunks(model: Any) -> None:
    every = np.ones(model.info["outputs"][0]["shape"][1], bool)

    def rule() -> Rule:
        return Rule(lambda made: every, {0: [9], 2: [5] * 70})

    options: dict[str, Any] = {"max_new_tokens": 74, "eos": ()}
    wanted = model.generate(PROMPTS[0][:50], constraint=rule(), **options)
    stream = model.session().stream(PROMPTS[0][:50], constraint=rule(), **options)
    got, chunks = list[int](), list[int]()
    while stream.finish_reason is None:
        chunks.append(chunks_of(stream))
        got.append(next(stream))
    assert got == wanted
    # Behind one forced token the prompt is run with it, and behind seventy these.
    assert [index for index, count in enumerate(chunks) if count] == [1, 72]


def test_a_text_that_begins_meanwhile_ends_the_other(model: Any) -> None:
    session = model.session()
    one, two = (session.stream(prompt, max_new_tokens=4, eos=()) for prompt in PROMPTS)
    assert one.run() and two.run()
    with pytest.raises(InputError, match="another generation of this session began"):
        one.run()
    assert one.finish_reason == "closed" and list(one) == []
    assert list(two) == model.generate(PROMPTS[1], max_new_tokens=4, eos=())


@pytest.mark.parametrize("constrained", [False, True])
def test_a_text_that_is_closed_between_chunks_has_no_token(model: Any, constrained: bool) -> None:
    every = np.ones(model.info["outputs"][0]["shape"][1], bool)
    more: dict[str, Any] = {"constraint": Rule(lambda made: every)} if constrained else {}
    stream = model.session().stream(PROMPTS[0], max_new_tokens=4, eos=(), **more)
    run, stops = stream.run, []

    def closing() -> bool:
        stops.append(run())
        stream.close()
        return stops[-1]

    stream.run = closing
    assert list(stream) == [] and stream.finish_reason == "closed"
    assert stops[0], "a chunk is left"


def test_forced_tokens_whose_run_was_interrupted_run_once(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = np.ones(model.info["outputs"][0]["shape"][1], bool)
    options: dict[str, Any] = {"max_new_tokens": 74, "eos": ()}
    session, prompt = model.session(), PROMPTS[0][:20]
    wanted = model.generate(prompt, constraint=Rule(lambda made: every, {2: [5] * 70}), **options)
    rule = Rule(lambda made: every, {2: [5] * 70})
    stream = session.stream(prompt, constraint=rule, **options)
    got = [next(stream) for _ in range(72)]
    assert stream.run(), "a chunk of the forced tokens is left"
    # As of a KeyboardInterrupt between two chunks.
    stream._runs = None
    if model.manifest.generation.kind == "recurrent-lm":
        with pytest.raises(InputError, match="states"):
            next(stream)
    else:
        assert [*got, *stream] == wanted


def test_what_was_read_serves_the_next_text(model: Any) -> None:
    session = model.session()
    stream = session.stream(PROMPTS[0], max_new_tokens=4, eos=())
    assert stream.run() and stream.run()
    read = len(session.tokens)
    assert 0 < read < len(PROMPTS[0]) and session.tokens == PROMPTS[0][:read]
    del stream
    stream = session.stream(PROMPTS[0], max_new_tokens=4, eos=())
    assert list(stream) == model.generate(PROMPTS[0], max_new_tokens=4, eos=())
    assert stream.reused == read
