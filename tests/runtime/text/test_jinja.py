"""Chat templates as programs: the same text as transformers', and every refusal."""

from __future__ import annotations

import sys

import pytest

from edgecompile.runtime.base.errors import InputError, TokenizerError
from edgecompile.runtime.text.jinja import JinjaTemplate

#: As those of well-known models are written: ChatML, Llama's, and one with loops, macros and dates.
TEMPLATES = {
    "chatml": """{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' +
message['content'] + '<|im_end|>' + '\n'}}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}""",
    "llama": """{{ bos_token }}
    {%- if messages[0]['role'] == 'system' %}
        {%- set system = messages[0]['content'] | trim %}
        {%- set messages = messages[1:] %}
    {%- endif %}
    {% for message in messages %}
        {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
            {{- raise_exception('roles must alternate') }}
        {%- endif %}
        {%- generation %}{{ '[INST] ' ~ message.content ~ ' [/INST]' }}{% endgeneration %}
    {%- endfor %}
    {%- if tools is not none %}{{ tools | tojson(indent=4) }}{% endif %}""",
    "odd": """{%- macro turn(m) -%}<{{ m.role }}>{{ m | tojson }}{%- endmacro -%}
{% set ns = namespace(seen=0) %}
{% for m in messages %}{% if m.role == "tool" %}{% continue %}{% endif %}
{{ turn(m) }}{% set ns.seen = ns.seen + 1 %}{{ eos_token }}
{% endfor %}
{{ ns.seen }} {{ strftime_now("%Y") | length }}""",
}
CHATS = [
    [{"role": "user", "content": "Hello, <world> & 'é' 😀"}],
    [
        {"role": "system", "content": " Be brief. "},
        {"role": "user", "content": "One\n\nTwo"},
        {"role": "assistant", "content": "Three"},
        {"role": "user", "content": "Four"},
    ],
]


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_text_is_that_of_transformers(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))
    own = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>"
    )
    template = JinjaTemplate("tiny", TEMPLATES[name], {"bos_token": "<s>", "eos_token": "</s>"})
    for messages in CHATS:
        wanted = own.apply_chat_template(
            messages, chat_template=TEMPLATES[name], tokenize=False, add_generation_prompt=True
        )
        assert template.render(messages) == wanted


@pytest.mark.parametrize(
    ("template", "kind", "message"),
    [
        (
            "{{ raise_exception('no system role') }}",
            InputError,
            "refuses these messages: no system",
        ),
        ("{{ messages[7].content }}", TokenizerError, "fails on these messages: UndefinedError"),
        ("{{ ''.__class__.__mro__ }}", TokenizerError, "fails on these messages: SecurityError"),
        ("{% for m in messages %}{{ messages.append(m) }}{% endfor %}", TokenizerError, "Security"),
        ("{% for i in range(999999999) %}x{% endfor %}", TokenizerError, "fails on these messages"),
        ("{% include 'secret' %}", TokenizerError, "fails on these messages"),
        ("{{ 1 / 0 }}", TokenizerError, "ZeroDivisionError"),
    ],
)
def test_what_a_template_refuses_or_may_not_do(
    template: str, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        JinjaTemplate("tiny", template, {}).render(CHATS[0])


def test_templates_that_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for broken in ("{% for %}", "{{ a", "{% unknown %}"):
        with pytest.raises(TokenizerError, match="its chat template can't be read"):
            JinjaTemplate("tiny", broken, {})
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(TokenizerError, match="jinja2, which isn't installed here"):
        JinjaTemplate("tiny", "", {})
