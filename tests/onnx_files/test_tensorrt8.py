"""Graphs in opset 17 and in float32's types: the same answers, and what can't be said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from edgecompile.errors import UnsupportedOperatorError
from edgecompile.onnx_files.float16 import narrow
from edgecompile.onnx_files.graph import OnnxGraph, Place
from edgecompile.onnx_files.tensorrt8 import lower, widen, without_quantized
from tests.onnx_files.onnx_graphs import f32, graph_of, run

X = np.random.default_rng(3).standard_normal((2, 6, 4)).astype(np.float32)


def attributes(graph: OnnxGraph, operator: str) -> list[list[str]]:
    return [[a.name for a in node.attribute] for node in graph.nodes if node.op_type == operator]


def test_the_answers_stay_the_same(tmp_path: Path) -> None:
    graph = graph_of(
        """agraph (float[n,6,m] x) => (float[n,6,1] mean, float[1,1,1] norm, float[n,3,m] a, float[n,3,m] b) {
          mean = ReduceMean<keepdims=1>(x, axes)
          norm = ReduceL2<noop_with_empty_axes=0>(x)
          a, b = Split<axis=1, num_outputs=2>(x)
        }""",
        opset=18,
        axes=np.array([-1]),
    )
    made = lower(graph)
    assert made.opset == 17 and graph.opset == 18
    assert attributes(made, "ReduceMean") == [["keepdims", "axes"]]
    assert attributes(made, "ReduceL2") == [[]] and attributes(made, "Split") == [["axis"]]
    before, after = run(graph, tmp_path, x=X), run(made, tmp_path, x=X)
    for name in ("mean", "norm", "a", "b"):
        np.testing.assert_array_equal(after[name], before[name])


@pytest.mark.parametrize(
    ("attribute", "sizes"),
    [("start=1", [6, 4]), ("start=1, end=2", [6]), ("end=-1", [2, 6]), ("start=-1", [4])],
)
def test_sizes_are_picked_by_a_gather(tmp_path: Path, attribute: str, sizes: list[int]) -> None:
    """TensorRT 8.6 gives all sizes whatever these attributes say."""
    graph = graph_of(f"agraph (float[n,m,k] x) => (int64[j] y) {{ y = Shape<{attribute}>(x) }}", 18)
    graph.places["Shape:y"] = Place("head", "model.py:7")
    made = lower(graph)
    assert [node.op_type for node in made.nodes] == ["Shape", "Gather"]
    assert attributes(made, "Shape") == [[]]
    assert {made.place(node.name) for node in made.nodes} == {Place("head", "model.py:7")}
    assert run(made, tmp_path, x=X)["y"].tolist() == sizes


def test_what_opset_17_cannot_express_is_listed_with_its_lines() -> None:
    graph = graph_of(
        """agraph (float[1,2,6,6] x, int64[1] at, int32[n] i) => (float[1,2,6,6] y, float[a,b,c,d] z,
            float[1,2,12,12] r, int32[n] k, float[a,b,c,d] p) {
          y = Mish(x)
          z = ReduceMax(x, at)
          r = Resize<axes=[2,3]>(x, , factors)
          k = BitwiseAnd(i, i)
          p = Pad(x, pads, , at)
        }""",
        opset=18,
        factors=f32(2, 2),
        pads=np.array([1, 1]),
    )
    graph.places["Mish:y"] = Place("act", "model.py:12")
    with pytest.raises(UnsupportedOperatorError) as caught:
        lower(graph)
    assert caught.value.message.splitlines() == [
        "TensorRT 8.6 takes opset 17 of ONNX, which can't express 5 parts of the model:",
        "  Mish in act (model.py:12): opset 17 has no such operator",
        "  ReduceMax in the model: its axes are calculated, they must be constants",
        "  Resize in the model: opset 17 has no attribute axes of it",
        "  BitwiseAnd in the model: opset 17 has no such operator",
        "  Pad in the model: opset 17 has 3 inputs of it, not 4",
    ]


def test_a_graph_inside_a_node(tmp_path: Path) -> None:
    graph = graph_of(
        """agraph (bool c, float[n] x) => (float[m] y) {
          y = If (c) <then_branch = g1 () => (float[m] a) { a = ReduceMax(x) },
                      else_branch = g2 () => (float[m] b) { b = Mish(x) }>
        }""",
        opset=18,
    )
    with pytest.raises(UnsupportedOperatorError, match="Mish in the model: opset 17 has no such"):
        lower(graph)


def test_a_value_of_unknown_rank() -> None:
    graph = graph_of("agraph (float[n] x) => (int64[j] y) { y = Shape<start=1>(x) }", 18)
    graph.proto.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(UnsupportedOperatorError, match="a value whose rank isn't known"):
        lower(graph)


def test_domains_of_functions_are_gone() -> None:
    graph = graph_of("agraph (float[n] x) => (float[n] y) { y = Abs(x) }", 18)
    graph.proto.opset_import.append(onnx.helper.make_opsetid("pkg.torch", 1))
    assert [(o.domain, o.version) for o in lower(graph).proto.opset_import] == [("", 17)]


def test_halves_become_singles_and_the_weights_stay_small(tmp_path: Path) -> None:
    weight = np.random.default_rng(4).standard_normal((4, 4)).astype(np.float32)
    graph = graph_of(
        """agraph (float[n,6,4] x) => (float[n,6,4] y, int64[n,6,4] whole) {
          a = MatMul(x, weight)
          e = Exp(a)
          s = Cast<to=1>(e)
          b = MatMul(s, weight)
          whole = Cast<to=7>(b)
          y = Relu(b)
        }""",
        opset=17,
        weight=weight,
    )
    half = narrow(graph, {"Exp:e": "it is large"}, {}).graph
    made, stays = widen(half)
    assert stays == ("e",)
    kinds = {*made.dtypes().values()}
    assert kinds == {"float16", "float32", "int64"}
    casts = [node for node in made.nodes if node.op_type == "Cast"]
    # The weight's, and that to whole numbers.
    assert [made.tensors[c.input[0]].dtype.name for c in casts if c.input[0] in made.tensors] == [
        "float16"
    ]
    assert len(casts) == 2
    before, after = run(half, tmp_path, x=X), run(made, tmp_path, x=X)
    assert after["y"].dtype == np.float32
    np.testing.assert_allclose(after["y"], before["y"], rtol=4e-3)


def test_quantized_products_are_not_among_those_that_stay_float32() -> None:
    graph = graph_of(
        """agraph (float[n,4] x) => (float[n,4] y) {
          q = QuantizeLinear(x, scale, zero)
          d = DequantizeLinear(q, scale, zero)
          p = MatMul(d, weight)
          y = Exp(p)
        }""",
        opset=17,
        scale=np.float32(0.1),
        zero=np.int8(0),
        weight=np.eye(4, dtype=np.float32),
    )
    assert without_quantized(graph, ("p", "y")) == ("y",)
