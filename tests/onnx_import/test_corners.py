"""Corners of operators that ONNX's own tests leave out."""

import numpy as np
import pytest
from onnx import helper

from edgecompile.errors import ModelError
from tests.onnx_import.graphs import FLOAT, INT, compare, model, run_imported, save, value

_X = np.random.default_rng(5).standard_normal((2, 3, 5, 5)).astype(np.float32)
_POOL = {"strides": [3, 3], "ceil_mode": 1}
_MS = "com.microsoft"


def _model(operator, tensors=None, x=_X, opset=17, kind=FLOAT, inputs=None, **attributes):
    """A model of one node, of which ``x`` is the first input unless ``inputs`` says more."""
    names = inputs or ["x", *(tensors or {})]
    node = helper.make_node(operator, names, ["y"], name="it", **attributes)
    return model([node], [value("x", list(x.shape))], [value("y", None, kind)], tensors, opset), x


def _pool(operator, size, pads, **more):
    return _model(operator, kernel_shape=[size, size], pads=pads, **_POOL, **more)


def _slice(start, end, step):
    parts = {"a": start, "b": end, "c": 0, "d": step}
    return _model("Slice", {name: np.array([n]) for name, n in parts.items()}, _X[0, 0])


def _old_resize(factor, mode="nearest"):
    scales = np.array([1, 1, factor, factor], np.float32)
    return _model("Resize", {"s": scales}, opset=10, mode=mode)


_CASES = {
    "no bounds": _model("Clip", opset=10),
    "a column as bias": _model("Gemm", {"w": _X[1, 0], "c": _X[1, 1, :, :1]}, _X[0, 0]),
    "a row as bias": _model("Gemm", {"w": _X[1, 0], "c": _X[1, 1, :1]}, _X[0, 0]),
    "one number as bias": _model("Gemm", {"w": _X[1, 0], "c": _X[1, 1, 0, 0]}, _X[0, 0]),
    "windows in the padding": _pool("MaxPool", 3, [0, 0, 2, 2]),
    "mean windows in the padding": _pool("AveragePool", 3, [0, 0, 2, 2]),
    "counted windows in the padding": _pool("AveragePool", 3, [0, 0, 2, 2], count_include_pad=1),
    "padding in front": _pool("MaxPool", 2, [1, 1, 0, 0]),
    "a small sum": _model("SkipLayerNormalization", {"s": _X[0, 0, 0]}, _X[0] * 1e-3, inputs=["x", "x", "s"], domain=_MS),
    "a small root": _model(
        "SkipSimplifiedLayerNormalization", {"s": _X[0, 0, 0]}, _X[0] * 1e-3, inputs=["x", "x", "s"], domain=_MS
    ),
    "smaller before opset 11": _old_resize(0.7),
    "linear before opset 11": _old_resize(0.6, "linear"),
    "larger before opset 11": _old_resize(1.5),
    "a whole base": _model("Pow", {"a": np.array(5)}, np.arange(4, dtype=np.float32), kind=INT, inputs=["a", "x"]),
    "a whole base of a part": _model("Pow", {"a": np.array(3)}, _X, kind=INT, inputs=["a", "x"]),
    "backwards from before the start": _slice(-9, -(2**31), -2),
    "backwards over nothing": _slice(1, 3, -1),
    "backwards before the start": _slice(-9, -2, -1),
    "backwards by two": _slice(-1, -(2**63), -2),
}  # fmt: skip


@pytest.mark.parametrize("name", _CASES)
def test_equals_onnx_runtime(name, tmp_path):
    proto, x = _CASES[name]
    compare(proto, {"x": x}, tmp_path)


def test_refuses_products_whose_batch_is_moved(tmp_path):
    proto, x = _model("FusedMatMul", {"w": _X[0]}, _X[1], domain=_MS, transBatchA=1)
    with pytest.raises(ModelError, match=r"'it'.*transBatchA"):
        run_imported(save(proto, tmp_path), {"x": x})


def test_places_that_count_from_the_end_are_calculated(tmp_path):
    nodes = [
        helper.make_node("Sub", ["x", "three"], ["p"]),
        helper.make_node("Gather", ["table", "p"], ["y"]),
    ]
    tensors = {"three": np.int64(3), "table": _X[0, 0]}
    proto = model(nodes, [value("x", [6], INT)], [value("y", None)], tensors)
    compare(proto, {"x": np.arange(6)}, tmp_path)


def test_initializers_of_a_branch_may_be_sizes(tmp_path):
    def branch(name, shape):
        node = helper.make_node("Reshape", ["x", name], [f"{name}_"])
        sizes = helper.make_tensor(name, INT, [2], shape)
        return helper.make_graph([node], name, [], [value(f"{name}_", None)], [sizes])

    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "one"], ["size"]),
        helper.make_node("Greater", ["size", "four"], ["long"]),
        helper.make_node(
            "If",
            ["long"],
            ["y"],
            then_branch=branch("a", [-1, 2]),
            else_branch=branch("b", [1, -1]),
        ),
    ]
    tensors = {"one": np.int64(1), "four": np.int64(4)}
    proto = model(nodes, [value("x", [2, "n"])], [value("y", None)], tensors)
    for size in (3, 5):
        compare(proto, {"x": _X[0, 0, :2, :size]}, tmp_path)
