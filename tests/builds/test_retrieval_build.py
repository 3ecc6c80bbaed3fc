"""Bundles for retrieval, built, run and served: narrow embeddings, sparse ones, and those of each token."""

from __future__ import annotations

import base64
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")
from edgecompile.lengths.distribution import LengthDistribution  # noqa: E402
from edgecompile.models.options import LoadOptions  # noqa: E402
from edgecompile.models.samples import SampleTexts  # noqa: E402
from edgecompile.pipeline.build import build  # noqa: E402
from edgecompile.pipeline.request import BuildRequest  # noqa: E402
from edgecompile.pipeline.result import BuildResult  # noqa: E402
from edgecompile.planning.request import PlanRequest  # noqa: E402
from edgecompile.runtime import open_bundle  # noqa: E402
from edgecompile.runtime.text.embedding import PRECISIONS, narrow  # noqa: E402
from tests.factories.folders import (  # noqa: E402
    HIDDEN,
    WORDS,
    write_model,
    write_pipeline,
    write_tokenizer,
)
from tests.plans import exact_plan  # noqa: E402
from tests.server.http.asgi import call, run, serving  # noqa: E402

TEXTS = ["the cat sat on a mat", "purred", "all day the cat"]
MANY = [" ".join(words) for words in itertools.combinations(WORDS, 3)][:60]
DENSE = {
    "in_features": HIDDEN,
    "out_features": 5,
    "bias": True,
    "activation_function": "torch.nn.modules.linear.Identity",
}


def built(folder: Path, model: Path, texts: list[str], **options: Any) -> BuildResult:
    """A bundle of one bucket, planned for texts."""
    (folder / "texts.txt").write_text("\n".join([*texts, *texts]))
    samples = SampleTexts(folder / "texts.txt", model / "tokenizer.json")
    lengths = LengthDistribution.from_samples([5])
    plan = PlanRequest(lengths, plan=exact_plan(24, batch=2), max_length=24, texts=samples)
    load = LoadOptions(batch=(1, 2), **options)
    output = folder / "b.ecb"
    return build(BuildRequest(str(model), "cpu-x86-64-v3", plan, output=output, load=load))


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, BuildResult]:
    folder = tmp_path_factory.mktemp("dense")
    model = write_model(folder / "model")
    write_tokenizer(model)
    return model, built(folder, model, MANY, pooling="mean")


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("sparse")
    model = write_model(folder / "model", head="ForMaskedLM")
    write_tokenizer(model)
    result = built(folder, model, MANY, pooling="splade")
    with open_bundle(result.bundle_path) as opened:
        assert not opened.manifest.ranges  # words of a vocabulary aren't a dense embedding
    return model, result.bundle_path


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("late")
    model = write_pipeline(write_model(folder / "model"), [("Dense", DENSE)])
    write_tokenizer(model)
    return model, built(folder, model, TEXTS).bundle_path


def inputs_of(model: Path, text: str) -> dict[str, Any]:
    from edgecompile.lengths.texts import load_tokenizer

    ids = load_tokenizer(model / "tokenizer.json").encode(text).ids
    return {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids)).long()}


def test_a_build_finds_ranges_and_tells_what_narrow_embeddings_lose(
    dense: tuple[Path, BuildResult],
) -> None:
    model, result = dense
    eager = transformers.AutoModel.from_pretrained(model).eval()
    with torch.no_grad():
        rows = [eager(**inputs_of(model, text))[0].mean(1)[0].numpy() for text in MANY]
    with open_bundle(result.bundle_path) as opened:
        manifest = opened.manifest
    low, high = manifest.ranges["sentence_embedding"]
    step = np.abs(rows).max() / 127
    one = np.full(HIDDEN, -128 * step), np.full(HIDDEN, 127 * step)
    own = np.min(rows, 0), np.max(rows, 0)
    assert any(np.allclose([low, high], ends, rtol=1e-3) for ends in (one, own))
    figures = manifest.plan["embeddings"]
    assert figures["output"] == "sentence_embedding" and figures["texts"] == len(MANY)
    assert 0 < figures["binary"]["nearest"] < figures["int8"]["nearest"] <= 10
    assert figures["binary"]["correlation"] < figures["int8"]["correlation"] <= 1
    (note,) = [note for note in result.notes if "nearest texts" in note]
    assert note.startswith("sentence_embedding as int8 finds ") and "60 texts of texts.txt" in note


def test_few_texts_give_no_ranges(late: tuple[Path, Path]) -> None:
    with open_bundle(late[1]) as model:
        assert not model.manifest.ranges and "embeddings" not in model.manifest.plan


def test_narrow_embeddings_run_and_are_served(dense: tuple[Path, BuildResult]) -> None:
    path = dense[1].bundle_path
    with open_bundle(path) as model:
        ranges = model.manifest.ranges["sentence_embedding"]
        plain = model.encode_texts(MANY)["sentence_embedding"]
        wanted = {name: narrow(plain, name, ranges) for name in PRECISIONS}
        for name, codes in wanted.items():
            got = model.encode_texts(MANY, precision=name)["sentence_embedding"]
            np.testing.assert_allclose(got, codes, atol=1e-6)
        assert len(np.unique(wanted["int8"])) > 100
        plain = model.encode_texts(TEXTS)["sentence_embedding"]
        wanted = {name: narrow(plain, name, ranges) for name in PRECISIONS}

    async def ask() -> None:
        async with serving(path) as app:
            for name in PRECISIONS[1:]:
                for fields in (
                    {"output_dtype": name},
                    {"embedding_type": name},
                    {"embedding_types": [name]},
                    {"encoding_format": name},
                    {"output_dtype": name, "encoding_format": "base64"},
                ):
                    body = {"input": TEXTS, **fields}
                    reply = await call(app, "POST", "/v1/embeddings", body)
                    vectors: Any = [item["embedding"] for item in reply.json["data"]]
                    if "base64" in fields.values():
                        data = [base64.b64decode(vector) for vector in vectors]
                        vectors = np.frombuffer(b"".join(data), wanted[name].dtype)
                        vectors = vectors.reshape(len(TEXTS), -1)
                    # A sum in another order may fall on the other side of half a step.
                    limit = 1 if name.endswith("int8") else 0
                    np.testing.assert_allclose(vectors, wanted[name], atol=limit)
                reply = await call(app, "POST", "/embed", {"inputs": TEXTS, "output_dtype": name})
                np.testing.assert_allclose(reply.json, wanted[name], atol=limit)
                body = {"inputs": TEXTS, "output_dtype": name, "dimensions": 8}
                reply = await call(app, "POST", "/embed", body)
                size = 8 if limit else 1
                np.testing.assert_allclose(reply.json, wanted[name][:, :size], atol=limit)
                body = {"inputs": TEXTS, "output_dtype": name, "normalize": True}
                reply = await call(app, "POST", "/embed", body)
                assert reply.status == (422 if limit else 200)
            reply = await call(app, "POST", "/embed_all", {"inputs": "the cat"})
            assert reply.status == 422 and "no embedding for each token" in reply.error

    run(ask())


def test_sparse_embeddings_are_served(sparse: tuple[Path, Path]) -> None:
    model, path = sparse
    eager = transformers.AutoModelForMaskedLM.from_pretrained(model).eval()
    wanted = []
    for text in TEXTS:
        with torch.no_grad():
            logits = eager(**inputs_of(model, text)).logits[0].double()
        most = {word: max(logits[:, word].tolist()) for word in range(logits.shape[1])}
        wanted.append({word: math.log(1 + value) for word, value in most.items() if value > 1e-5})

    async def ask() -> None:
        async with serving(path) as app:
            for address in ("/embed_sparse", "/"):
                reply = await call(app, "POST", address, {"inputs": TEXTS})
                for found, words in zip(reply.json, wanted, strict=True):
                    got = {item["index"]: item["value"] for item in found}
                    assert list(got) == sorted(got) and 0 < len(got) < 40
                    assert got == pytest.approx(words, abs=1e-5)
            single = await call(app, "POST", "/embed_sparse", {"inputs": TEXTS[0]})
            assert len(single.json) == 1 and single.json[0][0]["index"] == min(wanted[0])
            reply = await call(app, "POST", "/embed", {"inputs": TEXTS})
            assert reply.status == 422 and "/embed_sparse" in reply.error
            info = (await call(app, "GET", "/info")).json
            assert info["model_type"] == {"embedding": {"pooling": "splade"}}

    run(ask())


def test_embeddings_of_each_token_are_served(late: tuple[Path, Path]) -> None:
    from safetensors.torch import load_file

    model, path = late
    eager = transformers.AutoModel.from_pretrained(model).eval()
    weights = load_file(model / "1_Dense" / "model.safetensors")
    wanted = []
    for text in TEXTS:
        with torch.no_grad():
            tokens = eager(**inputs_of(model, text)).last_hidden_state[0]
        rows = tokens @ weights["linear.weight"].T + weights["linear.bias"]
        wanted.append((rows / rows.norm(dim=1, keepdim=True)).numpy())
    with open_bundle(path) as opened:
        found = opened.encode_texts(TEXTS)["token_embeddings"]
    for got, rows in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, rows, atol=1e-5)

    async def ask() -> None:
        async with serving(path) as app:
            reply = await call(app, "POST", "/embed_all", {"inputs": TEXTS})
            for got, rows in zip(reply.json, wanted, strict=True):
                np.testing.assert_allclose(got, rows, atol=1e-5)
            reply = await call(app, "POST", "/embed", {"inputs": TEXTS})
            assert reply.status == 422 and "gives no embedding" in reply.error

    run(ask())
