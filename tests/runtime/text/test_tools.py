"""Calls of tools: the form in which templates write them, and what of an answer is one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edgecompile.runtime.base.errors import ConstraintError, TokenizerError
from edgecompile.runtime.text.chat import Chat
from edgecompile.runtime.text.tools import Call, CallReader, ToolFormat, make_call_schema
from tests.bytewise import TEMPLATE

pytest.importorskip("jinja2")

HERMES = ToolFormat("<tool_call>\n", "\n</tool_call>", "arguments", (", ", ": "))
#: As Llama 3.1's: the answer is the call.
BARE = ToolFormat("", "", "parameters", (", ", ": "))
LLAMA = """{% for m in messages %}<|{{ m.role }}|>
{% if m.tool_calls %}{% if m.tool_calls | length != 1 %}{{ raise_exception('one call') }}{% endif %}
{{- '{"name": "' ~ m.tool_calls[0].function.name ~ '", "parameters": ' }}
{{- m.tool_calls[0].function.arguments | tojson }}{{ '}' }}<|eom|>
{%- else %}{{ m.content | trim }}<|eot|>{% endif %}{% endfor %}
{%- if tools %}{{ tools | tojson(indent=4) }}{% endif %}<|assistant|>
"""
#: The part of Qwen2.5's that writes messages.
QWEN = r"""{%- if tools %}
    {{- '<|im_start|>system\n# Tools\n<tools>' }}
    {%- for tool in tools %}{{- "\n" }}{{- tool | tojson }}{%- endfor %}
    {{- '\n</tools>\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>' }}
    {{- '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "user" or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}{{- '\n' + message.content }}{%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '\n<tool_call>\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}{{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' }}{{- message.content }}{{- '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
"""
TEMPLATES = {
    "hermes": (TEMPLATE, HERMES),
    "qwen": (QWEN, HERMES),
    "llama": (LLAMA, BARE),
    # A special mark of its own at the beginning alone, and compact JSON.
    "marked": (
        "{{ tools }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls %}"
        '<|call|>{"name":"{{ c.function.name }}",'
        '"arguments":{{ c.function.arguments | tojson(separators=(",", ":")) }}}'
        "{% endfor %}[end]{% endfor %}",
        ToolFormat("<|call|>", "", "arguments", (",", ":")),
    ),
    # Within the whole object of OpenAI's interface.
    "wrapped": (
        "{{ tools }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls %}"
        '{"type": "function", "function": {{ c.function | tojson }}}'
        "{% endfor %}[end]{% endfor %}",
        ToolFormat('{"type": "function", "function": ', "}", "arguments", (", ", ": ")),
    ),
}
OTHERS = {
    "xml": "{{ tools }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls %}"
    "<function={{ c.function.name }}>{{ c.function.arguments }}</function>{% endfor %}{% endfor %}",
    "numbered": "{{ tools }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls %}"
    "{{ c.id }}{{ c.function | tojson }}{% endfor %}{% endfor %}",
    "none": "{{ tools }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}",
    "refused": "{{ tools }}{% for m in messages %}{% if m.tool_calls %}{{ raise_exception('no') }}"
    "{% endif %}{{ m.content }}{% endfor %}",
    "other keys": "{{ tools }}{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}"
    '{"tool": {{ c.function.name | tojson }}, "arguments": {{ c.function.arguments | tojson }}}'
    "{% endfor %}{% endfor %}",
}


def a_chat(template: str) -> Chat:
    return Chat("tiny", {"template": template, "special_tokens": {}})


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_form_is_the_templates(name: str) -> None:
    template, form = TEMPLATES[name]
    chat = a_chat(template)
    assert chat.takes_tools and chat.tool_format(["<|eom|>", "<|eot|>"]) == form


@pytest.mark.parametrize("name", OTHERS)
def test_other_forms_are_told(name: str) -> None:
    chat = a_chat(OTHERS[name])
    assert chat.takes_tools
    with pytest.raises(TokenizerError, match="writes no calls of tools as JSON objects"):
        chat.tool_format()


def test_what_a_template_leaves_out_is_refused() -> None:
    plain = "{% for m in messages %}{{ m.role }}{% if m.role != 'tool' %}{{ m.content }}{% endif %}{% endfor %}"
    chat = a_chat(plain)
    user = {"role": "user", "content": "x"}
    tool = {"type": "function", "function": {"name": "user"}}
    with pytest.raises(TokenizerError, match="takes no tools"):
        chat.pieces([user], [tool])
    call = {"type": "function", "function": {"name": "find", "arguments": {}}}
    called = {"role": "assistant", "content": "", "tool_calls": [call]}
    with pytest.raises(TokenizerError, match="doesn't write calls of tools"):
        chat.pieces([user, called])
    with pytest.raises(TokenizerError, match="doesn't write results of tools"):
        chat.pieces([user, {"role": "tool", "content": "some\nthing"}])
    as_json = a_chat("{% for m in messages %}{{ m | tojson }}{% endfor %}")
    assert as_json.pieces([user, called, {"role": "tool", "content": 'some\n"thing"'}])


def call_of(name: str = "find", **arguments: Any) -> tuple[str, Call]:
    """A call as the model writes it, and as it is read."""
    text = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    read = Call(name, json.dumps(arguments, ensure_ascii=False))
    return f"<tool_call>\n{text}\n</tool_call>", read


ONE, FIND = call_of(x=1, y={"é": ["}", "</tool_call>", '"']})
TWO, WALK = call_of("walk")
HALF = Call("walk", '{"\\udc00": "\\u00e9\\ud800"}')
ANSWERS: list[tuple[str, str, list[Call]]] = [
    (ONE, "", [FIND]),
    (f"{ONE}\n{TWO}\n", "", [FIND, WALK]),
    (f"I look. \n{ONE} done", "I look. \n done", [FIND]),
    ("no call <tool", "no call <tool", []),
    ("a <tool_call> is", "a <tool_call> is", []),
    (" text", " text", []),
    (" \n", " \n", []),
    ("", "", []),
    # The last mark may be missing where the answer ends, and white space may be.
    (ONE.removesuffix("\n</tool_call>"), "", [FIND]),
    (TWO.replace("\n", ""), "", [WALK]),
    # Neither of these is one, but all of it is there.
    (ONE[:-20], ONE[:-20], []),
    (ONE.replace("find", "other"), ONE.replace("find", "other"), []),
    (ONE.replace('"arguments"', '"parameters"'), ONE.replace('"arguments"', '"parameters"'), []),
    (f"<tool_call>{{'a': 1}}</tool_call> {TWO}", "<tool_call>{'a': 1}</tool_call> ", [WALK]),
    (f"<tool_call>{TWO}", "<tool_call>", [WALK]),
    (TWO.replace("{}", "[]"), TWO.replace("{}", "[]"), []),
    (TWO.replace("{}", "NaN"), TWO.replace("{}", "NaN"), []),
    (TWO.replace("{}", '{"a": 1e999}'), TWO.replace("{}", '{"a": 1e999}'), []),
    (TWO.replace("}\n", "} x\n"), TWO.replace("}\n", "} x\n"), []),
    ("<tool_call>" + "[" * 9, "<tool_call>" + "[" * 9, []),
    (TWO.replace('"walk"', '["walk"]'), TWO.replace('"walk"', '["walk"]'), []),
    (TWO.replace('"walk"', "{}"), TWO.replace('"walk"', "{}"), []),
    (TWO.replace('"walk"', "null"), TWO.replace('"walk"', "null"), []),
    # Half of a pair can be written as an escape alone.
    (TWO.replace("{}", '{"\\udc00": "é\\ud800"}'), "", [HALF]),
    (f"<tool_call>{'{' * 3000}", f"<tool_call>{'{' * 3000}", []),
]


@pytest.mark.parametrize("size", [1, 3, 7, 10_000])
@pytest.mark.parametrize(("answer", "text", "calls"), ANSWERS, ids=range(len(ANSWERS)))
def test_answers_are_divided(answer: str, text: str, calls: list[Call], size: int) -> None:
    check(HERMES, answer, text, calls, size)


def check(form: ToolFormat, answer: str, text: str, calls: list[Call], size: int) -> None:
    reader = CallReader(form, ["find", "walk"])
    found, made = "", list[Call]()
    for at in range(0, len(answer), size):
        new, more = reader.add(answer[at : at + size])
        found += new
        made += more
    new, more = reader.rest()
    assert (found + new, made + more) == (text, calls)


@pytest.mark.parametrize("size", [1, 4, 1000])
@pytest.mark.parametrize(
    ("answer", "text", "count"),
    [
        ('{"name": "walk", "parameters": {}}', "", 1),
        ('\n{"name": "walk", "parameters": {}}\n', "", 1),
        ('{"name": "walk", "parameters": {}} so', " so", 1),
        ('so {"name": "walk", "parameters": {}}', 'so {"name": "walk", "parameters": {}}', 0),
        ('{"name": "walk"', '{"name": "walk"', 0),
        ("{}", "{}", 0),
        ("", "", 0),
    ],
)
def test_an_answer_may_be_the_call(answer: str, text: str, count: int, size: int) -> None:
    check(BARE, answer, text, [WALK] * count, size)


def test_text_comes_as_soon_as_it_is_no_call() -> None:
    reader = CallReader(HERMES, ["find"])
    assert [reader.add(piece)[0] for piece in ("I ", "look", " <", "b>", "<tool_", "cal", "m>")] == [
        "I ", "look", " ", "<b>", "", "", "<tool_calm>",
    ]  # fmt: skip
    assert reader.add(ONE[:-1]) == ("", []) and reader.add(ONE[-1]) == ("", [FIND])


def test_references_of_a_tool_are_its_own() -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"$ref": {"$ref": "#/$defs/a"}, "b": {"enum": [{"$ref": "#/x"}]}},
        "$defs": {"a": {"items": {"$ref": "#"}}},
    }
    made = make_call_schema(HERMES, {"find": schema, "walk": {"type": "object"}})
    moved = made["$defs"]["tool0"]
    assert moved["properties"]["$ref"] == {"$ref": "#/$defs/tool0/$defs/a"}
    assert moved["$defs"]["a"] == {"items": {"$ref": "#/$defs/tool0"}}
    assert moved["properties"]["b"] == {"enum": [{"$ref": "#/x"}]} and "$schema" not in moved
    assert [choice["properties"]["name"] for choice in made["anyOf"]] == [
        {"const": "find"},
        {"const": "walk"},
    ]


def test_names_of_properties_are_no_keywords() -> None:
    keywords = ["$schema", "$id", "$ref", "$anchor", "default", "enum", "const", "examples"]
    inner = {"$ref": "#/$defs/a"}
    for place in ("properties", "patternProperties", "$defs", "dependentSchemas"):
        schema = {"type": "object", place: dict.fromkeys(keywords, inner)}
        moved = make_call_schema(HERMES, {"find": schema})["$defs"]["tool0"]
        assert moved[place] == {key: {"$ref": "#/$defs/tool0/$defs/a"} for key in keywords}


def test_a_tool_with_a_name_of_its_own_refers_to_itself() -> None:
    schema = {
        "$id": "http://a/b#",
        "properties": {
            "a": {"$ref": "http://a/b#/$defs/a"},
            "b": {"$ref": "#at"},
            "c": {"$ref": "http://a/b"},
        },
        "$defs": {"a": {"$anchor": "at"}},
    }
    moved = make_call_schema(HERMES, {"find": schema})["$defs"]["tool0"]
    assert moved == {
        "properties": {
            "a": {"$ref": "#/$defs/tool0/$defs/a"},
            "b": {"$ref": "#tool0.at"},
            "c": {"$ref": "#/$defs/tool0"},
        },
        "$defs": {"a": {"$anchor": "tool0.at"}},
    }


def test_arguments_are_objects() -> None:
    """Also those of a schema that takes other values, too."""
    for schema in ({}, {"type": ["null", "object"]}, {"anyOf": [{"type": "string"}, {}]}):
        made = make_call_schema(HERMES, {"find": schema})["anyOf"][0]
        assert made["properties"]["arguments"] == {"type": "object", "$ref": "#/$defs/tool0"}
    for kinds in ("string", ["null", "string"], [], None, 3):
        with pytest.raises(ConstraintError, match="tool 'find' has the type"):
            make_call_schema(HERMES, {"find": {"type": kinds}})
