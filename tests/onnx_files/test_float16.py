"""Narrowing to float16: what is kept wider, why, and that the result is what was meant."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from edgecompile.onnx_files.emulated_float16 import round_halves, undefined_nodes
from edgecompile.onnx_files.fills import FILL, find_fills, masked_values
from edgecompile.onnx_files.float16 import narrow
from edgecompile.onnx_files.float32_nodes import LIMIT, decisive, find_float32_nodes
from edgecompile.onnx_files.graph import OnnxGraph
from edgecompile.onnx_files.scan import ValueVisitor, scan_values
from tests.onnx_files.onnx_graphs import Array, f32, graph_of, run


def kept_of(graph: OnnxGraph, tmp_path: Path, *inputs: dict[str, Array]) -> dict[str, str]:
    fills = find_fills(graph)
    scan = scan_values(graph, inputs, tmp_path, masked=masked_values(fills))
    return find_float32_nodes(graph, scan, fills)


ATTENTION = """
agraph (float[n] scores, bool[n] real) => (float[n] weights) {
  mask = Where(real, zero, lowest)
  sum = Add(scores, mask)
  weights = Softmax<axis=-1>(sum)
}"""


def attention() -> OnnxGraph:
    lowest = np.array(np.finfo(np.float32).min)
    return graph_of(ATTENTION, zero=np.array(0, np.float32), lowest=lowest)


def test_a_masks_fill_is_cut_down_and_nothing_is_kept(tmp_path: Path) -> None:
    graph = attention()
    inputs = {"scores": f32(-90, 20, 3), "real": np.array([True, True, False])}
    assert kept_of(graph, tmp_path, inputs) == {}
    fills = find_fills(graph)
    assert fills["lowest"].becomes == FILL
    made = narrow(graph, {}, fills)
    assert made.graph.tensors["lowest"].dtype == np.float16
    got = run(made.graph, tmp_path, **inputs)["weights"]
    assert got.dtype == np.float32
    assert np.allclose(got, [0, 1, 0], atol=1e-3)


def test_a_wholly_masked_row_is_no_nan_in_fp16(tmp_path: Path) -> None:
    graph = attention()
    made = narrow(graph, {}, find_fills(graph)).graph
    none = {"scores": f32(-900, -20, 30), "real": np.zeros(3, bool)}
    assert np.isfinite(run(made, tmp_path, **none)["weights"]).all()


def test_a_large_constant_that_is_no_mask_keeps_its_node(tmp_path: Path) -> None:
    graph = graph_of(
        "agraph (float[n] x) => (float[n] y) { a = Mul(x, big)\n y = Mul(a, small) }",
        big=f32(-1e9),
        small=f32(1e-3),
    )
    assert find_fills(graph) == {}
    kept = kept_of(graph, tmp_path, {"x": f32(1e-6, 2e-6)})
    assert "1e+09" in kept["Mul:a"]
    # What it gives is small enough, so what comes behind is in float16 again.
    assert list(kept) == ["Mul:a"]
    made = narrow(graph, kept, {})
    got = run(made.graph, tmp_path, x=f32(1e-6, 2e-6))["y"]
    assert np.allclose(got, [-1, -2], rtol=2e-3)
    assert [k.node for k in made.kept] == ["Mul:a"]


def test_what_overflows_is_kept_with_what_takes_it(tmp_path: Path) -> None:
    graph = graph_of(
        """agraph (float[n] x) => (float[n] y) {
          wide = Mul(x, x)
          root = Sqrt(wide)
          y = Add(root, one)
        }""",
        one=f32(1),
    )
    below, above = np.sqrt(LIMIT) * 0.99, np.sqrt(LIMIT) * 1.01
    assert kept_of(graph, tmp_path, {"x": f32(below)}) == {}
    kept = kept_of(graph, tmp_path, {"x": f32(1)}, {"x": f32(above)})
    assert set(kept) == {"Mul:wide", "Sqrt:root"}
    got = run(narrow(graph, kept, {}).graph, tmp_path, x=f32(3000))["y"]
    assert np.allclose(got, 3001, rtol=1e-3)


def test_sums_inside_a_node_count(tmp_path: Path) -> None:
    graph = graph_of(
        "agraph (float[n] x) => (float[1] y) { y = ReduceMean<keepdims=1>(x, axes) }",
        axes=np.array([0]),
    )
    kept = kept_of(graph, tmp_path, {"x": np.full(3000, 8, np.float32)})
    assert "2.4e+04 inside" in kept["ReduceMean:y"]


def test_a_tiny_constant_is_kept_down_to_what_it_divides(tmp_path: Path) -> None:
    graph = graph_of(
        """agraph (float[n] x, float[n] norm) => (float[n] y) {
          least = Max(norm, tiny)
          wide = Expand(least, shape)
          y = Div(x, wide)
        }""",
        tiny=f32(1e-12),
        shape=np.array([1]),
    )
    kept = kept_of(graph, tmp_path, {"x": f32(0), "norm": f32(0)})
    assert set(kept) == {"Max:least", "Expand:wide", "Div:y"}
    made = narrow(graph, kept, {}).graph
    assert run(made, tmp_path, x=f32(0), norm=f32(0))["y"].tolist() == [0]


def test_angles_and_whole_numbers_are_kept(tmp_path: Path) -> None:
    graph = graph_of(
        """agraph (int64[n] at, float[n] x) => (float[n] y, int64[n] which) {
          position = Cast<to=1>(at)
          angle = Mul(position, step)
          sine = Sin(angle)
          y = Mul(sine, x)
          scaled = Mul(position, step)
          which = Cast<to=7>(scaled)
        }""",
        step=f32(0.7),
    )
    at = np.arange(2000)
    inputs = {"at": at, "x": np.ones(2000, np.float32)}
    kept = kept_of(graph, tmp_path, inputs)
    assert set(kept) == {"Cast:position", "Mul:angle", "Sin:sine", "Mul:scaled", "Cast:which"}
    got = run(narrow(graph, kept, {}).graph, tmp_path, **inputs)
    want = at.astype(np.float32) * np.float32(0.7)
    assert np.abs(got["y"] - np.sin(want)).max() < 1e-3
    assert (got["which"] == want.astype(np.int64)).all()


def test_what_chooses_is_kept_with_the_product_before_it(tmp_path: Path) -> None:
    graph = graph_of(
        """agraph (float[n,2] x, float[1,1,n,2] image) => (float[k] best, int64[m] i, float[a,b,c,d] y, float[n,2] s) {
          deep = MatMul(x, w)
          active = Relu(deep)
          scores = MatMul(active, w)
          flat = Reshape(scores, line)
          best, where = TopK(flat, two)
          i = ArgMax<axis=0, keepdims=0>(x)
          deep2 = MatMul(x, w)
          moved = Add(deep2, x)
          at = Tanh(moved)
          grid = Unsqueeze(at, front)
          y = GridSample<mode="bilinear">(image, grid)
          s = ScatterElements<reduction="add">(x, places, x)
        }""",
        opset=17,
        w=np.eye(2, dtype=np.float32) * 1.1,
        line=np.array([-1]),
        two=np.array([2]),
        front=np.array([0, 1]),
        places=np.zeros((3, 2), np.int64),
    )
    x = np.arange(6, dtype=np.float32).reshape(3, 2) / 6
    inputs = {"x": x, "image": np.ones((1, 1, 3, 2), np.float32)}
    kept = kept_of(graph, tmp_path, inputs)
    assert set(kept) == {
        *("MatMul:scores", "Reshape:flat", "TopK:best", "ArgMax:i", "ScatterElements:s"),
        *("MatMul:deep2", "Add:moved", "Tanh:at", "Unsqueeze:grid", "GridSample:y"),
    }
    assert kept["GridSample:y"] == "it makes the coordinates of samples"
    # Where that isn't enough, all that leads there is.
    assert {"MatMul:deep", "Relu:active"} == dict(decisive(graph)).keys() - kept.keys()
    made = narrow(graph, kept, {}).graph
    assert made.dtypes()["active"] == "float16"
    got, want = (run(item, tmp_path, **inputs) for item in (made, graph))
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, atol=2e-3)


def test_an_operator_without_a_half_form_is_kept(tmp_path: Path) -> None:
    graph = graph_of(
        """agraph (float[n] x) => (float[m] y, float[n] z) {
          y = Range(zero, four, one)
          z = LayerNormalization(x, scale)
        }""",
        zero=np.array(0, np.float32),
        four=np.array(4, np.float32),
        one=np.array(1, np.float32),
        scale=f32(1, 1, 1),
    )
    # LayerNormalization's second output has no float16 form, but isn't there.
    kept = kept_of(graph, tmp_path, {"x": f32(1, 2, 4)})
    assert list(kept) == ["Range:y"] and "no float16 form" in kept["Range:y"]
    got = run(narrow(graph, kept, {}).graph, tmp_path, x=f32(1, 2, 4))
    assert got["y"].tolist() == [0, 1, 2, 3]


def test_inputs_and_outputs_keep_their_dtypes_and_names(tmp_path: Path) -> None:
    graph = graph_of(
        """agraph (float[n] x) => (float[n] y, float[n] z, float[n] same) {
          y = Mul(x, w)
          z = Add(y, w)
          same = Identity(x)
        }""",
        w=f32(0.1),
    )
    made = narrow(graph, {}, {}).graph
    assert made.inputs == {"x": "float32"}
    assert made.outputs == dict.fromkeys(("y", "z", "same"), "float32")
    # In the graph's order, whatever the hashes of names: equal builds are equal bytes.
    last = [node.output[0] for node in made.nodes if node.output[0] in made.outputs]
    assert last == list(made.outputs)
    dtypes = made.dtypes()
    assert dtypes["w"] == "float16" and made.tensors["w"].dtype == np.float16
    assert {
        node.op_type: dtypes[node.output[0]] for node in made.nodes if node.op_type != "Cast"
    } == {"Mul": "float16", "Add": "float16", "Identity": "float16"}


def test_values_are_rounded_though_onnxruntime_calculates_in_float32(tmp_path: Path) -> None:
    graph = graph_of("agraph (float[n] x) => (float[n] y) { a = Mul(x, x)\n y = Sub(a, x) }")
    made = narrow(graph, {}, {}).graph
    # 63 * 63 = 3969 lies between two of float16's numbers, which are 2 apart there.
    assert run(round_halves(made), tmp_path, x=f32(63))["y"].tolist() == [3904]


def test_a_weight_of_wide_and_narrow_nodes_is_there_in_both(tmp_path: Path) -> None:
    graph = graph_of(
        "agraph (float[n] x) => (float[n] y) { a = Mul(x, w)\n y = Add(a, w) }", w=f32(3)
    )
    made = narrow(graph, {"Mul:a": "because"}, {}).graph
    assert {a.dtype.name for a in made.tensors.values()} == {"float16", "float32"}
    assert run(made, tmp_path, x=f32(2))["y"].tolist() == [9]


def test_nans_that_float16_makes_are_laid_at_the_node_that_makes_them(tmp_path: Path) -> None:
    graph = graph_of(
        """agraph (float[n] x) => (float[n] y) {
          wide = Mul(x, x)
          zero = Sub(wide, wide)
          y = Add(zero, x)
        }"""
    )
    scan = scan_values(graph, [{"x": f32(1000)}], tmp_path)
    made = narrow(graph, {}, {}).graph
    found = undefined_nodes(made, scan, [{"x": f32(1000)}], tmp_path)
    assert found == {"Mul:wide": "in float16 it gives an infinity"}
    good = narrow(graph, {"Mul:wide": "", "Sub:zero": ""}, {}).graph
    assert undefined_nodes(good, scan, [{"x": f32(1000)}], tmp_path) == {}


def test_values_are_looked_at_in_groups_that_fit(tmp_path: Path) -> None:
    lines = "\n".join(f"v{i + 1} = Add(v{i}, one)" for i in range(40))
    graph = graph_of(f"agraph (float[n] v0) => (float[n] v40) {{ {lines} }}", one=f32(1))
    seen: dict[str, float] = {}
    visitor = ValueVisitor(graph, tmp_path, budget=4 * 10 * 3)
    names = [f"v{i}" for i in range(1, 41)]
    visitor.visit(names, [{"v0": np.zeros(10, np.float32)}], lambda n, a: seen.update({n: a[0]}))
    assert seen == {f"v{i}": i for i in range(1, 41)}


def test_what_is_calculated_of_sizes_is_kept(tmp_path: Path) -> None:
    """A ramp over 3,000 places: float16 has 2,048 whole numbers. The mask and the values are narrow."""
    graph = graph_of(
        """agraph (float[n] x, bool[n] real) => (float[n] y) {
          sizes = Shape(x)
          size = Squeeze(sizes)
          places = Range(zero, size, one)
          steps = Cast<to=1>(places)
          all = Cast<to=1>(size)
          ramp = Div(steps, all)
          mask = Cast<to=1>(real)
          masked = Mul(x, mask)
          y = Mul(masked, ramp)
        }""",
        zero=np.array(0),
        one=np.array(1),
    )
    x, real = np.ones(3000, np.float32), np.ones(3000, bool)
    kept = kept_of(graph, tmp_path, {"x": x, "real": real})
    assert {name.partition(":")[0] for name in kept} == {"Cast", "Div"} and len(kept) == 3
    got = run(narrow(graph, kept, {}).graph, tmp_path, x=x, real=real)["y"]
    assert np.allclose(got, np.arange(3000) / 3000, atol=3e-4)
