"""Recurrent layers become ONNX's own, of any length, with the weights that the module has."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from edgecompile.export.export import export_model
from edgecompile.loaders.factory_specs import ModelSpec
from edgecompile.loaders.load import load_model
from edgecompile.onnx_files.export import export_onnx
from edgecompile.onnx_files.operators import OnnxTarget, check_operators
from edgecompile.onnx_files.weights import write_onnx

KINDS = {"LSTM": nn.LSTM, "GRU": nn.GRU, "RNN": nn.RNN}


class Layers(nn.Module):
    """Recurrent layers; gives all states and the last ones."""

    def __init__(self, kind: str, **settings: object) -> None:
        super().__init__()
        self.layers = KINDS[kind](5, 6, batch_first=True, **settings)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        states, last = self.layers(x)
        return states, last if isinstance(last, torch.Tensor) else torch.cat(last)


@pytest.mark.parametrize(
    ("kind", "settings", "opset"),
    [
        ("LSTM", {"num_layers": 2, "bidirectional": True}, 17),
        pytest.param("LSTM", {"bias": False}, 20, marks=pytest.mark.slow),
        ("GRU", {"bidirectional": True}, 20),
        pytest.param("RNN", {"nonlinearity": "relu"}, 17, marks=pytest.mark.slow),
        ("RNN", {}, 20),
    ],
)
def test_recurrent_layers_are_onnx_s_own(
    kind: str, settings: dict[str, object], opset: int, tmp_path: Path
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")

    torch.manual_seed(0)
    module = Layers(kind, **settings).eval()
    spec = ModelSpec(
        module=module,
        inputs={"x": torch.randn(1, 7, 5)},
        axes={"x": {0: "batch", 1: "length"}},
        limits={"length": (1, 40)},
    )
    model = load_model(spec, name="layers")
    exported = export_model(model, {"length": (1, 40), "batch": (1, 1)})
    graph = export_onnx(exported, opset, tmp_path / "scratch")
    release = OnnxTarget("8.6" if opset == 17 else "10.3", opset)
    assert not check_operators(graph, release).violations
    found = [node.op_type for node in graph.nodes]
    assert found.count(kind) == module.layers.num_layers * (1 + module.layers.bidirectional)
    assert not {"MatMul", "Loop", "Scan"} & set(found)
    stored = sum(array.size for array in graph.tensors.values() if array.dtype == np.float32)
    assert stored < 1.5 * sum(item.numel() for item in module.parameters())
    write_onnx(graph, tmp_path / "model.onnx", tmp_path / "weights")
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    for length in (1, 7, 40):
        x = torch.randn(1, length, 5)
        for got, want in zip(session.run(None, {"x": x.numpy()}), module(x), strict=True):
            np.testing.assert_allclose(got, want.detach().numpy(), atol=1e-6)
