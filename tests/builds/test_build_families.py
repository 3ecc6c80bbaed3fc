"""Kinds of models through the whole of ``edgecompile build``: images, several axes, saved programs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from edgecompile.cli import cli
from edgecompile.loaders.load import load_model
from edgecompile.runtime.model.open_bundle import open_bundle

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """build(model, *options) -> the bundle; one exact program, for AVX2."""
    monkeypatch.chdir(tmp_path)

    def call(model: object, *options: str) -> Path:
        always = ("--target", "cpu-x86-64-v3", "--mode", "exact", "--max-buckets", "1", "-j", "1")
        done = run("build", str(model), *options, *always, "-o", "made.ecb", "--json")
        assert done.exit_code == 0, done.stderr
        call.said = done.stderr  # type: ignore[attr-defined]
        return Path(json.loads(done.stdout)["bundle"])

    return call


def compare(bundle: Path, loaded: Any, sizes: list[dict[str, int]]) -> None:
    """Runs the bundle and the eager model on the same inputs."""
    with open_bundle(bundle) as model:
        for seed, size in enumerate(sizes):
            example = loaded.make_example(size, seed=seed)
            got = model.run({name: tensor.numpy() for name, tensor in example.items()})
            for name, tensor in loaded.run(example).items():
                np.testing.assert_allclose(got[name], tensor.numpy(), atol=2e-5, rtol=1e-5)


def test_images_need_no_lengths(build: Any, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        image_size=16, patch_size=4, id2label={0: "cat", 1: "dog", 2: "left over"},
    )  # fmt: skip
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path / "vit")
    bundle = build(tmp_path / "vit", "--softmax", "--batch", "1:3")
    compare(
        bundle,
        load_model(tmp_path / "vit", softmax=True, batch=(1, 3)),
        [{"batch": 1}, {"batch": 2}, {"batch": 3}],
    )
    with open_bundle(bundle, warmup=False) as model:
        assert model.info["labels"] == {"scores": ["cat", "dog", "left over"]}
        assert "text" not in model.info and model.info["length_axis"] == "batch"
    # The bundle itself says that its model ends in a softmax.
    checked = run("verify", str(bundle), "--model", str(tmp_path / "vit"), "--json")
    assert checked.exit_code == 0, checked.stderr
    # For a model whose length varies nothing can be guessed.
    text = transformers.BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=1,
        intermediate_size=8,
    )  # fmt: skip
    transformers.BertModel(text).save_pretrained(tmp_path / "bert")
    refused = run("build", str(tmp_path / "bert"), "-o", "other.ecb")
    assert refused.exit_code == 2 and "lengths of the traffic are missing" in refused.stderr


PAIR = """
import torch
from torch import nn

class Matcher(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.passage = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, query, passage):
        likeness = self.query(query) @ self.passage(passage).transpose(1, 2)
        return likeness.softmax(2) @ passage

def make():
    torch.manual_seed(0)
    return {
        "module": Matcher(),
        "inputs": {"query": torch.randn(1, 5, 16), "passage": torch.randn(1, 30, 16)},
        "axes": {"query": {0: "batch", 1: "query_length"}, "passage": {0: "batch", 1: "length"}},
        "limits": {"query_length": (1, 12), "length": (2, 64)},
        "outputs": ["found"],
    }
"""


def test_several_length_axes_and_a_saved_program(build: Any, tmp_path: Path) -> None:
    (tmp_path / "pair.py").write_text(PAIR)
    (tmp_path / "lengths.csv").write_text("length,query_length,count\n3,2,5\n40,5,9\n64,12,2\n")
    loaded = load_model(f"{tmp_path}/pair.py:make")
    sizes = [
        {"batch": 1, "length": length, "query_length": query}
        for length, query in ((2, 1), (64, 12), (7, 12), (33, 4))
    ]
    bundle = build(f"{tmp_path}/pair.py:make", "--lengths", "lengths.csv")
    compare(bundle, loaded, sizes)
    os.rename(bundle, "first.ecb")
    # The same as a saved program, whose axes are found again in it.
    query, passage = (torch.export.Dim(name, min=lo, max=hi) for name, lo, hi in
                      (("query_length", 1, 12), ("length", 2, 64)))  # fmt: skip
    program = torch.export.export(
        loaded.module.model,
        (torch.randn(1, 5, 16), torch.randn(1, 30, 16)),
        dynamic_shapes={"query": {1: query}, "passage": {1: passage}},
    )
    torch.export.save(program, tmp_path / "pair.pt2")
    saved = load_model(tmp_path / "pair.pt2")
    assert len(saved.axes) >= 2, saved.axes
    axes = {spec.name: spec.shape[1] for spec in saved.inputs}
    (tmp_path / "lengths.txt").write_text("3\n9\n9\n12\n")
    bundle = build(tmp_path / "pair.pt2", "--lengths", "lengths.txt")
    # Which is which, only the model's notes tell.
    assert f"{axes['query']} is dimension 1 of 'query'" in build.said.lower()
    compare(
        bundle,
        saved,
        [{axes["query"]: item["query_length"], axes["passage"]: item["length"]} for item in sizes],
    )
