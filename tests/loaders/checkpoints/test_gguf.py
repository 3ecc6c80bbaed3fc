"""Language models from GGUF files: the model, its tokenizer, and the numbers that the file stores."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("gguf")
pytest.importorskip("accelerate")

import gguf

from edgecompile.errors import MissingDependencyError, ModelError, UsageError
from edgecompile.loaders.checkpoints.gguf_blocks import stored_weights
from edgecompile.loaders.checkpoints.gguf_header import read_gguf_header
from edgecompile.loaders.kinds import check_form, find_tokenizer
from edgecompile.loaders.load import load_model
from edgecompile.models.loaded import LoadedModel
from tests.factories.gguf_files import CHAT, VALUES, write_gguf

FORMS = {
    "attn_q": "Q4_0", "attn_k": "Q4_1", "attn_v": "Q8_0", "attn_output": "F16", "ffn_gate": "BF16", "ffn_up": "Q5_0",
    "ffn_down": "F32", "token_embd": "Q8_0", "output": "Q4_0",
}  # fmt: skip


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", FORMS.__getitem__)


@pytest.fixture(scope="module")
def model(file: Path) -> LoadedModel:
    return load_model(file)


def test_a_file_is_a_language_model(model: LoadedModel, file: Path) -> None:
    assert model.generation is not None and model.generation.spec.max_context == 64
    assert model.source.kind == "gguf" and list(model.source.sha256) == ["tiny.gguf"]
    assert model.source.lasting
    assert any("a GGUF file with 3 in Q8_0, 3 in Q4_0" in note for note in model.notes)
    assert load_model(file.parent).source.sha256 == model.source.sha256
    assert model.tokenizer is not None and model.tokenizer == find_tokenizer(file)
    settings = json.loads((model.tokenizer.parent / "tokenizer_config.json").read_text())
    template = model.tokenizer.parent / "chat_template.jinja"
    assert (template.read_text() if template.is_file() else settings["chat_template"]) == CHAT


def test_every_matrix_is_found_bit_for_bit(model: LoadedModel) -> None:
    # transformers has turned rows of queries and keys, which the file keeps in llama.cpp's order.
    assert model.stored is not None
    names = {
        "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output", "gate_proj": "ffn_gate",
        "up_proj": "ffn_up", "down_proj": "ffn_down", "embed_tokens": "token_embd", "lm_head": "output",
    }  # fmt: skip
    seen = 0
    for name, weight in model.module.named_parameters():
        if weight.dim() != 2:
            continue
        form = FORMS[names[name.split(".")[-2]]]
        found = model.stored.find(weight.detach())
        assert found is not None and found.form == form, name
        assert (found.rows is not None) == (form in ("Q4_0", "Q4_1", "Q8_0"))
        if found.rows is not None:
            assert torch.equal(found.rows.numbers(), weight)
            assert found.rows.block == 32
            assert torch.equal(found.rows.scales, found.rows.scales.half().float())
        seen += 1
    assert seen == 16
    other = next(w for w in model.module.parameters() if w.dim() == 2).detach().clone()
    other[3, 5] += 1
    assert model.stored.find(other) is None


def test_grids_are_those_that_gguf_reads(file: Path) -> None:
    reader = gguf.GGUFReader(file)
    stored = {matrix.name: matrix for matrix in stored_weights(read_gguf_header(file)).matrices}
    for tensor in reader.tensors:
        if tensor.name in stored:
            numbers = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            assert np.array_equal(stored[tensor.name].numbers().numpy(), numbers), tensor.name


def test_rows_that_matrices_share_are_told_apart(tmp_path: Path) -> None:
    def with_zeros(name: str, stored: Any) -> Any:
        if name.endswith(("attn_q", "ffn_down")):
            stored[:4] = 0
        return stored

    model = load_model(write_gguf(tmp_path / "m.gguf", change=with_zeros))
    assert model.stored is not None
    for weight in model.module.parameters():
        if weight.dim() == 2:
            found = model.stored.find(weight.detach())
            assert found is not None and found.rows is not None
            assert torch.equal(found.rows.numbers(), weight)


def write(path: Path, **changes: Any) -> Path:
    return write_gguf(path / "m.gguf", values={**VALUES, **changes.pop("values", {})}, **changes)


def with_nan(name: str, stored: Any) -> Any:
    if name == "blk.1.ffn_up":
        stored[7, :2] = np.array([np.nan], np.float16).view(np.uint8)
    return stored


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"values": {"feed_forward_length": 1 << 30}}, "metadata describe a model of .* numbers"),
        ({"values": {"attention.head_count": 0}}, "of the family llama"),
        ({"values": {"feed_forward_length": 64}}, "have another shape"),
        ({"architecture": "nosuch"}, "of the family nosuch"),
        ({"change": with_nan}, r"layers\.1\.mlp\.up_proj\.weight has values that are no finite"),
    ],
)
def test_files_that_contradict_themselves_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        load_model(write(tmp_path, **changes))


def test_another_task_is_refused(file: Path) -> None:
    with pytest.raises(UsageError, match='`task="logits"`: a GGUF file is loaded for causal-lm'):
        load_model(file, task="logits")


def test_a_folder_with_several_files_is_refused(tmp_path: Path, file: Path) -> None:
    for name in "ab":
        shutil.copy(file, tmp_path / f"{name}.gguf")
    with pytest.raises(ModelError, match=r"has 2 GGUF files: a.gguf, b.gguf"):
        check_form(tmp_path)


@pytest.mark.parametrize("package", ["gguf", "accelerate"])
def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, file: Path, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match=f"the Python package {package}") as failure:
        load_model(file)
    assert failure.value.hint == "pip install 'edgecompile[gguf]'"
