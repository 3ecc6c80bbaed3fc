"""What ONNX has no tests of: layers, fused operators of ONNX Runtime, and files of few bits."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.onnx_import.graphs import FLOAT, INT, compare, model, value

_RANDOM = np.random.default_rng(3)


def _array(*shape):
    return _RANDOM.standard_normal(shape).astype(np.float32)


def _fused(operator, inputs, tensors, feeds, outputs=1, domain="com.microsoft", **attributes):
    """A model of one node; the names of its outputs are y0, y1 and so on."""
    names = [f"y{number}" for number in range(outputs)]
    node = helper.make_node(operator, inputs, names, domain=domain, **attributes)
    kinds = {"float32": FLOAT, "int64": INT, "int32": TensorProto.INT32}
    given = [value(n, list(a.shape), kinds[a.dtype.name]) for n, a in feeds.items()]
    return model([node], given, [value("y0", None)], tensors), feeds


_X, _IDS = _array(2, 6, 8), np.arange(12, dtype=np.int32).reshape(2, 6)
_MASK = np.array([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]], np.int32)
_NORM = {"scale": _array(8), "beta": _array(8)}
_CASES = {
    "Gelu": _fused("Gelu", ["x"], {}, {"x": _X}),
    "BiasGelu": _fused("BiasGelu", ["x", "beta"], _NORM, {"x": _X}),
    "FastGelu": _fused("FastGelu", ["x", "beta"], _NORM, {"x": _X}),
    "QuickGelu": _fused("QuickGelu", ["x"], {}, {"x": _X}, alpha=1.702),
    "SkipLayerNormalization": _fused(
        "SkipLayerNormalization", ["x", "skip", "scale", "beta"], _NORM, {"x": _X, "skip": _array(2, 6, 8)}
    ),
    "SkipSimplifiedLayerNormalization": _fused(
        "SkipSimplifiedLayerNormalization", ["x", "skip", "scale"], {"scale": _array(8)},
        {"x": _X, "skip": _array(2, 6, 8)}, epsilon=1e-5,
    ),
    "SimplifiedLayerNormalization": _fused(
        "SimplifiedLayerNormalization", ["x", "scale"], {"scale": _array(8)}, {"x": _X}, domain="", epsilon=1e-5
    ),
    "EmbedLayerNormalization": _fused(
        "EmbedLayerNormalization",
        ["ids", "segments", "words", "positions", "kinds", "scale", "beta", "mask"],
        {"words": _array(20, 8), "positions": _array(9, 8), "kinds": _array(2, 8), **_NORM},
        {"ids": _IDS, "segments": _MASK, "mask": _MASK}, outputs=2,
    ),
    "Attention": _fused(
        "Attention", ["x", "w", "b", "mask"], {"w": _array(8, 24), "b": _array(24)}, {"x": _X, "mask": _MASK},
        num_heads=2,
    ),
    "Attention, causal": _fused(
        "Attention", ["x", "w", "b"], {"w": _array(8, 24), "b": _array(24)}, {"x": _X}, num_heads=2,
        unidirectional=1,
    ),
    "Attention, counts": _fused(
        "Attention", ["x", "w", "b", "mask"], {"w": _array(8, 24), "b": _array(24)},
        {"x": _X, "mask": np.array([4, 6], np.int32)}, num_heads=2,
    ),
    "MultiHeadAttention": _fused(
        "MultiHeadAttention", ["x", "k", "v"], {}, {"x": _X, "k": _array(2, 5, 8), "v": _array(2, 5, 8)}, num_heads=2
    ),
    "FusedMatMul": _fused("FusedMatMul", ["x", "k"], {}, {"x": _X, "k": _array(2, 5, 8)}, transB=1, alpha=0.5),
    "MatMulNBits": _fused(
        "MatMulNBits", ["x", "w", "s"],
        {"w": _RANDOM.integers(0, 255, (3, 2, 8), np.uint8), "s": _array(6)}, {"x": _array(2, 32)},
        K=32, N=3, bits=4, block_size=16,
    ),
    "MatMulNBits, zero points": _fused(
        "MatMulNBits", ["x", "w", "s", "z"],
        {"w": _RANDOM.integers(0, 255, (3, 2, 8), np.uint8), "s": _array(6), "z": np.array([135, 26, 249], np.uint8)},
        {"x": _array(2, 32)}, K=32, N=3, bits=4, block_size=16,
    ),
    "GRU": _fused(
        "GRU", ["x", "w", "r", "b"], {"w": _array(2, 15, 8), "r": _array(2, 15, 5), "b": _array(2, 30)}, {"x": _X},
        outputs=2, domain="", hidden_size=5, direction="bidirectional", linear_before_reset=1,
    ),
    "LSTM": _fused(
        "LSTM", ["x", "w", "r", "b", "", "h", "c"],
        {"w": _array(1, 20, 8), "r": _array(1, 20, 5), "b": _array(1, 40), "h": _array(1, 6, 5)},
        {"x": _X, "c": _array(1, 6, 5)}, outputs=3, domain="", hidden_size=5, direction="reverse",
    ),
    "RNN": _fused(
        "RNN", ["x", "w", "r"], {"w": _array(1, 5, 8), "r": _array(1, 5, 5)}, {"x": _X}, outputs=2, domain="",
        hidden_size=5,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", _CASES)
def test_equals_onnx_runtime(name, tmp_path):
    proto, feeds = _CASES[name]
    compare(proto, feeds, tmp_path)


def test_takes_the_branch_that_shapes_settle(tmp_path):
    def branch(name, operator):
        node = helper.make_node(operator, ["x"], [name])
        return helper.make_graph([node], name, [], [value(name, None)])

    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "one"], ["size"]),
        helper.make_node("Greater", ["size", "four"], ["long"]),
        helper.make_node(
            "If", ["long"], ["y"], then_branch=branch("a", "Neg"), else_branch=branch("b", "Exp")
        ),
    ]
    tensors = {"one": np.int64(1), "four": np.int64(4)}
    proto = model(nodes, [value("x", [2, "n"])], [value("y", [2, "n"])], tensors)
    for size in (3, 5):
        compare(proto, {"x": _array(2, size)}, tmp_path)


def test_takes_weights_of_four_bits(tmp_path):
    numbers = np.array([[-8, 7, 3], [0, -1, 5]], np.float32)
    weights = helper.make_tensor("w", TensorProto.INT4, [2, 3], numbers.astype(int).flatten())
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["d"], axis=0),
        helper.make_node("MatMul", ["x", "d"], ["y"]),
    ]
    proto = model(nodes, [value("x", [4, 2])], [value("y", [4, 3])], {"s": _array(2)}, opset=21)
    proto.ir_version = 10
    proto.graph.initializer.append(weights)
    compare(proto, {"x": _array(4, 2)}, tmp_path)
