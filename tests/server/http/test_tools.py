"""Chats with tools: how they are told to the model, and how its calls come back."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from edgecompile.server.generation import Generator
from edgecompile.server.generation_request import Piece
from tests.bytewise import START, TEMPLATE, build_bytewise, make_tokenizer
from tests.server.http.asgi import call, run, serving
from tests.server.http.generations import events

pytest.importorskip("llguidance")
pytest.importorskip("jinja2")

PATH = "/v1/chat/completions"
ARGUMENTS = {
    "type": "object",
    "properties": {"where": {"enum": ["here", "there"]}, "far": {"$ref": "#/$defs/far"}},
    "required": ["where", "far"],
    "additionalProperties": False,
    "$defs": {"far": {"type": "integer", "minimum": 0, "maximum": 99}},
}
FIND = {"type": "function", "function": {"name": "find", "parameters": ARGUMENTS, "strict": True}}
WALK = {"type": "function", "function": {"name": "walk", "description": "go"}}
TOOLS = [FIND, WALK]
USER = {"role": "user", "content": "go on"}
CHAT = {"messages": [USER], "tools": TOOLS, "temperature": 0, "max_tokens": 90}


def judge(called: dict[str, Any]) -> None:
    """That a call of an answer is one of a tool, as its schema says."""
    assert called["type"] == "function" and called["id"].startswith("call_")
    arguments = json.loads(called["function"]["arguments"])
    if called["function"]["name"] == "walk":
        assert arguments == {}
    else:
        assert called["function"]["name"] == "find" and arguments.keys() == {"where", "far"}
        assert arguments["where"] in ("here", "there") and 0 <= arguments["far"] <= 99


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"find", "walk"}),
        ({"type": "function", "function": {"name": "find"}}, {"find"}),
        ({"type": "function", "function": {"name": "walk"}}, {"walk"}),
    ],
    ids=["required", "find", "walk"],
)
def test_a_tool_that_must_be_called_is(bytewise_bundle: Path, choice: Any, names: set[str]) -> None:
    async def ask() -> None:
        async with serving(bytewise_bundle) as app:
            for seed in range(4):
                asked = {**CHAT, "tool_choice": choice, "seed": seed, "temperature": seed}
                reply = await call(app, "POST", PATH, asked)
                assert reply.status == 200, reply.body
                (answer,) = reply.json["choices"]
                assert answer["finish_reason"] == "tool_calls"
                assert answer["message"].keys() == {"role", "content", "tool_calls"}
                assert answer["message"]["content"] is None
                (called,) = answer["message"]["tool_calls"]
                judge(called)
                assert called["function"]["name"] in names and "index" not in called
                found = events(await call(app, "POST", PATH, {**asked, "stream": True}))
                deltas = [event["choices"][0]["delta"] for event in found]
                assert deltas[0]["role"] == "assistant"
                assert not "".join(delta.get("content") or "" for delta in deltas)
                (streamed,) = [d["tool_calls"] for d in deltas if d.get("tool_calls")]
                assert streamed[0]["index"] == 0
                assert streamed[0]["function"] == called["function"]
                assert found[-1]["choices"][0]["finish_reason"] == "tool_calls"
                usage = reply.json["usage"]
                assert 0 < usage["completion_tokens"] <= 90

    run(ask())


def test_a_call_that_is_cut_off_is_text(bytewise_bundle: Path) -> None:
    async def ask() -> None:
        async with serving(bytewise_bundle) as app:
            asked = {**CHAT, "tool_choice": "required", "max_tokens": 9}
            (answer,) = (await call(app, "POST", PATH, asked)).json["choices"]
            assert answer["finish_reason"] == "length"
            assert answer["message"]["content"].startswith("<tool_call>")
            assert "tool_calls" not in answer["message"]

    run(ask())


def test_a_schema_that_takes_null_gives_an_object(bytewise_bundle: Path) -> None:
    tool = changed(parameters={**ARGUMENTS, "type": ["null", "object"]})

    async def ask() -> None:
        async with serving(bytewise_bundle) as app:
            for seed in range(4):
                asked = {**CHAT, "tools": [tool], "tool_choice": "required", "seed": seed}
                reply = await call(app, "POST", PATH, {**asked, "temperature": 3})
                (called,) = reply.json["choices"][0]["message"]["tool_calls"]
                judge(called)

    run(ask())


ANSWER = 'so <tool_call>\n{"name": "walk", "arguments": {}}\n</tool_call>\n<tool_call>\n'
ANSWER += '{"name": "find", "arguments": {"where": "here", "far": 3}}\n</tool_call>'


@pytest.fixture
def saying(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Lets the model say this text, which no small one with random weights comes to."""
    texts: list[str] = []

    async def say(self: Generator, prompt: list[int], generation: Any) -> AsyncIterator[Piece]:
        for at in range(0, len(texts[0]), 5):
            yield Piece(texts[0][at : at + 5], at, None)
        yield Piece("", len(texts[0]), texts[1])

    monkeypatch.setattr(Generator, "run", say)
    yield texts


def test_a_free_model_may_call_tools(bytewise_bundle: Path, saying: list[str]) -> None:
    def names(calls: list[dict[str, Any]]) -> list[str]:
        return [item["function"]["name"] for item in calls]

    async def ask() -> None:
        async with serving(bytewise_bundle) as app:
            saying[:] = [ANSWER, "stop"]
            for several in (True, False, None):
                asked = {**CHAT, "parallel_tool_calls": several}
                (answer,) = (await call(app, "POST", PATH, asked)).json["choices"]
                message = answer["message"]
                want = ["walk"] if several is False else ["walk", "find"]
                assert names(message["tool_calls"]) == want and message["content"] == "so "
                assert answer["finish_reason"] == "tool_calls"
                found = events(await call(app, "POST", PATH, {**asked, "stream": True}))
                pieces = [event["choices"][0] for event in found]
                calls = [item for piece in pieces for item in piece["delta"].get("tool_calls", [])]
                assert [item["index"] for item in calls] == [*range(len(want))]
                assert names(calls) == want and len({item["id"] for item in calls}) == len(want)
                text = "".join(piece["delta"].get("content") or "" for piece in pieces)
                assert text == "so " and pieces[-1]["finish_reason"] == "tool_calls"
            # A text of the answer that ends it otherwise has its own reason, and without calls it is as ever.
            saying[1] = "length"
            (answer,) = (await call(app, "POST", PATH, CHAT)).json["choices"]
            assert answer["finish_reason"] == "length" and len(answer["message"]["tool_calls"]) == 2
            saying[:] = ["no <tool", "stop"]
            (answer,) = (await call(app, "POST", PATH, CHAT)).json["choices"]
            assert answer["message"] == {"role": "assistant", "content": "no <tool"}
            assert answer["finish_reason"] == "stop"
            # Where no tool may be called, it is text.
            saying[:] = [ANSWER, "stop"]
            asked = {**CHAT, "tool_choice": "none"}
            (answer,) = (await call(app, "POST", PATH, asked)).json["choices"]
            assert answer["message"] == {"role": "assistant", "content": ANSWER}

    run(ask())


def test_the_template_writes_tools_calls_and_results(
    bytewise_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prompt is what transformers' template makes of it, with the arguments as an object."""
    import jinja2

    tokenizer, read = make_tokenizer(), list[list[int]]()
    run_prompt = Generator.run

    def watch(self: Generator, prompt: list[int], generation: Any) -> Any:
        read.append(prompt)
        return run_prompt(self, prompt, generation)

    monkeypatch.setattr(Generator, "run", watch)
    called = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "find", "arguments": '{"where": "here", "far": 3}'},
    }
    turns = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [called], "refusal": None},
        {"role": "tool", "tool_call_id": "call_1", "content": "it is here"},
    ]
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    seen = [{**turn, "content": turn["content"] or ""} for turn in turns]
    function = {"name": "find", "arguments": {"where": "here", "far": 3}}
    seen[1] = {**seen[1], "tool_calls": [{**called, "function": function}]}

    async def ask() -> None:
        async with serving(bytewise_bundle) as app:
            # The decoder has a short context.
            for tools, choice in (([WALK], "auto"), ([WALK], None), ([WALK], "none"), ([], None)):
                asked = {**CHAT, "messages": turns, "tools": tools, "max_tokens": 2}
                reply = await call(app, "POST", PATH, {**asked, "tool_choice": choice})
                assert reply.status == 200, reply.body
                wanted = environment.from_string(TEMPLATE).render(
                    messages=seen,
                    tools=None if choice == "none" else tools,
                    add_generation_prompt=True,
                )
                assert read.pop() == tokenizer.encode(wanted).ids
                assert ("walk" in wanted) == (bool(tools) and choice != "none")
            # Arguments may come as an object, too.
            object_too = {**called, "function": function}
            messages = [USER, {**turns[1], "tool_calls": [object_too]}, turns[2]]
            asked = {**asked, "messages": messages}
            assert (await call(app, "POST", PATH, asked)).status == 200

    run(ask())


def changed(**changes: Any) -> dict[str, Any]:
    return {"type": "function", "function": {**FIND["function"], **changes}}  # type: ignore[dict-item]


def answered(**function: Any) -> dict[str, Any]:
    """A request with an earlier call."""
    item = {"id": "1", "type": "function", "function": {"name": "find", **function}}
    return {"messages": [USER, {"role": "assistant", "tool_calls": [item]}]}


WRONG: list[tuple[dict[str, Any], int, str]] = [
    ({"tools": {}}, 400, "tools must be a list, not an object"),
    ({"tools": [3]}, 400, "tools[0] must be an object"),
    ({"tools": [{"type": "web_search"}]}, 422, "tools[0].type 'web_search' isn't supported"),
    ({"tools": [{"type": "function"}]}, 400, "tools[0].function must be an object with a name"),
    ({"tools": [{**FIND, "x": 1}]}, 422, "tools[0].x isn't"),
    ({"tools": [changed(x=1)]}, 422, "tools[0].function.x isn't"),
    ({"tools": [changed(name="")]}, 400, "must have 1 to 256 characters"),
    ({"tools": [changed(parameters=[])]}, 400, "parameters must be a JSON schema"),
    ({"tools": [FIND, FIND]}, 400, "two tools have the same name"),
    ({"tools": [changed(name=f"a{i}") for i in range(129)]}, 400, "129 tools, the limit is 128"),
    ({"tools": [], "tool_choice": "required"}, 400, "there are no tools"),
    ({"tool_choice": "always"}, 400, "tool_choice must be none, auto, required or a tool"),
    ({"tool_choice": {"type": "allowed_tools"}}, 422, "tool_choice.type 'allowed_tools' isn't"),
    ({"tool_choice": {"type": "function"}}, 400, "must be the name of one of the tools"),
    (
        {"tool_choice": {"type": "function", "function": {"name": "fly"}}},
        400,
        "must be the name of one of the tools",
    ),
    (
        {"tools": [changed(parameters={"not": {}})], "tool_choice": "required"},
        400,
        "Unimplemented keys",
    ),
    (
        {"tools": [WALK, changed(parameters={"type": "string"})], "tool_choice": "required"},
        400,
        "the schema of the tool 'find' has the type",
    ),
    ({"parallel_tool_calls": 1}, 400, "parallel_tool_calls must be true or false"),
    ({"functions": [{}]}, 422, "functions isn't supported"),
    ({"response_format": {"type": "json_object"}}, 422, "together with tools"),
    (answered(arguments="{"), 400, "arguments must be a JSON object"),
    (answered(arguments="[]"), 400, "arguments must be a JSON object"),
    (answered(arguments=3), 400, "arguments must be a JSON object"),
    (answered(), 400, "arguments is missing"),
    (answered(arguments="{}", x=1), 422, "function.x isn't"),
    (
        {"messages": [USER, {"role": "assistant", "tool_calls": 3}]},
        400,
        "tool_calls must be a list",
    ),
    ({"messages": [{**USER, "tool_calls": [1]}]}, 400, "tool_calls are for an assistant"),
    ({"messages": [USER, {"role": "tool"}]}, 400, "content must be a text"),
]


@pytest.mark.parametrize(("asked", "status", "message"), WRONG, ids=range(len(WRONG)))
def test_refusals(bytewise_bundle: Path, asked: dict[str, Any], status: int, message: str) -> None:
    async def ask() -> None:
        async with serving(bytewise_bundle) as app:
            for stream in (False, True):
                reply = await call(app, "POST", PATH, {**CHAT, "stream": stream, **asked})
                assert (reply.status, message in reply.error) == (status, True), reply.body

    run(ask())


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "takes no tools"),
        (
            "{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}",
            "writes no calls of tools as JSON objects",
        ),
    ],
    ids=["none", "no calls"],
)
def test_models_without_tools_are_told(
    decoder_bundle: Path, tmp_path: Path, template: str, message: str
) -> None:
    folder = tmp_path / "other.ecb"
    build_bytewise(decoder_bundle, folder, template)

    async def ask() -> None:
        async with serving(folder) as app:
            for choice in ("auto", "required"):
                asked = {**CHAT, "tools": [WALK], "tool_choice": choice}
                reply = await call(app, "POST", PATH, asked)
                assert reply.status == 422 and message in reply.error
            asked = {**CHAT, "tools": [WALK], "tool_choice": "none"}
            assert (await call(app, "POST", PATH, asked)).status == 200

    run(ask())


def test_special_marks_of_calls_are_read(decoder_bundle: Path, tmp_path: Path) -> None:
    """Some models write a special token before a call, which is left out of other texts."""
    folder = tmp_path / "special.ecb"
    build_bytewise(decoder_bundle, folder, TEMPLATE.replace("<tool_call>", "<|start|>"))

    async def ask() -> None:
        async with serving(folder) as app:
            asked = {**CHAT, "tools": [WALK], "tool_choice": "required"}
            (answer,) = (await call(app, "POST", PATH, asked)).json["choices"]
            judge(answer["message"]["tool_calls"][0])
            assert answer["finish_reason"] == "tool_calls"
            generator = app.repository.get("bytewise").generator
            assert generator is not None
            # No other special token is written.
            assert generator.prompts().tool_format()[1] == [make_tokenizer().token_to_id(START)]

    run(ask())


def test_texts_of_chats_with_tools_go_on(bytewise_bundle: Path) -> None:
    """The next turn runs only what is new, as in chats without tools."""

    async def ask() -> None:
        async with serving(bytewise_bundle) as app:
            asked = {**CHAT, "tools": [FIND], "tool_choice": "required", "max_tokens": 90}
            (answer,) = (await call(app, "POST", PATH, asked)).json["choices"]
            calls = answer["message"]["tool_calls"]
            result = {"role": "tool", "tool_call_id": calls[0]["id"], "content": "ok"}
            turns = [USER, answer["message"], result]
            model = app.repository.get("bytewise").model
            before = dict(model.stats["lengths"])
            more = {"messages": turns, "tool_choice": "auto", "max_tokens": 1}
            reply = await call(app, "POST", PATH, {**asked, **more})
            assert reply.status == 200, reply.body
            new = sum(
                int(n) * (count - before.get(n, 0)) for n, count in model.stats["lengths"].items()
            )
            assert 0 < new < reply.json["usage"]["prompt_tokens"] // 2

    run(ask())


def test_no_text_of_a_chat_with_tools_ends_a_turn(decoder_bundle: Path, tmp_path: Path) -> None:
    """Where the template is data otherwise, special tokens in messages and tools are no tokens."""
    from edgecompile.loaders.folders.turns import find_turns

    turns = find_turns(TEMPLATE, {})
    assert turns is not None
    folder = tmp_path / "turns.ecb"
    build_bytewise(decoder_bundle, folder, turns=turns)
    bad = {"role": "user", "content": "go<|end|>"}
    called = {"type": "function", "function": {"name": "walk", "arguments": {"a": "<|end|>"}}}
    described = {"type": "function", "function": {**WALK["function"], "description": "<|end|>"}}  # type: ignore[dict-item]

    async def ask() -> None:
        async with serving(folder) as app:
            plain = {"messages": [bad], "temperature": 0, "max_tokens": 2}
            assert (await call(app, "POST", PATH, plain)).status == 200  # it is text
            for messages, tools in (
                ([bad], [WALK]),
                ([USER], [described]),
                ([USER, {"role": "assistant", "tool_calls": [called]}, USER], []),
            ):
                reply = await call(
                    app, "POST", PATH, {**plain, "messages": messages, "tools": tools}
                )
                assert reply.status == 400 and "the special token '<|end|>'" in reply.error
            reply = await call(app, "POST", PATH, {**plain, "messages": [USER], "tools": [WALK]})
            assert reply.status == 200

    run(ask())
