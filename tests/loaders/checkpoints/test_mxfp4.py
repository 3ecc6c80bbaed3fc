"""Weights in MXFP4, as gpt-oss, compressed-tensors and GGUF files store them, beside what others read there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

pytest.importorskip("transformers")

import transformers

from edgecompile.errors import ModelError
from edgecompile.loaders.checkpoints.gguf_blocks import stored_weights
from edgecompile.loaders.checkpoints.gguf_header import read_gguf_header
from edgecompile.loaders.checkpoints.mxfp4 import unpack_mxfp4
from edgecompile.loaders.checkpoints.packed import packed_weights, unpack
from edgecompile.loaders.checkpoints.packing import MXFP4, PACKED, Packing, read_packing
from edgecompile.loaders.load import load_model
from edgecompile.models.language_texts import language_texts
from edgecompile.models.options import LoadOptions
from edgecompile.models.stored import GridValues
from edgecompile.quantization.checkpoint import keep_checkpoint
from tests.factories.packed_folders import SETTINGS
from tests.quantization.test_quality import CONTEXT, judged_model, save_llama

EXPERTS = Packing(MXFP4, 4, 32, floats=True)
LINEARS = Packing(PACKED, 4, 32, floats=True)


def drawn(n: int, k: int, seed: int = 7) -> tuple[Tensor, Tensor]:
    """All codes, and powers of two from near to far."""
    random = np.random.default_rng(seed)
    packed = torch.from_numpy(random.integers(0, 256, (n, k // 2), np.uint8))
    return packed, torch.from_numpy(random.integers(110, 131, (n, k // 32), np.uint8))


def numbers_by_transformers(blocks: Tensor, scales: Tensor) -> Tensor:
    """The stack ``[E, K, N]`` that transformers makes of blocks ``[E, N, K / 32, 16]``."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    made: Tensor = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    return made


def test_numbers_are_those_that_transformers_reads() -> None:
    packed, powers = drawn(40, 96)
    powers[0, 0], powers[1, 1] = 0, 251
    rows = unpack_mxfp4("w", packed, powers)
    assert rows.values.dtype == torch.int8 and rows.block == 32
    expected = numbers_by_transformers(packed.view(1, 40, 3, 16), powers[None])[0].t()
    assert torch.equal(rows.numbers(), expected)
    assert set(rows.values.unique().tolist()) == {0} | {
        sign * value for sign in (1, -1) for value in (1, 2, 3, 4, 6, 8, 12)
    }


def test_a_stack_of_experts_is_found_by_its_parts() -> None:
    names = {"mlp.experts.gate_up_proj_blocks", "mlp.experts.gate_up_proj_scales", "a_bias"}
    parts = packed_weights(EXPERTS, names)
    assert parts == {
        "mlp.experts.gate_up_proj": {
            "blocks": "mlp.experts.gate_up_proj_blocks",
            "scales": "mlp.experts.gate_up_proj_scales",
        }
    }
    with pytest.raises(ModelError, match="a_blocks: the weights lack scales beside it"):
        packed_weights(EXPERTS, {"a_blocks"})
    with pytest.raises(ModelError, match="weights lack weight_scale beside it"):
        packed_weights(LINEARS, {"a.weight_packed"})


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("weight_scale", lambda t: t.fill_(255), "a scale is no number"),
        ("weight_scale", lambda t: t.fill_(254), "a number is beyond float32"),
        ("weight_scale", lambda t: t[:, :-1], r"it has scales of \[40, 2\] for \[40, 96\]"),
        ("weight_scale", lambda t: t[:-1], r"it has scales of \[39, 3\]"),
        ("weight_scale", lambda t: t.float(), "torch.float32, not uint8"),
        ("weight_packed", lambda t: t[:, :-8], "80 inputs are no multiple of 32"),
        ("weight_packed", lambda t: t[:, :0], "0 inputs are no multiple of 32"),
        ("weight_packed", lambda t: t.to(torch.int32), "torch.int32, not uint8"),
        ("weight_packed", lambda t: t.flatten(), r"a packed part has the shape \[1920\]"),
    ],
)
def test_damaged_weights_are_refused(
    part: str, change: Callable[[Tensor], Tensor], message: str
) -> None:
    packed, powers = drawn(40, 96)
    parts = {"weight_packed": packed, "weight_scale": powers}
    assert isinstance(unpack(LINEARS, "w", parts), GridValues)
    parts[part] = change(parts[part])
    with pytest.raises(ModelError, match=message):
        unpack(LINEARS, "w", parts)


@pytest.mark.parametrize(
    ("blocks", "scales"),
    [((2, 8, 3, 15), (2, 8, 3)), ((2, 8, 3, 16), (2, 8, 4)), ((8, 48), (8, 3))],
)
def test_damaged_stacks_are_refused(blocks: tuple[int, ...], scales: tuple[int, ...]) -> None:
    parts = {
        "blocks": torch.zeros(blocks, dtype=torch.uint8),
        "scales": torch.full(scales, 127, dtype=torch.uint8),
    }
    with pytest.raises(ModelError, match="w: "):
        unpack(EXPERTS, "w", parts)


def settings(**weights: Any) -> dict[str, Any]:
    made = SETTINGS["compressed-tensors"](32)
    made["format"] = "mxfp4-pack-quantized"
    made["config_groups"]["group_0"]["weights"] |= {"type": "float", **weights}
    return made


def test_the_configuration_says_so() -> None:
    folder = Path("model")
    assert read_packing(folder, {"quantization_config": settings()}) == LINEARS
    assert read_packing(folder, {"quantization_config": {"quant_method": "mxfp4"}}) == EXPERTS
    others = ({"group_size": 16}, {"type": "int"}, {"num_bits": 8}, {"strategy": "tensor_group"})
    for other in (*others, {"strategy": "channel"}, {"symmetric": False}):
        with pytest.raises(ModelError, match="weights of another kind than is read"):
            read_packing(folder, {"quantization_config": settings(**other)})


def pack_linears(folder: Path, pack: Callable[[Tensor], dict[str, Tensor]], config: Any) -> None:
    """Packs a folder's linear layers but the head in place."""
    packed = {}
    for name, weight in load_file(folder / "model.safetensors").items():
        if "_proj." not in name:
            packed[name] = weight.bfloat16()
            continue
        prefix = name.removesuffix("weight")
        packed |= {prefix + part: tensor for part, tensor in pack(weight).items()}
    save_file(packed, folder / "model.safetensors", {"format": "pt"})
    described = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**described, "quantization_config": config}))


def pack_drawn(weight: Tensor) -> dict[str, Tensor]:
    n, k = weight.shape
    packed, powers = drawn(n, k, seed=n * k)
    return {"weight_packed": packed, "weight_scale": powers // 16 + 114}


def check_kept(folder: Path, work: Path) -> dict[str, Tensor]:
    """That all of a folder's MXFP4 weights are kept; gives the model's numbers by name."""
    model = load_model(folder, LoadOptions(max_context=CONTEXT)).with_longest(16)
    judged = judged_model(model, language_texts(model, None), work)
    assert model.stored is not None
    found = keep_checkpoint(judged.program, model.module, model.stored)
    assert found.kept == {"MXFP4 (held as int8)": 14, "BF16": 1} and not found.rounded
    assert found.precision.name == "int8"
    for attr, (_, exact) in judged.program.products.items():
        assert torch.equal(judged.program.kept_value(attr, found.precision), exact)
    return {name: weight.detach() for name, weight in model.module.named_parameters()}


def test_linears_keep_their_numbers(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save_llama(folder, outliers=False)
    pack_linears(folder, pack_drawn, settings())
    stored = load_file(folder / "model.safetensors")
    weights = check_kept(folder, tmp_path)
    packed = {n: t for n, t in stored.items() if n.endswith("weight_packed")}
    assert len(packed) == 14
    for name, blocks in packed.items():
        prefix = name.removesuffix("weight_packed")
        n, k = blocks.shape[0], 2 * blocks.shape[1]
        scales = stored[prefix + "weight_scale"][None]
        expected = numbers_by_transformers(blocks.view(1, n, k // 32, 16), scales)[0].t()
        assert torch.equal(weights[f"model.{prefix}weight"], expected), name


def test_linears_of_the_package_compressed_tensors_keep_their_numbers(tmp_path: Path) -> None:
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors.mxfp4 import MXFP4PackedCompressor
    from compressed_tensors.quantization import QuantizationConfig, preset_name_to_scheme

    scheme = preset_name_to_scheme("MXFP4A16", ["Linear"])
    numbers = []

    def pack(weight: Tensor) -> dict[str, Tensor]:
        largest = weight.unflatten(1, (-1, 32)).abs().amax(2)
        scale = torch.exp2(largest.log2().floor() - 2)
        made = MXFP4PackedCompressor.compress({"weight": weight, "weight_scale": scale}, scheme)
        # Both factors have few bits, so that the package's bfloat16 holds the product.
        numbers.append(MXFP4PackedCompressor.decompress(made, scheme)["weight"].float())
        return dict(made)

    folder = tmp_path / "model"
    save_llama(folder, outliers=False)
    names = [name for name in load_file(folder / "model.safetensors") if "_proj." in name]
    config = QuantizationConfig(
        config_groups={"group_0": scheme}, format="mxfp4-pack-quantized", ignore=["lm_head"]
    )
    pack_linears(folder, pack, config.model_dump(mode="json"))
    weights = check_kept(folder, tmp_path)
    assert len(names) == 14
    for name, expected in zip(names, numbers, strict=True):
        assert torch.equal(weights[f"model.{name}"], expected), name


def test_gpt_oss_has_the_numbers_that_it_stores(tmp_path: Path) -> None:
    torch.manual_seed(3)
    config = transformers.GptOssConfig(
        vocab_size=64, hidden_size=64, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, num_local_experts=3, num_experts_per_tok=2, max_position_embeddings=64,
        pad_token_id=0, eos_token_id=None,
    )  # fmt: skip
    transformers.GptOssForCausalLM(config).save_pretrained(tmp_path)
    tensors, expected = load_file(tmp_path / "model.safetensors"), {}
    for name in [name for name in tensors if name.endswith("experts.down_proj")]:
        for full in (name, name.replace("down_proj", "gate_up_proj")):
            count, k, n = tensors.pop(full).shape
            packed, powers = drawn(count * n, k, seed=len(expected))
            blocks, scales = packed.view(count, n, k // 32, 16), powers.view(count, n, k // 32)
            expected[full] = numbers_by_transformers(blocks, scales)
            tensors |= {f"{full}_blocks": blocks, f"{full}_scales": scales}
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    described = json.loads((tmp_path / "config.json").read_text())
    described["quantization_config"] = {"quant_method": "mxfp4"}
    (tmp_path / "config.json").write_text(json.dumps(described))
    model = load_model(tmp_path, LoadOptions(max_context=32))
    weights = dict(model.module.named_parameters())
    assert len(expected) == 4
    for name, numbers in expected.items():
        assert torch.equal(weights[f"model.{name}"], numbers), name
    assert any("4 in MXFP4 of experts (held as float32)" in note for note in model.notes)


def test_a_gguf_file_has_them_too(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    from tests.factories.gguf_files import write_gguf

    file = write_gguf(
        tmp_path / "tiny.gguf", lambda name: "MXFP4" if name.startswith("ffn") else "Q8_0"
    )
    header = read_gguf_header(file)
    matrices = [m for m in stored_weights(header).matrices if ".ffn_" in m.name]
    assert len(matrices) == 6
    raw = {tensor.name: tensor for tensor in gguf.GGUFReader(str(file)).tensors}
    for matrix in matrices:
        rows = matrix.read()
        assert isinstance(rows, GridValues) and matrix.form == "MXFP4 (held as int8)"
        stored = raw[matrix.name]
        numbers = gguf.quants.dequantize(stored.data, stored.tensor_type)
        assert np.array_equal(rows.numbers().numpy(), numbers)
