"""ONNX files for TensorRT: built of real models, loaded, run and compared with eager."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

from edgecompile.buckets.plan import BucketPlan
from edgecompile.buckets.ranges import AxisRange, Bucket
from edgecompile.errors import (
    CompileError,
    OpsetError,
    UnsupportedOperatorError,
    VerificationError,
)
from edgecompile.export.export import export_model
from edgecompile.export.program import ExportedModel
from edgecompile.loaders.load import load_model
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.samples import Samples
from edgecompile.onnx.build import build_onnx
from edgecompile.onnx.operators import OnnxTarget
from edgecompile.onnx.report import OnnxArtifact
from edgecompile.runtime.format.weights import read_constants
from tests.conftest import FACTORIES
from tests.factories.folders import write_model

TARGET = OnnxTarget("10.3")


def bucket(lo: int, hi: int, batch: tuple[int, int] | None = (1, 2)) -> Bucket:
    axes = [("length", AxisRange(lo, hi, (lo + hi) // 2))]
    if batch is not None:
        axes.append(("batch", AxisRange(*batch, batch[0])))
    return Bucket("exact", tuple(axes))


BUCKETS = [bucket(1, 8), bucket(9, 32)]


def export(model: LoadedModel, buckets: Sequence[Bucket]) -> ExportedModel:
    plan = BucketPlan("length", tuple(buckets))
    return export_model(model, {name: plan.extent(name) for name, _ in buckets[0].axes})


def build(
    model: LoadedModel,
    buckets: Sequence[Bucket],
    precision: str,
    target: OnnxTarget,
    samples: Samples | None,
    folder: Path,
    exported: ExportedModel | None = None,
) -> OnnxArtifact:
    """The ONNX of a model, exported for all that the buckets serve where it isn't."""
    exported = exported or export(model, buckets)
    return build_onnx(model, buckets, precision, target, samples, folder, exported=exported)


@pytest.fixture(scope="module")
def bert(tiny_model: Path) -> LoadedModel:
    return load_model(tiny_model, batch=(1, 2))


@pytest.fixture(scope="module")
def exported(bert: LoadedModel) -> ExportedModel:
    return export(bert, BUCKETS)


@pytest.fixture(scope="module")
def plain(
    bert: LoadedModel, exported: ExportedModel, tmp_path_factory: pytest.TempPathFactory
) -> OnnxArtifact:
    folder = tmp_path_factory.mktemp("fp32")
    return build(bert, BUCKETS, "fp32", TARGET, None, folder, exported)


def test_a_bert_in_fp32(plain: OnnxArtifact) -> None:
    assert sorted(p.name for p in plain.path.parent.iterdir()) == ["model.onnx", "weights.fp32"]
    assert plain.check.ok and plain.check.padding, plain.check.padding_reason
    assert plain.opset == 20 and plain.kept == () and plain.int8 is None
    proto = onnx.load(str(plain.path), load_external_data=False)
    dims = {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*proto.graph.input, *proto.graph.output)
    }
    assert dims == {
        "input_ids": ["batch", "length"],
        "attention_mask": ["batch", "length"],
        "last_hidden_state": ["batch", "length", 16],
        "pooler_output": ["batch", 16],
    }
    assert plain.inputs == {"input_ids": "int64", "attention_mask": "int64"}


def test_nodes_say_where_they_come_from_and_nothing_tells_of_the_machine(
    plain: OnnxArtifact,
) -> None:
    proto = onnx.load(str(plain.path), load_external_data=False)
    names = [node.name for node in proto.graph.node]
    assert len(names) == len(set(names))
    assert "encoder.layer.1.attention.self.query/MatMul" in names
    assert not proto.graph.value_info and not proto.metadata_props
    assert not any(node.metadata_props or node.doc_string for node in proto.graph.node)
    assert b"site-packages" not in plain.path.read_bytes()
    assert b"modeling_bert" not in plain.path.read_bytes()


@pytest.mark.slow
def test_the_same_model_gives_the_same_bytes(
    bert: LoadedModel, plain: OnnxArtifact, tmp_path: Path
) -> None:
    again = build(bert, BUCKETS, "fp32", TARGET, None, tmp_path)
    assert again.path.read_bytes() == plain.path.read_bytes()
    assert again.weights.read_bytes() == plain.weights.read_bytes()


def test_a_bert_in_fp16(bert: LoadedModel, exported: ExportedModel, tmp_path: Path) -> None:
    made = build(bert, BUCKETS, "fp16", TARGET, None, tmp_path, exported)
    assert made.check.ok and made.check.padding and made.check.cosine is not None
    assert made.check.cosine > 0.99999
    assert made.outputs == {"last_hidden_state": "float32", "pooler_output": "float32"}
    # torch.finfo.min or -inf: either way no mask is kept in float32.
    assert made.kept == ()
    with made.weights.open("rb") as file:
        constants = read_constants(file.fileno(), made.weights.stat().st_size, "weights")
    assert {c.type.name for c in constants} == {"float16"}


def test_a_bert_in_int8(bert: LoadedModel, exported: ExportedModel, tmp_path: Path) -> None:
    made = build(bert, BUCKETS, "int8", TARGET, None, tmp_path, exported)
    assert made.check.ok and made.int8 is not None
    assert len(made.int8.layers) == 13 and 1 <= made.int8.quantized <= 13
    assert made.int8.cosine is not None and 0.999 <= made.int8.cosine < 0.999999
    assert made.ops.operators["QuantizeLinear"] >= 1
    proto = onnx.load(str(made.path), load_external_data=False)
    kinds = {t.name: t.data_type for t in proto.graph.initializer}
    whole = [name for name, kind in kinds.items() if kind == onnx.TensorProto.INT8]
    assert len([name for name in whole if "zero" not in name]) == made.int8.quantized


@pytest.mark.parametrize(
    "precision",
    [
        pytest.param("fp32", marks=pytest.mark.slow),
        "fp16",
        pytest.param("int8", marks=pytest.mark.slow),
    ],
)
def test_a_bert_for_tensorrt_8(
    bert: LoadedModel, exported: ExportedModel, tmp_path: Path, precision: str
) -> None:
    made = build(bert, BUCKETS, precision, OnnxTarget("8.6", 17), None, tmp_path, exported)
    assert made.check.ok and made.check.padding and made.opset == 17
    assert made.inputs == {"input_ids": "int64", "attention_mask": "int64"}
    proto = onnx.load(str(made.path), load_external_data=False)
    assert [(o.domain, o.version) for o in proto.opset_import] == [("", 17)]
    assert not any(node.attribute for node in proto.graph.node if node.op_type == "Shape")
    kinds = {t.name: t.data_type for t in proto.graph.initializer}
    scales = [n.input[1] for n in proto.graph.node if n.op_type.endswith("tizeLinear")]
    assert bool(scales) == (precision == "int8")
    assert {kinds[name] for name in scales} <= {onnx.TensorProto.FLOAT}
    # Halves are weights alone, each behind a Cast; what must stay float32 is named.
    halves = {name for name, kind in kinds.items() if kind == onnx.TensorProto.FLOAT16}
    takers = [n for n in proto.graph.node if halves & {*n.input}]
    assert {n.op_type for n in takers} == (set() if precision == "fp32" else {"Cast"})
    names = {name for node in proto.graph.node for name in node.output}
    products = {n.output[0] for n in proto.graph.node if n.op_type in ("MatMul", "Gemm")}
    if precision == "fp32":
        assert made.float32 is None
    else:
        assert made.float32 is not None and names.issuperset(made.float32)
        assert bool(made.float32) == bool(made.kept) and not products & {*made.float32}


@pytest.mark.parametrize(
    "target", [TARGET, pytest.param(OnnxTarget("8.6", 17), marks=pytest.mark.slow)]
)
def test_positions_counted_from_a_mask(tmp_path: Path, target: OnnxTarget) -> None:
    """RoBERTa's positions are sums of whole numbers, which TensorRT's CumSum doesn't take."""
    write_model(tmp_path / "model", "roberta", "Model")
    model = load_model(tmp_path / "model")
    made = build(model, [bucket(1, 16, (1, 1))], "fp16", target, None, tmp_path)
    assert made.check.ok and made.ops.operators["CumSum"] == 1
    kept = {item.operator for item in made.kept}
    assert "CumSum" in kept  # float16 ends at 2048 to be exact


def test_tied_weights_are_stored_once(tmp_path: Path) -> None:
    write_model(tmp_path / "model", "gpt2", "LMHeadModel")
    model = load_model(tmp_path / "model", task="logits")
    made = build(model, [bucket(1, 16, (1, 1))], "fp16", TARGET, None, tmp_path)
    proto = onnx.load(str(made.path))
    seen = [(t.data_type, tuple(t.dims), t.raw_data) for t in proto.graph.initializer]
    assert len(seen) == len(set(seen))


def test_a_model_that_overflows_keeps_what_does(tmp_path: Path) -> None:
    model = load_model(f"{FACTORIES / 'overflowing.py'}:overflowing")
    made = build(model, [bucket(1, 12)], "fp16", TARGET, None, tmp_path)
    assert made.check.ok, made.check.reasons
    found = {item.place.module: item.reason for item in made.kept}
    assert "wide" in found and "float16 ends at 65504" in found["wide"]
    assert not any(item.place.module == "narrow" for item in made.kept)
    assert all(item.place.line.startswith("overflowing.py:") for item in made.kept)


def test_operators_that_tensorrt_lacks_are_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    model = load_model(f"{FACTORIES / 'overflowing.py'}:bitwise")
    with pytest.raises(UnsupportedOperatorError, match="BitwiseXor in mixer") as caught:
        build(model, [bucket(1, 12)], "fp16", TARGET, None, tmp_path / "out")
    assert "BitShift" in caught.value.message
    assert list((tmp_path / "out").iterdir()) == []


def test_what_opset_17_lacks_is_told_by_operator_and_line(tmp_path: Path) -> None:
    source = FACTORIES / "overflowing.py"
    model = load_model(f"{source}:newer")
    lines = source.read_text().splitlines()
    place = next(n for n, line in enumerate(lines, 1) if "self.act(x) + " in line)
    with pytest.raises(UnsupportedOperatorError) as caught:
        build(model, [bucket(1, 12)], "fp32", OnnxTarget("8.6", 17), None, tmp_path)
    assert caught.value.message.splitlines()[1:] == [
        f"  Mish in act (overflowing.py:{place}): opset 17 has no such operator",
        f"  BitwiseAnd in the model (overflowing.py:{place}): opset 17 has no such operator",
    ]
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_precision_and_an_opset_below_what_is_needed(
    bert: LoadedModel, exported: ExportedModel, tmp_path: Path
) -> None:
    with pytest.raises(CompileError, match="bf17"):
        build(bert, BUCKETS, "bf17", TARGET, None, tmp_path, exported)
    with pytest.raises(OpsetError, match="9 to 20"):
        build(bert, BUCKETS, "fp32", OnnxTarget("10.3", opset=21), None, tmp_path, exported)


def test_wrong_answers_are_refused(
    bert: LoadedModel,
    exported: ExportedModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import edgecompile.onnx.build as module

    real = module.export_onnx

    def spoiled(*args: object) -> object:
        graph = real(*args)  # type: ignore[arg-type]
        name = max(graph.tensors, key=lambda n: graph.tensors[n].nbytes)
        graph.tensors[name] = np.ascontiguousarray(graph.tensors[name]) * np.float32(1.5)
        return graph

    monkeypatch.setattr(module, "export_onnx", spoiled)
    with pytest.raises(VerificationError, match="in fp32 differs from eager"):
        build(bert, BUCKETS, "fp32", TARGET, None, tmp_path, exported)
    assert list(tmp_path.iterdir()) == []
