"""Chats: messages in all their forms, through the template of a real generative bundle."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from edgecompile.runtime import open_bundle
from tests.generative import replace_files
from tests.server.http.asgi import call, run, serving
from tests.server.http.generations import body, events


def test_a_wrong_address_leads_to_the_right_one(chatting_bundle: Path) -> None:
    async def ask() -> None:
        async with serving(chatting_bundle) as app:
            for path, told in (
                ("/chat/completions", "did you mean /v1/chat/completions?"),
                ("/chat/nothing", "see /openapi.json"),
            ):
                reply = await call(app, "POST", path, {})
                assert reply.status == 404 and told in reply.error
            reply = await call(app, "POST", "/v1/embeddings", {"input": "w1"})
            assert reply.status == 422 and "ask /v1/chat/completions" in reply.error

    run(ask())


def test_tools_that_are_not_to_be_called_are_left_out(chatting_bundle: Path) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    messages = [{"role": "user", "content": "w1"}]
    asked = {"model": "speaking", "messages": messages, "temperature": 0, "max_tokens": 3}

    async def ask() -> None:
        async with serving(chatting_bundle) as app:
            path = "/v1/chat/completions"
            plain = (await call(app, "POST", path, asked)).json["choices"]
            for more in ({"tools": tools, "tool_choice": "none"}, {"tool_choice": "none"}):
                assert (await call(app, "POST", path, {**asked, **more})).json["choices"] == plain
            for choice in ("auto", None):
                more = {"tools": tools, "tool_choice": choice}
                reply = await call(app, "POST", path, {**asked, **more})
                assert reply.status == 422 and "its chat template takes no tools" in reply.error

    run(ask())


def test_answers_come_back_as_messages(chatting_bundle: Path) -> None:
    """As clients send them: with fields that are null, or empty, and perhaps without content."""
    empty = {"tool_calls": [], "refusal": None, "audio": None, "function_call": None}
    turns = [{"role": "user", "content": "w1"}, {"role": "assistant", "content": ""}]
    asked = {"messages": turns, "temperature": 0, "max_tokens": 3}

    async def ask() -> None:
        async with serving(chatting_bundle) as app:
            path = "/v1/chat/completions"
            wanted = (await call(app, "POST", path, asked)).json["choices"]
            for answer in ({"content": None}, {}, {"content": None, **empty}):
                messages = [turns[0], {"role": "assistant", **answer}]
                reply = await call(app, "POST", path, {**asked, "messages": messages})
                assert reply.json["choices"] == wanted
            reply = await call(
                app, "POST", path, {**asked, "messages": [{"role": "user", "content": None}]}
            )
            assert reply.status == 400 and "content must be a text, not null" in reply.error

    run(ask())


def test_a_chat_without_a_limit_goes_on_as_far_as_there_is_room(
    chatting_bundle: Path, tmp_path: Path
) -> None:
    """Or for as many tokens as the model's author gives it; a completion has OpenAI's 16."""
    turns = {"messages": [{"role": "user", "content": "w1"}], "temperature": 0}
    with open_bundle(chatting_bundle) as model:
        generation = model.manifest.generation
        assert generation is not None and generation.defaults == {"max_new_tokens": 30}
    folder = tmp_path / "endless.ecb"
    shutil.copytree(chatting_bundle, folder, copy_function=os.link)
    document = json.loads((folder / "manifest.json").read_bytes())
    document["generation"] |= {"defaults": {}, "eos": []}
    replace_files(folder, document, {})

    async def count(
        bundle: Path, path: str = "/v1/chat/completions", **asked: Any
    ) -> tuple[Any, Any]:
        async with serving(bundle) as app:
            reply = await call(app, "POST", path, asked)
            (choice,), usage = reply.json["choices"], reply.json["usage"]
            assert choice["finish_reason"] == "length"
            return usage["completion_tokens"], usage["total_tokens"]

    for more in ({}, {"max_tokens": None}, {"max_completion_tokens": -1}):
        assert run(count(folder, **turns, **more))[1] == generation.max_context
    assert run(count(chatting_bundle, **turns, stop=[]))[0] == 30
    asked: dict[str, Any] = {"prompt": "w3 w1", "temperature": 0}
    assert run(count(folder, "/v1/completions", **asked))[0] == 16


def test_a_chat_needs_a_template(speaking_bundle: Path) -> None:
    async def ask() -> None:
        async with serving(speaking_bundle) as app:
            messages = [{"role": "user", "content": "w1"}]
            asked = {"model": "speaking", "messages": messages}
            reply = await call(app, "POST", "/v1/chat/completions", asked)
            assert reply.status == 422 and "no chat template" in reply.error
            asked["messages"] = [{"role": "user"}]
            reply = await call(app, "POST", "/v1/chat/completions", asked)
            assert reply.status == 400 and "content must be a text" in reply.error

    run(ask())


def test_a_chat_goes_through_its_template(chatting_bundle: Path) -> None:
    async def ask() -> None:
        async with serving(chatting_bundle) as app:
            path = "/v1/chat/completions"
            messages: list[dict[str, Any]] = [
                {"role": "user", "content": "w1"},
                {"role": "assistant", "content": "w1"},
            ]
            plain = await call(app, "POST", "/v1/completions", body(prompt="w3 w1 w4 w1 w4 w5"))
            asked = {**body(prompt=None), "messages": messages}
            reply = await call(app, "POST", path, asked)
            assert reply.json["object"] == "chat.completion"
            (choice,) = reply.json["choices"]
            wanted = {"role": "assistant", "content": plain.json["choices"][0]["text"]}
            assert choice["message"] == wanted
            assert reply.json["usage"] == plain.json["usage"]
            messages[0]["content"] = [{"type": "text", "text": "w1"}]
            assert (await call(app, "POST", path, asked)).json["usage"] == plain.json["usage"]
            found = events(await call(app, "POST", path, {**asked, "stream": True}))
            deltas = [item["choices"][0]["delta"] for item in found]
            assert deltas[0]["role"] == "assistant"
            assert "".join(delta["content"] for delta in deltas) == wanted["content"]
            for messages, status, message in (
                ([{"role": "tool", "content": "w1"}], 400, "no tools here"),
                ([{"role": "king", "content": "w1"}], 400, "the role 'king' isn't one of system"),
                ([{"role": "user", "content": "\ud800"}], 400, "surrogate"),
                ([{"role": "user", "content": "w1", "prefix": True}], 422, "messages[0].prefix"),
                ([{"role": "user", "content": 1}], 400, "content must be a text, not a number"),
                ([{"role": "user", "content": [1]}], 400, "must be an object with a text"),
                (
                    [{"role": "user", "content": [{"type": "image_url"}]}],
                    422,
                    "no content of type 'image_url'",
                ),
                ([], 400, "at least one message"),
            ):
                reply = await call(app, "POST", path, {**asked, "messages": messages})
                assert (reply.status, message in reply.error) == (status, True), reply.body

    run(ask())
