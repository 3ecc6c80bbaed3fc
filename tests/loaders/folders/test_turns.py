"""Turns of chat templates as those of well-known models are written, against the templates themselves."""

from __future__ import annotations

import random

import pytest

from edgecompile.loaders.folders.turns import find_turns
from edgecompile.runtime.base.errors import EdgecompileError, TokenizerError
from edgecompile.runtime.text.chat import Chat
from edgecompile.runtime.text.jinja import JinjaTemplate

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
ALTERNATE = """{%- if (m.role == "user") != (loop.index0 % 2 == 0) %}{{ raise_exception("roles must alternate") }}
{%- endif %}"""
END = """{% if add_generation_prompt %}{{ "<|a|>" }}{% endif %}"""
#: Ways to write a chat, with whether they have turns.
TEMPLATES = {
    "a role each": "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + '</s>\\n' }}{% endfor %}" + END,
    "a default for the system": """{% for m in messages %}{% if loop.first and m.role != "system" %}<|system|>You are
kind.</s>{% endif %}{{ "<|" + m.role + "|>" + m.content + "</s>" }}{% endfor %}""" + END,
    "blanks cut": "{{ bos_token }}{% for m in messages %}{{ '<|' + m.role + '|>' + m.content | trim }}{% endfor %}" + END,
    "no system": "{% for m in messages %}" + ALTERNATE + "{{ '[I] ' + m.content.strip() + ' [/I]' }}{% endfor %}",
    "the system in the first message": """{% if messages[0].role == "system" %}{% set rest = messages[1:] %}
{%- set system = messages[0].content %}{% else %}{% set rest = messages %}{% set system = false %}{% endif %}
{%- for m in rest %}""" + ALTERNATE + """{% set text = m.content %}
{%- if loop.first and system != false %}{% set text = "<<S>>" + system + "<</S>>\\n\\n" + text %}{% endif %}
{%- if m.role == "user" %}{{ bos_token + "[I] " + text.strip() + " [/I]" }}
{%- else %}{{ " " + text.strip() + " " + eos_token }}{% endif %}{% endfor %}""",
    "thoughts left out of earlier answers": """{% for m in messages %}{% set text = m.content %}
{%- if m.role == "assistant" and "</think>" in text %}
{%- set text = text.split("</think>")[-1].lstrip("\\n") %}{% endif %}
{{- "<|" + m.role + "|>" + text }}{% endfor %}""" + END,
}  # fmt: skip
OTHERS = {
    "the date": "{{ strftime_now('%d %b %Y') }}" + TEMPLATES["a role each"],
    "the number of a message": "{% for m in messages %}{{ loop.index ~ m.content }}{% endfor %}"
    + END,
    "the number of messages": "{{ messages | length }}" + TEMPLATES["a role each"],
    "a text that is looked into": "{% for m in messages %}{{ m.content | replace('quotes', 'q') }}{% endfor %}"
    + END,
    "upper case": "{% for m in messages %}{{ m.content | upper }}{% endfor %}" + END,
    "no text": "{{ bos_token }}",
    "a fault": "{% for %}",
}
WORDS = ("Hello", " Hi\n", "</s>", "<think>x</think>\n\nyes", "{{ x }}", "é 😀", "a  b")


@pytest.mark.parametrize("name", TEMPLATES)
def test_chats_are_written_as_by_the_template(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = TEMPLATES[name]
    turns = find_turns(source, TOKENS)
    assert turns is not None
    template = JinjaTemplate("tiny", source, TOKENS)
    chat = Chat("tiny", {"template": source, "special_tokens": TOKENS, "turns": turns})
    drawn = random.Random(7)
    chats = []
    for first in ([], ["system"]):
        for count in range(5):
            roles = [*first, *["user", "assistant"] * count, "user"]
            messages = [{"role": role, "content": drawn.choice(WORDS)} for role in roles]
            try:
                chats.append((messages, template.render(messages)))
            except EdgecompileError:
                assert first and name == "no system"
    assert len(chats) >= 5
    monkeypatch.setattr(JinjaTemplate, "render", None)  # the turns are enough
    for messages, text in chats:
        assert chat.render(messages) == text


@pytest.mark.parametrize("name", OTHERS)
def test_templates_of_another_kind_have_none(name: str) -> None:
    assert find_turns(OTHERS[name], TOKENS) is None


def test_what_turns_say_nothing_of_is_the_template_s() -> None:
    source = TEMPLATES["a role each"]
    chat = Chat("tiny", {"template": source, "special_tokens": {}, "turns": find_turns(source, {})})
    for messages in (
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
        [{"role": "tool", "content": "a"}],
        [{"role": "user", "content": " "}],
        [{"role": "user", "content": "a", "name": "x"}],
    ):
        assert chat.render(messages) == JinjaTemplate("tiny", source, {}).render(messages)


@pytest.mark.parametrize(
    "turns",
    [
        {}, [], {"after": {}}, {"after": [], "end": ""}, {"after": {"": {"user": {}}}, "end": ""},
        {"after": {"": {"user": {"before": 1, "content": "strip"}}}, "end": ""},
        {"after": {"": {"user": {"before": "", "content": "eval"}}}, "end": ""},
        {"after": {"": {"user": {"before": "", "content": ["strip"]}}}, "end": ""},
    ],
)  # fmt: skip
def test_turns_that_are_none(turns: object) -> None:
    with pytest.raises(TokenizerError, match=r"its tokenizer/chat.json isn't what FORMAT.md says"):
        Chat("tiny", {"template": "", "special_tokens": {}, "turns": turns})
