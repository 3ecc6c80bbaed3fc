"""int8 weights that are rounded for the inputs that they meet."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor

from edgecompile.backends.cpu.lowering.lower import lower_graph
from edgecompile.backends.operators import ops
from edgecompile.errors import CompileError
from edgecompile.export.store import ExportStore
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.loaders.load import load_model
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.samples import Samples, SampleTexts, draw_samples, text_samples
from edgecompile.planning.request import PlanRequest
from edgecompile.planning.subject import Subject, make_subject
from edgecompile.precision import Precision
from edgecompile.quantization import files, gptq
from edgecompile.quantization.calibrated import _samples, can_round, round_for
from edgecompile.quantization.files import load_precision, save_precision
from edgecompile.quantization.gptq import (
    Grid,
    RoundedWeights,
    hash_matrix,
    mix_rounded,
    round_matrix,
    round_products,
    round_to_grid,
)
from edgecompile.targets.profile import load_target
from tests.quantization.quantized import narrowed_program

LENGTHS = LengthDistribution.from_samples([2, 3, 5, 8, 8, 16])


def correlated_rows(count: int, k: int, seed: int) -> Tensor:
    """Rows that a few directions make up, as a transformer's hidden states are."""
    generator = torch.Generator().manual_seed(seed)
    directions = torch.randn(8, k, generator=torch.Generator().manual_seed(k))
    rows = torch.randn(count, 8, generator=generator) @ directions
    return rows + 0.1 * torch.randn(count, k, generator=generator)


@pytest.mark.parametrize("precision", ["int8", "int4"])
@pytest.mark.parametrize(("n", "k"), [(40, 200), (64, 64), (20, 31), (33, 130)])
def test_results_differ_less_than_with_the_nearest(n: int, k: int, precision: str) -> None:
    weight = torch.randn(n, k, generator=torch.Generator().manual_seed(n))
    seen, unseen = (correlated_rows(400, k, seed).to(torch.float64) for seed in (1, 2))
    exact = weight.to(torch.float64)

    def error(packed: Tensor) -> float:
        kept = ops.unpack_weight(packed, n, k).to(torch.float64)
        return float((unseen @ (kept - exact).t()).square().mean())

    rounded = round_matrix(weight, seen.t() @ seen, precision)
    nearest = ops.pack_weight(weight, precision)
    assert rounded.shape == nearest.shape and rounded.dtype == nearest.dtype
    assert error(rounded) < (0.5 if k > 64 else 0.95) * error(nearest)
    # A weight moves by little more than a step, never to another value altogether.
    moved = (ops.unpack_weight(rounded, n, k) - weight).abs().amax()
    assert float(moved) < 8 * float(weight.abs().amax()) / (127 if precision == "int8" else 15)


def test_inputs_that_have_nothing_in_common_leave_the_nearest() -> None:
    weight = torch.randn(50, 150, generator=torch.Generator().manual_seed(0))
    nearest = ops.pack_weight(weight, "int8")
    assert torch.equal(round_matrix(weight, 3 * torch.eye(150, dtype=torch.float64)), nearest)
    # Nor do inputs that were always zero tell anything.
    assert torch.equal(round_matrix(weight, torch.zeros(150, 150, dtype=torch.float64)), nearest)


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_zeros_stay_zeros(precision: str) -> None:
    weight = torch.zeros(32, 128)
    rows = correlated_rows(50, 128, 0).to(torch.float64)
    assert not ops.unpack_weight(round_matrix(weight, rows.t() @ rows, precision), 32, 128).any()


def test_each_product_has_its_own_precision() -> None:
    weights = {name: torch.ones(32, 64) for name in ("a", "b", "c")}
    of = {"a": "int4", "b": "int8", "c": "bf16"}
    moments = dict.fromkeys(weights, torch.eye(64, dtype=torch.float64))
    [rounded] = round_products(weights, lambda names: moments, precisions=[of])
    assert {name: t.dtype for name, t in rounded.packed.items()} == {
        "a": torch.uint8,
        "b": torch.int8,
    }
    # What was rounded to another precision is no stand-in.
    for name, precision in (("a", "int8"), ("b", "int4"), ("a", "fp32"), ("c", "bf16")):
        assert rounded.take(name, weights[name], precision) is None
    assert rounded.take("a", weights["a"], "int4") is rounded.packed["a"]


def test_one_pass_rounds_for_several_precisions_which_mix() -> None:
    weights = {name: correlated_rows(32, 64, seed) for seed, name in enumerate("abc")}
    both = [
        {"a": "int8", "b": "int8", "c": "int8"},
        {"a": "int4", "b": "int4", "c": "int8"},
    ]
    asked: list[list[str]] = []

    def moments(names: list[str]) -> dict[str, Tensor]:
        asked.append(names)
        return dict.fromkeys(names, torch.eye(64, dtype=torch.float64))

    wide, narrow = round_products(weights, moments, precisions=both)
    assert asked == [["a", "b", "c"]]
    for of, rounded in zip(both, (wide, narrow), strict=True):
        assert [rounded] == round_products(weights, moments, precisions=[of])
    assert narrow.packed["c"] is wide.packed["c"]  # rounded once
    mixed = mix_rounded({"a": "int4", "b": "int8", "c": "bf16"}, [narrow, wide])
    assert mixed is not None
    assert mixed.packed == {"a": narrow.packed["a"], "b": wide.packed["b"]}
    assert mixed.take("b", weights["b"], "int8") is wide.packed["b"]
    assert mix_rounded({}, []) is None


def test_scales_beyond_half_precision_are_left_to_packing() -> None:
    """Which makes the results of such a block NaN, and of no other one."""
    weights = {name: torch.ones(32, 128) for name in ("good", "large")}
    weights["large"][3, 40] = 1e6
    moments = dict.fromkeys(weights, torch.eye(128, dtype=torch.float64))
    of = dict.fromkeys(weights, "int4")
    [rounded] = round_products(weights, lambda names: moments, precisions=[of])
    assert list(rounded.packed) == ["good"]
    kept = ops.unpack_weight(ops.pack_weight(weights["large"], "int4"), 32, 128)
    assert int(kept.isnan().sum()) == 32 and bool(kept[3, 32:64].isnan().all())


def test_what_cant_be_rounded_is_left_to_packing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgecompile.quantization.gptq._MOMENTS_BYTES", 8 * 64 * 64)
    weights = {name: torch.ones(32, 64) for name in ("good", "inputs", "weights", "of no rows")}
    weights["weights"][3, 4] = torch.inf
    asked, told = [], []

    def moments(names: list[str]) -> dict[str, Tensor]:
        asked.append(names)
        found = {name: torch.eye(64, dtype=torch.float64) for name in names}
        if "inputs" in found:
            found["inputs"][0, 0] = torch.nan
        if "of no rows" in found:
            found["of no rows"] *= -1
        return found

    [rounded] = round_products(weights, moments, told.append)
    assert sorted(rounded.packed) == ["good"]
    assert asked == [["good"], ["inputs"], ["weights"], ["of no rows"]]  # as memory allows
    assert told == [1, 2, 3, 4]


def test_a_work_folder_keeps_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ones = torch.ones(32, 64)
    origins = {"ecpack_a": hash_matrix(ones)}
    rounded = RoundedWeights({"ecpack_a": ops.pack_weight(ones, "int8")}, origins, "texts")
    precision = Precision("int8", (("b", "bf16"),), rounded)
    save_precision(tmp_path, precision)
    again = load_precision(tmp_path)
    assert again == precision and again.label == precision.label
    assert again != Precision("int8", (("b", "bf16"),))
    assert again != Precision(
        "int8", (("b", "bf16"),), RoundedWeights(rounded.packed, {"ecpack_a": "00"})
    )
    assert json.loads((tmp_path / "precision.json").read_text())["rounded"] == rounded.digest
    other = RoundedWeights({"ecpack_a": rounded.packed["ecpack_a"] + 1}, origins)
    other.save(tmp_path / "rounded.npz")
    with pytest.raises(CompileError, match="isn't what the precision was chosen with"):
        load_precision(tmp_path)
    for damaged in (b"", b"PK\x03\x04 and no more", b"\x80\x04."):
        (tmp_path / "rounded.npz").write_bytes(damaged)
        with pytest.raises(CompileError, match=r"rounded\.npz can't be read"):
            load_precision(tmp_path)
    (tmp_path / "rounded.npz").unlink()
    with pytest.raises(CompileError, match=r"rounded\.npz can't be read"):
        load_precision(tmp_path)
    rounded.save(tmp_path / "rounded.npz")
    save_precision(tmp_path, precision)
    with monkeypatch.context() as patch, pytest.raises(OSError, match="disk is full"):
        patch.setattr(files, "write_json", Mock(side_effect=OSError("the disk is full")))
        save_precision(tmp_path, Precision("bf16"))
    assert load_precision(tmp_path) == precision  # what was not replaced is still whole
    save_precision(tmp_path, Precision("bf16"))
    assert load_precision(tmp_path) == Precision("bf16")
    assert not (tmp_path / "rounded.npz").exists()


def test_another_models_weights_arent_taken(tmp_path: Path) -> None:
    """Of the same names: a model that was trained on since the plan was made, say."""
    axes = {"length": torch.export.Dim("length", max=8)}

    def module(seed: int) -> torch.nn.Module:
        torch.manual_seed(seed)
        return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU())

    def lowered(seed: int, precision: Precision) -> torch.fx.GraphModule:
        example = (torch.ones(2, 64),)
        shapes = ({0: axes["length"]},)
        graph = torch.export.export(module(seed), example, dynamic_shapes=shapes).module()
        assert isinstance(graph, torch.fx.GraphModule)
        report = lower_graph(graph, precision)
        assert list(report.narrowed.values()) == ["int8"]
        return graph

    name = next(n for n, _ in lowered(0, Precision("int8")).named_buffers() if "ecpack" in n)
    weight = module(0).get_parameter("0.weight").detach()
    packed = round_matrix(weight, torch.full((64, 64), 0.9, dtype=torch.float64))
    assert not torch.equal(packed, ops.pack_weight(weight, "int8"))
    precision = Precision("int8", (), RoundedWeights({name: packed}, {name: hash_matrix(weight)}))
    assert torch.equal(lowered(0, precision).get_buffer(name), packed)
    with pytest.raises(CompileError, match="had other values"):
        lowered(1, precision)


def test_a_programs_products_are_rounded_for_its_inputs(tmp_path: Path) -> None:
    model = load_model("tests.factories.tiny_models:masked_mlp")
    samples = draw_samples(model, LENGTHS, 16)
    program = narrowed_program(model, tmp_path, samples, 16)
    told: list[int] = []
    rounded = program.round_weights([1.0] * len(samples.inputs), told.append)
    assert told == list(range(1, len(program.groups) + 1))
    assert len(rounded.packed) == len(program.groups)
    plain, better = Precision("int8"), Precision("int8", rounded=rounded)
    nearest = program.deviation(plain)
    found = program.deviation(better)
    assert found.error != nearest.error and found.error < 0.06
    # What was tried before doesn't linger, whichever comes first.
    assert program.deviation(plain) == nearest
    assert program.deviation(better) == found


def test_a_program_packs_nothing_and_holds_no_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model("tests.factories.tiny_models:masked_mlp")
    monkeypatch.setattr(ops, "pack_weight", Mock(side_effect=AssertionError("it packs")))
    program = narrowed_program(model, tmp_path, draw_samples(model, LENGTHS, 16), 16)
    own = {weight.data_ptr() for weight in model.module.parameters()}
    assert len(program.products) == len(program.groups) > 1
    for attr, (_, exact) in program.products.items():
        assert program.shape(attr) == tuple(exact.shape)
        assert exact.data_ptr() in own
    with pytest.raises(KeyError):
        program.products["another"]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8", "int4"])
def test_large_weights_are_rounded_in_parts(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(2)
    weight, rows = torch.randn(150, 96), correlated_rows(64, 96, 1).to(torch.float64)
    whole = ops.pack_weight(weight, precision)
    rounded = round_matrix(weight, rows.t() @ rows, precision) if "int" in precision else whole
    monkeypatch.setattr(ops, "_AT_ONCE", 40 * 96)
    monkeypatch.setattr(gptq, "_AT_ONCE", 40 * 96)
    assert torch.equal(ops.pack_weight(weight, precision), whole)
    if "int" in precision:
        assert torch.equal(round_matrix(weight, rows.t() @ rows, precision), rounded)


def test_rows_count_what_their_sample_does(tmp_path: Path) -> None:
    """Moments are those of the rows that a product gets; a sample of no share counts nothing."""
    model = load_model("tests.factories.tiny_models:masked_mlp")
    samples = draw_samples(model, LENGTHS, 16)
    program = narrowed_program(model, tmp_path, samples, 16)
    attrs = list(program._names)
    ones = program._gather(attrs, [1.0] * len(samples.inputs))
    first = program._gather(attrs, [2.0] + [0.0] * (len(samples.inputs) - 1))
    one = Samples(samples.inputs[:1], samples.lengths[:1], "one of them")
    alone = narrowed_program(model, tmp_path, one, 16)._gather(attrs, [1.0])
    for attr in attrs:
        assert float(ones[attr].diagonal().sum()) > float(alone[attr].diagonal().sum()) > 0
        torch.testing.assert_close(first[attr], 2 * alone[attr])
        assert torch.linalg.matrix_rank(alone[attr]) <= samples.lengths[0]


def subject(model: LoadedModel, request: PlanRequest, folder: Path) -> Subject:
    exports = ExportStore(model, folder)
    return make_subject(exports, load_target("cpu-x86-64-v3"), request, folder)


def test_what_cant_be_rounded_is_packed_to_the_nearest(tmp_path: Path) -> None:
    request = PlanRequest(LENGTHS, max_length=16, mode="exact", threads=1)
    without_products = load_model("tests.factories.tiny_models:unmasked_mean")
    assert can_round(without_products)
    assert round_for(subject(without_products, request, tmp_path)) is None
    masked = load_model("tests.factories.tiny_models:masked_mlp")
    assert can_round(masked)
    assert not can_round(replace(masked, length_axis=None))
    # What a program of one length pads inputs with would count like them.
    padded = replace(request, mode="pad")
    assert round_for(subject(masked, padded, tmp_path)) is None
    assert not list(tmp_path.glob("*.npz"))


def test_weights_arent_rounded_for_what_judges_them(tmp_path: Path, tiny_model: Path) -> None:
    model = load_model(str(tiny_model))
    file = tmp_path / "texts.txt"
    file.write_text("the cat sat\non a mat\na cat and a day\n")
    texts = SampleTexts(file, tiny_model / "tokenizer.json")
    judges = text_samples(model, texts, 16, count=2)
    assert judges is not None and len(judges.inputs) == 2
    request = PlanRequest(LENGTHS, max_length=16, mode="exact", threads=1, texts=texts)
    asked = subject(model, request, tmp_path)
    found = _samples(asked, judges)[0]
    assert found.source == "1 of 3 texts of texts.txt and 8 drawn inputs of all lengths"
    for judge in judges.inputs:
        assert not any(np.array_equal(judge["input_ids"], i["input_ids"]) for i in found.inputs)
    everything = text_samples(model, texts, 16)
    drawn, shares = _samples(asked, everything)
    assert drawn.source == (
        "8 drawn inputs of the traffic's lengths and 8 drawn inputs of all lengths"
    )
    # Either half counts the same, however many rows it has.
    halves = [sum(s * n for s, n in zip(shares[i], drawn.lengths[i], strict=True))
              for i in (slice(8), slice(8, 16))]  # fmt: skip
    assert halves == pytest.approx([1, 1])


def test_what_was_rounded_before_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model("tests.factories.tiny_models:masked_mlp")
    request = PlanRequest(LENGTHS, max_length=16, mode="exact", threads=1)
    asked = subject(model, request, tmp_path)
    seeded = replace(asked, request=replace(request, seed=1))
    first = round_for(asked)
    other = round_for(seeded)
    assert first is not None and other is not None and first != other
    assert "drawn inputs" in first.inputs
    monkeypatch.setattr("edgecompile.quantization.program.QuantizedProgram.round_weights", None)
    again = round_for(seeded)
    assert again == other and again is not None and again.inputs == other.inputs
    (kept,) = tmp_path.glob("gptq-*.npz")  # of the last inputs alone
    monkeypatch.undo()
    kept.write_bytes(kept.read_bytes()[:100])
    assert round_for(seeded) == other


@pytest.mark.parametrize("minimum", [False, True])
@pytest.mark.parametrize(("bits", "block"), [(4, 32), (4, 64), (8, 32)])
def test_a_grid_of_fewer_bits(bits: int, block: int, minimum: bool) -> None:
    grid = Grid(bits, block, minimum, torch.float16)
    weight = torch.randn(24, 150, generator=torch.Generator().manual_seed(1)) + 0.2
    rows = correlated_rows(400, 150, 1).to(torch.float64)

    def kept(moments: Tensor) -> Tensor:
        found = round_to_grid(weight, moments, grid)
        assert found.scales.dtype == torch.float16 and found.scales.shape == (24, -(-150 // block))
        assert (found.minimums is not None) == minimum
        values = found.values.to(torch.float64)
        if minimum and bits == 8:
            values += 128
        low, high = grid.limits
        assert low <= int(values.min()) and int(values.max()) <= high
        assert int(values.max()) - int(values.min()) > (high - low) * 0.8  # all bits are used
        spread = [
            t.to(torch.float64).repeat_interleave(block, 1)[:, :150]
            for t in (
                found.scales,
                torch.zeros_like(found.scales) if found.minimums is None else found.minimums,
            )
        ]
        return values * spread[0] + spread[1]

    exact, unseen = weight.to(torch.float64), correlated_rows(400, 150, 2).to(torch.float64)
    nearest, rounded = kept(torch.eye(150, dtype=torch.float64)), kept(rows.t() @ rows)
    step = float(weight.abs().amax()) / (1 << (bits - 1))
    cut_off = (
        0.3 * 8 if bits == 4 and not minimum else 0
    )  # at most, where finer steps are worth more
    assert float((nearest - exact).abs().amax()) < (1.2 + cut_off) * step
    errors = [float((unseen @ (w - exact).t()).square().mean()) for w in (rounded, nearest)]
    assert errors[0] < 0.5 * errors[1]
