"""Weights of int8 in programs for a GPU: the graph on the CPU, and the kernels that read them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("triton")

from edgecompile.backends.cuda import device_free, requirements
from edgecompile.backends.cuda.cubins import assemble, audit_kernels
from edgecompile.backends.cuda.gemm.row_tiles import TileChooser
from edgecompile.backends.cuda.kernels import rows
from edgecompile.backends.cuda.kernels.launch import interpreted
from edgecompile.backends.cuda.lowering.lower import lower_for_gpu
from edgecompile.backends.lowering.rewriting import LoweringReport
from edgecompile.precision import COSINES, TOLERANCES
from edgecompile.targets.gpu import GpuFacts

ORIN = GpuFacts(87, 16, 163 << 10, 1536, 4 << 20)
H100 = GpuFacts(90, 132, 227 << 10, 2048, 50 << 20)


class Layer(nn.Module):
    """Query, key and value of one input, attention, a residual sum, GELU, a table and a last product."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(100, 64)
        self.q, self.k, self.v = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 64)
        self.out = nn.Linear(64, 64, bias=False)
        self.norm = nn.LayerNorm(64)
        self.wide, self.back = nn.Linear(64, 256), nn.Linear(256, 64)
        self.head = nn.Linear(64, 100, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
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
        report = lower_for_gpu(graph, ORIN, "int8")
        return graph, report, ids, module(ids)


def constants(graph: Any) -> dict[str, torch.dtype]:
    return {name: t.dtype for name, t in [*graph.named_parameters(), *graph.named_buffers()]}


@pytest.mark.parametrize("length", [1, 9, 30])
def test_the_graph_is_within_int8s_bounds(length: int) -> None:
    graph, report, ids, want = lowered(Layer(), length)
    got = graph(ids=ids)
    assert got.dtype == torch.float32
    assert (got - want).abs().max() <= TOLERANCES["int8"].limit(float(want.abs().max()))
    assert nn.functional.cosine_similarity(got.flatten(), want.flatten(), 0) >= COSINES["int8"]
    # Less than float16 rounds would mean that nothing was rounded.
    assert (got - want).abs().max() > 1e-3 * want.abs().max()
    # Query, key and value are one.
    assert report.counts["int8"] == 5


def test_products_are_int8_and_all_else_is_not() -> None:
    graph, *_ = lowered(Layer(), 9)
    dtypes = constants(graph)
    whole = {name for name, dtype in dtypes.items() if dtype == torch.int8}
    assert len(whole) == 5 and all(name.startswith("ecpack_int8_") for name in whole)
    scales = [name for name, dtype in dtypes.items() if dtype == torch.float32]
    assert len(scales) == 5 and all(name.startswith("ecpack_scale_") for name in scales)
    assert dtypes["table.weight"] == dtypes["norm.weight"] == torch.float16
    assert not any(name.endswith(("q.weight", "wide.weight", "head.weight")) for name in dtypes)
    # One scale for every 64 inputs.
    shapes = {tuple(graph.get_buffer(name).shape) for name in scales}
    assert shapes == {(1, 192), (1, 64), (1, 256), (4, 64), (1, 100)}


def test_each_output_has_its_scale() -> None:
    class Uneven(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(100, 32)
            self.product = nn.Linear(32, 16, bias=False)
            with torch.no_grad():
                self.product.weight.mul_(10.0 ** -torch.arange(16)[:, None].remainder(4))

        def forward(self, ids: Tensor) -> Tensor:
            return self.product(self.table(ids))

    graph, _, ids, want = lowered(Uneven(), 20)
    error, size = (graph(ids=ids) - want).abs().amax((0, 1)), want.abs().amax((0, 1))
    assert (error <= 0.02 * size).all()


def test_a_table_that_is_also_a_matrix_stays_and_so_does_what_is_small() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(100, 32)
            self.few = nn.Linear(32, 3)

        def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
            x = self.table(ids)
            return nn.functional.linear(x, self.table.weight), self.few(x)

    graph, report, *_ = lowered(Tied(), 9)
    assert torch.int8 not in constants(graph).values()
    assert set(report.kept.values()) == {
        "something else reads its matrix, too",
        "its matrix is small",
    }


def test_products_with_the_inputs_first() -> None:
    class Columns(nn.Module):
        """As GPT-2 multiplies."""

        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(100, 32)
            self.weight = nn.Parameter(torch.randn(32, 48))
            self.bias = nn.Parameter(torch.randn(48))

        def forward(self, ids: Tensor) -> Tensor:
            x = self.table(ids)
            y = torch.addmm(self.bias, x.view(-1, 32), self.weight)
            return y.view(*ids.shape, 48)

    graph, report, ids, want = lowered(Columns(), 9)
    assert report.counts["int8"] == 1
    assert (graph(ids=ids) - want).abs().max() <= 0.03 * want.abs().max()


@pytest.mark.parametrize(
    ("inputs", "outputs", "block"),
    [(64, 128, 64), (640, 130, 64), (96, 40, 48), (224, 300, 32), (100, 16, 100), (200, 129, 200)],
)
def test_the_kernel_of_one_row(inputs: int, outputs: int, block: int) -> None:
    """In Triton's interpreter: every size of blocks, parts that don't come out even, a rest of columns."""
    x = torch.randn(1, inputs, dtype=torch.float16)
    w = torch.randint(-127, 128, (inputs, outputs), dtype=torch.int8)
    scale = torch.rand(inputs // block, outputs) * 0.01
    want = (x.double() @ (w.double() * scale.double().repeat_interleave(block, 0))).flatten()
    for part in (64, 192, rows.part_of(inputs, outputs, 16)):
        plain = rows.ROW(x, w, scale, part)
        with interpreted():
            got = rows.ROW(x, w, scale, part)
        assert got.shape == plain.shape == (-(-inputs // part), outputs)
        for y in (got, plain):
            assert (y.double().sum(0) - want).abs().max() <= 1e-5 * want.abs().max()


@pytest.mark.parametrize(
    ("inputs", "outputs", "least"),
    [(4096, 4096, 132), (2048, 5632, 132), (384, 1536, 132), (576, 576, 45), (11008, 4096, 264)],
)
def test_every_multiprocessor_has_blocks(inputs: int, outputs: int, least: int) -> None:
    """As far as eight parts go, which are added up without a kernel."""
    part = rows.part_of(inputs, outputs, 132)
    parts = -(-inputs // part)
    assert part % 64 == 0 and parts <= 8
    assert -(-outputs // rows.COLUMNS) * parts >= least


def test_parts_of_a_row_are_added_up_where_they_are_read(tmp_path: Path) -> None:
    """Of query, key and value in one kernel, not in one each; in most others with what follows."""
    graph, _, ids, _ = lowered(Layer(), 1)
    program = device_free.move_to_gpu(graph, {"ids": ids})
    ptxas = requirements.find_ptxas()
    raw = device_free.run_inductor(program, H100, TileChooser(H100), tmp_path, ptxas)
    splitting = [k.name for k in raw.kernels if "split" in k.name]
    assert not splitting
    # The table, the attention, five products, and behind each product one.
    assert len(raw.kernels) <= 12


@pytest.mark.parametrize(
    ("length", "gpu"),
    [
        (1, ORIN),
        (30, H100),
        pytest.param(1, H100, marks=pytest.mark.slow),
        pytest.param(30, ORIN, marks=pytest.mark.slow),
    ],
)
def test_kernels_read_int8(gpu: GpuFacts, length: int, tmp_path: Path) -> None:
    """One row's products read int8; those of more rows read a matrix of half precision, written once before."""
    graph, _, ids, _ = lowered(Layer(), length)
    program = device_free.move_to_gpu(graph, {"ids": ids})
    ptxas = requirements.find_ptxas()
    raw = device_free.run_inductor(program, gpu, TileChooser(gpu), tmp_path, ptxas)
    assert sum(t.dtype == torch.int8 for t in raw.constants.values()) == 5
    # Triton takes integers apart as 16 bits.
    reading = [k for k in raw.kernels if re.search(r"cvt\.rn\.f32\.s(8|16)", k.ptx)]
    products = [
        kernel
        for kernel in raw.kernels
        if "tl.dot(" in kernel.source and "attention" not in kernel.name
    ]
    if length > 1:
        assert len(products) == 5
        assert not {kernel.name for kernel in products} & {kernel.name for kernel in reading}
        assert reading and all(kernel.name.startswith("triton_poi") for kernel in reading)
    else:
        assert not products and [kernel.name for kernel in reading]
        assert {kernel.entry for kernel in reading} == {"row_kernel"} and len(reading) >= 3
    assembled = assemble(raw.kernels, [gpu.compute_capability], ptxas)
    verdict = audit_kernels(assembled, gpu, "test")
    assert not [finding for finding in verdict.findings if finding.severity == "error"]
