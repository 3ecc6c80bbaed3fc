"""An encoder as an ONNX file gets the kernels that its PyTorch module gets."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edgecompile.backends.cpu.lowering.lower import lower_graph
from edgecompile.backends.cuda.lowering.lower import lower_for_gpu
from edgecompile.export.export import export_model
from edgecompile.loaders.factory_specs import ModelSpec
from edgecompile.loaders.load import load_model
from edgecompile.onnx_files.export import export_onnx
from edgecompile.onnx_files.operators import OnnxTarget, check_operators
from edgecompile.onnx_files.weights import write_onnx
from edgecompile.targets.gpu import GpuFacts
from tests.factories.folders import write_model
from tests.onnx_import.graphs import run_reference

_H200 = GpuFacts(90, 132, 227 << 10, 2048, 50 << 20)
_NAMES = ("input_ids", "attention_mask")
#: Generated code takes these; everything else in a lowered graph is views and arithmetic around them.
_KERNELS = ("linear", "attention", "layer_norm", "gelu", "embedding", "ec_copy")


class _Encoder(torch.nn.Module):
    """A mean over the real positions."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        from transformers import AutoModel

        self.encoder = AutoModel.from_pretrained(folder, attn_implementation="sdpa").eval()

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask)[0]
        parts = attention_mask.unsqueeze(-1).to(hidden.dtype)
        return (hidden * parts).sum(1) / parts.sum(1).clamp(min=1e-9)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> _Encoder:
    """A small encoder of two layers with room for whole panels."""
    folder = write_model(
        tmp_path_factory.mktemp("encoder"),
        hidden_size=64,
        intermediate_size=128,
        num_attention_heads=4,
    )
    return _Encoder(folder)


def _inputs() -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.arange(24).reshape(2, 12) % 20
    mask = torch.ones_like(ids)
    mask[1, 7:] = 0
    return ids, mask


def _write(encoder: _Encoder, path: Path, newer: bool) -> Path:
    """The encoder as an ONNX file, by one of torch's two exporters."""
    axes: Any = {0: "batch", 1: "length"}
    options: dict[str, Any] = {"dynamo": False, "opset_version": 17}
    options["dynamic_axes"] = {**dict.fromkeys(_NAMES, axes), "out": {0: "batch"}}
    if newer:
        axes = {0: torch.export.Dim("batch", max=8), 1: torch.export.Dim("length", max=40)}
        options = {"dynamo": True, "dynamic_shapes": (axes, axes), "external_data": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        names = {"input_names": list(_NAMES), "output_names": ["out"]}
        torch.onnx.export(encoder, _inputs(), path, verbose=False, **names, **options)
    return path


def _spec(encoder: _Encoder) -> ModelSpec:
    axes = {0: "batch", 1: "length"}
    inputs = dict(zip(_NAMES, _inputs(), strict=True))
    return ModelSpec(
        encoder, inputs, axes=dict.fromkeys(_NAMES, axes), bounds={"input_ids": (0, 19)}
    )


def _kernels(model: Any, precision: str) -> tuple[Counter[str], dict[str, int]]:
    graph = export_model(model, {"length": (1, 40)}).program.module()
    cpu = precision == "cpu"
    report = lower_graph(graph) if cpu else lower_for_gpu(graph, _H200, precision)
    names = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    kinds = Counter(name for name in names if any(part in name for part in _KERNELS))
    counts = ("merged", "attentions", "residuals", "gelus")
    return kinds, {name: report.counts[name] for name in counts}


@pytest.mark.parametrize("precision", ["cpu", "fp16", "fp32"])
@pytest.mark.parametrize("newer", [False, True], ids=["torchscript", "dynamo"])
def test_kernels_are_those_of_the_module(
    encoder: _Encoder, newer: bool, precision: str, tmp_path: Path
) -> None:
    path = _write(encoder, tmp_path / "encoder.onnx", newer)
    imported = load_model(path, batch=(1, 8), max_length=40)
    module = load_model(_spec(encoder), batch=(1, 8), max_length=40)
    kinds, counts = _kernels(imported, precision)
    assert (kinds, counts) == _kernels(module, precision)
    assert counts["attentions"] == 2 and counts["merged"] == 6


def test_the_graph_for_tensorrt_computes_what_the_file_does(
    encoder: _Encoder, tmp_path: Path
) -> None:
    path = _write(encoder, tmp_path / "encoder.onnx", newer=False)
    graphs = {}
    for name, model in (
        ("imported", load_model(path, batch=(1, 8), max_length=40)),
        ("module", load_model(_spec(encoder), batch=(1, 8), max_length=40)),
    ):
        exported = export_model(model, {"length": (1, 40), "batch": (1, 8)})
        graphs[name] = export_onnx(exported, 17, tmp_path / name)
        assert not check_operators(graphs[name], OnnxTarget("8.6", 17)).violations
    layers = ("MatMul", "Softmax", "LayerNormalization", "Erf")
    counts = [
        Counter(node.op_type for node in graph.nodes if node.op_type in layers)
        for graph in graphs.values()
    ]
    assert counts[0] == counts[1]
    write_onnx(graphs["imported"], tmp_path / "engine.onnx", tmp_path / "weights")
    feeds = {name: tensor.numpy() for name, tensor in zip(_NAMES, _inputs(), strict=True)}
    wanted = run_reference(path, feeds)[0]
    np.testing.assert_allclose(
        run_reference(tmp_path / "engine.onnx", feeds)[0], wanted, rtol=1e-4, atol=1e-5
    )
