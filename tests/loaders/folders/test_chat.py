"""A folder's chat template: where it is found, and its turns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edgecompile.errors import ModelError
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.loaders.folders.chat import read_chat
from edgecompile.loaders.folders.prefix import read_prefix
from edgecompile.pipeline.build import build
from edgecompile.pipeline.request import BuildRequest
from edgecompile.planning.request import PlanRequest
from edgecompile.runtime import open_bundle
from tests.factories.folders import write_model, write_tokenizer
from tests.server.http.asgi import call, run, serving

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


@pytest.mark.slow
def test_a_build_packs_the_template_of_its_folder(tmp_path: Path) -> None:
    """From a folder to a chat's prompt: as many tokens as transformers makes of it."""
    transformers = pytest.importorskip("transformers")
    folder = write_model(tmp_path / "model", "gpt2", "LMHeadModel")
    write_tokenizer(folder)
    template = "{{ bos_token }}{% for m in messages %} {{ m.role }} {{ m.content }}{% endfor %} the"
    write(folder, None, chat_template_jinja=template)
    messages = [{"role": "user", "content": "the cat sat"}]
    (tmp_path / "system.json").write_text(json.dumps([{"role": "system", "content": "the cat"}]))
    traffic, prefix = LengthDistribution.from_samples([3, 9]), tmp_path / "system.json"
    request = BuildRequest(
        str(folder),
        "cpu-x86-64-v3",
        PlanRequest(traffic, max_length=16, quick=True, prefix=prefix),
        output=tmp_path / "chat.ecb",
    )
    bundle = build(request).bundle_path
    own = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
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
    # A chat that begins as the prefix does isn't read from its beginning.
    asked = [{"role": "system", "content": "the cat"}, *messages]
    with open_bundle(bundle) as opened:
        session = opened.session()
        ids = session._prompts().read(asked)
        stream = session.stream(ids, max_new_tokens=1)
        assert list(stream) and ids[: stream.reused] == list(
            read_prefix(prefix, folder / "tokenizer.json")
        )


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("a.txt", b"", "is empty"),
        ("a.txt", b"\n", "is empty"),
        ("a.txt", b"\xff", "isn't UTF-8: byte"),
        ("a.json", b"{", "isn't JSON"),
        ("a.json", b"[" * 100_000, "isn't JSON"),
        ("a.json", b"[]", "must be a list of messages"),
        ("a.json", b'{"role": "system"}', "must be a list of messages"),
        ("a.json", b'["hello"]', "isn't a chat of this model"),
        ("a.json", b'[{"content": "x"}]', "isn't a chat of this model"),
        ("b.txt", None, "can't be read"),
    ],
)
def test_prefixes_that_are_no_prompt(
    tmp_path: Path, name: str, content: bytes | None, text: str
) -> None:
    write_tokenizer(tmp_path)
    write(tmp_path, "{% for m in messages %}{{ m.role + m.content }}{% endfor %}")
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelError, match=text):
        read_prefix(tmp_path / name, tmp_path / "tokenizer.json")


def test_a_chat_needs_a_template_and_a_text_a_common_token(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "a.json").write_text('[{"role": "system", "content": "the"}]')
    with pytest.raises(ModelError, match="has no chat template"):
        read_prefix(tmp_path / "a.json", tmp_path / "tokenizer.json")
    (tmp_path / "a.txt").write_text("the cat sat\r\n")
    whole = read_prefix(tmp_path / "a.txt", tmp_path / "tokenizer.json")
    (tmp_path / "a.txt").write_text("the cat")
    part = read_prefix(tmp_path / "a.txt", tmp_path / "tokenizer.json")
    assert part and whole[: len(part)] == part


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
