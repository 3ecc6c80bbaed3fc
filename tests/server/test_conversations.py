"""Caches that are kept for the next turn: which text gets which, and which go."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgecompile.runtime import Model, open_bundle
from edgecompile.server.conversations import Conversations
from edgecompile.server.settings import Limits
from tests.server.http.asgi import call, run, serving

FIRST, SECOND, THIRD = [3, 1, 4, 1, 5], [9, 2, 6], [8, 8, 8]


@pytest.fixture(scope="module")
def model(decoder_bundle: Path) -> Iterator[Model]:
    with open_bundle(decoder_bundle, threads=1, warmup=False) as opened:
        yield opened


def test_a_prompt_gets_the_session_that_has_most_of_it(model: Model) -> None:
    kept = Conversations(model, 2)
    one, two = kept.take(FIRST), kept.take(SECOND)
    assert one is not two
    one.generate(FIRST, max_new_tokens=2)
    two.generate(SECOND, max_new_tokens=2)
    kept.give_back(one)
    kept.give_back(two)
    assert kept.take([*FIRST, 7]) is one
    assert kept.take([*SECOND, 7]) is two
    kept.give_back(two)
    kept.give_back(one)
    # Nobody has this one's beginning: it gets the memory of what was used the longest ago.
    assert kept.take(THIRD) is two
    kept.give_back(two)
    assert kept.take(FIRST) is one


def test_no_more_are_kept_than_asked_for(model: Model) -> None:
    kept = Conversations(model, 1)
    one, two = kept.take(FIRST), kept.take(FIRST)
    for session in (one, two):
        session.generate(FIRST, max_new_tokens=2)
        kept.give_back(session)
    assert kept.take(FIRST) is two and kept.take(FIRST) not in (one, two)
    none = Conversations(model, 0)
    none.give_back(two)
    assert none.take(FIRST) is not two
    kept.give_back(two)
    kept.clear()
    assert kept.take(FIRST) is not two


@pytest.mark.parametrize("conversations", [0, 1])
def test_the_next_turn_of_a_chat_runs_what_is_new(
    chatting_bundle: Path, conversations: int
) -> None:
    async def ask() -> None:
        limits = Limits(conversations=conversations)
        async with serving(chatting_bundle, limits=limits) as app:
            model = app.repository.get("speaking").model

            def count() -> int:
                return sum(int(size) * runs for size, runs in model.stats["lengths"].items())

            async def answer(messages: list[Any], **changes: Any) -> tuple[str, int, int]:
                before = count()
                asked = {"model": "speaking", "messages": messages, "temperature": 0, **changes}
                reply = await call(app, "POST", "/v1/chat/completions", {"max_tokens": 4, **asked})
                if "max_tokens" in changes:
                    assert reply.status == 400
                    return "", 0, count() - before
                assert reply.status == 200
                text = reply.json["choices"][0]["message"]["content"]
                return text, reply.json["usage"]["total_tokens"] - 1, count() - before

            messages = [{"role": "user", "content": "w9 w8 w10 w11 w12 w13"}]
            said, total, ran = await answer(messages)
            assert ran == total
            # What is refused leaves the conversation as it was.
            assert (await answer(messages, max_tokens=4096))[2] == 0
            further = [
                *messages,
                {"role": "assistant", "content": said},
                {"role": "user", "content": "w9"},
            ]
            said, total, ran = await answer(further)
            assert ran == total if conversations == 0 else ran <= total - 8
            assert said == model.chat(further, max_new_tokens=4, temperature=0)

    run(ask())
