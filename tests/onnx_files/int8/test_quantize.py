"""int8 by QuantizeLinear and DequantizeLinear: scales, matrices, and which layers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgecompile.onnx_files.float16 import narrow
from edgecompile.onnx_files.int8.quantize import Trial, choose_layers, quantize
from edgecompile.onnx_files.int8.scales import Layer, find_layers, find_scales, quantize_weight
from edgecompile.onnx_files.operators import OnnxTarget, check_operators
from edgecompile.onnx_files.tensorrt8 import widen
from tests.onnx_files.onnx_graphs import graph_of, run

RANDOM = np.random.default_rng(5)
X = RANDOM.standard_normal((64, 24)).astype(np.float32)
W = RANDOM.standard_normal((24, 16)).astype(np.float32)
V = RANDOM.standard_normal((8, 24)).astype(np.float32)

TWO = """agraph (float[n,24] x) => (float[n,16] y, float[n,8] z) {
  a = Abs(x)
  y = MatMul(a, w)
  z = Gemm<transB=1>(a, v, b)
}"""


def two(scale: np.ndarray | None = None, opset: int = 20) -> tuple[np.ndarray, object]:
    x = X if scale is None else X * scale
    graph = graph_of(TWO, opset, w=W, v=V, b=np.ones(8, np.float32))
    return x.astype(np.float32), graph


def test_layers_are_products_with_constant_matrices(tmp_path: Path) -> None:
    _, graph = two()
    assert find_layers(graph) == [
        Layer("MatMul:y", "a", "w", 1, 384),
        Layer("Gemm:z", "a", "v", 0, 192),
    ]
    moving = graph_of("agraph (float[n,4] x, float[4,m] u) => (float[n,m] y) { y = MatMul(x, u) }")
    assert find_layers(moving) == []


def test_a_matrix_is_rounded_by_columns_and_scales_never_clip() -> None:
    weight = W.copy()
    weight[:, 3] = 0
    weight[:, 4] *= 1e-3
    for dtype in (np.float16, np.float32):
        whole, scales = quantize_weight(weight, 1, dtype)
        assert whole.dtype == np.int8 and scales.dtype == dtype and scales.shape == (16,)
        wide = scales.astype(np.float64)
        assert (wide * 127 >= np.abs(weight).max(axis=0)).all()
        assert (np.abs(whole * wide - weight) <= wide / 2 + 1e-12).all()
        assert not whole[:, 3].any() and np.abs(whole).max() <= 127


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("opset", [17, 20])
def test_the_graph_multiplies_whole_numbers(tmp_path: Path, half: bool, opset: int) -> None:
    x, graph = two(opset=opset)
    layers = find_layers(graph)
    scales = find_scales(graph, layers, [{"x": x}], tmp_path)
    base = narrow(graph, {}, {}).graph if half else graph
    if opset == 17:
        base, _ = widen(base)
    made = quantize(base, graph, layers, scales)
    counts = check_operators(made, OnnxTarget("8.6" if opset == 17 else "10.3"))
    counts.check()
    # The activation is rounded once for both, each matrix has its own.
    assert counts.operators["QuantizeLinear"] == 1
    assert counts.operators["DequantizeLinear"] == 3
    kinds = {name: array.dtype.name for name, array in made.tensors.items()}
    own = "float16" if half and opset == 20 else "float32"
    # Two matrices, and zero points of the sizes of the scales, which TensorRT 8.6 asks for.
    assert sorted(kinds.values()).count("int8") == 2 + 3
    for node in made.nodes:
        if node.op_type.endswith("tizeLinear"):
            assert made.tensors[node.input[1]].shape == made.tensors[node.input[2]].shape
    # What multiplies takes whole numbers' values as they are: a Cast between would hide them.
    made_by = {name: node.op_type for node in made.nodes for name in node.output}
    for node in made.nodes:
        if node.op_type in ("MatMul", "Gemm"):
            assert [made_by[name] for name in node.input[:2]] == 2 * ["DequantizeLinear"]
    assert {kind for name, kind in kinds.items() if name.endswith("scale")} == {own}
    assert "w" not in kinds and "v" not in kinds
    got, want = run(made, tmp_path, x=x), run(graph, tmp_path, x=x)
    for name in ("y", "z"):
        error = np.abs(got[name] - want[name]).max() / np.abs(want[name]).max()
        assert 1e-4 < error < 0.02, name


def test_channels_of_outliers_move_into_the_matrix(tmp_path: Path) -> None:
    outliers = np.ones(24, np.float32)
    outliers[[2, 11]] = 300
    x, graph = two(outliers)
    layers = find_layers(graph)
    scales = find_scales(graph, layers, [{"x": x}], tmp_path)
    factors = scales["a"].factors
    assert factors is not None and factors[2] < factors[0] / 5
    made = quantize(graph, graph, layers, scales)
    got, want = run(made, tmp_path, x=x)["y"], run(graph, tmp_path, x=x)["y"]
    plain = {"a": type(scales["a"])(float(np.abs(x).max()) / 127, 0.0, 0.0)}
    rough = run(quantize(graph, graph, layers, plain), tmp_path, x=x)["y"]
    # What the large channels don't give: without factors it is gone altogether.
    small = np.abs(x)[:, [i for i in range(24) if i not in (2, 11)]]
    assert np.abs(small).max() < 300
    assert np.square(got - want).sum() < np.square(rough - want).sum() / 4


def test_one_matrix_of_two_activations(tmp_path: Path) -> None:
    graph = graph_of(
        """agraph (float[n,24] x) => (float[n,16] y) {
          a = Abs(x)
          one = MatMul(x, w)
          two = MatMul(a, w)
          y = Add(one, two)
        }""",
        w=W,
    )
    layers = find_layers(graph)
    scales = find_scales(graph, layers, [{"x": X}], tmp_path)
    made = quantize(graph, graph, layers, scales)
    got, want = run(made, tmp_path, x=X)["y"], run(graph, tmp_path, x=X)["y"]
    assert np.abs(got - want).max() < 0.03 * np.abs(want).max()


def layers_of(sizes: list[int]) -> list[Layer]:
    return [Layer(f"n{i}", f"v{i}", f"w{i}", 1, size) for i, size in enumerate(sizes)]


def test_the_choice_leaves_out_what_harms_most_for_what_it_saves() -> None:
    layers = layers_of([100, 100, 400, 100, 400])
    alone = dict(zip(("n0", "n1", "n2", "n3", "n4"), (0.01, 0.05, 0.06, 0.02, 0.01), strict=True))

    def attempt(chosen: list[Layer]) -> Trial:
        error = float(np.sqrt(sum(alone[layer.node] ** 2 for layer in chosen)))
        return Trial(error, None, error < 0.07)

    chosen, trials = choose_layers(layers, alone, attempt)
    # n1 costs less than n2, but n2 is four times its size.
    assert [layer.node for layer in chosen] == ["n0", "n2", "n3", "n4"]
    assert trials[0][0] == 5 and not trials[0][1].ok


def test_none_is_chosen_where_each_harms() -> None:
    layers = layers_of([1, 1, 1])
    chosen, _ = choose_layers(
        layers, dict.fromkeys(("n0", "n1", "n2"), 1.0), lambda some: Trial(1.0, None, False)
    )
    assert chosen == []
