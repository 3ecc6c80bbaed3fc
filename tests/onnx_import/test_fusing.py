"""Layers that are spelled out become one node each, and compute the same; others stay as they are."""

import math
from collections import Counter

import numpy as np
import pytest
from onnx import TensorProto, helper

from edgecompile.onnx_import.importer import import_onnx
from tests.onnx_import.graphs import compare, model, save, value

_NODE = helper.make_node
_RANDOM = np.random.default_rng(8)
_X = _RANDOM.standard_normal((2, 6, 8)).astype(np.float32)
_HEADS = _RANDOM.standard_normal((3, 2, 2, 6, 4)).astype(np.float32)
_TENSORS = {
    "w": _RANDOM.standard_normal((8, 8)).astype(np.float32), "vector": _X[0, 0], "scale": _X[0, 1], "bias": _X[0, 2],
    "matrix": _X[0], "half": np.float32(0.5), "one": np.float32(1), "two": np.float32(2), "root": np.float32(2**0.5),
    "inverse": np.float32(0.5**0.5), "epsilon": np.float32(1e-5), "zero": np.float32(0), "factor": np.float32(0.4),
    "off": np.float32(-math.inf), "last": np.array([-1]), "flat": np.array([-1, 6, 4]), "whole": np.array([2, 2, 4, 6]),
}  # fmt: skip


def _chain(*steps):
    """Nodes from texts as ``a = Add b c``; attributes are read from what looks like ``axis=1``."""
    nodes = []
    for step in steps:
        output, call = step.split(" = ")
        operator, *names = call.split()
        attributes = {n.split("=")[0]: _numbers(n.split("=")[1]) for n in names if "=" in n}
        inputs = [name for name in names if "=" not in name]
        nodes.append(_NODE(operator, inputs, [output], name=output, **attributes))
    return nodes


def _numbers(text):
    """A number, or numbers between commas."""
    numbers = [int(part) for part in text.split(",")]
    return numbers if "," in text or text == "-1" else numbers[0]


def _gelu(*last):
    return ["h = Identity x", "a = Div h root", "b = Erf a", "c = Add b one", *last]


_MEANS = ["m = ReduceMean x axes=-1", "d = Sub x m"]
_ENDS = [
    "v = ReduceMean p axes=-1",
    "e = Add v epsilon",
    "s = Sqrt e",
    "n = Div d s",
    "g = Mul n scale",
    "y = Add g bias",
]
_LAYERS = {
    "Linear": (["h = MatMul x w", "y = Add h vector"], True),
    "Linear, the bias first": (["h = MatMul x w", "y = Add vector h"], True),
    "Linear and a matrix": (["h = MatMul x w", "y = Add h matrix"], False),
    "Linear that is taken twice": (["h = MatMul x w", "b = Add h vector", "y = Mul b h"], False),
    "Gelu": (_gelu("d = Mul h c", "y = Mul d half"), True),
    "Gelu, half first": (_gelu("d = Mul h half", "y = Mul d c"), True),
    "Gelu, the sum halved": (_gelu("d = Mul c half", "y = Mul h d"), True),
    "Gelu by the inverse": (["a = Mul x inverse", "b = Erf a", "c = Add one b", "d = Mul x c", "y = Mul half d"], True),
    "Gelu of another width": (["a = Div x two", "b = Erf a", "c = Add b one", "d = Mul x c", "y = Mul d half"], False),
    "Gelu of two values": (_gelu("k = Neg x", "d = Mul k c", "y = Mul d half"), False),
    "LayerNormalization": ([*_MEANS, "p = Pow d two", *_ENDS], True),
    "LayerNormalization by products": ([*_MEANS, "p = Mul d d", *_ENDS], True),
    "LayerNormalization of two differences": ([*_MEANS, "d2 = Sub x m", "p = Pow d2 two", *_ENDS], True),
    "LayerNormalization of a cube": ([*_MEANS, "p = Mul d x", *_ENDS], False),
    "LayerNormalization of rows": (["m = ReduceMean x axes=1,2", *_MEANS[1:], "p = Pow d two", *_ENDS], False),
}  # fmt: skip


def _kinds(proto, folder):
    return Counter(node.operator for node in import_onnx(save(proto, folder)).module.nodes)


@pytest.mark.parametrize("name", _LAYERS)
def test_layers_are_found(name, tmp_path):
    steps, found = _LAYERS[name]
    proto = model(
        _chain(*steps), [value("x", list(_X.shape))], [value("y", None)], _TENSORS, opset=13
    )
    compare(proto, {"x": _X}, tmp_path)
    kinds = _kinds(proto, tmp_path)
    wanted = name.split()[0].rstrip(",")
    if wanted == "Linear":
        assert (kinds["Add"] == 0) == found
    else:
        assert (kinds[wanted] == 1) == found
        assert found == (kinds["Erf"] + kinds["ReduceMean"] == 0)


_PRODUCT = ["t = Transpose k perm=0,1,3,2", "s = MatMul q t"]
_END = ["p = Softmax z axis=-1", "y = MatMul p v"]
_SAFE = ["p = Softmax z axis=-1", "i = IsNaN p", "u = Where i zero p", "y = MatMul u v"]
_ATTENTIONS = {
    "plain": (["z = Identity q", *_PRODUCT, "p = Softmax s axis=3", "y = MatMul p v"], True),
    "scaled": ([*_PRODUCT, "z = Mul s factor", *_END], True),
    "divided": ([*_PRODUCT, "z = Div s root", *_END], True),
    "scaled before": (["t = Transpose k perm=0,1,3,2", "a = Mul q factor", "b = Mul factor t", "z = MatMul a b", *_END], True),
    "masked by numbers": ([*_PRODUCT, "z = Add numbers s", *_END], True),
    "masked by truth": ([*_PRODUCT, "n = Where seen zero off", "z = Add s n", *_SAFE], True),
    "masked by parts": ([*_PRODUCT, "n = Where seen one off", "z = Add s n", *_SAFE], True),
    "scaled and masked": ([*_PRODUCT, "a = Div s two", "z = Add a numbers", *_SAFE], True),
    "through three dimensions": (
        ["f = Reshape k flat", "t3 = Transpose f perm=0,2,1", "t = Reshape t3 whole", "z = MatMul q t", *_END], True,
    ),
    "along another axis": ([*_PRODUCT, "p = Softmax s axis=2", "y = MatMul p v"], False),
    "divided by a product": (["t = Transpose k perm=0,1,3,2", "s = MatMul q t", "z = Div two s", *_END], False),
    "taken twice": ([*_PRODUCT, "p = Softmax s axis=-1", "o = MatMul p v", "r = ReduceSum p last", "y = Mul o r"], False),
}  # fmt: skip


def _attention(steps):
    """A model of heads ``[2, 2, 6, 4]``, of which one row sees nothing."""
    steps = [step.replace("axis=-1", "axis=3") for step in steps]
    seen = np.tril(np.ones((6, 6), bool))
    seen[2] = False
    feeds = {"seen": seen, "numbers": _HEADS[0, 0, 0] @ _HEADS[1, 0, 0].T}
    feeds.update(zip("qkv", _HEADS, strict=True))
    kinds = {"seen": TensorProto.BOOL}
    taken = {name for step in steps for name in step.split()}
    feeds = {name: array for name, array in feeds.items() if name in taken}
    given = [value(n, list(a.shape), kinds.get(n, TensorProto.FLOAT)) for n, a in feeds.items()]
    return model(_chain(*steps), given, [value("y", None)], _TENSORS, opset=13), feeds


@pytest.mark.parametrize("name", _ATTENTIONS)
def test_attention_is_found(name, tmp_path):
    steps, found = _ATTENTIONS[name]
    proto, feeds = _attention(steps)
    compare(proto, feeds, tmp_path)
    kinds = _kinds(proto, tmp_path)
    assert (kinds["Attention"], kinds["MatMul"]) == ((1, 0) if found else (0, 2))


@pytest.mark.parametrize(
    ("mask", "sizes"),
    [
        *((shape, {}) for shape in ((), (6,), (1,), (6, 1), (2, 1, 6), (1, 1, 1, 1), (2, 2, 6, 6))),
        # Masks that make the logits wider: in the batch, the heads, the rows, the keys and by a dimension.
        ((3, 1, 6, 6), {"q": (1, 2, 6, 4), "k": (1, 2, 6, 4), "v": (1, 2, 6, 4)}),
        ((1, 2, 6, 6), {"q": (2, 1, 6, 4), "k": (2, 1, 6, 4), "v": (2, 1, 6, 4)}),
        ((6, 6), {"q": (2, 2, 1, 4)}),
        ((6, 6), {"k": (2, 2, 1, 4)}),
        ((3, 1, 1, 6, 6), {}),
    ],
)
@pytest.mark.parametrize("truth", [False, True])
def test_masks_of_any_shape(mask, sizes, truth, tmp_path):
    steps = [*_PRODUCT, "n = Where m zero off", "z = Add s n", *_SAFE]
    if not truth:
        steps = [*_PRODUCT, "z = Add s m", *_END]
    steps = [step.replace(" axis=-1", "") for step in steps]  # as it is where none is said
    numbers = _RANDOM.standard_normal(mask).astype(np.float32)
    feeds = {"m": np.array(numbers > 0 if truth else numbers)}
    for name in "qkv":
        feeds[name] = _RANDOM.standard_normal(sizes.get(name, (2, 2, 6, 4))).astype(np.float32)
    kinds = {"m": TensorProto.BOOL if truth else TensorProto.FLOAT}
    given = [value(n, list(a.shape), kinds.get(n, TensorProto.FLOAT)) for n, a in feeds.items()]
    proto = model(_chain(*steps), given, [value("y", None)], _TENSORS)
    compare(proto, feeds, tmp_path)
    assert _kinds(proto, tmp_path)["Attention"] == 1


def test_attention_of_other_ranks_stays_a_product(tmp_path):
    steps = [
        "t = Transpose k perm=0,2,1",
        "s = MatMul q t",
        "z = Mul s factor",
        "p = Softmax z axis=2",
        "y = MatMul p v",
    ]
    feeds = dict(zip("qkv", _HEADS[:, 0], strict=True))
    given = [value(n, list(a.shape)) for n, a in feeds.items()]
    proto = model(_chain(*steps), given, [value("y", None)], _TENSORS, opset=13)
    compare(proto, feeds, tmp_path)


@pytest.mark.parametrize("axis", ["", " axis=3"])
@pytest.mark.parametrize("opset", [11, 12, 13])
def test_attention_of_five_dimensions(opset, axis, tmp_path):
    """The fourth of them isn't the last, and before opset 13 makes one row with it."""
    steps = [
        "t = Transpose k perm=0,1,2,4,3",
        "s = MatMul q t",
        "z = Mul s factor",
        f"p = Softmax z{axis}",
        "y = MatMul p v",
    ]
    wide = {name: array[None] for name, array in zip("qkv", _HEADS, strict=True)}
    given = [value(n, list(a.shape)) for n, a in wide.items()]
    proto = model(_chain(*steps), given, [value("y", None)], _TENSORS, opset=opset)
    compare(proto, wide, tmp_path)


def test_what_an_inner_graph_takes_stays(tmp_path):
    branch = [
        helper.make_graph([_NODE(operator, ["h"], [name])], name, [], [value(name, None)])
        for name, operator in (("t", "Neg"), ("f", "Abs"))
    ]
    nodes = [
        *_chain(
            "h = MatMul x w",
            "y = Add h vector",
            "s = Shape x",
            "n = Gather s at",
            "c = Greater n four",
        ),
        _NODE("If", ["c"], ["z"], then_branch=branch[0], else_branch=branch[1]),
    ]
    tensors = {**_TENSORS, "at": np.int64(0), "four": np.int64(4)}
    proto = model(
        nodes, [value("x", ["n", 8])], [value("y", None), value("z", None)], tensors, opset=13
    )
    for rows in (3, 5):
        compare(proto, {"x": _X.reshape(-1, 8)[:rows]}, tmp_path)
