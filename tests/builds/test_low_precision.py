"""Narrow weights: their layout, what products make of them, and what lowering says it did."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from edgecompile.backends.artifact import TensorStore
from edgecompile.backends.cpu.lowering.lower import lower_graph
from edgecompile.backends.lowering.rewriting import LoweringReport
from edgecompile.backends.operators import ops
from edgecompile.bundle.weights import write_weights
from edgecompile.errors import CompileError
from edgecompile.precision import Precision
from edgecompile.runtime.format.dtypes import BY_NAME
from edgecompile.runtime.format.files.weights import Weights
from tests.native.kernels.narrow import RowSteps, quantize_rows

SHAPES = [(1, 1), (31, 7), (32, 8), (33, 5), (64, 96), (70, 101)]


def linear(x: Tensor, packed: Tensor, n: int, bias: Tensor | None = None, act: int = 0) -> Tensor:
    return ops.LINEAR(x, packed, bias, None, n, act, False)


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_bf16_pairs_stand_side_by_side(n: int, k: int) -> None:
    weight = torch.randn(n, k)
    packed = ops.pack_weight(weight, "bf16")
    assert packed.dtype == torch.bfloat16
    assert packed.is_contiguous()
    assert packed.shape == (-(-n // 32), -(-k // 2), 32, 2)
    padded = torch.zeros(packed.shape[0] * 32, packed.shape[1] * 2)
    padded[:n, :k] = weight
    for panel, pair, column, i in np.ndindex(*packed.shape):
        want = padded[32 * panel + column, 2 * pair + i].to(torch.bfloat16)
        assert packed[panel, pair, column, i] == want
    assert torch.equal(ops.unpack_weight(packed, n, k), weight.to(torch.bfloat16).float())


@pytest.mark.parametrize(("n", "k"), [*SHAPES, (33, 192), (5, 0)])
def test_int8_panels_hold_values_and_scales_by_block(n: int, k: int) -> None:
    weight = torch.randn(n, k) * torch.rand(n, 1)
    packed = ops.pack_weight(weight, "int8")
    blocks, panels = -(-k // 64), -(-n // 32)
    assert packed.dtype == torch.int8
    assert packed.is_contiguous()
    assert packed.shape == (panels, -(-k // 4) * 128 + blocks * 128)
    for panel, block in np.ndindex(panels, blocks):
        width = min(64, k - 64 * block)
        groups = -(-width // 4)
        raw = packed[panel].numpy()[block * (16 * 128 + 128) :][: groups * 128 + 128]
        values = raw[: groups * 128].reshape(groups, 32, 4)
        scales = raw[groups * 128 :].view("<f4")
        columns = values.transpose(1, 0, 2).reshape(32, groups * 4).astype(np.int32)
        for column in range(32):
            index = 32 * panel + column
            if index >= n:
                assert scales[column] == 0
                assert not columns[column].any()
                continue
            row = weight[index, 64 * block :][:width].numpy()
            assert np.abs(columns[column]).max() == 127
            assert scales[column] == pytest.approx(np.abs(row).max() / 127, rel=1e-6)
            assert not columns[column, width:].any()
            error = np.abs(scales[column] * columns[column, :width] - row).max()
            assert error <= scales[column] * 0.5001
    unpacked = ops.unpack_weight(packed, n, k)
    assert unpacked.shape == (n, k)
    if k:
        assert (unpacked - weight).abs().max() <= weight.abs().max() / 253


@pytest.mark.parametrize(("n", "k"), [*SHAPES, (33, 192), (5, 0), (4, 97)])
def test_int4_panels_hold_two_values_a_byte_and_scales_of_32(n: int, k: int) -> None:
    weight = torch.randn(n, k) * torch.rand(n, 1)
    packed = ops.pack_weight(weight, "int4")
    blocks, panels = -(-k // 64), -(-n // 32)
    assert packed.dtype == torch.uint8 and packed.is_contiguous()
    assert packed.shape == (panels, blocks * 1152)
    wanted = np.zeros((panels * 32, blocks * 64), np.float32)
    wanted[:n, :k] = weight.numpy()
    for panel, block, half in np.ndindex(panels, blocks, 2):
        raw = packed[panel].numpy()[block * 1152 :][:1152]
        bytes_ = raw[:1024].reshape(8, 32, 4)
        scales = raw[1024:].view("<f2").reshape(2, 32)[half].astype(np.float64)
        columns = (bytes_ >> 4 * half & 15).transpose(1, 0, 2).reshape(32, 32).astype(int) - 8
        own = wanted[32 * panel :, 64 * block + 32 * half :][:32, :32]
        most = np.maximum(own.max(1) / 7, own.min(1) / -8)
        np.testing.assert_allclose(scales, most, rtol=2**-11)
        # Scales are rounded, so that the largest value may lie a little beyond the grid.
        assert (np.abs(scales[:, None] * columns - own) <= 0.505 * scales[:, None]).all()
        assert not columns[most == 0].any()
    unpacked = ops.unpack_weight(packed, n, k)
    assert unpacked.shape == (n, k)
    if k:
        assert (unpacked - weight).abs().max() <= 0.51 * weight.abs().max() / 7


@pytest.mark.parametrize(
    ("precision", "cosine"), [("bf16", 0.99999), ("int8", 0.9999), ("int4", 0.99)]
)
@pytest.mark.parametrize("bias", [True, False])
def test_products_are_near_those_of_float32(precision: str, cosine: float, bias: bool) -> None:
    x, weight = torch.randn(3, 5, 200), torch.randn(70, 200)
    vector = torch.randn(70) if bias else None
    residual = torch.randn(3, 5, 70)
    want = nn.functional.gelu(nn.functional.linear(x, weight, vector)) + residual
    packed = ops.pack_weight(weight, precision)
    got = ops.LINEAR(x, packed, vector, residual, 70, ops.ACTIVATIONS["gelu_erf"], False)
    assert got.dtype == torch.float32
    assert torch.cosine_similarity(got.flatten(), want.flatten(), 0) > cosine


def test_rounding_activations_adds_about_what_rounding_weights_does() -> None:
    x, weight = torch.randn(40, 384), torch.randn(64, 384)
    packed = ops.pack_weight(weight, "int8")
    only_weights = x @ ops.unpack_weight(packed, 64, 384).T
    exact = x @ weight.T
    added = (linear(x, packed, 64) - only_weights).norm()
    assert 0.5 < added / (only_weights - exact).norm() < 1.5


def test_an_outlier_does_not_drown_its_block() -> None:
    """Just under the bound a block is rounded by 127ths of its largest value, just over it by far less."""
    x = torch.randn(2, 320)
    rest = torch.arange(320) != 7
    errors = []
    for crest in (11.5, 12.5):
        # mean square m of the row with an outlier c·sqrt(m): (rest + c²m) / 320 = m
        mean_square = x[:, rest].square().sum(1) / (320 - crest**2)
        x[:, 7] = crest * mean_square.sqrt()
        errors.append((ops.round_activations(x) - x)[:, :64].abs().amax(1))
        others = (ops.round_activations(x) - x)[:, 64:].abs().amax(1)
        assert (others < 4.5 / 127).all()
    assert (errors[0] > 50 * errors[1]).all()


@pytest.mark.parametrize("k", [1, 40, 64, 200])
def test_activations_are_rounded_as_the_kernels_tests_do(k: int) -> None:
    x = torch.randn(50, k)
    x[::7, k // 2] = 1e4
    for steps in (RowSteps.COARSE, RowSteps.SUMS):
        want = torch.from_numpy(quantize_rows(x.numpy(), steps))
        got = ops.round_activations(x, by_sums=steps is RowSteps.SUMS)
        # Single precision in the kernels decides a tie now and then.
        assert ((got - want).abs() < 1e-5 * x.abs().amax(1, keepdim=True)).double().mean() > 0.999
        product = ops.LINEAR(
            x, ops.pack_weight(torch.eye(k), "int8"), None, None, k, 0, steps is RowSteps.SUMS
        )
        torch.testing.assert_close(product, got.float())


def test_rows_of_zeros_and_zero_columns_give_zeros() -> None:
    weight = torch.randn(5, 9)
    weight[2] = 0
    x = torch.randn(3, 9)
    x[1] = 0
    got = linear(x, ops.pack_weight(weight, "int8"), 5)
    assert not got[1].any()
    assert not got[:, 2].any()
    assert got[0].abs().min() >= 0
    assert got.isfinite().all()


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_values_that_arent_finite_are_never_silent(value: float) -> None:
    x, weight = torch.randn(3, 9), torch.randn(5, 9)
    x[1, 4] = value
    for precision in ("bf16", "int8", "int4"):
        got = linear(x, ops.pack_weight(weight, precision), 5)
        assert not got[1].isfinite().any()
        assert got[[0, 2]].isfinite().all()
    weight[2, 3] = value
    for precision in ("int8", "int4"):
        got = linear(torch.randn(3, 9), ops.pack_weight(weight, precision), 5)
        assert got[:, 2].isnan().all()
        assert got[:, [0, 1, 3, 4]].isfinite().all()


@pytest.mark.parametrize("largest", [3e-8, 1e-6, 1e-3, 4e5, 6e5, 1e30])
def test_scales_of_int4_beyond_float16_are_never_silent(largest: float) -> None:
    """Tiny weights lose no more than float16's least step; those whose scale it can't hold are NaN."""
    weight = torch.linspace(-1, 1, 64).reshape(2, 32) * largest
    got = ops.unpack_weight(ops.pack_weight(weight, "int4"), 2, 32)
    if largest > 65504 * 8:
        assert got.isnan().all()
    else:
        assert (got - weight).abs().max() <= 0.51 * largest / 7 + 8 * 2.0**-25


@pytest.mark.parametrize("scale", [1e-44, 1e-38, 1e30])
def test_extreme_weights_keep_their_scale(scale: float) -> None:
    weight = torch.randn(4, 8) * scale
    got = ops.unpack_weight(ops.pack_weight(weight, "int8"), 4, 8)
    assert got.isfinite().all()
    assert (got.double() - weight.double()).abs().max() <= weight.double().abs().max() / 200 + 1e-43


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(32, 32) for _ in range(3))
        self.out = nn.Linear(32, 48)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.out(self.q(x) * self.k(x) + self.v(x)))


def lowered(precision: Precision) -> tuple[torch.fx.GraphModule, LoweringReport, Tensor, Tensor]:
    torch.manual_seed(3)
    module, x = Block().eval(), torch.randn(6, 32)
    graph = torch.export.export(module, (x,), strict=False).module()
    report = lower_graph(graph, precision)
    return graph, report, x, module(x)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("fp32", torch.float32),
        ("bf16", torch.bfloat16),
        ("int8", torch.int8),
        ("int4", torch.uint8),
    ],
)
def test_lowering_packs_in_the_precision(name: str, dtype: torch.dtype) -> None:
    graph, report, x, want = lowered(Precision(name))
    assert report.counts["linears"] == 2
    packed = [getattr(graph, attr) for attr in report.packed]
    assert [tensor.dtype for tensor in packed] == [dtype] * 2
    names = {"q.weight", "k.weight", "v.weight", "out.weight"}
    assert {name for group in report.packed.values() for name in group} == names
    assert report.narrowed == ({} if name == "fp32" else dict.fromkeys(names, name))
    near = 0.3 if name == "int4" else 0.02
    torch.testing.assert_close(graph(x), want, rtol=near, atol=near)


def test_products_of_one_input_take_the_widest_of_their_precisions() -> None:
    _, report, _, _ = lowered(Precision("int8", (("k.weight", "bf16"),)))
    wider = dict.fromkeys(("q.weight", "k.weight", "v.weight"), "bf16")
    assert report.narrowed == {**wider, "out.weight": "int8"}
    _, report, _, _ = lowered(Precision("bf16", (("out.weight", "fp32"),)))
    assert report.narrowed == dict.fromkeys(("q.weight", "k.weight", "v.weight"), "bf16")


@pytest.mark.parametrize("pairs", [False, True])
def test_products_of_int8_alone_may_add_pairs(pairs: bool) -> None:
    graph, _, x, want = lowered(Precision("int8", (("out.weight", "bf16"),), pairs=pairs))
    calls = [node.args[-1] for node in graph.graph.nodes if node.target is ops.LINEAR]
    assert calls == [pairs, False]
    torch.testing.assert_close(graph(x), want, rtol=0.03, atol=0.03)


def test_unlike_precisions_have_unlike_names() -> None:
    mixed = Precision("int8", (("b", "fp32"), ("a", "bf16")))
    assert mixed == Precision("int8", (("a", "bf16"), ("b", "fp32")))
    paired = replace(mixed, pairs=True)
    assert paired != mixed and paired.label == mixed.label
    assert all(Precision.from_json(one.to_json()) == one for one in (mixed, paired))
    labels = {p.label for p in (mixed, Precision("int8"), Precision("int8", (("a", "bf16"),)))}
    assert len(labels) == 3
    assert str(mixed) == "int8, 2 weights in fp32 or bf16"


@pytest.mark.parametrize(
    ("name", "kept", "message"),
    [
        ("fp16", (), "'fp16' is no precision"),
        ("int8", (("a", "int2"),), "'int2' is no precision"),
        ("int8", (("a", "int4"),), "a: what is kept from int8"),
        ("bf16", (("a", "int8"), ("b", "fp32"), ("c", "bf16")), "a, c: what is kept from bf16"),
    ],
)
def test_precisions_that_make_no_sense(
    name: str, kept: tuple[tuple[str, str], ...], message: str
) -> None:
    with pytest.raises(CompileError, match=message):
        Precision(name, kept)


def test_the_weights_file_holds_narrow_tensors(tmp_path: Path) -> None:
    store = TensorStore(tmp_path / "tensors")
    weight = torch.randn(40, 70)
    packed = {name: ops.pack_weight(weight, name) for name in ("fp32", "bf16", "int8", "int4")}
    file = tmp_path / "weights"
    write_weights(file, {name: store.add(tensor) for name, tensor in packed.items()}, store)
    with file.open("rb") as stream:
        weights = Weights(stream.fileno(), "weights")
    for constant in weights.constants:
        tensor = packed[constant.name]
        assert constant.shape == tuple(tensor.shape)
        assert constant.type == BY_NAME[str(tensor.dtype).removeprefix("torch.")]
        raw = tensor.reshape(-1).view(torch.uint8).numpy()
        assert (weights.array(constant.name).reshape(-1).view(np.uint8) == raw).all()
