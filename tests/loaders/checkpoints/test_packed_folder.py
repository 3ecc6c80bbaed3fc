"""Folders with packed weights: GPTQ, AWQ and compressed-tensors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers")

from edgecompile.errors import ModelError
from edgecompile.loaders.checkpoints.packed import packed_weights, unpack
from edgecompile.loaders.checkpoints.packing import AWQ, GPTQ, PACKED, Packing
from edgecompile.loaders.kinds import check_form
from edgecompile.loaders.load import load_model
from edgecompile.models import mapped
from edgecompile.models.stored import GridValues
from tests.factories.packed_folders import (
    Parts,
    pack_awq,
    pack_compressed,
    pack_folder,
    pack_gptq,
)
from tests.quantization.test_quality import save_llama

PACK: dict[str, Callable[..., Parts]] = {GPTQ: pack_gptq, AWQ: pack_awq, PACKED: pack_compressed}
#: Bits, the group, and whether zeros are stored less one.
KINDS = {method: Packing(method, 4, 32, method == GPTQ) for method in PACK}


@pytest.fixture(scope="module")
def floats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("floats")
    save_llama(path)
    return path


@pytest.fixture
def weight() -> Tensor:
    torch.manual_seed(3)
    return torch.randn(40, 96)


@pytest.mark.parametrize("method", PACK)
def test_a_folder_has_the_numbers_that_it_stores(floats: Path, tmp_path: Path, method: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(floats, folder)
    numbers = pack_folder(folder, method, partial(PACK[method], group=32))
    check_form(folder)
    model = load_model(folder)
    assert model.stored is not None
    weights = dict(model.module.named_parameters())
    assert len(numbers) == 14
    for name, expected in numbers.items():
        weight = weights[f"model.{name}"].detach()
        assert torch.equal(weight, expected), name
        found = model.stored.find(weight)
        assert found is not None and found.form == "4 bits" and found.rows is not None
        assert torch.equal(found.rows.numbers(), expected)
        assert (found.rows.zeros is not None) == (method == AWQ)
    head = model.stored.find(weights["model.lm_head.weight"].detach())
    assert head is not None and head.form == "F16"
    kind = {GPTQ: "GPTQ", AWQ: "AWQ", PACKED: PACKED}[method]
    assert any(f"a folder of {kind} weights: 14 in 4 bits" in note for note in model.notes)


def test_asymmetric_gptq_has_zeros(weight: Tensor) -> None:
    rows = unpack(KINDS[GPTQ], "w", pack_gptq(weight, 32, symmetric=False))
    assert isinstance(rows, GridValues) and rows.zeros is not None
    assert float((rows.numbers() - weight).abs().max()) < 0.51 * float(rows.scales.max())
    second = Packing(GPTQ, 4, 32)  # gptq_v2 stores zeros as they are
    other = unpack(second, "w", pack_gptq(weight, 32, symmetric=False))
    assert isinstance(other, GridValues) and other.zeros is not None
    assert torch.equal(other.zeros + 1, rows.zeros)


def test_inputs_of_a_group_that_lie_apart_have_no_grid(weight: Tensor) -> None:
    torch.manual_seed(4)
    places = torch.randperm(96)
    sorted_parts = pack_gptq(weight[:, places], 32)
    plain = unpack(KINDS[GPTQ], "w", sorted_parts)
    assert isinstance(plain, GridValues)
    # As desc_act stores it: columns in the model's order, each with its group.
    back = places.argsort()
    parts = pack_gptq(weight, 32, order=(torch.arange(96) // 32)[back])
    values = plain.values[:, back]
    parts["scales"] = sorted_parts["scales"]
    from tests.factories.packed_folders import to_words

    parts["qweight"] = to_words(values.to(torch.int32)).t().contiguous()
    found = unpack(KINDS[GPTQ], "w", parts)
    assert isinstance(found, Tensor)
    assert torch.equal(found, plain.numbers()[:, back])


def changed(method: str, weight: Tensor, part: str, change: Callable[[Tensor], Tensor]) -> Parts:
    parts = PACK[method](weight, 32)
    return {**parts, part: change(parts[part])}


@pytest.mark.parametrize(
    ("method", "part", "change", "message"),
    [
        (GPTQ, "g_idx", lambda t: t + 1, "g_idx has a group beyond the 3 that there are"),
        (GPTQ, "g_idx", lambda t: t - 1, "g_idx has a group beyond"),
        (GPTQ, "g_idx", lambda t: t[:-1], r"g_idx has \[95\] for 96 inputs"),
        (GPTQ, "scales", lambda t: t * 0, "a scale is 0 or no finite number"),
        (AWQ, "scales", lambda t: t / 0, "a scale is 0 or no finite number"),
        (GPTQ, "scales", lambda t: t[:-1], "it has 2 groups for 96 inputs"),
        (GPTQ, "scales", lambda t: t[:, :-1], "39 outputs are no multiple of 8"),
        (GPTQ, "scales", lambda t: t[:, :-8], "qweight has 40 outputs, scales have 32"),
        (GPTQ, "qweight", lambda t: t[:-1], "88 inputs are no multiple of the group of 32"),
        (GPTQ, "qweight", lambda t: t.long(), "packed numbers are torch.int64, not int32"),
        (AWQ, "qweight", lambda t: t.flatten(), r"qweight has the shape \[480\]"),
        (AWQ, "qzeros", lambda t: t[:-1], r"it has zeros of \[40, 2\]"),
        (PACKED, "weight_shape", lambda t: t * 2, r"has \[40, 96\] numbers for \[80, 192\]"),
        (PACKED, "weight_shape", lambda t: t[:1], r"its shape is \[40\]"),
        (PACKED, "weight_scale", lambda t: t[0], "weight_scale has the shape"),
    ],
)
def test_weights_that_contradict_themselves_are_refused(
    weight: Tensor, method: str, part: str, change: Callable[[Tensor], Tensor], message: str
) -> None:
    assert isinstance(unpack(KINDS[method], "w", PACK[method](weight, 32)), GridValues)
    with pytest.raises(ModelError, match=message):
        unpack(KINDS[method], "w", changed(method, weight, part, change))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"quant_method": "bitsandbytes"}, "quantized by 'bitsandbytes', which isn't read"),
        ([4], "quantized by None"),
        ({"quant_method": "gptq", "bits": 3, "group_size": 32}, "gptq weights of another kind"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 0}, "the group .* is 0"),
        ({"quant_method": "gptq", "bits": 4, "group_size": "x"}, "the group .* is 'x'"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "the version 'gemv'"),
        ({"quant_method": "compressed-tensors", "format": "float-quantized"}, "'float-quantized'"),
    ],
)
def test_other_kinds_of_weights_are_refused_before_loading(
    floats: Path, tmp_path: Path, settings: Any, message: str
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    config = json.loads((floats / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": settings}))
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match=message) as failure:
        check_form(folder)
    assert "plain float weights" in str(failure.value.hint)


def test_a_packed_weight_without_its_scales_is_refused() -> None:
    with pytest.raises(ModelError, match=r"a\.qweight: the weights lack scales, qzeros beside it"):
        packed_weights(KINDS[GPTQ], {"a.qweight", "b.weight"})


def test_a_folder_that_packs_nothing_is_refused(floats: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(floats, folder)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="quantized by gptq, but none is"):
        load_model(folder)


def test_many_numbers_are_held_in_files(
    floats: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(floats, folder)
    numbers = pack_folder(folder, AWQ, partial(pack_awq, group=32))
    monkeypatch.setattr(mapped, "_LEAST", 1 << 12)
    monkeypatch.setattr(mapped, "_LEAST_OF_ONE", 1 << 10)
    weights = dict(load_model(folder).module.named_parameters())
    assert Path("/proc/self/maps").read_text().count("edgecompile-weights-") >= len(numbers)
    for name, expected in numbers.items():
        assert torch.equal(weights[f"model.{name}"].detach(), expected), name
