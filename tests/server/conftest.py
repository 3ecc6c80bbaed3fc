"""What tests of several files share: a server, and bundles that generate texts."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgecompile.runtime.format.text import CHAT_FILE
from edgecompile.server.http import connections
from tests.generative import replace_files
from tests.server.sockets import Served

VOCABULARY = 61


@pytest.fixture(scope="module", params=["httptools", "h11"])
def served(request: pytest.FixtureRequest, tiny_bundle: Path) -> Iterator[Served]:
    if request.param == "httptools":
        pytest.importorskip("httptools")
    patch = pytest.MonkeyPatch()
    patch.setattr(connections, "_SWEEP", 0.05)
    server = Served(tiny_bundle, request.param)
    yield server
    server.close()
    patch.undo()


@pytest.fixture(scope="module")
def speaking_bundle(decoder_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The decoder with a tokenizer: token n is the word "wn"."""
    tokenizers = pytest.importorskip("tokenizers")
    folder = tmp_path_factory.mktemp("speaking") / "speaking.ecb"
    shutil.copytree(decoder_bundle, folder, copy_function=os.link)
    words = {f"w{index}": index for index in range(VOCABULARY)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w1"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    document = json.loads((folder / "manifest.json").read_bytes())
    document["name"] = "speaking"
    document["text"] = {
        "tokenizer": "tokenizer.json",
        "max_length": 32,
        "pad_id": 0,
        "inputs": {"input_ids": "ids"},
    }
    replace_files(folder, document, {"tokenizer.json": tokenizer.to_str().encode()})
    return folder


@pytest.fixture(scope="module")
def chatting_bundle(speaking_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The speaking one with a chat template."""
    folder = tmp_path_factory.mktemp("chatting") / "chatting.ecb"
    shutil.copytree(speaking_bundle, folder, copy_function=os.link)
    document = json.loads((folder / "manifest.json").read_bytes())
    (folder / CHAT_FILE).parent.mkdir()
    template = (
        "{{ bos }}{% for m in messages %}{% if m.role == 'tool' %}"
        "{{ raise_exception('no tools here') }}{% endif %} {{ m.content }} w4{% endfor %} w5"
    )
    chat = {"template": template, "special_tokens": {"bos": "w3"}}
    replace_files(folder, document, {CHAT_FILE: json.dumps(chat).encode()})
    return folder
