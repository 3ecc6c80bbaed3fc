"""Chat templates: the same text as transformers', from folder to prompt, and every refusal."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.loaders.folders.chat import read_chat
from edgecompile.pipeline.build import build
from edgecompile.pipeline.request import BuildRequest
from edgecompile.planning.request import PlanRequest
from edgecompile.server.chat import Chat
from edgecompile.server.errors import BadRequest, Unprocessable
from tests.factories.folders import write_model, write_tokenizer
from tests.server.http.asgi import call, run, serving

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
CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<s>",
    "eos_token": {"__type": "AddedToken", "content": "</s>"},
}


def write(folder: Path, template: Any, **files: Any) -> Path:
    config = CONFIG if template is None else {**CONFIG, "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    for name, content in files.items():
        (folder / name.replace("_jinja", ".jinja").replace("_json", ".json")).write_text(content)
    return folder


def chat_of(folder: Path) -> Chat:
    data = read_chat(folder)
    assert data is not None
    found = json.loads(data)
    return Chat("tiny", found["template"], found["special_tokens"])


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_text_is_that_of_transformers(tmp_path: Path, name: str) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))
    own = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>"
    )
    chat = chat_of(write(tmp_path, TEMPLATES[name]))
    for messages in CHATS:
        wanted = own.apply_chat_template(
            messages, chat_template=TEMPLATES[name], tokenize=False, add_generation_prompt=True
        )
        assert chat.render(messages) == wanted


@pytest.mark.slow
def test_a_build_packs_the_template_of_its_folder(tmp_path: Path) -> None:
    """From a folder to a chat's prompt: as many tokens as transformers makes of it."""
    transformers = pytest.importorskip("transformers")
    folder = write_model(tmp_path / "model", "gpt2", "LMHeadModel")
    write_tokenizer(folder)
    template = "{{ bos_token }}{% for m in messages %} {{ m.role }} {{ m.content }}{% endfor %} the"
    write(folder, None, chat_template_jinja=template)
    request = BuildRequest(
        str(folder),
        "cpu-x86-64-v3",
        PlanRequest(LengthDistribution.from_samples([3, 9]), max_length=16, quick=True),
        output=tmp_path / "chat.ecb",
    )
    bundle = build(request).bundle_path
    own = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    messages = [{"role": "user", "content": "the cat sat"}]
    wanted = own.apply_chat_template(
        messages, chat_template=template, tokenize=False, bos_token="<s>"
    )
    assert wanted == "<s> user the cat sat the"

    async def ask() -> None:
        async with serving(bundle) as app:
            body = {"model": "chat", "messages": messages, "max_tokens": 1}
            reply = await call(app, "POST", "/v1/chat/completions", body)
            count = len(own(wanted, add_special_tokens=False).input_ids)
            assert reply.json["usage"]["prompt_tokens"] == count

    run(ask())


def test_templates_are_found_where_transformers_looks(tmp_path: Path) -> None:
    def found(folder: Path) -> Any:
        data = read_chat(folder)
        return None if data is None else json.loads(data)["template"]

    assert found(tmp_path) is found(write(tmp_path, None)) is None
    several = [{"name": "tools", "template": "T"}, {"name": "default", "template": "D"}]
    assert found(write(tmp_path, several)) == "D"
    assert found(write(tmp_path, several[:1])) is None
    assert found(write(tmp_path, "A", chat_template_json='{"chat_template": "B"}')) == "B"
    assert found(write(tmp_path, "A", chat_template_jinja="C")) == "C"
    tokens = json.loads(read_chat(tmp_path) or b"")["special_tokens"]
    assert tokens == {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.mark.parametrize(
    ("template", "kind", "message"),
    [
        (
            "{{ raise_exception('no system role') }}",
            BadRequest,
            "refuses these messages: no system",
        ),
        ("{{ messages[7].content }}", Unprocessable, "fails on these messages: UndefinedError"),
        ("{{ ''.__class__.__mro__ }}", Unprocessable, "fails on these messages: SecurityError"),
        ("{% for m in messages %}{{ messages.append(m) }}{% endfor %}", Unprocessable, "Security"),
        ("{% for i in range(999999999) %}x{% endfor %}", Unprocessable, "fails on these messages"),
        ("{% include 'secret' %}", Unprocessable, "fails on these messages"),
        ("{{ 1 / 0 }}", Unprocessable, "ZeroDivisionError"),
    ],
)
def test_what_a_template_refuses_or_may_not_do(
    template: str, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        Chat("tiny", template, {}).render(CHATS[0])


def test_templates_that_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for broken in ("{% for %}", "{{ a", "{% unknown %}"):
        with pytest.raises(Unprocessable, match="its chat template can't be read"):
            Chat("tiny", broken, {})
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(Unprocessable, match="jinja2, which isn't installed here"):
        Chat("tiny", "", {})
