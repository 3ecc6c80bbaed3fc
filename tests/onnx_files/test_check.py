"""ONNX files against eager's answers, padded and not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from edgecompile.buckets.ranges import AxisRange, Bucket
from edgecompile.bundle.cases import Case
from edgecompile.bundle.reference import find_reference
from edgecompile.errors import VerificationError
from edgecompile.loaders.factory_specs import ModelSpec
from edgecompile.loaders.load import load_model
from edgecompile.models.specs import InputSpec, OutputSpec
from edgecompile.onnx_files.check import OnnxReport, check_onnx
from edgecompile.onnx_files.scan import NoHostKernelError, OnnxRunner
from edgecompile.onnx_files.weights import write_onnx
from edgecompile.runtime.format.manifest.schema import Tolerance
from tests.onnx_files.onnx_graphs import Array, f32, graph_of

BUCKETS = [
    Bucket("exact", (("length", AxisRange(lo, hi, hi)), ("batch", AxisRange(1, 3, 1))))
    for lo, hi in ((1, 4), (5, 9))
]
X = InputSpec("x", "float32", ("batch", "length"), pad=0.0)
Y = OutputSpec("y", "float32", ("batch", "length"))
S = OutputSpec("s", "float32", ("batch",))
SUM = """agraph (float[batch,length] x) => (float[batch,length] y, float[batch] s) {
  y = Mul(x, w)
  s = OPERATOR<keepdims=0>(y, axes)
}"""


def check(tmp_path: Path, operator: str = "ReduceSum", pad: float | None = 0.0) -> OnnxReport:
    graph = graph_of(SUM.replace("OPERATOR", operator), w=f32(2), axes=np.array([1]))
    path = tmp_path / "m.onnx"
    write_onnx(graph, path, tmp_path / "w")
    cases = []
    for bucket, length in ((0, 1), (0, 4), (1, 6)):
        x = np.arange(2 * length, dtype=np.float32).reshape(2, length)
        reduce = np.sum if operator == "ReduceSum" else np.mean
        outputs: dict[str, Array] = {"y": 2 * x, "s": reduce(2 * x, axis=1, dtype=np.float32)}
        cases.append(Case(bucket, f"length{length}", {"x": x}, outputs))
    spec = InputSpec("x", "float32", ("batch", "length"), pad=pad)
    return check_onnx(path, cases, BUCKETS, [spec], [Y, S], Tolerance(1e-6, 1e-5))


def test_a_sum_may_be_padded(tmp_path: Path) -> None:
    report = check(tmp_path)
    assert report.ok and report.padding and report.padding_reason == ""
    assert [(r.bucket, r.padded, r.cases) for r in report.results] == [
        (0, False, 2),
        (1, False, 1),
        (0, True, 2),  # of the batch too, where the length is the bucket's largest
        (1, True, 1),
    ]
    assert report.to_json()["padding"] is True


def test_a_mean_may_not(tmp_path: Path) -> None:
    report = check(tmp_path, "ReduceMean")
    assert report.ok and not report.padding
    assert report.padding_reason.startswith("bucket 0, length1, padded: differs by")


def test_an_input_without_a_pad_value(tmp_path: Path) -> None:
    report = check(tmp_path, pad=None)
    assert report.ok and not report.padding
    assert report.padding_reason == "no pad value is known for x"


def test_an_input_whose_size_follows_from_an_axis(tmp_path: Path) -> None:
    text = """agraph (float[batch,length] x, float[batch,twice] z) => (float[batch] s) {
      a = ReduceSum<keepdims=0>(x, axes)
      b = ReduceSum<keepdims=0>(z, axes)
      s = Add(a, b)
    }"""
    path = tmp_path / "m.onnx"
    write_onnx(graph_of(text, axes=np.array([1])), path, tmp_path / "w")
    x, z = np.ones((1, 2), np.float32), np.ones((1, 4), np.float32)
    case = Case(0, "length2", {"x": x, "z": z}, {"s": np.array([6], np.float32)})
    inputs = [X, InputSpec("z", "float32", ("batch", "2*length"), pad=0.0)]
    report = check_onnx(path, [case], BUCKETS, inputs, [S], Tolerance(1e-6, 1e-5))
    assert report.ok and not report.padding
    assert report.padding_reason == "the size 2*length of an input follows from others"


def test_places_of_nearly_equal_values_may_be_others(tmp_path: Path) -> None:
    """A graph that rounds before it sorts gives ties of 0.2 another order, and is right; one that turns round isn't."""

    class Sorted(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            places = x.argsort(descending=True)
            return places, (x * 3).gather(1, places)

    x = torch.tensor([[0.2, 0.5, 0.20001, 0.7]])
    spec = ModelSpec(module=Sorted(), inputs={"x": x}, outputs=("places", "y"))
    model = load_model(spec, name="sorted")
    reference = find_reference(model, {"x": x.numpy()}, rtol=2e-2)
    case = Case(0, "one", {"x": x.numpy()}, reference.outputs, ties=reference.ties)
    assert case.outputs["places"].tolist() == [[3, 1, 2, 0]]
    bucket = Bucket("exact", (("length", AxisRange(4, 4, 4)),))
    sizes = {"x": (1, 4)}
    inputs = [InputSpec("x", "float32", sizes["x"])]
    outputs = [OutputSpec("places", "int64", (1, 4)), OutputSpec("y", "float32", (1, 4))]
    text = """agraph (float[1,4] x) => (int64[1,4] places, float[1,4] y) {
      narrow = Cast<to=10>(x)
      changed = OPERATOR(narrow)
      wide = Cast<to=1>(changed)
      values, places = TopK(wide, four)
      tripled = Mul(x, three)
      y = GatherElements<axis=1>(tripled, places)
    }"""
    for operator, rtol, right in (
        ("Identity", 2e-2, True),
        ("Identity", 1e-5, False),
        ("Neg", 2e-2, False),
    ):
        graph = graph_of(text.replace("OPERATOR", operator), four=np.array([4]), three=f32(3)[0])
        path = tmp_path / f"{operator}{rtol}.onnx"
        write_onnx(graph, path, tmp_path / f"{operator}{rtol}.w")
        report = check_onnx(path, [case], [bucket], inputs, outputs, Tolerance(1e-6, rtol))
        assert report.ok is right, (operator, rtol, report.reasons)


def test_wrong_answers_are_listed_by_case(tmp_path: Path) -> None:
    graph = graph_of("agraph (float[batch,length] x) => (float[batch,length] y) { y = Abs(x) }")
    write_onnx(graph, tmp_path / "m.onnx", tmp_path / "w")
    x = f32(1, -1, 2, 3).reshape(1, 4)
    cases = [Case(0, "one", {"x": x}, {"y": x}), Case(1, "two", {"x": x}, {"y": np.abs(x)})]
    report = check_onnx(
        tmp_path / "m.onnx", cases, BUCKETS, [X], [Y], Tolerance(1e-6, 1e-5), min_cosine=0.99
    )
    assert not report.ok and len(report.reasons) == 1
    assert report.reasons[0].startswith("bucket 0, one: differs by 2")
    loose = check_onnx(
        tmp_path / "m.onnx", cases, BUCKETS, [X], [Y], Tolerance(9, 9), min_cosine=0.99
    )
    assert "cosine 0.8" in loose.reasons[0]


def test_a_file_that_cannot_be_loaded(tmp_path: Path) -> None:
    graph = graph_of("agraph (float[n] x) => (float[n] y) { y = Add(x, w) }", w=np.ones(999, "f"))
    write_onnx(graph, tmp_path / "m.onnx", tmp_path / "w")
    (tmp_path / "w").unlink()
    with pytest.raises(VerificationError, match=r"can't load 'm\.onnx'"):
        check_onnx(tmp_path / "m.onnx", [], BUCKETS, [X], [Y], Tolerance(0, 0))


def test_what_only_the_checker_lacks_isn_t_the_model_s_fault(tmp_path: Path) -> None:
    text = """agraph (float16[2] x) => (float16[2] y) {
      y = ScatterElements<reduction="add">(x, places, x)
    }"""
    write_onnx(graph_of(text, 18, places=np.array([0, 0])), tmp_path / "m.onnx", tmp_path / "w")
    with pytest.raises(NoHostKernelError) as caught:
        OnnxRunner(tmp_path / "m.onnx").run({"x": np.ones(2, np.float16)})
    assert "this machine's CPU, has no kernel for ScatterElements" in caught.value.message
    assert "The model isn't at fault" in caught.value.message
