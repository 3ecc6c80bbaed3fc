"""Writes at repeated indices in ONNX write the same value in any order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from edgecompile.export.export import export_model
from edgecompile.loaders.factory_specs import ModelSpec
from edgecompile.loaders.load import load_model
from edgecompile.onnx_files.export import export_onnx
from edgecompile.onnx_files.operators import OnnxTarget, check_operators
from edgecompile.onnx_files.weights import write_onnx


class Writes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("apart", torch.tensor([4, 0, 2]))

    def forward(self, ids: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        n = ids.shape[1]
        rows = torch.zeros(20, 4)
        rows[ids[0]] = x[0]
        pairs = torch.zeros(20, n)
        pairs[ids[0], ids[0] % 2] = x[0, :, 1]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            region = torch.zeros(20, 4)
            region[ids[0] % 3] = x[0]
        # These stay as they are.
        kept = torch.zeros(64, 4)
        kept[torch.arange(n)] = x[0]
        kept[self.apart] = x[0, :1] + self.apart[:, None]
        return (
            torch.zeros(1, 20).scatter(1, ids, x[..., 0]),
            torch.zeros(3, 20).index_copy(1, ids[0], x[0, :, :3].t()),
            rows,
            pairs,
            region,
            kept,
        )


def test_the_last_write_wins(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    spec = ModelSpec(
        module=Writes(),
        inputs={"ids": torch.randint(0, 20, (1, 7)), "x": torch.randn(1, 7, 4)},
        axes={"ids": {1: "length"}, "x": {1: "length"}},
        limits={"length": (3, 40)},
        bounds={"ids": (0, 19)},
    )
    exported = export_model(load_model(spec, name="writes"), {"length": (3, 40)})
    nodes = len(exported.program.graph.nodes)
    graph = export_onnx(exported, 20, tmp_path / "scratch")
    assert len(exported.program.graph.nodes) == nodes  # the program itself stays
    assert not check_operators(graph, OnnxTarget("10.3", 20)).violations
    found = [node.op_type for node in graph.nodes]
    # All writes are compared for each operator whose writes may collide; two of them compare the same indices.
    assert found.count("ReduceMax") == 4
    path = tmp_path / "model.onnx"
    write_onnx(graph, path, tmp_path / "weights")
    model = onnx.load(path)
    scatters = [n for n in model.graph.node if n.op_type.startswith("Scatter")]
    assert len(scatters) == 7
    session = onnxruntime.InferenceSession(str(path))
    for length in (3, 7, 40):
        ids = np.random.default_rng(length).integers(0, 5, (1, length))
        x = torch.randn(1, length, 4)
        wanted = spec.module(torch.from_numpy(ids), x)
        for got, want in zip(session.run(None, {"ids": ids, "x": x.numpy()}), wanted, strict=True):
            np.testing.assert_array_equal(got, want.numpy())
