"""Answers of a given form: JSON by a schema, texts by an expression, and everything that is refused."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from edgecompile.runtime.text.grammar import Grammars
from tests.server.http.asgi import call, run, serving
from tests.server.http.generations import events

pytest.importorskip("llguidance")

COMPLETION = {"prompt": "ab", "temperature": 0, "max_tokens": 60}
CHAT = {
    "messages": [{"role": "user", "content": "ab"}],
    "temperature": 0,
    "max_tokens": 60,
}
PATHS = {"/v1/completions": COMPLETION, "/v1/chat/completions": CHAT}
SCHEMA = {
    "type": "object",
    "properties": {"open": {"type": "boolean"}, "size": {"enum": ["s", "m"]}},
    "required": ["open", "size"],
    "additionalProperties": False,
}
JSON = r'\{"open":(true|false),"size":"[sm]"\}'
ASKED: list[tuple[dict[str, Any], str]] = [
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "door", "strict": True, "schema": SCHEMA},
            }
        },
        JSON,
    ),
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, JSON),
    ({"guided_json": SCHEMA}, JSON),
    ({"guided_json": json.dumps(SCHEMA), "response_format": {"type": "text"}}, JSON),
    ({"json_schema": SCHEMA, "guided_regex": None}, JSON),
    ({"guided_regex": "[a-c]{2}-[0-9]"}, "[a-c]{2}-[0-9]"),
    ({"guided_choice": ["\x7f", "ok"]}, "ok"),
    ({"guided_choice": ['a "b"', "no\n"]}, 'a "b"|no\n'),
    ({"structured_outputs": {"choice": ["yes", "no"], "json": None}}, "yes|no"),
    ({"guided_regex": ""}, ""),
    ({"structured_outputs": {"regex": "a{3}", "json_object": False}}, "a{3}"),
    ({"structured_outputs": {"json": SCHEMA}}, JSON),
]


@pytest.mark.parametrize(("asked", "expression"), ASKED, ids=lambda item: str(item)[:40])
def test_answers_have_the_form_that_was_asked_for(
    bytewise_bundle: Path, asked: dict[str, Any], expression: str
) -> None:
    async def ask() -> None:
        async with serving(bytewise_bundle) as app:
            for path, body in PATHS.items():
                reply = await call(app, "POST", path, {**body, **asked})
                assert reply.status == 200, reply.body
                (choice,) = reply.json["choices"]
                text = choice["text"] if "text" in choice else choice["message"]["content"]
                assert re.fullmatch(expression, text) and choice["finish_reason"] == "stop"
                told = events(await call(app, "POST", path, {**body, **asked, "stream": True}))
                pieces = [event["choices"][0] for event in told]
                parts = [p["text"] if "text" in p else p["delta"]["content"] for p in pieces]
                assert "".join(parts) == text and pieces[-1]["finish_reason"] == "stop"

    run(ask())


def test_any_object_is_one(bytewise_bundle: Path) -> None:
    """An object of no schema may go on for ever; what there is of it is JSON's beginning."""

    async def ask() -> None:
        async with serving(bytewise_bundle) as app:
            for seed in range(6):
                asked = {**CHAT, "response_format": {"type": "json_object"}, "seed": seed}
                reply = await call(app, "POST", "/v1/chat/completions", {**asked, "temperature": 3})
                (choice,) = reply.json["choices"]
                text = choice["message"]["content"]
                if choice["finish_reason"] == "stop":
                    assert isinstance(json.loads(text), dict)
                else:
                    assert text.startswith("{") and choice["finish_reason"] == "length"

    run(ask())


WRONG: list[tuple[dict[str, Any], int, str]] = [
    ({"response_format": "json"}, 400, "response_format must be an object, not a string"),
    ({"response_format": {}}, 400, "type is missing"),
    ({"response_format": {"type": "grammar"}}, 422, "response_format.type 'grammar' isn't"),
    ({"response_format": {"type": "text", "x": 1}}, 422, "response_format.x isn't"),
    ({"response_format": {"type": "json_schema"}}, 400, "must be an object with a schema"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
        400,
        "json_schema.schema must be a JSON schema",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}},
        400,
        "Unimplemented keys",
    ),
    (
        {"response_format": {"type": "json_object", "json_schema": {"schema": SCHEMA}}},
        400,
        "response_format.json_schema goes with the type json_schema, not with json_object",
    ),
    (
        {"response_format": {"type": "text", "json_schema": {"schema": SCHEMA}}},
        400,
        "response_format.json_schema goes with the type json_schema, not with text",
    ),
    (
        {"response_format": {"type": "text", "schema": SCHEMA}},
        400,
        "response_format.schema goes with the type json_object, not with text",
    ),
    (
        {"response_format": {"type": "json_schema", "schema": {}, "json_schema": {"schema": {}}}},
        400,
        "response_format.schema goes with the type json_object, not with json_schema",
    ),
    *(
        (
            {"response_format": {"type": "json_object", "schema": schema}},
            400,
            "response_format.schema must be a JSON schema, an object, not",
        )
        for schema in ("", [], False, True, 0)
    ),
    ({"structured_outputs": {"json": False}}, 400, "structured_outputs.json must be a JSON schema"),
    ({"structured_outputs": {"regex": False}}, 400, "structured_outputs.regex must be a regular"),
    ({"structured_outputs": {"choice": False}}, 400, "structured_outputs.choice must be a list"),
    ({"structured_outputs": {"json": ""}}, 400, "json_schema isn't JSON"),
    ({"guided_json": False}, 400, "guided_json must be a JSON schema"),
    ({"guided_choice": ["a"] * 2001}, 400, "choice has 2001 texts, the limit is 2000"),
    ({"guided_json": {"type": "integer", "multipleOf": 9_999_999}}, 400, "multipleOf 9999999"),
    ({"guided_json": {"type": "strin"}}, 400, "json_schema can't be used"),
    ({"guided_json": "{"}, 400, "json_schema isn't JSON"),
    ({"guided_json": 3}, 400, "guided_json must be a JSON schema, not a number"),
    ({"guided_json": {"const": "x" * 70_000}}, 400, "the limit is 65536"),
    ({"guided_regex": "("}, 400, "regex can't be used"),
    ({"guided_regex": 3}, 400, "guided_regex must be a regular expression"),
    ({"guided_choice": []}, 400, "guided_choice must be a list of texts"),
    ({"guided_choice": ["a", ""]}, 400, "guided_choice must be a list of texts"),
    ({"guided_json": {}, "guided_regex": "a"}, 400, "guided_json and guided_regex don't go"),
    ({"structured_outputs": {"grammar": "a"}}, 422, "structured_outputs.grammar isn't"),
    ({"structured_outputs": 3}, 400, "structured_outputs must be an object"),
    ({"structured_outputs": {"json_object": 1}}, 400, "structured_outputs.json_object must be"),
    ({"guided_grammar": "start: A"}, 422, "guided_grammar isn't"),
    ({"guided_whitespace_pattern": "a"}, 422, "guided_whitespace_pattern isn't"),
    ({"grammar": "root ::= 1"}, 422, "grammar isn't"),
    ({"guided_regex": "AB"}, 400, "regex can't be used: this model has no tokens that write it"),
]


@pytest.mark.parametrize(
    ("asked", "status", "message"), WRONG, ids=[item[2][:40] for item in WRONG]
)
def test_refusals(bytewise_bundle: Path, asked: dict[str, Any], status: int, message: str) -> None:
    async def ask() -> None:
        async with serving(bytewise_bundle) as app:
            for stream in (False, True):
                for path, body in PATHS.items():
                    reply = await call(app, "POST", path, {**body, **asked, "stream": stream})
                    assert (reply.status, message in reply.error) == (status, True), reply.body
            assert (await call(app, "POST", "/v1/completions", COMPLETION)).status == 200
            generator = app.repository.get("bytewise").generator
            assert generator is not None and not generator._inside

    run(ask())


def test_a_schema_is_read_beside_the_event_loop(
    bytewise_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other requests are answered while a large one is read, and other texts go on."""
    begun, go_on = threading.Event(), threading.Event()
    make = Grammars.make

    def wait(self: Grammars, grammar: Any) -> Any:
        begun.set()
        go_on.wait()
        return make(self, grammar)

    monkeypatch.setattr(Grammars, "make", wait)

    async def ask() -> None:
        async with serving(bytewise_bundle) as app:
            asked = {**COMPLETION, "guided_regex": "ab"}
            waiting = asyncio.create_task(call(app, "POST", "/v1/completions", asked))
            while not begun.is_set():
                await asyncio.sleep(0)
            assert (await call(app, "POST", "/v1/completions", COMPLETION)).status == 200
            assert not waiting.done()
            generator = app.repository.get("bytewise").generator
            assert generator is not None and generator._places._value == generator._most
            go_on.set()
            assert (await waiting).json["choices"][0]["text"] == "ab"

    run(ask())
