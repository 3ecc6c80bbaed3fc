"""Caches that are kept for the next turn: which text gets which, and which go."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgecompile.runtime import Model, open_bundle
from edgecompile.runtime.format.manifest.text import CHAT_FILE
from edgecompile.server.conversations import Conversations
from edgecompile.server.settings import Limits
from tests.generative import caches_behind, put_prefix, replace_files
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


def test_what_all_have_takes_nobody_s_session(
    model: Model, decoder_bundle: Path, tmp_path: Path
) -> None:
    begun = [9, 20, 31, 42]
    output = put_prefix(decoder_bundle, tmp_path / "a.ecb", caches_behind(model, begun))
    with open_bundle(output, threads=1, warmup=False) as opened:
        kept = Conversations(opened, 2)
        one = kept.take([*begun, *FIRST])
        one.generate([*begun, *FIRST], max_new_tokens=2)
        kept.give_back(one)
        two = kept.take([*begun, *SECOND])
        assert two is not one
        two.generate([*begun, *SECOND], max_new_tokens=2)
        kept.give_back(two)
        assert kept.take([*begun, *FIRST, 7]) is one
        assert kept.take([*begun, *SECOND, 7]) is two


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


@pytest.fixture
def thinking_bundle(hybrid_bundle: Path, tmp_path: Path) -> Path:
    """A model with states, whose template has a place for thoughts before an answer that isn't given yet."""
    tokenizers = pytest.importorskip("tokenizers")
    pytest.importorskip("jinja2")
    folder = tmp_path / "thinking.ecb"
    shutil.copytree(hybrid_bundle, folder, copy_function=os.link)
    words = {f"w{index}": index for index in range(97)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w9"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    template = (
        "{% for m in messages %}{{ 'w3 ' if m.role == 'user' else 'w4 ' }}{{ m.content }} {% endfor %}"
        "w4 w5 w5"
    )
    chat = {"template": template, "special_tokens": {}}
    document = json.loads((folder / "manifest.json").read_bytes())
    text = {"tokenizer": "tokenizer.json", "max_length": 24, "pad_id": 0}
    document |= {"name": "thinking", "text": {**text, "inputs": {"input_ids": "ids"}}}
    (folder / CHAT_FILE).parent.mkdir()
    files = {"tokenizer.json": tokenizer.to_str().encode(), CHAT_FILE: json.dumps(chat).encode()}
    replace_files(folder, document, files)
    return folder


def test_a_model_with_states_goes_on_from_before_the_place_for_thoughts(
    thinking_bundle: Path,
) -> None:
    """In a session of its own as through the server."""
    options = {"max_new_tokens": 4, "do_sample": False, "eos": ()}
    with open_bundle(thinking_bundle, threads=1) as model:
        session, prompts = model.session(), model._prompts()
        messages, known = [{"role": "user", "content": "w9 w8 w10 w11"}], 0
        for _ in range(3):
            stream = session.stream_text(messages, **options)
            said = "".join(stream)
            assert said == model.chat(messages, **options)
            assert stream.tokens.reused == known
            known = len(prompts.read(messages)) - 2
            messages += [
                {"role": "assistant", "content": said},
                {"role": "user", "content": "w12 w13"},
            ]
        wanted = model.chat(messages, max_new_tokens=4, temperature=0)
    before = messages[:-2]

    async def ask() -> None:
        async with serving(thinking_bundle) as app:
            served = app.repository.get("thinking").model
            path, count = "/v1/chat/completions", 0
            for asked in (before, messages):
                body = {"model": "thinking", "messages": asked, "temperature": 0, "max_tokens": 4}
                reply = await call(app, "POST", path, body)
                ran = sum(int(size) * runs for size, runs in served.stats["lengths"].items())
                new = reply.json["usage"]["completion_tokens"]
                reused = 0 if asked is before else known
                assert ran - count == len(prompts.read(asked)) - reused + new - 1
                count = ran
            assert reply.json["choices"][0]["message"]["content"] == wanted

    run(ask())
