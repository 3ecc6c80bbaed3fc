"""Graphs against TensorRT's lists of operators."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from edgecompile.errors import OpsetError, TargetError, UnsupportedOperatorError
from edgecompile.onnx_files import operators
from edgecompile.onnx_files.graph import OnnxGraph, Place
from edgecompile.onnx_files.operators import OnnxTarget, check_operators, known_releases
from edgecompile.onnx_files.tensorrt8 import OPSET
from edgecompile.targets.jetpack import list_jetpacks, load_jetpack
from edgecompile.targets.schema import read_toml
from tests.onnx_files.onnx_graphs import f32, graph_of


def problems(graph: OnnxGraph, tensorrt: str = "10.3") -> list[str]:
    return [str(item) for item in check_operators(graph, OnnxTarget(tensorrt)).violations]


def test_every_violation_is_listed_with_its_place() -> None:
    graph = graph_of(
        """agraph (float[n] x, double[n] wide) => (float[n] y, double[n] z) {
          found = Unique(x)
          window = BlackmanWindow(size)
          part = Gather(found, index)
          y = Add(part, window)
          z = Exp(wide)
        }""",
        size=np.array(4),
        index=np.array([0]),
    )
    graph.places["Unique:found"] = Place("encoder.layer.3", "model.py:12")
    report = check_operators(graph, OnnxTarget("10.3"))
    with pytest.raises(UnsupportedOperatorError) as caught:
        report.check()
    message = caught.value.message
    assert "Unique in encoder.layer.3 (model.py:12): TensorRT 10.3 has no such operator" in message
    assert "BlackmanWindow in the model: TensorRT has it from 10.4 on" in message
    assert "the input 'wide' is float64" in message and "the output 'z' is float64" in message
    assert "Exp in the model: 'wide' is float64" in message
    assert message.startswith("TensorRT 10.3 doesn't take 5 parts")
    assert caught.value.exit_code == 47
    assert report.operators == {"Unique": 1, "BlackmanWindow": 1, "Gather": 1, "Add": 1, "Exp": 1}
    assert not [text for text in problems(graph, "10.7") if "Blackman" in text]


def test_what_later_releases_take() -> None:
    graph = graph_of(
        "agraph (int64[n] x) => (int64[n] y, float[n] z) { y = Pow(x, two)\n z = CumSum(w, at) \n"
        "at = Cast<to=7>(one) }".replace("z = CumSum(w, at) \n", "").replace(
            "at = Cast<to=7>(one) }", "at = Cast<to=7>(one)\n z = CumSum(w, at) }"
        ),
        two=np.array([2]),
        one=np.array(0.0, np.float32),
        w=f32(1, 2),
    )
    assert problems(graph) == [
        "Pow in the model: 'x' is int64; it takes float32, float16, bfloat16",
        "CumSum in the model: its axis are calculated, they must be constants",
    ]
    assert problems(graph, "10.16") == []


def test_rules_of_attributes_outputs_and_zero_points() -> None:
    graph = graph_of(
        """agraph (float[n,4] x) => (float[n,4] y, float[m,1] mean, float[n] s, float[n,4] d) {
          y, mean = LayerNormalization(x, w)
          top, at = TopK<sorted=0>(x, one)
          s = Einsum<equation="...i->...">(top)
          q = QuantizeLinear(x, step, odd)
          d = DequantizeLinear(q, step, odd)
        }""",
        w=f32(1, 1, 1, 1),
        one=np.array([1]),
        step=np.array(0.1, np.float32),
        odd=np.array(3, np.int8),
    )
    found = problems(graph)
    assert len(found) == 5
    assert "only its first 1 of 2 outputs may be used" in found[0]
    assert "sorted is 0, not one of [1]" in found[1]
    assert "with '...'" in found[2]
    assert "zero point isn't zero" in found[3] and "zero point isn't zero" in found[4]
    assert not [text for text in problems(graph, "11.4") if "Einsum" in text]


def test_attributes_that_the_parser_takes_for_something_else_are_refused() -> None:
    graph = graph_of(
        """agraph (float[1,2,6,6] x, float[1,6,6,2] at) => (float[a,b,c,d] y, float[a,b,c,d] z,
            float[a,b,c,d] m, float[a,b,c,d] p, float[a,b,c,d] r) {
          y = GridSample<mode="linear">(x, at)
          z = GridSample<mode="cubic", padding_mode="border">(x, at)
          m = MaxPool<kernel_shape=[2,2], storage_order=1>(x)
          p = MaxPool<kernel_shape=[2,2], storage_order=0>(x)
          r = GridSample<mode="nearest">(x, at)
        }"""
    )
    assert problems(graph) == [
        "GridSample in the model: its attribute mode is 'linear', not one of ['nearest', 'bilinear', 'bicubic']",
        "GridSample in the model: its attribute mode is 'cubic', not one of ['nearest', 'bilinear', 'bicubic']",
        "MaxPool in the model: its attribute storage_order is 1, which its parser doesn't read",
    ]
    shapes = graph_of("agraph (float[n,4] x) => (int64[j] y) { y = Shape<start=1>(x) }", 17)
    assert problems(shapes) == []
    assert problems(shapes, "8.6") == [
        "Shape in the model: its attribute start is 1, which its parser doesn't read"
    ]


def test_every_change_of_newer_opsets_is_in_the_table() -> None:
    """What ONNX changed in operators that TensorRT takes, in opsets that a graph for a Jetson may have."""
    table = read_toml(Path(operators.__file__).with_name("tensorrt_operators.toml"))
    taken = {name for names in table["operators"].values() for name in names}
    most = max(load_jetpack(name).opset for name in list_jetpacks())
    changed = {
        (schema.name, schema.since_version)
        for schema in onnx.defs.get_all_schemas_with_history()
        if schema.domain == "" and schema.name in taken and OPSET < schema.since_version <= most
    }
    assert changed == {
        (name, item["opset"]) for item in table["changes"] for name in item["operators"]
    }


def test_an_operator_of_another_domain_and_one_in_an_inner_graph() -> None:
    graph = graph_of(
        """agraph (bool c, float[n] x) => (float[n] y) {
          y = If (c) <then_branch = g1 () => (float[n] a) { a = Bernoulli(x) },
                      else_branch = g2 () => (float[n] b) { b = Identity(x) }>
        }"""
    )
    assert problems(graph) == ["Bernoulli in the model: TensorRT 10.3 has no such operator"]


def test_an_opset_that_is_too_new() -> None:
    graph = graph_of("agraph (float[n] x) => (float[n] y) { y = Abs(x) }", opset=21)
    with pytest.raises(OpsetError, match=r"opset 21, TensorRT 10\.3 may be given 9 to 20"):
        check_operators(graph, OnnxTarget("10.3"))
    with pytest.raises(OpsetError, match="9 to 18"):
        check_operators(graph, OnnxTarget("10.16", opset=18))


def test_targets() -> None:
    assert known_releases() == ("8.6", "10.3", "10.7", "10.16", "11.4")
    # A release between two known ones is the earlier of them, with what came since.
    graph = graph_of(
        "agraph (float[n] x) => (float[n] y) { y = Add(x, w)\n w = HannWindow(size) }".replace(
            "y = Add(x, w)\n w = HannWindow(size)", "w = HannWindow(size)\n y = Add(x, w)"
        ),
        size=np.array(3),
    )
    assert problems(graph, "10.4") == [] and len(problems(graph, "10.3")) == 1
    with pytest.raises(TargetError, match=r"of TensorRT 8\.5"):
        problems(graph, "8.5")
    with pytest.raises(TargetError, match="'new' is no TensorRT release"):
        problems(graph, "new")


def test_what_tensorrt_8_lacks() -> None:
    """As its parser's source has it: operators, element types, reductions, slices along computed axes."""
    graph = graph_of(
        """agraph (int32[n] x, float[n,4,4,4] w, int64[1] at, bfloat16[n] half)
            => (int32[1] y, float[n,4,4,4] t, float[n,4,4,4] s, int32[m] p, bfloat16[n] a, float16[n] l, float e) {
          y = ReduceMax(x)
          t = Trilu(w)
          s = ScatterElements<reduction="add">(w, spots, w)
          p = Slice(x, zero, one, at)
          a = Abs(half)
          l = CastLike(half, like)
          e = Einsum<equation="abcd,abcd,abcd->">(w, w, w)
        }""",
        opset=17,
        spots=np.zeros((1, 4, 4, 4), np.int64),
        zero=np.array([0]),
        one=np.array([1]),
        like=np.array(0, np.float16),
    )
    assert problems(graph, "8.6") == [
        "ReduceMax in the model: 'x' is int32; it takes float32, float16",
        "Trilu in the model: its input has 4 dimensions, not [2, 3]",
        "ScatterElements in the model: its attribute reduction is 'add', not one of ['none']",
        "Slice in the model: its axes are calculated, they must be constants",
        "Abs in the model: 'half' is bfloat16; it takes float32, float16, int32, int64",
        "CastLike in the model: TensorRT has it from 9.1 on",
        "Einsum in the model: it has 3 inputs, 2 are taken",
    ]
    assert problems(graph, "10.16") == []


def test_triangles_and_sums_of_other_types_in_tensorrt_8() -> None:
    graph = graph_of(
        """agraph (bool[n,n] x, int64[n] w) => (bool[n,n] y, int64[n] s) {
          y = Trilu(x)
          s = CumSum(w, axis)
        }""",
        opset=17,
        axis=np.array(0),
    )
    (triangle,) = problems(graph, "8.6")
    assert triangle.startswith("Trilu in the model: 'x' is bool; it takes float32")
    (total,) = problems(graph, "10.3")
    assert total.startswith("CumSum in the model: 'w' is int64")


def test_remainders_of_whole_numbers_are_warned_of_in_tensorrt_8() -> None:
    graph = graph_of(
        """agraph (int64[n] x, float[n] w) => (int64[n] y, float[n] z) {
          y = Mod(x, seven)
          z = Mod<fmod=1>(w, half)
        }""",
        opset=17,
        seven=np.array(7),
        half=np.array(0.5, np.float32),
    )
    graph.places["Mod:y"] = Place("hash", "model.py:3")
    report = check_operators(graph, OnnxTarget("8.6"))
    (warning,) = report.warnings
    assert str(warning).startswith("Mod in hash (model.py:3): of numbers beyond 2^24")
    report.check()
    assert check_operators(graph, OnnxTarget("10.3")).warnings == ()


def test_whole_numbers_beyond_32_bits() -> None:
    graph = graph_of(
        """agraph (int64[n] x) => (int64[n] y, int64[m] z) {
          y = Add(x, large)
          z = Slice(y, small, end)
        }""",
        large=np.array(2**31),
        small=np.array([-(2**31) + 1]),
        end=np.array([2**63 - 1]),
    )
    graph.places["Add:y"] = Place("clock", "model.py:3")
    assert problems(graph) == []
    graph.proto.opset_import[0].version = 17
    (problem,) = problems(graph, "8.6")
    assert problem.startswith("Add in clock (model.py:3): its constant 'large' is beyond 32 bits")
