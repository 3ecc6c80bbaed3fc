"""A folder's chat template: where it is found, and its turns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.loaders.folders.chat import read_chat
from edgecompile.pipeline.build import build
from edgecompile.pipeline.request import BuildRequest
from edgecompile.planning.request import PlanRequest
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
