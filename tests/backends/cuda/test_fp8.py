"""Products of fp8 in programs for a GPU: the graph on the CPU, and the kernels that multiply."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("triton")

from edgecompile.backends.cuda import device_free, requirements
from edgecompile.backends.cuda.cubins import assemble, audit_kernels
from edgecompile.backends.cuda.gemm.row_tiles import TileChooser
from edgecompile.backends.cuda.lowering import fp8
from edgecompile.backends.cuda.lowering.lower import lower_for_gpu
from edgecompile.backends.lowering.rewriting import LoweringReport
from edgecompile.precision import COSINES, TOLERANCES
from edgecompile.targets.gpu import GpuFacts

L4 = GpuFacts(89, 58, 99 << 10, 1536, 48 << 20)
H100 = GpuFacts(90, 132, 227 << 10, 2048, 50 << 20)


class Layer(nn.Module):
    """A table, query, key and value, attention, GELU, two norms, residual sums, and a last product."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(100, 64)
        self.q, self.k, self.v = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 64)
        self.out = nn.Linear(64, 64, bias=False)
        self.first, self.norm = nn.LayerNorm(64), nn.LayerNorm(64)
        self.wide, self.back = nn.Linear(64, 256), nn.Linear(256, 64)
        self.head = nn.Linear(64, 112, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.first(self.table(ids))
        q, k, v = (
            part(x).unflatten(-1, (2, 32)).transpose(1, 2) for part in (self.q, self.k, self.v)
        )
        a = nn.functional.scaled_dot_product_attention(q, k, v)
        y = self.norm(x + self.out(a.transpose(1, 2).flatten(2)))
        return self.head(y + self.back(nn.functional.gelu(self.wide(y))))


def lowered(module: nn.Module, length: int) -> tuple[Any, LoweringReport, Tensor, Tensor]:
    """The graph, its report, its inputs, and what the model makes of them."""
    ids = torch.arange(3, 3 + length)[None]
    size = torch.export.Dim("length", min=2, max=64)
    shapes = {"ids": {1: size}} if length > 1 else None
    with torch.no_grad():
        program = torch.export.export(module.eval(), (), {"ids": ids}, dynamic_shapes=shapes)
        graph = program.module()
        report = lower_for_gpu(graph, H100, "fp8")
        return graph, report, ids, module(ids)


def constants(graph: Any) -> dict[str, Tensor]:
    return dict([*graph.named_parameters(), *graph.named_buffers()])


@pytest.mark.parametrize("length", [1, 9, 30])
def test_the_graph_is_within_the_bounds(length: int) -> None:
    torch.manual_seed(0)
    graph, report, ids, want = lowered(Layer(), length)
    got = graph(ids=ids)
    assert got.dtype == torch.float32
    error = (got - want).abs().max()
    assert error <= TOLERANCES["fp8"].limit(float(want.abs().max()))
    assert nn.functional.cosine_similarity(got.flatten(), want.flatten(), 0) >= COSINES["fp8"]
    # Less than int8 rounds would mean that nothing was rounded.
    assert error > 5e-3 * want.abs().max()
    # Query, key and value are one.
    assert report.counts["fp8"] == 3
    # What attention gives, and GELU: for one row, too, as programs share matrices.
    assert list(report.kept.values()) == ["rounding its rows would cost more than it saves"] * 2


def test_matrices_are_e4m3_with_a_scale_for_each_output() -> None:
    graph, *_ = lowered(Layer(), 9)
    found = constants(graph)
    narrow = {name: t for name, t in found.items() if t.dtype == torch.float8_e4m3fn}
    assert {tuple(t.shape) for t in narrow.values()} == {(192, 64), (256, 64), (112, 64)}
    for name, matrix in narrow.items():
        # Every output's largest weight is e4m3's largest number.
        assert (matrix.float().abs().amax(1) == 448).all()
        assert found[name.replace("_fp8_", "_scale_")].shape == (1, matrix.shape[0])
    half = ("table", "norm", "out", "back")
    assert all(found[f"{name}.weight"].dtype == torch.float16 for name in half)


class Products(nn.Module):
    """Two products of one table, the first of which has rows and outputs of unlike sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(100, 32)
        self.product = nn.Linear(32, 16, bias=False)
        with torch.no_grad():
            self.product.weight.mul_(10.0 ** -torch.arange(16)[:, None].remainder(4))
            self.table.weight.mul_(10.0 ** -torch.arange(100)[:, None].remainder(5))
            self.table.weight[5] = 0

    def forward(self, ids: Tensor) -> Tensor:
        return self.product(self.table(ids))


def test_each_row_and_each_output_has_its_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fp8, "_LARGE", 0)
    torch.manual_seed(0)
    graph, _, ids, want = lowered(Products(), 20)
    got = graph(ids=ids)
    # A row of zeros stays one.
    assert (got[0, 2] == 0).all() and got.isfinite().all()
    kept = torch.arange(20) != 2
    size = want[0, kept].abs()
    # Half precision keeps 6e-8 at least.
    error = ((got - want)[0, kept].abs() - 1e-7).clamp(min=0)
    assert (error.amax(0) <= 0.1 * size.amax(0)).all()
    assert (error.amax(1) <= 0.1 * size.amax(1)).all()


def test_what_stays_half_precision() -> None:
    class Kept(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(100, 32)
            self.few, self.odd, self.flat = nn.Linear(32, 3), nn.Linear(32, 40), nn.Linear(16, 32)

        def forward(self, ids: Tensor) -> tuple[Tensor, ...]:
            x = self.table(ids)
            y = nn.functional.gelu(x)
            return (
                nn.functional.linear(x, self.table.weight),
                self.few(x),
                self.odd(y),
                self.flat(x[..., :16]),
            )

    graph, report, *_ = lowered(Kept(), 9)
    assert all(t.dtype == torch.float16 for t in constants(graph).values())
    assert sorted(report.kept.values()) == [
        "its matrix is small",
        "its matrix is small",
        "its sizes aren't multiples of 16",
        "something else reads its matrix, too",
    ]


@pytest.mark.parametrize(
    ("length", "gpu"),
    [
        (30, H100),
        pytest.param(1, H100, marks=pytest.mark.slow),
        pytest.param(30, L4, marks=pytest.mark.slow),
    ],
)
def test_kernels_read_e4m3(
    gpu: GpuFacts, length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products multiply it; a single row's are sums. Rows are rounded where their norm is computed."""
    monkeypatch.setattr(fp8, "_LARGE", 0)
    graph, _, ids, _ = lowered(Layer(), length)
    program = device_free.move_to_gpu(graph, {"ids": ids})
    ptxas = requirements.find_ptxas()
    raw = device_free.run_inductor(program, gpu, TileChooser(gpu), tmp_path, ptxas)
    assert sum(t.dtype == torch.float8_e4m3fn for t in raw.constants.values()) == 5
    products = [
        kernel
        for kernel in raw.kernels
        if "tl.dot(" in kernel.source and "attention" not in kernel.name
    ]
    rounding = [kernel for kernel in raw.kernels if ".to(tl.float8e4nv)" in kernel.source]
    if length > 1:
        assert len(products) == 5
        assert sum("norm" in kernel.name for kernel in rounding) >= 2
        # Rounded once each: two norms, what attention gives, GELU, and the last sum.
        assert len(rounding) == 5 and not any(kernel in products for kernel in rounding)
    else:
        assert not products and not rounding
    assembled = assemble(raw.kernels, [gpu.compute_capability], ptxas)
    verdict = audit_kernels(assembled, gpu, "test")
    assert not [finding for finding in verdict.findings if finding.severity == "error"]
