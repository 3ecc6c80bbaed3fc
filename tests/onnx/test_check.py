"""ONNX files against eager's answers, padded and not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgecompile.buckets.ranges import AxisRange, Bucket
from edgecompile.bundle.cases import Case
from edgecompile.errors import VerificationError
from edgecompile.models.specs import InputSpec, OutputSpec
from edgecompile.onnx.check import OnnxReport, check_onnx
from edgecompile.onnx.weights import write_onnx
from edgecompile.runtime.format.schema import Tolerance
from tests.onnx.onnx_graphs import Array, f32, graph_of

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
