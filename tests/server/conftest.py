"""What tests of several files share: a server, and bundles that generate texts."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgecompile.runtime.format.manifest.text import CHAT_FILE
from edgecompile.server.http import connections
from tests.conftest import one_at_a_time
from tests.generative import replace_files
from tests.server.http.sockets import Served

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
    return speak(decoder_bundle, tmp_path_factory.mktemp("speaking") / "speaking.ecb", VOCABULARY)


def speak(bundle: Path, folder: Path, vocabulary: int) -> Path:
    """A copy of a bundle with such a tokenizer, called "speaking"."""
    tokenizers = pytest.importorskip("tokenizers")
    shutil.copytree(bundle, folder, copy_function=os.link)
    words = {f"w{index}": index for index in range(vocabulary)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w1"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    document = json.loads((folder / "manifest.json").read_bytes())
    document["name"] = "speaking"
    document["text"] = {
        "tokenizer": "tokenizer.json",
        "max_length": document["axes"]["length"]["hi"],
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


def build_classifier(shared: Path, name: str, softmax: bool = False, **changes: Any) -> Path:
    """A one-layer BERT with a class's score for each of ``id2label``, for texts and pairs of 12 tokens."""
    pytest.importorskip("transformers")
    from edgecompile.lengths.distribution import LengthDistribution
    from edgecompile.models.options import LoadOptions
    from edgecompile.pipeline.build import build
    from edgecompile.pipeline.request import BuildRequest
    from edgecompile.planning.request import PlanRequest
    from tests.factories.folders import write_model, write_tokenizer
    from tests.plans import exact_plan

    output = shared / f"{name}.ecb"
    with one_at_a_time(shared / f"{name}.lock"):
        if not output.exists():
            folder = shared / f"{name}-model"
            # Weights so large that the scores of texts are far apart.
            settings = {"num_hidden_layers": 1, "initializer_range": 0.5, **changes}
            write_model(folder, head="ForSequenceClassification", **settings)
            write_tokenizer(folder)
            lengths = LengthDistribution.from_samples([3, 6, 12])
            build(
                BuildRequest(
                    model=str(folder),
                    plan=PlanRequest(lengths, plan=exact_plan(12, batch=2), max_length=12),
                    output=output,
                    load=LoadOptions(batch=(1, 2), token_type_ids=True, softmax=softmax),
                    work_dir=shared / f"{name}.work",
                )
            )
    return output


@pytest.fixture(scope="session")
def classifier_bundle(shared_folder: Path) -> Path:
    """Two classes with names."""
    return build_classifier(shared_folder, "classifier", id2label={0: "calm", 1: "angry"})


@pytest.fixture(scope="session")
def softmax_bundle(shared_folder: Path) -> Path:
    """The same with its softmax compiled in."""
    labels = {0: "calm", 1: "angry"}
    return build_classifier(shared_folder, "softmax", softmax=True, id2label=labels)


@pytest.fixture(scope="session")
def reranker_bundle(shared_folder: Path) -> Path:
    """One class."""
    return build_classifier(shared_folder, "reranker", num_labels=1)
