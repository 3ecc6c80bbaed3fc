"""An operator that torch's exporter refuses is named in one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from edgecompile.errors import ExportError
from edgecompile.export.export import export_model
from edgecompile.loaders.load import load_model
from edgecompile.onnx_files.export import export_onnx
from edgecompile.onnx_files.graph import attribute
from edgecompile.onnx_files.operators import OnnxTarget, check_operators, known_releases
from edgecompile.onnx_files.scan import OnnxRunner
from edgecompile.onnx_files.weights import write_onnx
from tests.factories.detector import OPS

FACTORY = """
import torch
from torch import nn

class Inverse(nn.Module):
    def forward(self, x):
        return torch.linalg.inv_ex(x[..., :4].mT @ x[..., :4] + 4 * torch.eye(4)).inverse

def make():
    return {
        "module": Inverse(),
        "inputs": {"x": torch.randn(1, 8, 4)},
        "axes": {"x": {0: "batch", 1: "length"}},
        "limits": {"length": (2, 16)},
    }
"""


def test_an_operator_without_a_translation_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(FACTORY)
    model = load_model(f"{tmp_path / 'net.py'}:make")
    exported = export_model(model, {"length": (2, 16), "batch": (1, 1)})
    with pytest.raises(ExportError) as caught:
        export_onnx(exported, 20, tmp_path / "scratch")
    assert "no translation of aten.linalg_inv_ex (net.py:7)" in caught.value.message
    assert "\x1b" not in caught.value.message and "\n" not in caught.value.message
    assert caught.value.hint is not None and "jetson-orin-cpu" in caught.value.hint


def test_operators_on_boxes_are_refused_by_name(tmp_path: Path) -> None:
    class Best(nn.Module):
        def forward(self, boxes: Tensor, scores: Tensor) -> Tensor:
            return boxes[OPS.nms(boxes, scores, 0.5)]

    spec = {"module": Best(), "inputs": {"boxes": torch.rand(8, 4), "scores": torch.rand(8)}}
    exported = export_model(load_model(spec))
    with pytest.raises(
        ExportError, match=r"ONNX, which has no nms \(test_export.py:\d+\)"
    ) as caught:
        export_onnx(exported, 20, tmp_path / "scratch")
    assert caught.value.hint is not None and 'backend="triton"' in caught.value.hint


RENAMED = """
import torch
from torch import nn
from torch.nn import functional as F

class Sampled(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.groups = nn.LayerNorm(8), nn.GroupNorm(2, 8)

    def forward(self, x):  # [batch, length, 8]
        grid = torch.stack((x[..., 0].tanh(), torch.zeros_like(x[..., 0])), -1)[:, None]
        image = self.groups(self.norm(x).transpose(1, 2))[:, :, None]  # [batch, 8, 1, length]
        ways = [F.grid_sample(image, grid, mode=mode, padding_mode=edge, align_corners=False)
                for mode in ("bilinear", "bicubic", "nearest") for edge in ("zeros", "border", "reflection")]
        pooled = F.avg_pool1d(F.pad(x.transpose(1, 2), (1, 1), "reflect"), 3, 1)
        wide = F.interpolate(image, scale_factor=(1.0, 2.0), mode="bilinear")
        best = torch.topk(x, 2, dim=-1).values
        where = torch.arange(x.shape[1]) % 3
        rows = torch.zeros(x.shape[0], 3, 8).index_add(1, where, x)
        line = torch.zeros(3).index_add(0, where, x[0, :, 0])
        halves = x.clamp(-1, 1).split(4, -1)
        return sum(ways)[:, :, 0] + pooled, wide.amax(-1), best, F.gelu(halves[0]) + halves[1].cumsum(1), rows, line

def make():
    return {
        "module": Sampled(),
        "inputs": {"x": torch.randn(1, 8, 8)},
        "axes": {"x": {0: "batch", 1: "length"}},
        "limits": {"length": (2, 16)},
    }
"""


def test_operators_that_newer_opsets_renamed_have_the_names_that_the_parser_knows(
    tmp_path: Path,
) -> None:
    (tmp_path / "net.py").write_text(RENAMED)
    model = load_model(f"{tmp_path / 'net.py'}:make")
    exported = export_model(model, {"length": (2, 16), "batch": (1, 1)})
    graph = export_onnx(exported, 20, tmp_path / "scratch")
    modes = {attribute(n, "mode") for n in graph.nodes if n.op_type == "GridSample"}
    assert graph.opset == 17 and modes == {b"bilinear", b"bicubic", b"nearest"}
    for release in known_releases():
        violations = check_operators(graph, OnnxTarget(release)).violations
        adding = [item for item in violations if item.operator == "ScatterElements"]
        assert len(violations) == len(adding) == (2 if release == "8.6" else 0)
    inputs = model.make_example({"length": 13, "batch": 1}, seed=1)
    write_onnx(graph, tmp_path / "m.onnx", tmp_path / "m.weights")
    got = OnnxRunner(tmp_path / "m.onnx").run({k: v.numpy() for k, v in inputs.items()})
    for name, want in model.run(inputs).items():
        np.testing.assert_allclose(got[name], want.numpy(), atol=2e-5)
