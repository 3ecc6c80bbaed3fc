"""Sparse embeddings and those of late interaction, against formulas written anew here."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

transformers = pytest.importorskip("transformers")
from edgecompile.errors import ModelError  # noqa: E402
from edgecompile.export.export import export_model  # noqa: E402
from edgecompile.export.padding.check import check_padding  # noqa: E402
from edgecompile.loaders.folders.text_settings import describe_texts  # noqa: E402
from edgecompile.loaders.load import load_model  # noqa: E402
from edgecompile.models.loaded import LoadedModel  # noqa: E402
from edgecompile.runtime.format.manifest.schema import Extent  # noqa: E402
from tests.factories.folders import (  # noqa: E402
    HIDDEN,
    VOCABULARY,
    write_model,
    write_pipeline,
    write_tokenizer,
)
from tests.loaders.folders.test_folder import copy_of, reference  # noqa: E402

SIZE = 6
PROJECTION = {"in_features": HIDDEN, "out_features": SIZE, "bias": True}
IDENTITY = {"activation_function": "torch.nn.modules.linear.Identity"}


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("masked"), head="ForMaskedLM")


@pytest.fixture(scope="module", params=["bert", "distilbert", "roberta"])
def any_masked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    return write_model(folder, request.param, head="ForMaskedLM")


def weights_of_words(folder: Path, example: dict[str, torch.Tensor]) -> torch.Tensor:
    """What the paper of SPLADE says: for each word the most that a token says, log(1 + relu) of it."""
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    with torch.no_grad():
        logits = model(**example).logits.double()
    rows = []
    for row, mask in zip(logits, example["attention_mask"].bool(), strict=True):
        rows.append([max(math.log(1 + max(x, 0.0)) for x in word) for word in row[mask].T.tolist()])
    return torch.tensor(rows, dtype=torch.float64)


def check_sparse(model: LoadedModel, folder: Path) -> None:
    outputs = [(s.name, s.shape) for s in model.outputs]
    assert outputs == [("sparse_embedding", ("batch", VOCABULARY))]
    example = model.make_example({"batch": 3, "length": 8}, padding=[0, 3, 6])
    want = weights_of_words(folder, example)
    got = model.run(example)["sparse_embedding"]
    assert torch.allclose(got.double(), want, atol=1e-6)
    assert 0 < int((got == 0).sum()) < got.numel()  # some words count, others don't


def test_splade_of_a_masked_language_model(any_masked: Path) -> None:
    model = load_model(any_masked, batch=(1, 3), pooling="splade")
    check_sparse(model, any_masked)
    exported = export_model(model, {"length": (1, 24)})
    assert exported.max_error < 1e-5
    assert check_padding(model).safe


@pytest.mark.parametrize("first", ["Transformer", "MLMTransformer"])
def test_splade_as_a_folder_says_it(tmp_path: Path, masked: Path, first: str) -> None:
    kind = "sentence_transformers.sparse_encoder.models.SpladePooling"
    config = {"pooling_strategy": "max", "activation_function": "relu"}
    folder = write_pipeline(copy_of(masked, tmp_path / "splade"), [(kind, config)])
    entries = json.loads((folder / "modules.json").read_text())
    entries[0]["type"] = f"sentence_transformers.sparse_encoder.models.{first}"
    (folder / "modules.json").write_text(json.dumps(entries))
    model = load_model(folder, batch=(1, 3))
    check_sparse(model, masked)
    assert model.source.details["pipeline"] == f"{first} → SpladePooling"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"pooling_strategy": "sum"}, "asks for pooling_strategy sum"),
        ({"activation_function": "log1p_relu"}, "asks for activation_function log1p_relu"),
    ],
)
def test_another_splade_is_refused(
    tmp_path: Path, masked: Path, config: dict[str, str], message: str
) -> None:
    folder = write_pipeline(copy_of(masked, tmp_path / "other"), [("SpladePooling", config)])
    with pytest.raises(ModelError, match=message):
        load_model(folder)


def test_splade_needs_logits(tmp_path: Path, bert: Path, masked: Path) -> None:
    with pytest.raises(ModelError, match="not for feature-extraction"):
        load_model(bert, pooling="splade")
    with pytest.raises(ModelError, match="BertModel has none"):
        load_model(bert, pooling="splade", task="logits")
    with pytest.raises(ModelError, match="`softmax` is for classifiers"):
        load_model(masked, pooling="splade", softmax=True)
    plain = write_pipeline(copy_of(bert, tmp_path / "plain"), [("SpladePooling", {})])
    with pytest.raises(ModelError, match="BertModel has none"):
        load_model(plain, task="logits")
    named = write_pipeline(
        copy_of(bert, tmp_path / "named"), [("Pooling", {"pooling_mode": "splade"})]
    )
    with pytest.raises(ModelError, match="unknown pooling: splade"):
        load_model(named)


def check_tokens(
    folder: Path, bert: Path, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> LoadedModel:
    """Compares with a projection and a division by the length, of each token."""
    model = load_model(folder, batch=(1, 2))
    outputs = [(s.name, s.shape) for s in model.outputs]
    assert outputs == [("token_embeddings", ("batch", "length", SIZE))]
    example = model.make_example({"batch": 2, "length": 7}, padding=[0, 3])
    want = reference(bert, **example).last_hidden_state.double() @ weight.double().T
    if bias is not None:
        want = want + bias.double()
    want = want / want.norm(dim=2, keepdim=True)
    got, real = model.run(example)["token_embeddings"], example["attention_mask"].bool()
    assert torch.allclose(got.double()[real], want[real], atol=1e-6)
    assert check_padding(model).safe
    return model


@pytest.mark.parametrize("kind", ["Dense", "pylate.models.Dense.Dense"])
@pytest.mark.parametrize("normalized", [False, True])
def test_late_interaction_as_a_pipeline_says_it(
    tmp_path: Path, bert: Path, kind: str, normalized: bool
) -> None:
    modules: list[tuple[str, dict[str, Any]]] = [("Dense", {**PROJECTION, **IDENTITY})]
    folder = write_pipeline(
        copy_of(bert, tmp_path / "late"), [*modules, *([("Normalize", {})] if normalized else [])]
    )
    entries = json.loads((folder / "modules.json").read_text())
    entries[1]["type"] = kind if "." in kind else f"sentence_transformers.models.{kind}"
    (folder / "modules.json").write_text(json.dumps(entries))
    stored = load_file(folder / "1_Dense" / "model.safetensors")
    check_tokens(folder, bert, stored["linear.weight"], stored["linear.bias"])
    with pytest.raises(ModelError, match="an embedding for each token, and no `pooling`"):
        load_model(folder, pooling="mean")


def write_colbert(folder: Path, bert: Path, weight: torch.Tensor | None) -> Path:
    """A folder as the ColBERT library writes it: BERT beneath ``bert.``, and a projection."""
    copy_of(bert, folder)
    weights = {f"bert.{key}": value for key, value in load_file(bert / "model.safetensors").items()}
    if weight is not None:
        weights["linear.weight"] = weight
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["HF_ColBERT"]}))
    return folder


def test_late_interaction_of_the_colbert_library(tmp_path: Path, bert: Path) -> None:
    weight = torch.randn(SIZE, HIDDEN, generator=torch.Generator().manual_seed(5))
    folder = write_colbert(tmp_path / "colbert", bert, weight)
    model = check_tokens(folder, bert, weight)
    assert export_model(model, {"length": (1, 24)}).max_error < 1e-5
    bare = write_colbert(tmp_path / "bare", bert, None)
    with pytest.raises(ModelError, match=r"lack the projection linear\.weight"):
        load_model(bare)


def test_a_residual_projection_is_refused(tmp_path: Path, bert: Path) -> None:
    config = {**PROJECTION, **IDENTITY, "use_residual": True}
    folder = write_pipeline(copy_of(bert, tmp_path / "residual"), [("Dense", config)])
    with pytest.raises(ModelError, match="a residual connection"):
        load_model(folder)


@pytest.mark.parametrize(
    ("settings", "prompts"),
    [
        (
            {"query_prefix": "[Q] ", "document_prefix": "[D] "},
            {"query": "[Q] ", "document": "[D] "},
        ),
        ({"query_prefix": "[Q] ", "document_prefix": "no token"}, {"query": "[Q] "}),
        ({"query_prefix": ["[Q] "]}, {}),
        ({"query_prefix": "[Q] ", "prompts": {"query": "ask: "}}, {"query": "ask: "}),
    ],
)
def test_marks_of_queries_and_documents_are_prompts(
    tmp_path: Path, bert: Path, settings: dict[str, Any], prompts: dict[str, str]
) -> None:
    folder = copy_of(bert, tmp_path / "marked")
    write_pipeline(folder, [("Dense", {**PROJECTION, **IDENTITY})])
    path = write_tokenizer(folder)
    tokenizer = json.loads(path.read_text())
    tokenizer["added_tokens"] += [
        {**dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False),
         "id": 30 + index, "content": mark}
        for index, mark in enumerate(("[Q] ", "[D] "))
    ]  # fmt: skip
    path.write_text(json.dumps(tokenizer))
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    text, _ = describe_texts(load_model(folder), {"batch": Extent(1, 1), "length": Extent(1, 40)})
    assert text is not None and text.prompts == prompts
