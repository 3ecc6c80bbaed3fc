"""Operators that torch's exporter or TensorRT's parser takes only in another form."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgecompile.errors import CompileError
from edgecompile.export.export import export_model
from edgecompile.export.program import ExportedModel
from edgecompile.loaders.factory_specs import ModelSpec
from edgecompile.loaders.load import load_model
from edgecompile.onnx_files.export import export_onnx
from edgecompile.onnx_files.operators import OnnxTarget, check_operators, known_releases
from edgecompile.onnx_files.scan import OnnxRunner
from edgecompile.onnx_files.weights import write_onnx


class Kinds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        n = x.shape[1]
        top, places = x.flatten(1).topk(4, sorted=False)
        q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in self.project(x).chunk(3, -1))
        bias = torch.zeros(1, 2, n, n).masked_fill(torch.ones(n, n).tril(-1).bool(), -1.0)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2)
        ids = torch.arange(n)
        written = torch.zeros_like(x)
        written.view(-1)[ids * 8] = 1.0  # changes what it is a view of
        return (
            top, places // 8, places % 8, mixed.flatten(2), mixed.reshape(x.shape[0], -1),
            (ids * 7) % n, (ids * 5) // (n - 1), torch.fmod(x, n), written,
        )  # fmt: skip


def exported(module: nn.Module, least: int, most: int) -> ExportedModel:
    spec = ModelSpec(
        module=module.eval(),
        inputs={"x": torch.randn(1, 9, 8)},
        axes={"x": {0: "batch", 1: "length"}},
        limits={"length": (least, most)},
    )
    return export_model(
        load_model(spec, name="kinds", batch=(1, 2)), {"length": (least, most), "batch": (1, 2)}
    )


def test_all_are_right_and_taken(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Kinds()
    graph = export_onnx(exported(module, 3, 24), 20, tmp_path / "scratch")
    for release in known_releases():
        if graph.opset <= 17 or release != "8.6":
            assert not check_operators(graph, OnnxTarget(release, 20)).violations, release
    write_onnx(graph, tmp_path / "model.onnx", tmp_path / "weights")
    runner = OnnxRunner(tmp_path / "model.onnx")
    for batch, length in ((1, 3), (2, 9), (1, 24)):
        x = torch.randn(batch, length, 8)
        with torch.no_grad():
            top, _, *wanted = module(x)
        got_top, got_row, got_column, *got = runner.run({"x": x.numpy()}).values()
        assert (np.diff(got_top) <= 0).all()
        np.testing.assert_allclose(got_top, top.sort(descending=True).values, rtol=1e-6)
        flat = x.flatten(1).numpy()
        np.testing.assert_array_equal(
            np.take_along_axis(flat, got_row * 8 + got_column, 1), got_top
        )
        for one, other in zip(got, wanted[1:], strict=True):
            np.testing.assert_allclose(one, other.numpy(), atol=2e-6)


class Written(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        places = (x[0, :, 0].abs() * 10).long().clamp(0, 19)
        table = torch.zeros(20, 8)
        table[places] = x[0]
        return table


def test_writes_that_are_too_many_to_compare_are_refused(tmp_path: Path) -> None:
    assert export_onnx(exported(Written(), 2, 4096), 20, tmp_path / "few").opset == 17
    with pytest.raises(CompileError, match=r"up to 9,000 writes .* 81,000,000 times"):
        export_onnx(exported(Written(), 2, 9000), 20, tmp_path / "many")


class Halves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8).half()
        self.norm, self.last = nn.LayerNorm(8), nn.Linear(8, 4).bfloat16()

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.norm(self.first(x))
            scores = (y @ y.transpose(1, 2) / 8).softmax(-1)
        z = self.second(y.half()).relu()
        return self.last(z.bfloat16()).float(), scores.float(), z, z.transpose(0, 1)


def test_half_precision_within_forward_is_float32(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Halves()
    graph = export_onnx(exported(module, 3, 24), 17, tmp_path / "scratch")
    narrow = {name for name, dtype in graph.dtypes().items() if dtype in ("float16", "bfloat16")}
    assert narrow == {name for name, dtype in graph.outputs.items() if dtype == "float16"}
    assert len(narrow) == 2
    assert not check_operators(graph, OnnxTarget("8.6", 17)).violations
    write_onnx(graph, tmp_path / "model.onnx", tmp_path / "weights")
    x = torch.randn(2, 9, 8)
    with torch.no_grad():
        wanted = module(x)
    got = OnnxRunner(tmp_path / "model.onnx").run({"x": x.numpy()}).values()
    for one, other in zip(got, wanted, strict=True):
        assert one.dtype == other.numpy().dtype
        np.testing.assert_allclose(one, other.numpy(), atol=2e-2 * float(other.abs().max()))


class Equations(nn.Module):
    """Ellipses of one and two dimensions, of one operand and of both, with and without a result."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        heads = x.unflatten(-1, (2, 4))  # [B, L, 2, 4]
        table = torch.arange(8.0).reshape(2, 4)
        return (
            torch.einsum("...qhd,...khd->...hqk", heads, heads),
            torch.einsum("... h d, h d -> ... h", heads, table),
            torch.einsum("...hd,hd", heads, table),
            torch.einsum("b...d,...d->b...", heads, heads[0]),
            torch.einsum("...d->d", heads),
            torch.einsum("blhd,hd->bl", heads, table),
        )


def test_equations_name_every_dimension(tmp_path: Path) -> None:
    module = Equations()
    graph = export_onnx(exported(module, 3, 24), 17, tmp_path / "scratch")
    assert not check_operators(graph, OnnxTarget("10.3", 17)).violations
    write_onnx(graph, tmp_path / "model.onnx", tmp_path / "weights")
    x = torch.randn(2, 9, 8)
    got = OnnxRunner(tmp_path / "model.onnx").run({"x": x.numpy()}).values()
    for one, other in zip(got, module(x), strict=True):
        np.testing.assert_allclose(one, other.numpy(), rtol=1e-5, atol=1e-4)


def test_inputs_with_names_of_python_keep_them(tmp_path: Path) -> None:
    class Sum(nn.Module):
        def forward(self, input: Tensor, max: Tensor) -> Tensor:
            return input + max

    spec = {
        "module": Sum(),
        "inputs": {"input": torch.ones(1, 5), "max": torch.ones(1, 5)},
        "axes": {"input": {1: "length"}, "max": {1: "length"}},
        "limits": {"length": (1, 9)},
    }
    graph = export_onnx(export_model(load_model(spec)), 20, tmp_path)
    assert set(graph.inputs) == {"input", "max"}
