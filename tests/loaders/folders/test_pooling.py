"""What a folder says of pooling and of what follows it, against plain formulas."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")
from edgecompile.export.export import export_model
from edgecompile.export.padding.check import check_padding
from edgecompile.loaders.load import load_model
from tests.factories.folders import HIDDEN, write_pipeline
from tests.loaders.folders.test_folder import copy_of, reference


# Pooling and what follows it: against plain formulas in float64, written anew here.
def pooled(hidden: torch.Tensor, mask: torch.Tensor, mode: str) -> torch.Tensor:
    rows = []
    for tokens, keep in zip(hidden.double(), mask.bool(), strict=True):
        real = tokens[keep]
        weights = torch.arange(1, len(real) + 1).double().unsqueeze(1)
        rows.append(
            {
                "cls": real[0],
                "max": real.max(0).values,
                "mean": real.mean(0),
                "mean_sqrt_len_tokens": real.sum(0) / len(real) ** 0.5,
                "weightedmean": (real * weights).sum(0) / weights.sum(),
                "lasttoken": real[-1],
            }[mode]
        )
    return torch.stack(rows)


@pytest.mark.parametrize(
    ("flag", "mode"),
    [
        ("pooling_mode_cls_token", "cls"),
        ("pooling_mode_max_tokens", "max"),
        ("pooling_mode_mean_tokens", "mean"),
        ("pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens"),
        ("pooling_mode_weightedmean_tokens", "weightedmean"),
        ("pooling_mode_lasttoken", "lasttoken"),
    ],
)
def test_pooling(tmp_path: Path, bert: Path, flag: str, mode: str) -> None:
    old = write_pipeline(copy_of(bert, tmp_path / "old"), [("Pooling", {flag: True})])
    new = write_pipeline(copy_of(bert, tmp_path / "new"), [("Pooling", {"pooling_mode": mode})])
    model = load_model(old, batch=(1, 3))
    assert [(s.name, s.shape) for s in model.outputs] == [("sentence_embedding", ("batch", HIDDEN))]
    example = model.make_example({"batch": 3, "length": 8}, padding=[0, 3, 7])
    hidden = reference(bert, **example).last_hidden_state
    want = pooled(hidden, example["attention_mask"], mode)
    got = model.run(example)["sentence_embedding"]
    assert torch.allclose(got.double(), want, atol=1e-6)
    assert torch.equal(load_model(new).run(example)["sentence_embedding"], got)


def test_a_whole_pipeline(tmp_path: Path, bert: Path) -> None:
    modes = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}
    dense = {"in_features": 2 * HIDDEN, "out_features": 5, "bias": True}
    activation = {"activation_function": "torch.nn.modules.activation.Tanh"}
    folder = write_pipeline(
        copy_of(bert, tmp_path / "whole"),
        [("Pooling", modes), ("Dense", {**dense, **activation}), ("Normalize", {})],
    )
    model = load_model(folder)
    example = model.make_example({"batch": 1, "length": 6}, padding=2)
    hidden = reference(bert, **example).last_hidden_state
    mask = example["attention_mask"]
    both = torch.cat([pooled(hidden, mask, "cls"), pooled(hidden, mask, "mean")], 1)
    from safetensors.torch import load_file

    weights = load_file(folder / "2_Dense" / "model.safetensors")
    y = torch.tanh(both @ weights["linear.weight"].double().T + weights["linear.bias"].double())
    want = y / y.norm(dim=1, keepdim=True)
    got = model.run(example)["sentence_embedding"]
    assert torch.allclose(got.double(), want, atol=1e-6)
    assert model.source.details["pipeline"] == "Transformer → Pooling → Dense → Normalize"
    exported = export_model(model, {"length": (1, 24)})
    assert exported.ranges["length"] == (1, 24) and exported.max_error < 1e-5
    assert check_padding(model).safe
