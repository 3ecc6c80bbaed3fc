"""Checkpoints that are quantized already: bundles hold their numbers, and say which they couldn't keep."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers")
pytest.importorskip("gguf")
pytest.importorskip("accelerate")

import gguf
from safetensors.torch import load_file

from edgecompile.backends.operators import ops
from edgecompile.errors import UsageError
from edgecompile.export.store import ExportStore
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.loaders.load import load_model
from edgecompile.models.language_texts import language_texts
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.options import LoadOptions
from edgecompile.models.stored import StoredWeights
from edgecompile.pipeline.build import build
from edgecompile.pipeline.result import BuildResult
from edgecompile.planning.request import PlanRequest
from edgecompile.planning.subject import Subject
from edgecompile.precision import FP32
from edgecompile.quantization.checkpoint import CheckpointPrecision, keep_checkpoint
from edgecompile.quantization.judged import JudgedModel
from edgecompile.quantization.language_choice import resolve
from edgecompile.runtime import open_bundle
from edgecompile.targets.profile import load_target
from tests.factories.gguf_files import write_gguf
from tests.factories.packed_folders import pack_awq, pack_compressed, pack_folder, pack_gptq
from tests.quantization.test_quality import CONTEXT, judged_model, request_for, save_llama

FORMS = {
    **{"attn_q": "Q4_0", "attn_k": "Q4_0", "attn_v": "Q8_0", "ffn_gate": "Q4_1", "ffn_up": "Q4_1"},
    **{"attn_output": "F16", "ffn_down": "BF16", "token_embd": "Q8_0", "output": "Q5_0"},
}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> tuple[LoadedModel, JudgedModel]:
    folder = tmp_path_factory.mktemp("mixed")
    file = write_gguf(folder / "mixed.gguf", FORMS.__getitem__)
    model = load_model(file, LoadOptions(max_context=CONTEXT)).with_longest(16)
    return model, judged_model(model, language_texts(model, None), folder)


@pytest.fixture(scope="module")
def found(mixed: tuple[LoadedModel, JudgedModel]) -> CheckpointPrecision:
    model, judged = mixed
    assert model.stored is not None
    return keep_checkpoint(judged.program, model.module, model.stored)


def test_what_products_can_read_is_kept_and_the_rest_is_said(found: CheckpointPrecision) -> None:
    assert found.kept == {"Q4_0": 4, "Q4_1": 4, "Q8_0": 2, "F16": 2, "BF16": 2}
    assert found.rounded == {"Q5_0": 1}
    kept, rounded = found.notes
    assert kept.endswith(
        "keep the GGUF checkpoint's numbers: 2 in BF16, 2 in F16, 4 in Q4_0, 4 in Q4_1, 2 in Q8_0"
    )
    assert rounded.endswith("rounded to int8 again: 1 in Q5_0")
    wider = dict(found.precision.kept)
    assert found.precision.name == "int4"
    assert {name.split(".")[-2]: of for name, of in wider.items()} == {
        **dict.fromkeys(("q_proj", "k_proj", "v_proj", "lm_head"), "int8"), "o_proj": "fp32", "down_proj": "bf16",
    }  # fmt: skip


def test_kept_numbers_are_the_models_bit_for_bit(
    mixed: tuple[LoadedModel, JudgedModel], found: CheckpointPrecision
) -> None:
    program = mixed[1].program
    changed = []
    for attr, (names, exact) in program.products.items():
        value = program.kept_value(attr, found.precision)
        if not torch.equal(value, exact):
            changed += names
    assert len(changed) == 1 and "lm_head" in changed[0]
    assert mixed[1].quality(found.precision).mean_kl < 1e-3


def test_a_checkpoint_of_floats_stays_wide(mixed: tuple[LoadedModel, JudgedModel]) -> None:
    model, judged = mixed
    assert model.stored is not None
    floats = [m for m in model.stored.matrices if m.form in ("F16", "BF16")]
    few = keep_checkpoint(judged.program, model.module, StoredWeights("GGUF", floats))
    # What isn't found is rounded.
    assert few.rounded == {"a form that isn't told": 11}
    assert few.precision.name == "int8" and set(dict(few.precision.kept).values()) == {
        "bf16",
        "fp32",
    }


@pytest.mark.parametrize("method", ["gptq", "awq", "compressed-tensors"])
def test_packed_folders_keep_their_numbers(tmp_path: Path, method: str) -> None:
    pack = {"gptq": pack_gptq, "awq": pack_awq, "compressed-tensors": pack_compressed}[method]
    save_llama(tmp_path / "model", outliers=False)
    pack_folder(tmp_path / "model", method, lambda weight: pack(weight, 32))
    model = load_model(tmp_path / "model", LoadOptions(max_context=CONTEXT)).with_longest(16)
    judged = judged_model(model, language_texts(model, None), tmp_path)
    assert model.stored is not None
    found = keep_checkpoint(judged.program, model.module, model.stored)
    assert found.kept == {"4 bits": 14, "F16": 1} and not found.rounded
    assert found.precision.name == "int4"
    assert set(dict(found.precision.kept).values()) == {"fp32"}
    for attr, (_, exact) in judged.program.products.items():
        assert torch.equal(judged.program.kept_value(attr, found.precision), exact)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, BuildResult]:
    folder = tmp_path_factory.mktemp("built")
    forms = {"ffn_down": "Q4_1", "token_embd": "Q8_0", "output": ""}
    (folder / "model").mkdir()
    file = write_gguf(folder / "model" / "tiny.gguf", lambda name: forms.get(name, "Q4_0"))
    return file, build(request_for(file.parent, folder / "tiny.ecb"))


def rows_of(matrix: Tensor) -> set[bytes]:
    return {(row + 0.0).numpy().tobytes() for row in matrix}


def test_a_bundle_holds_the_files_numbers(built: tuple[Path, BuildResult]) -> None:
    file, result = built
    assert result.verify is not None and result.verify.ok
    manifest = json.loads((result.bundle_path / "manifest.json").read_bytes())
    assert manifest["plan"]["quality"]["bound"] == 1.002
    stored = set()
    weights = load_file(result.bundle_path / manifest["weights"][manifest["precision"]])
    for name, tensor in weights.items():
        if tensor.dtype in (torch.uint8, torch.int8) and tensor.dim() == 2:
            k = 96 if "down_proj" in name else 64
            stored |= rows_of(ops.unpack_weight(tensor, 32 * tensor.shape[0], k))
    # The table of tokens is the head's packed weight.
    assert not any(
        tensor.dtype == torch.float32 and tensor.dim() > 1 for tensor in weights.values()
    )
    matrices = [t for t in gguf.GGUFReader(file).tensors if len(t.shape) == 2]
    assert len(matrices) == 15
    for matrix in matrices:
        numbers = torch.from_numpy(gguf.quants.dequantize(matrix.data, matrix.tensor_type))
        assert rows_of(numbers) <= stored, matrix.name
    assert any("12 in Q4_0, 2 in Q4_1, 1 in Q8_0" in note for note in result.notes)


def test_a_bundle_of_a_file_chats(built: tuple[Path, BuildResult]) -> None:
    with open_bundle(built[1].bundle_path) as model:
        assert model.complete("the thin", max_new_tokens=4) is not None


def subject_of(model: LoadedModel, work: Path, precision: str | None, target: str) -> Subject:
    exports = ExportStore(model, work)
    traffic = LengthDistribution.from_samples([3, 9])
    request = PlanRequest(lengths=traffic, max_length=16, precision=precision)
    return Subject(exports, exports, load_target(target), request, request, work)


def test_another_precision_says_that_the_numbers_change(
    mixed: tuple[LoadedModel, JudgedModel], tmp_path: Path
) -> None:
    subject = subject_of(mixed[0], tmp_path, "fp32", "cpu-x86-64-v3")
    assert resolve(subject).precision == FP32
    assert any("own numbers aren't kept: `precision` is fp32" in note for note in subject.notes)


@pytest.mark.parametrize(
    ("target", "precision"), [("cpu-x86-64-v3", "checkpoint"), ("cuda-sm90", "fp16")]
)
def test_a_checkpoint_keeps_its_numbers_on_cpus_unless_told_otherwise(
    mixed: tuple[LoadedModel, JudgedModel], tmp_path: Path, target: str, precision: str
) -> None:
    assert subject_of(mixed[0], tmp_path, None, target).precision == precision
    assert subject_of(mixed[0], tmp_path, "int8", target).precision == "int8"
    plain = replace(mixed[0], stored=None)
    assert subject_of(plain, tmp_path, None, target).precision in ("fp32", "fp16")


def test_a_model_of_floats_has_no_numbers_to_keep(tmp_path: Path) -> None:
    save_llama(tmp_path / "floats")
    request = request_for(tmp_path / "floats", tmp_path / "a.ecb", precision="checkpoint")
    with pytest.raises(UsageError, match="keeps the numbers of quantized checkpoints") as refused:
        build(request)
    assert refused.value.hint == "leave it out"
