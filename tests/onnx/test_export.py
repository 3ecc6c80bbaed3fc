"""An operator that torch's exporter refuses is named in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgecompile.errors import ExportError
from edgecompile.export.export import export_model
from edgecompile.loaders.load import load_model
from edgecompile.onnx.export import export_onnx

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
