"""ONNX files for TensorRT: built of real models, loaded, run and compared with eager."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from edgecompile.buckets.plan import BucketPlan
from edgecompile.buckets.ranges import AxisRange, Bucket
from edgecompile.errors import (
    CompileError,
    UnsupportedOperatorError,
    VerificationError,
)
from edgecompile.export.export import export_model
from edgecompile.export.program import ExportedModel
from edgecompile.loaders.load import load_model
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.samples import Samples
from edgecompile.onnx_files.build import build_onnx, build_sides
from edgecompile.onnx_files.operators import OnnxTarget
from edgecompile.onnx_files.report import OnnxArtifact
from edgecompile.onnx_files.scan import OnnxRunner
from edgecompile.runtime.format.files.weights import read_constants
from tests.conftest import FACTORIES
from tests.factories.folders import write_model
from tests.factories.half import deep_autocast

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


class Cropped(torch.nn.Module):
    """A layer with large weights, of whose outputs ten positions at most are summed up."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)[:, :10].cumsum(1)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_each_side_of_a_condition_has_a_graph_and_all_share_the_weights(
    precision: str, tmp_path: Path
) -> None:
    model = load_model(
        {
            "module": Cropped(),
            "inputs": {"x": torch.randn(1, 12, 64)},
            "axes": {"x": {0: "batch", 1: "length"}},
            "limits": {"length": (1, 32), "batch": (1, 2)},
        }
    )
    buckets = [bucket(1, 4), bucket(11, 32), bucket(5, 10)]
    graphs = [export(model, [buckets[0], buckets[2]]), export(model, [buckets[1]])]
    artifact = build_sides(model, buckets, graphs, [0, 1, 0], precision, TARGET, None, tmp_path)
    (side,) = artifact.sides
    assert side.buckets == (1,) and side.path.parent == artifact.path.parent == tmp_path
    assert artifact.check.ok and {item.bucket for item in artifact.check.results} == {0, 1, 2}
    matrix = 64 * 64 * (4 if precision == "fp32" else 2)
    assert matrix < artifact.weights.stat().st_size < 1.5 * matrix
    for path, lengths in ((artifact.path, (1, 4, 5, 10)), (side.path, (11, 20, 32))):
        runner = OnnxRunner(path)
        for length in lengths:
            inputs = model.make_example({"length": length, "batch": 2})
            (expected,) = (value.numpy() for value in model.run(inputs).values())
            (found,) = runner.run({"x": inputs["x"].numpy()}).values()
            assert found.shape == expected.shape
            np.testing.assert_allclose(found, expected, atol=0.02)


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
    assert plain.opset == 17 and plain.kept == () and plain.int8 is None
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
    assert made.ops.operators["QuantizeLinear"] >= 1 and made.opset == 19
    proto = onnx.load(str(made.path), load_external_data=False)
    kinds = {t.name: t.data_type for t in proto.graph.initializer}
    whole = [name for name, kind in kinds.items() if kind == onnx.TensorProto.INT8]
    assert len([name for name in whole if "zero" not in name]) == made.int8.quantized


@pytest.mark.parametrize(
    "precision",
    [
        pytest.param("fp32", marks=pytest.mark.exhaustive),
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
    "precision",
    [
        "fp32",
        pytest.param("fp16", marks=pytest.mark.exhaustive),
        pytest.param("int8", marks=pytest.mark.slow),
    ],
)
def test_one_file_of_weights_serves_tensorrt_8_too(
    bert: LoadedModel, exported: ExportedModel, tmp_path: Path, precision: str
) -> None:
    older = OnnxTarget("8.6", 17)
    made = build_onnx(
        bert, BUCKETS, precision, TARGET, None, tmp_path, exported=exported, older=older
    )
    assert made.older is not None and made.older.opset == 17 and made.no_older == ""
    assert (made.older.float32 is None) == (precision == "fp32")
    names = {"model.onnx", "model-8.6.onnx", f"weights.{precision}"}
    assert {path.name for path in tmp_path.iterdir()} == names
    with made.weights.open("rb") as file:
        constants = read_constants(file.fileno(), made.weights.stat().st_size, "weights")
    content = [made.weights.read_bytes()[c.offset : c.offset + c.nbytes] for c in constants]
    assert len(set(content)) == len(content)
    inputs = bert.make_example({"batch": 2, "length": 7}, seed=3)
    arrays = {name: tensor.numpy() for name, tensor in inputs.items()}
    found = [OnnxRunner(path).run(arrays) for path in (made.path, made.older.path)]
    for name, eager in bert.run(inputs).items():
        # int8's error has bounds of its own; here it is the two forms that have to be alike.
        want = found[0][name] if precision == "int8" else eager.numpy()
        limit = {"fp32": 1e-5, "fp16": 0.02, "int8": 0.05}[precision] * float(abs(want).max())
        for outputs in found:
            np.testing.assert_allclose(outputs[name], want, atol=limit)


def test_what_tensorrt_8_lacks_is_said_and_the_newer_form_stays(tmp_path: Path) -> None:
    model = load_model(f"{FACTORIES / 'overflowing.py'}:mish")
    plain = [bucket(1, 12)]
    made = build_onnx(
        model,
        plain,
        "fp32",
        TARGET,
        None,
        tmp_path,
        exported=export(model, plain),
        older=OnnxTarget("8.6", 17),
    )
    assert made.older is None and made.opset == 18
    assert "Mish in act (overflowing.py:" in made.no_older
    assert {path.name for path in tmp_path.iterdir()} == {"model.onnx", "weights.fp32"}


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


def test_torch_s_roundings_within_forward_don_t_count_against_the_file(tmp_path: Path) -> None:
    model = load_model(deep_autocast())
    made = build(model, [bucket(1, 12, None)], "fp16", TARGET, None, tmp_path)
    # Eager itself differs by 4 % from the model without them.
    assert made.check.ok and made.check.error < 1e-2, made.check.reasons


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


def test_an_unknown_precision(bert: LoadedModel, exported: ExportedModel, tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="bf17"):
        build(bert, BUCKETS, "bf17", TARGET, None, tmp_path, exported)


def test_wrong_answers_are_refused(
    bert: LoadedModel,
    exported: ExportedModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import edgecompile.onnx_files.build as module

    real = module.export_onnx

    def spoiled(*args: object, **least: int) -> object:
        graph = real(*args, **least)  # type: ignore[arg-type]
        name = max(graph.tensors, key=lambda n: graph.tensors[n].nbytes)
        graph.tensors[name] = np.ascontiguousarray(graph.tensors[name]) * np.float32(1.5)
        return graph

    monkeypatch.setattr(module, "export_onnx", spoiled)
    with pytest.raises(VerificationError, match="in fp32 differs from eager"):
        build(bert, BUCKETS, "fp32", TARGET, None, tmp_path, exported)
    assert list(tmp_path.iterdir()) == []
