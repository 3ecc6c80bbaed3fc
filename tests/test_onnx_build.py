"""ONNX files for TensorRT: built of real models, loaded, run and compared with eager."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from edgecompile.errors import CompileError
from edgecompile.models import load_model
from edgecompile.onnx_build import build_onnx
from edgecompile.onnx_ops import OnnxTarget
from edgecompile.ranges import AxisRange, Bucket


def bucket(lo: int, hi: int, hint: int, batch: tuple[int, int] = (1, 2)) -> Bucket:
    return Bucket(
        "exact",
        (("length", AxisRange(lo, hi, hint)), ("batch", AxisRange(*batch, batch[0]))),
    )


BUCKETS = [bucket(1, 8, 5), bucket(9, 32, 20)]


def test_a_bert_in_fp32(tiny_model: Path, tmp_path: Path) -> None:
    model = load_model(tiny_model, batch=(1, 2))
    made = build_onnx(model, BUCKETS, "fp32", OnnxTarget("10.3"), None, tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.onnx", "weights.fp32"]
    assert made.check.ok and made.check.padding, made.check.reasons
    assert made.opset == 20
    proto = onnx.load(str(made.path), load_external_data=False)
    dims = {i.name: [d.dim_param for d in i.type.tensor_type.shape.dim] for i in proto.graph.input}
    assert dims == {"input_ids": ["batch", "length"], "attention_mask": ["batch", "length"]}
    assert not proto.graph.value_info and not proto.metadata_props


def test_an_unknown_precision_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    model = load_model(tiny_model)
    with pytest.raises(CompileError, match="bf17"):
        build_onnx(model, BUCKETS, "bf17", OnnxTarget(), None, tmp_path)
