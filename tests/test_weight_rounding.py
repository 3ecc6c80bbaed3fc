"""int8 weights that are rounded for the inputs that they meet."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from edgecompile.backends import ops
from edgecompile.compilation import ExportStore
from edgecompile.errors import CompileError
from edgecompile.lengths import LengthDistribution
from edgecompile.models import load_model
from edgecompile.narrowing import NarrowedProgram
from edgecompile.plan_request import PlanRequest
from edgecompile.precision import Precision
from edgecompile.ranges import AxisRange, Bucket
from edgecompile.rounded_precision import load_precision, round_for, save_precision
from edgecompile.samples import draw_samples
from edgecompile.weight_rounding import RoundedWeights, round_matrix, round_products

LENGTHS = LengthDistribution.from_samples([2, 3, 5, 8, 8, 16])


def correlated_rows(count: int, k: int, seed: int) -> Tensor:
    """Rows that a few directions make up, as a transformer's hidden states are."""
    generator = torch.Generator().manual_seed(seed)
    directions = torch.randn(8, k, generator=torch.Generator().manual_seed(k))
    rows = torch.randn(count, 8, generator=generator) @ directions
    return rows + 0.1 * torch.randn(count, k, generator=generator)


@pytest.mark.parametrize(("n", "k"), [(40, 200), (64, 64), (20, 31), (33, 130)])
def test_results_differ_less_than_with_the_nearest(n: int, k: int) -> None:
    weight = torch.randn(n, k, generator=torch.Generator().manual_seed(n))
    seen, unseen = (correlated_rows(400, k, seed).to(torch.float64) for seed in (1, 2))
    exact = weight.to(torch.float64)

    def error(packed: Tensor) -> float:
        kept = ops.unpack_weight(packed, n, k).to(torch.float64)
        return float((unseen @ (kept - exact).t()).square().mean())

    rounded = round_matrix(weight, seen.t() @ seen)
    nearest = ops.pack_weight(weight, "int8")
    assert rounded.shape == nearest.shape and rounded.dtype == nearest.dtype
    assert error(rounded) < (0.5 if k > 64 else 0.95) * error(nearest)
    # A weight moves by little more than a step, never to another value altogether.
    moved = (ops.unpack_weight(rounded, n, k) - weight).abs().amax()
    assert float(moved) < 8 * float(weight.abs().amax()) / 127


def test_inputs_that_have_nothing_in_common_leave_the_nearest() -> None:
    weight = torch.randn(50, 150, generator=torch.Generator().manual_seed(0))
    nearest = ops.pack_weight(weight, "int8")
    assert torch.equal(round_matrix(weight, 3 * torch.eye(150, dtype=torch.float64)), nearest)
    # Nor do inputs that were always zero tell anything.
    assert torch.equal(round_matrix(weight, torch.zeros(150, 150, dtype=torch.float64)), nearest)


def test_zeros_stay_zeros() -> None:
    weight = torch.zeros(32, 128)
    rows = correlated_rows(50, 128, 0).to(torch.float64)
    assert not ops.unpack_weight(round_matrix(weight, rows.t() @ rows), 32, 128).any()


def test_what_isnt_finite_is_left_to_packing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgecompile.weight_rounding._MOMENTS_BYTES", 8 * 64 * 64)
    weights = {name: torch.ones(32, 64) for name in ("good", "inputs", "weights", "last")}
    weights["weights"][3, 4] = torch.inf
    asked, told = [], []

    def moments(names: list[str]) -> dict[str, Tensor]:
        asked.append(names)
        found = {name: torch.eye(64, dtype=torch.float64) for name in names}
        if "inputs" in found:
            found["inputs"][0, 0] = torch.nan
        return found

    rounded = round_products(weights, moments, told.append)
    assert sorted(rounded.packed) == ["good", "last"]
    assert asked == [["good"], ["inputs"], ["weights"], ["last"]]  # as memory allows
    assert told == [1, 2, 3, 4]


def test_a_work_folder_keeps_them(tmp_path: Path) -> None:
    rounded = RoundedWeights({"ecpack_a": ops.pack_weight(torch.ones(32, 64), "int8")}, "texts")
    precision = Precision("int8", (("b", "bf16"),), rounded)
    save_precision(tmp_path, precision)
    again = load_precision(tmp_path)
    assert again == precision and again.label == precision.label
    assert again != Precision("int8", (("b", "bf16"),))
    assert json.loads((tmp_path / "precision.json").read_text())["rounded"] == rounded.digest
    other = RoundedWeights({"ecpack_a": rounded.packed["ecpack_a"] + 1})
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
    save_precision(tmp_path, Precision("bf16"))
    assert load_precision(tmp_path) == Precision("bf16")


def test_a_programs_products_are_rounded_for_its_inputs(tmp_path: Path) -> None:
    model = load_model("tests.factories.tiny_models:masked_mlp")
    samples = draw_samples(model, LENGTHS, 16)
    axes = tuple((name, AxisRange(a.lo, a.lo, a.lo)) for name, a in model.axes.items())
    sizes = tuple((n, AxisRange(1, 16, 8)) if n == model.length_axis else (n, r) for n, r in axes)
    exported = ExportStore(model, tmp_path).get(Bucket("exact", sizes))
    wanted = [
        {
            name: tensor.detach().numpy()
            for name, tensor in model.run(
                {name: torch.from_numpy(array) for name, array in inputs.items()}
            ).items()
        }
        for inputs in samples.inputs
    ]
    program = NarrowedProgram(model, exported, samples.inputs, wanted)
    told: list[int] = []
    rounded = program.round_weights(told.append)
    assert told == list(range(1, len(program.groups) + 1))
    assert len(rounded.packed) == len(program.groups)
    plain, better = Precision("int8"), Precision("int8", rounded=rounded)
    nearest = program.deviation(plain)
    found = program.deviation(better)
    assert found.error != nearest.error and found.error < 0.06
    # What was tried before doesn't linger, whichever comes first.
    assert program.deviation(plain) == nearest
    assert program.deviation(better) == found


def test_models_whose_inputs_cant_be_drawn_keep_the_nearest(tmp_path: Path) -> None:
    plain = load_model("tests.factories.tiny_models:unmasked_mean")  # no product
    request = PlanRequest(LENGTHS, max_length=16, mode="exact", threads=1)
    assert round_for(ExportStore(plain, tmp_path), request, None, tmp_path) is None


def test_what_was_rounded_before_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exports = ExportStore(load_model("tests.factories.tiny_models:masked_mlp"), tmp_path)
    request = PlanRequest(LENGTHS, max_length=16, mode="exact", threads=1)
    first = round_for(exports, request, None, tmp_path)
    other = round_for(exports, request, None, tmp_path, seed=1)
    assert first is not None and other is not None and first != other
    assert "drawn inputs" in first.note
    monkeypatch.setattr("edgecompile.narrowing.NarrowedProgram.round_weights", None)
    again = round_for(exports, request, None, tmp_path)
    assert again == first and again is not None and again.note == first.note
    assert len(list(tmp_path.glob("rounding-*.npz"))) == 2
