"""Caches in bfloat16 and int8 are judged by texts: alone, and together with narrow weights."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

from edgecompile.buckets.ranges import AxisRange, Bucket
from edgecompile.errors import VerificationError
from edgecompile.export.store import ExportStore
from edgecompile.loaders.generators import storage
from edgecompile.models.cache_rows import row_width
from edgecompile.models.language_texts import LanguageTexts, language_texts
from edgecompile.models.loaded import LoadedModel
from edgecompile.precision import Precision
from edgecompile.quantization.judged import JudgedModel, cache_quality, stores_rounded
from edgecompile.quantization.language_choice import check_caches
from tests.zoo.generation_families import load_family


@pytest.fixture(scope="module", params=["bf16", "int8"])
def model(request: pytest.FixtureRequest) -> LoadedModel:
    """A model that is less sure than random weights make it."""
    loaded: LoadedModel = load_family("llama", cache_precision=request.param)
    made = loaded.generation
    assert made is not None and made.logits is not None
    logits = made.logits
    calm = replace(made, logits=lambda tokens: logits(tokens) / 300)
    return replace(loaded, generation=calm)


@pytest.fixture(scope="module")
def texts(model: LoadedModel) -> LanguageTexts:
    return language_texts(model, None, seed=4)


def with_whole_caches(model: LoadedModel) -> LoadedModel:
    assert model.generation is not None
    return replace(model, generation=replace(model.generation, storing=nullcontext))


def test_alone(model: LoadedModel, texts: LanguageTexts, monkeypatch: pytest.MonkeyPatch) -> None:
    assert stores_rounded(model) and not stores_rounded(load_family("llama"))
    assert cache_quality(with_whole_caches(model), texts).mean_kl < 1e-9
    found = check_caches(model, texts)
    assert found.mean_kl > 1e-8 and found.bound == 1.002
    monkeypatch.setattr(storage, "to_bfloat16", torch.zeros_like)
    monkeypatch.setattr(
        storage,
        "DEQUANTIZE_ROWS",
        lambda rows: torch.zeros(*rows.shape[:-1], row_width(rows.shape[-1])),
    )
    with pytest.raises(
        VerificationError, match=r"keys and values in (bf16|int8) change what the model"
    ):
        check_caches(model, texts)


def test_with_weights(model: LoadedModel, texts: LanguageTexts, tmp_path: Path) -> None:
    axes = (("length", AxisRange(2, 16, 9)), ("context", AxisRange(128, 128, 128)))
    exported = ExportStore(model, tmp_path).get(Bucket("exact", axes))
    weights, both = (
        JudgedModel(each, exported, texts).quality(Precision("bf16")).mean_kl
        for each in (with_whole_caches(model), model)
    )
    alone = cache_quality(model, texts).mean_kl
    assert min(weights, alone, both) > 1e-8 and len({weights, alone, both}) == 3
